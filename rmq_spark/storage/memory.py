"""A store in this process's memory: for tests, examples and simulations. It is gone with the process.

Why `create_if_absent` is *atomic*: one lock guards the test and the insertion. Why it is *complete*: the
joined bytes are inserted by one assignment. Other processes, forked ones included, see nothing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final

from rmq_spark.clock import Clock, SystemClock
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.storage.base import Bytes, ObjectInfo, PlainStorage, Watch, check_ranges, too_short
from rmq_spark.storage.readback import exists_error, join


class _Tree:
    """The files of one named store: directory, then name, then content and time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.grown = threading.Condition(self.lock)
        """Notified when a file was created."""
        self.directories: dict[str, dict[str, tuple[bytes, int]]] = {}
        self.created: dict[str, int] = {}
        """Directory -> how many files were ever created there."""


_trees: Final[dict[str, _Tree]] = {}
_trees_lock: Final = threading.Lock()


class MemoryWatch:
    """Watches one directory of a tree; see `Watch`."""

    def __init__(self, tree: _Tree, directory: str) -> None:
        self._tree = tree
        self._directory = directory
        self._closed = False
        with tree.lock:
            self._seen = tree.created.get(directory, 0)

    def wait(self, timeout_seconds: float) -> bool:
        """See `Watch.wait`."""
        with self._tree.grown:
            self._tree.grown.wait_for(lambda: self._closed or self._created() != self._seen, timeout_seconds)
            before, self._seen = self._seen, self._created()
            return not self._closed and self._seen != before

    def close(self) -> None:
        """See `Watch.close`."""
        with self._tree.grown:
            self._closed = True
            self._tree.grown.notify_all()

    def _created(self) -> int:
        return self._tree.created.get(self._directory, 0)


class MemoryStorage(PlainStorage):
    """Files in a dictionary; all handles of one name in this process share it.

    Args:
        name: what follows `memory://`; without one the store is this handle's own.
        clock: stamps new files.
    """

    def __init__(self, name: str | None = None, *, clock: Clock | None = None) -> None:
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._name = name
        if name is None:
            self._tree = _Tree()
        else:
            with _trees_lock:
                self._tree = _trees.setdefault(name, _Tree())

    @staticmethod
    def forget(name: str) -> None:
        """Give up the named store: handles that are open keep it, the next one starts empty."""
        with _trees_lock:
            _trees.pop(name, None)

    @property
    def uri(self) -> str:
        return f"memory://{self._name or ''}"

    def read(self, path: str) -> bytes:
        return self._file(path)[0]

    def read_range(self, path: str, start: int, length: int) -> bytes:
        check_ranges([(start, length)])
        content = self._file(path)[0]
        if start + length > len(content):
            raise too_short(path, start, length, len(content))
        return content[start : start + length]

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read_range(path, start, length) for start, length in ranges]

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        if length < 0:
            raise InvalidRequestError("a tail needs length >= 0", length=length)
        content = self._file(path)[0]
        return content[max(0, len(content) - length) :], len(content)

    def exists(self, path: str) -> bool:
        directory, name = _split(path)
        with self._tree.lock:
            return name in self._tree.directories.get(directory, {})

    def list(self, directory: str) -> Iterator[ObjectInfo]:
        with self._tree.lock:
            files = list(self._tree.directories.get(directory, {}).items())
        for name, (content, modified_ms) in files:
            yield ObjectInfo(name=name, size=len(content), modified_ms=modified_ms)

    def create_if_absent(self, path: str, data: Sequence[Bytes], *, durable: bool = True) -> None:
        """See `Storage.create_if_absent`; `durable` has no meaning here."""
        directory, name = _split(path)
        content = join(data)
        now_ms = self._clock.now_ms()
        with self._tree.lock:
            files = self._tree.directories.setdefault(directory, {})
            if name not in files:
                files[name] = (content, now_ms)
                self._tree.created[directory] = self._tree.created.get(directory, 0) + 1
                self._tree.grown.notify_all()
            there = files[name]
        if there[0] != content:
            raise exists_error(path)

    def sync(self, paths: Sequence[str]) -> None:
        """Check that the files are there; nothing of them survives power loss anyway."""
        for path in paths:
            self._file(path)

    def delete(self, path: str) -> None:
        directory, name = _split(path)
        with self._tree.lock:
            self._tree.directories.get(directory, {}).pop(name, None)

    def watch(self, directory: str) -> Watch | None:
        return MemoryWatch(self._tree, directory)

    def close(self) -> None:
        """Nothing to release: the named store stays for other handles until `forget`."""

    def _file(self, path: str) -> tuple[bytes, int]:
        directory, name = _split(path)
        with self._tree.lock:
            file = self._tree.directories.get(directory, {}).get(name)
        if file is None:
            raise NotFoundError("there is no such file", path=path, store=self.uri)
        return file


def _split(path: str) -> tuple[str, str]:
    directory, _, name = path.rpartition("/")
    if not name or path[0] == "/" or (".." in path and ".." in path.split("/")):
        raise InvalidRequestError("paths are relative to the store, name a file and stay inside", path=path)
    return directory, name
