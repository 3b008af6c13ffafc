"""RocketMQ's own filter classes in a JVM behind a pipe: what our filters are compared with."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rmq_spark.errors import UnavailableError
from rmq_spark.testing.jars import ensure_jars, java_command


@contextlib.contextmanager
def filter_oracle() -> Iterator[FilterOracle]:
    """Start the JVM with RocketMQ's filter classes; it is gone when the context ends.

    Raises:
        UnavailableError: there is no Java, or the jar set `rocketmq-filter` could not be fetched.
    """
    class_path = os.pathsep.join(map(str, ensure_jars("rocketmq-filter")))
    source = Path(__file__).with_name("java") / "FilterOracle.java"
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", class_path]
    # Errors go to a file: an unread pipe would fill up and block the JVM.
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,
        subprocess.Popen(
            [java_command(), *options, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
        ) as child,
    ):
        try:
            yield FilterOracle(child, log)
        finally:
            child.kill()


class FilterOracle:
    """A JVM that answers requests one line each, in order; `java/FilterOracle.java` describes them."""

    def __init__(self, child: subprocess.Popen[str], log: IO[str]) -> None:
        self._child = child
        self._log = log

    def ask(self, requests: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the answer to each request; they are written by a thread, so any number can be under way.

        Raises:
            UnavailableError: the JVM ended; the message holds what it said.
        """
        lines = [json.dumps(request) for request in requests]
        writer = threading.Thread(target=self._write, args=(lines,), daemon=True)
        writer.start()
        assert self._child.stdout is not None
        for _ in lines:
            answer = self._child.stdout.readline()
            if not answer:
                self._child.wait()
                self._log.seek(0)
                raise UnavailableError(f"the filter oracle ended; it said:\n{self._log.read()}")
            yield json.loads(answer)
        writer.join()

    def _write(self, lines: Sequence[str]) -> None:
        assert self._child.stdin is not None
        # When the JVM has ended, the reader of the answers reports it, with the log.
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write("".join(f"{line}\n" for line in lines))
            self._child.stdin.flush()
