"""The calls by which the local backend changes or flushes files, as one small object.

Tests replace it to record the order of the calls (what would a power loss leave?) or to make one fail.
"""

# Why: this module is the list of system calls.
# ruff: noqa: PTH102, PTH108
from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Final

from rmq_spark.storage.base import Bytes


def _find_syncfs() -> Callable[[int], int] | None:
    """The system call, where it reports write errors: Linux since 5.8."""
    if not sys.platform.startswith("linux"):
        return None
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or (int(release[1]), int(release[2])) < (5, 8):
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return found


_SYNCFS: Final = _find_syncfs()
_FALLOCATE: Final = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
"""Not `os.posix_fallocate`: where the file system cannot, that one writes into every page instead of saying so."""

CALL_BYTES_MAX: Final = 256 * 1024
"""What one call writes at the most."""

ALLOCATE_BYTES: Final = 64 * 1024
"""From so many bytes on a file's room is set aside at once: a fifth quicker than page by page (ext4, 2 MB)."""

_IOV_MAX: Final[int] = os.sysconf("SC_IOV_MAX")


class FileOps:
    """Every call by which this backend changes or flushes files, one method each, in the order it happens.

    Replace it to record the calls (what would survive a power loss?) or to fail them.
    """

    def open_new(self, path: str) -> int:
        """Create a file that is not there yet and open it for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def allocate(self, fd: int, size: int) -> None:
        """Set room aside for `size` bytes; only a hint, which some file systems do not take."""
        if _FALLOCATE is None or _FALLOCATE(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
            return
        number = ctypes.get_errno()
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(number, os.strerror(number))

    def open_existing(self, path: str) -> int:
        """Open a finished file in order to flush it."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
        """Append the pieces (at most `SC_IOV_MAX`); return how many bytes were taken, maybe not all."""
        return os.writev(fd, pieces)

    def fsync(self, fd: int) -> None:
        """Flush content and size of an open file to the medium."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close an open file."""
        os.close(fd)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, unless that name is taken."""
        os.link(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        """Create one directory."""
        os.mkdir(path)

    def flush_file_system(self, path: str) -> bool:
        """Flush everything on the file system that holds `path`; False where that cannot be done reliably."""
        if _SYNCFS is None:
            return False
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _SYNCFS(fd) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)
        return True

    def fsync_dir(self, path: str) -> None:
        """Flush the names in a directory to the medium."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_all(ops: FileOps, fd: int, data: Sequence[Bytes]) -> None:
    """Write every byte of every piece, however many calls it takes; the last piece is asked for late."""
    if not data:
        return
    early = data[:-1]
    total = _size(early)
    if total < ALLOCATE_BYTES:
        data = [*early, data[-1]]
        total += _size(data[-1:])
        if total >= ALLOCATE_BYTES:
            ops.allocate(fd, total)
        if len(data) > _IOV_MAX or total > CALL_BYTES_MAX:
            _write_rest(ops, fd, data, 0)
        elif total and (taken := ops.writev(fd, data)) < total:
            _write_rest(ops, fd, data, taken)
        return
    ops.allocate(fd, total)
    # Past a few hundred kilobytes a call, Linux looks for huge pages to hold the file, which may take many times as
    # long as the writing, so large files are written in parts.
    _write_rest(ops, fd, early, 0)
    _write_rest(ops, fd, data[-1:], 0)


def _size(pieces: Sequence[Bytes]) -> int:
    total = 0
    for piece in pieces:
        total += piece.nbytes if isinstance(piece, memoryview) else len(piece)
    return total


def _write_rest(ops: FileOps, fd: int, data: Sequence[Bytes], taken: int) -> None:
    """Go on after the first `taken` bytes; a call may take part of a piece."""
    rest = [memoryview(piece).cast("B") for piece in data if len(piece)]
    done = 0
    while True:
        while done < len(rest) and taken >= len(rest[done]):
            taken -= len(rest[done])
            done += 1
        if done == len(rest):
            return
        if taken:
            rest[done] = rest[done][taken:]
        taken = ops.writev(fd, _call(rest, done))
        if taken <= 0:
            raise OSError(errno.EIO, "the file system takes no more bytes and gives no reason")


def _call(rest: list[memoryview], done: int) -> list[memoryview]:
    """What the next call writes: pieces from `done` on, up to the limits of a call."""
    pieces: list[memoryview] = []
    room = CALL_BYTES_MAX
    for piece in rest[done : done + _IOV_MAX]:
        pieces.append(piece[:room])
        room -= len(piece)
        if room <= 0:
            break
    return pieces
