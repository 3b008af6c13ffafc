"""A switch that stops a Spark query's Python processes at chosen points; no part of the product knows of it.

Put first on PYTHONPATH, it is imported by every Python that a driver starts: driver, planner, workers, committer. It
wraps the source's and the sink's methods when their modules are imported. RMQ_KILL_SWITCH names a directory, where

- `armed.json` lists {"point", "nth", "action"}: at the nth call of that point, counted over all processes, do it;
- `count.POINT` has one byte a call;
- `reached.POINT.NTH` is written when it happens, with the process id in it;
- `release.POINT.NTH` lets a process go on that waits.

Actions: `stop` waits (to be killed from outside, with everything else), `note` goes on, `die` kills this process alone,
`orphan` waits as `stop` does, but survives the death of the driver and goes on when it is released.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

PLACE = Path(os.environ["RMQ_KILL_SWITCH"])

METHODS = {
    "rmq_spark.spark.stream_reader": {
        "RocketMQStreamReader.initialOffset": "start",
        "RocketMQStreamReader.latestOffset": "latest",
        "RocketMQStreamReader.partitions": "plan",
        "RocketMQStreamReader.commit": "source-commit",
    },
    "rmq_spark.spark.writer": {
        "_Sink.__init__": "sink-plan",
        "_Sink._write_file": "file",
        "RocketMQStreamWriter.commit": "commit",
        "RocketMQStreamWriter.abort": "abort",
    },
    "rmq_spark.spark.sink_commit": {"_append": "append"},
    "rmq_spark.spark.listener": {"GroupTracker.onQueryProgress": "progress"},
}
"""Module -> what is wrapped in it -> name of the point; `NAME-begin` is before the call, `NAME-end` after it."""


def passing(point: str) -> None:
    """Count a call of this point, and do what was asked for there."""
    fd = os.open(PLACE / f"count.{point}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        os.write(fd, b".")
        number = os.lseek(fd, 0, os.SEEK_CUR)  # behind this byte, whoever writes at the same time
    finally:
        os.close(fd)
    for armed in json.loads((PLACE / "armed.json").read_text()):
        if armed["point"] == point and armed["nth"] == number:
            _act(armed["action"], f"{point}.{number}")


def _act(action: str, name: str) -> None:
    if action == "orphan":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Spark's daemon ends its workers by it when the driver is gone
    new = PLACE / f".new.{name}"
    new.write_text(str(os.getpid()))
    new.rename(PLACE / f"reached.{name}")
    if action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while action != "note" and not (PLACE / f"release.{name}").exists():
        time.sleep(0.005)


def _wrapped(original: Callable[..., Any], point: str) -> Callable[..., Any]:
    @functools.wraps(original)  # Spark looks at signatures
    def call(*args: Any, **kwargs: Any) -> Any:
        passing(f"{point}-begin")
        result = original(*args, **kwargs)
        passing(f"{point}-end")
        return result

    return call


def _counted(batches: Iterator[Any], point: str) -> Iterator[Any]:
    for batch in batches:
        yield batch
        passing(f"{point}-batch")


def _patch(module: ModuleType) -> None:
    for path, point in METHODS[module.__name__].items():
        *owner, name = path.split(".")
        place = functools.reduce(getattr, owner, module)
        setattr(place, name, _wrapped(getattr(place, name), point))
    if module.__name__ == "rmq_spark.spark.stream_reader":
        _patch_read(module.RocketMQStreamReader)
    if module.__name__ == "rmq_spark.spark.writer":
        _patch_write(module)


def _patch_read(reader: Any) -> None:
    original = reader.read

    @functools.wraps(original)
    def read(self: Any, partition: Any) -> Iterator[Any]:
        passing("read-begin")
        yield from _counted(original(self, partition), "read")
        passing("read-end")

    reader.read = read


def _patch_write(module: Any) -> None:
    original = module._Sink.write

    @functools.wraps(original)
    def write(self: Any, batches: Iterator[Any]) -> Any:
        passing("write-begin")
        message = original(self, _counted(batches, "write"))
        passing("write-end")
        return message

    module._Sink.write = write
    # Small batches and yet several row files a task, if the test wants them: otherwise rows travel to the driver.
    if size := os.environ.get("RMQ_KILL_SWITCH_FILE_BYTES"):
        module.FILE_BYTES = int(size)
        module.INLINE_TASK_BYTES = 0


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in METHODS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None, name
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
