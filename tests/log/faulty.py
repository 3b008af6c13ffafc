"""Storages and file operations that misbehave on demand, and small helpers for tests of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rmq_spark.clock import Clock
from rmq_spark.errors import PreconditionFailedError
from rmq_spark.log.commit_log import AppendResult, CommitLog
from rmq_spark.log.fold import Fold
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision
from rmq_spark.log.state import LogState
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage.base import Bytes, ObjectInfo, PlainStorage, Storage, Watch
from rmq_spark.storage.local import FileOps
from rmq_spark.storage.memory import MemoryStorage

ROOT = "brokers/b"
BROKER = "b"


class Wrapped(PlainStorage):
    """A storage around another one; tests set the hooks they need."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.before_create: Callable[[str], None] | None = None
        """May raise instead of the create."""
        self.after_create: Callable[[str], None] | None = None
        """May raise although the create happened."""
        self.usage: tuple[int, int] | None = None
        self.created: list[str] = []

    @property
    def uri(self) -> str:
        return self.inner.uri

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.inner.read_range(path, start, length)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read_range(path, start, length) for start, length in ranges]

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        return self.inner.read_tail(path, length)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def list(self, directory: str) -> Iterator[ObjectInfo]:
        return self.inner.list(directory)

    def create_if_absent(self, path: str, data: Sequence[Bytes], *, durable: bool = True) -> None:
        if self.before_create is not None:
            self.before_create(path)
        self.inner.create_if_absent(path, data, durable=durable)
        self.created.append(path)
        if self.after_create is not None:
            self.after_create(path)

    def sync(self, paths: Sequence[str]) -> None:
        self.inner.sync(paths)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def disk_usage(self) -> tuple[int, int] | None:
        return self.usage if self.usage is not None else self.inner.disk_usage()

    def turn(self, directory: str, timeout: float) -> AbstractContextManager[bool]:
        return self.inner.turn(directory, timeout)

    def watch(self, directory: str) -> Watch | None:
        return self.inner.watch(directory)

    def keep_reserve(self) -> int:
        return self.inner.keep_reserve()

    def release_reserve(self) -> int:
        return self.inner.release_reserve()

    def sweep_temp(self, older_than_ms: int, now_ms: int) -> int:
        return self.inner.sweep_temp(older_than_ms, now_ms)

    def close(self) -> None:
        self.inner.close()


class FailingOps(FileOps):
    """File operations of which one kind fails while `error` is set."""

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.failing: str = ""
        self.synced: list[str] = []
        self._paths: dict[int, str] = {}

    def _maybe(self, call: str) -> None:
        if self.error is not None and call == self.failing:
            raise self.error

    def open_new(self, path: str) -> int:
        self._maybe("open_new")
        fd = super().open_new(path)
        self._paths[fd] = path
        return fd

    def open_existing(self, path: str) -> int:
        fd = super().open_existing(path)
        self._paths[fd] = path
        return fd

    def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
        self._maybe("writev")
        return super().writev(fd, pieces)

    def fsync(self, fd: int) -> None:
        self._maybe("fsync")
        self.synced.append(Path(self._paths[fd]).name)

    def link(self, source: str, target: str) -> None:
        self._maybe("link")
        super().link(source, target)

    def mkdir(self, path: str) -> None:
        self._maybe("mkdir")
        super().mkdir(path)

    def fsync_dir(self, path: str) -> None:
        self._maybe("fsync_dir")


def open_log(
    storage: Storage | None = None,
    *,
    clock: Clock | None = None,
    folds: Iterable[type[Fold]] = (),
    **settings: Any,
) -> CommitLog:
    given = {"delete_grace_ms": 0, "append_timeout_ms": 300, **settings}
    return CommitLog(
        storage if storage is not None else MemoryStorage(),
        ROOT,
        BROKER,
        settings=LogSettings(**given),
        clock=clock,
        folds=folds,
    )


def message(msg_id: str, *, topic: str = "t", queue: int = 0, body: bytes = b"x") -> MessageBatch:
    return MessageBatch.of(topic=topic, queue_id=queue, msg_id=msg_id, body=body, born_timestamp_ms=0)


def ids(log: CommitLog, **query: Any) -> list[str]:
    """Visible message ids in the order of the log."""
    from rmq_spark.log.scan import Query

    found: list[tuple[int, str]] = []
    for batch in log.scan(Query(columns=("commitOffset", "msgId", "topic"), **query)):
        rows = zip(*(batch.column(index).to_pylist() for index in range(3)), strict=True)
        found += [(offset, msg_id) for offset, msg_id, topic in rows if not topic.startswith("rmq_sys_")]
    return [msg_id for _, msg_id in sorted(found)]


def forget_files(log: CommitLog) -> None:
    """Let a handle read files anew: what it keeps of them is gone."""
    with log.files._lock:
        log.files._kept.clear()
        log.files._kept_bytes = 0


def append_if(log: CommitLog, batch: MessageBatch, expect: Callable[[LogState], str | None]) -> AppendResult:
    """Append `batch` as a decision: only if `expect` has nothing against it at the position where it lands."""

    def rule(state: LogState) -> Decision[None]:
        if (reason := expect(state)) is not None:
            raise PreconditionFailedError(reason)
        return Decision(None, batch)

    return log.decide(rule).result
