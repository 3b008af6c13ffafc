"""A little room on the disk that only maintenance may use: a file that is removed when the disk is full.

Expiry has to write a small file (the mark that moves the log's start) before it may delete large ones. On a disk
without a single free block it could do neither.
"""

# Why: this module chooses system calls, as its neighbours do.
# ruff: noqa: PTH116
from __future__ import annotations

import errno
import os
from typing import Final

from rmq_spark.errors import ReadOnlyError, StorageFullError
from rmq_spark.storage.local_ops import FileOps
from rmq_spark.storage.local_read import translate

RESERVE_BYTES: Final = 4 * 1024 * 1024
"""Size of the reserve; on a small disk it is one part in `SMALL_PART` of it."""

SMALL_PART: Final = 32

_ROOM_FACTOR: Final = 4
"""The reserve is made only where so many times its size is free."""


def make_reserve(path: str, ops: FileOps) -> int:
    """Make the reserve if it is missing and there is room; return its size, 0 if there is none.

    Several processes may do this at once: each asks for the same room in the same file.
    """
    there = reserve_bytes(path)
    if there:
        return there
    directory = path.rpartition("/")[0]
    try:
        status = os.statvfs(directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return 0  # no store yet
        raise translate(error, path) from error
    size = min(RESERVE_BYTES, status.f_blocks * status.f_frsize // SMALL_PART)
    if size <= 0 or status.f_bavail * status.f_frsize < _ROOM_FACTOR * size:
        return 0
    try:
        _allocate(path, size, ops)
    except OSError as error:
        refused = translate(error, path)
        if isinstance(refused, ReadOnlyError):
            return 0  # who may not write here needs no reserve
        remove_reserve(path, ops)
        if isinstance(refused, StorageFullError):
            return 0
        raise refused from error
    return reserve_bytes(path)


def remove_reserve(path: str, ops: FileOps) -> int:
    """Remove the reserve; return how many bytes it had."""
    there = reserve_bytes(path)
    try:
        ops.unlink(path)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise translate(error, path) from error
    return there


def reserve_bytes(path: str) -> int:
    """How much of the disk the reserve holds now."""
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise translate(error, path) from error


def _allocate(path: str, size: int, ops: FileOps) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        ops.allocate(fd, size)
        if os.fstat(fd).st_blocks * 512 < size:
            # The file system cannot set room aside. Random bytes, because it may be one that compresses.
            os.pwrite(fd, os.urandom(size), 0)
            os.fsync(fd)  # some file systems find room only then
    finally:
        os.close(fd)
