"""Notice of new names in a directory of this machine: Linux' inotify, called directly.

The kernel keeps the notices until they are read, so nothing is lost between two waits. There is no thread: whoever
waits sleeps in `poll`. A finished file appears by `link(2)`, which is a notice `IN_CREATE`; by then it is complete.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Final

from rmq_spark.errors import UnavailableError

_IN_MOVED_TO: Final = 0x80
_IN_CREATE: Final = 0x100
_IN_Q_OVERFLOW: Final = 0x4000
_IN_IGNORED: Final = 0x8000
_IN_ONLYDIR: Final = 0x0100_0000
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024
_STATFS_BYTES: Final = 512

# There the kernel tells only of what this machine does, or of nothing.
_SHARED: Final = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF53_4D42: "CIFS",
    0xFE53_4D42: "SMB 2",
    0x6573_5546: "FUSE",
    0x0102_1997: "9P",
    0x00C3_6400: "Ceph",
    0x0BD0_0BD0: "Lustre",
    0x4750_4653: "GPFS",
    0x5346_414F: "AFS",
}

_LIBC: Final[Any] = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None
_open_watches: Final[weakref.WeakSet[LocalWatch]] = weakref.WeakSet()


def open_watch(directory: str) -> LocalWatch | None:
    """A watch on an existing directory; None where the system cannot tell, or has no watch left to give."""
    if _LIBC is None or is_shared(directory):
        return None
    watch = LocalWatch(directory)
    try:
        watch.open()
    except OSError:  # the limits are per user; a follower that polls is slower, not wrong
        watch.close()
        return None
    _open_watches.add(watch)
    return watch


def is_shared(directory: str) -> bool:
    """Whether other machines may write into the directory: a network mount."""
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if _LIBC.statfs(os.fsencode(directory), status) != 0:
        return True  # not known: do not rely on notices
    kind = int.from_bytes(status.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) & 0xFFFF_FFFF
    return kind in _SHARED


class LocalWatch:
    """Watches one directory; see `Watch`. For one waiting thread at a time: two would share the notices.

    A forked child gets a watch of its own at its first `wait`, which returns True: it may have missed something. What
    it inherits is only closed, so it takes no notice from its parent and does not wake it.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._notices = -1
        self._bell = -1
        """Written to by `close`, so that a waiting thread wakes up."""
        self._watching = False
        """Whether the kernel watches the directory; it stops when the directory is removed."""
        self._look = False
        """Whether something may have appeared that the kernel did not tell."""

    def open(self) -> None:
        """Begin to watch.

        Raises:
            OSError: the system refused.
        """
        self._notices = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._add()

    def wait(self, timeout_seconds: float) -> bool:
        """See `Watch.wait`."""
        with self._lock:
            if self._closed:
                return False
            if self._notices < 0:
                self._open_again()
            self._waiting += 1
        try:
            return self._wait(timeout_seconds)
        finally:
            self._leave()

    def close(self) -> None:
        """See `Watch.close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._waiting:  # who waits closes the descriptors: their numbers must not be reused under it
                os.eventfd_write(self._bell, 1)
            else:
                self._release()

    def __del__(self) -> None:
        self._release()

    def forget_parent(self) -> None:
        """Let go of what a forked child inherited; called in the child before anything else runs there."""
        self._lock = threading.Lock()  # another thread may have held it when the process forked
        self._waiting = 0
        self._release()

    def _leave(self) -> None:
        with self._lock:
            self._waiting -= 1
            if self._closed and not self._waiting:
                self._release()

    def _wait(self, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        if not self._watching:
            self._watch_again()
        if self._look:
            self._look = False
            self._read()
            return True
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        poll.register(self._notices, select.POLLIN)
        while True:
            # Read first: a notice that waits already needs no poll, and a waiting time of 0 must see it.
            if self._read():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            poll.poll(left * 1_000)
            if self._closed:
                return False

    def _read(self) -> bool:
        """Take every notice there is; whether one of them counts."""
        counts = False
        while True:
            try:
                data = os.read(self._notices, _READ_BYTES)
            except BlockingIOError:
                return counts
            for mask, name in _events(data):
                if mask & _IN_IGNORED:
                    self._watching = False
                counts = counts or bool(mask & (_IN_IGNORED | _IN_Q_OVERFLOW)) or (name != b"" and name[:1] != b".")

    def _add(self) -> None:
        path = os.fsencode(self._directory)
        mask = _IN_MOVED_TO | _IN_CREATE | _IN_ONLYDIR
        _checked(_LIBC.inotify_add_watch(self._notices, path, ctypes.c_uint32(mask)))
        self._watching = True

    def _watch_again(self) -> None:
        """The directory was removed: watch it once it is back. Until then `wait` only takes its time."""
        try:
            self._add()
        except OSError:
            return
        self._look = True

    def _open_again(self) -> None:
        try:
            self.open()
        except OSError as error:
            self._release()
            raise UnavailableError(
                "the system gives this process no watch; raise fs.inotify.max_user_instances, or poll",
                directory=self._directory,
                reason=error.strerror,
            ) from error
        self._look = True
        _open_watches.add(self)

    def _release(self) -> None:
        notices, self._notices = self._notices, -1
        bell, self._bell = self._bell, -1
        self._watching = False
        for fd in (notices, bell):
            if fd >= 0:
                os.close(fd)


def _events(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The (mask, name) of each notice in what the kernel gave."""
    at = 0
    while at < len(data):
        _, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield mask, data[at : at + length].rstrip(b"\0")
        at += length


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _after_fork() -> None:
    for watch in list(_open_watches):
        watch.forget_parent()


os.register_at_fork(after_in_child=_after_fork)
