"""The half of the local backend that changes nothing, and what POSIX error numbers mean to a caller."""

# Why: this module chooses system calls; pathlib hides them and costs time on the hot path.
# ruff: noqa: PTH100, PTH112, PTH116, PTH120
from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from rmq_spark.errors import (
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    ReadOnlyError,
    RmqError,
    StorageFullError,
    UnavailableError,
)
from rmq_spark.storage.base import ObjectInfo, PlainStorage, check_ranges, too_short

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_BAD_NAME: Final = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})
_MISPLACED: Final = frozenset({errno.ENOTDIR, errno.EISDIR})

POOLED_BYTES: Final = 128 * 1024
"""From this size on, what is read goes into memory from Arrow's pool."""


def translate(error: OSError, path: str) -> RmqError:
    """The error a caller can act on, for a call that changed nothing."""
    facts = {"path": path, "reason": error.strerror}
    if error.errno in _FULL:
        return StorageFullError("the disk or the quota is full; free some space. Nothing was written", **facts)
    if error.errno == errno.EFBIG:
        # Waiting does not help: the size is wrong for this disk or this process, so it is the request that is.
        return InvalidRequestError(
            "the file is larger than the file system or this process's limit (ulimit -f) allows; "
            "raise the limit, or write smaller batches and segments. Nothing was written",
            **facts,
        )
    if error.errno in _READ_ONLY:
        return ReadOnlyError("the operating system does not permit this; check owner, mode and mount", **facts)
    if error.errno in _BAD_NAME:
        return InvalidRequestError("the file system does not take this name", **facts)
    if error.errno in _MISPLACED:
        return CorruptDataError("a file stands where a directory belongs, or the reverse; move it away", **facts)
    return UnavailableError("the file system refused the call", **facts)


def read_exactly(fd: int, start: int, length: int) -> bytes:
    """Read `length` bytes from `start`, fewer only if the file ends before."""
    first = os.pread(fd, length, start)
    if len(first) == length or not first:
        return first
    # One call returns at most 2 GiB, and a network mount may return less at any time.
    pieces = [first]
    got = len(first)
    while got < length:
        piece = os.pread(fd, length - got, start + got)
        if not piece:
            break
        pieces.append(piece)
        got += len(piece)
    return b"".join(pieces)


def read_pooled(fd: int, start: int, length: int) -> memoryview:
    """As `read_exactly`, into memory from Arrow's pool.

    The pool keeps what it is given back. Large objects of Python's come from the system each time, page by page, which
    takes a scan as long as reading the bytes.
    """
    buffer = memoryview(pa.allocate_buffer(length)).cast("B")
    got = 0
    while got < length:
        count = os.preadv(fd, [buffer[got:]], start + got)
        if not count:
            break
        got += count
    return buffer[:got]


def _read_range(fd: int, path: str, start: int, length: int) -> bytes | memoryview:
    content = read_exactly(fd, start, length) if length < POOLED_BYTES else read_pooled(fd, start, length)
    size = os.fstat(fd).st_size if len(content) != length or not length else start + length
    if start + length > size or len(content) != length:
        raise too_short(path, start, length, size)
    return content


class LocalReader(PlainStorage):
    """Reads files below a directory; see `LocalStorage` for the whole backend."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._prefix = self._root.rstrip("/") + "/"

    @property
    def uri(self) -> str:
        """The directory's absolute path."""
        return self._root

    def read(self, path: str) -> bytes:
        fd = self._open(path)
        try:
            return read_exactly(fd, 0, os.fstat(fd).st_size)
        except OSError as error:
            raise self._read_error(error, path) from error
        finally:
            os.close(fd)

    def read_range(self, path: str, start: int, length: int) -> bytes | memoryview:
        return self.read_ranges(path, ((start, length),))[0]

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        check_ranges(ranges)
        fd = self._open(path)
        try:
            return [_read_range(fd, path, start, length) for start, length in ranges]
        except OSError as error:
            raise self._read_error(error, path) from error
        finally:
            os.close(fd)

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        if length < 0:
            raise InvalidRequestError("a tail needs length >= 0", length=length)
        fd = self._open(path)
        try:
            size = os.fstat(fd).st_size
            wanted = min(length, size)
            return read_exactly(fd, size - wanted, wanted), size
        except OSError as error:
            raise self._read_error(error, path) from error
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        try:
            return stat.S_ISREG(os.stat(self._full(path)).st_mode)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in _ABSENT:
                return False
            raise translate(error, path) from error

    def list(self, directory: str) -> Iterator[ObjectInfo]:
        try:
            entries = os.scandir(self._full(directory) if directory else self._root)
        except OSError as error:
            if error.errno in _ABSENT:
                return
            raise translate(error, directory) from error
        with entries:
            for entry in entries:
                if entry.name[0] == ".":
                    continue
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue  # deleted while we were listing
                if stat.S_ISREG(status.st_mode):
                    modified_ms = status.st_mtime_ns // 1_000_000
                    yield ObjectInfo(name=entry.name, size=status.st_size, modified_ms=modified_ms)

    def disk_usage(self) -> tuple[int, int] | None:
        """Return (used, total) of the file system; what is reserved for root counts in neither."""
        place = self._root
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        try:
            status = os.statvfs(place)
        except OSError as error:
            raise translate(error, place) from error
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        return used, used + status.f_bavail * status.f_frsize

    def _full(self, path: str) -> str:
        if path[:1] == "/" or (".." in path and ".." in path.split("/")):
            raise InvalidRequestError("paths are relative to the store and stay inside it", path=path)
        return self._prefix + path

    def _open(self, path: str) -> int:
        try:
            return os.open(self._full(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._read_error(error, path) from error

    def _read_error(self, error: OSError, path: str) -> RmqError:
        if error.errno in _ABSENT:
            return NotFoundError("there is no such file", path=path, store=self._root)
        return translate(error, path)
