"""The calls by which the local backend changes or flushes files, as one small object.

Tests replace it to record the order of the calls (what would a power loss leave?) or to make one fail.
"""

# Why: this module is the list of system calls.
# ruff: noqa: PTH102, PTH108
from __future__ import annotations

import ctypes
import errno
import fcntl
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
    syncfs: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return syncfs


_SYNCFS: Final = _find_syncfs()
_FALLOCATE: Final = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
"""Not `os.posix_fallocate`: where the file system cannot, that one writes into every page instead of saying so."""
_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
"""Linux has it."""


class FileOps:
    """Every call by which this backend changes or flushes files, one method each, in the order it happens.

    Replace it to record the calls (what would survive a power loss?) or to fail them.
    """

    def open_new(self, path: str) -> int:
        """Create a file that is not there yet and open it for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def allocate(self, fd: int, size: int) -> None:
        """Make a file `size` bytes long, with room for them; only a hint, which some file systems do not take."""
        if _FALLOCATE is None or _FALLOCATE(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
            return
        number = ctypes.get_errno()
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(number, os.strerror(number))

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file to `size` bytes."""
        os.ftruncate(fd, size)

    def bypass_cache(self, fd: int, on: bool) -> bool:
        """Whether writes go straight to the disk from here on, if that is wanted; some file systems cannot do that."""
        try:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | _O_DIRECT if on else flags & ~_O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return False
        return on and _O_DIRECT != 0

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
