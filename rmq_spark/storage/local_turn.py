"""A turn among the writers of this machine: `flock` on a file."""

from __future__ import annotations

import fcntl
import itertools
import os
from contextlib import suppress
from typing import Final

from rmq_spark.clock import Clock

_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.002
_NAME_BYTES: Final = 64

_taken: Final = itertools.count()


class Turn:
    """One turn, tried until the time is up.

    A lock belongs to one opening of the file, so it works between threads as between processes, and the
    kernel drops it with the process. Where the lock cannot be had at all (read-only, no lock service) there
    is no turn: it is a courtesy, and the create decides.

    Every holder writes a name into the file that no other turn has. A holder whose name stands there all the time
    that somebody waits does not move (it is stopped, or its disk hangs). Whoever has waited for it in vain does not
    wait again while that name is there.

    Args:
        path: the file.
        timeout: how long to wait for others, in seconds.
        clock: for the pauses.
        passed_over: file -> name of the holder that was waited for in vain; shared by the turns of one storage.
    """

    def __init__(self, path: str, timeout: float, clock: Clock, passed_over: dict[str, bytes]) -> None:
        self._path = path
        self._timeout = timeout
        self._clock = clock
        self._passed_over = passed_over
        self._fd = -1

    def __enter__(self) -> bool:
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if self._try() or self._wait():
                self._passed_over.pop(self._path, None)
                with suppress(OSError):  # on a full disk the turn is as good without a name
                    os.pwrite(self._fd, f"{os.getpid():<12} {next(_taken):<20}\n".encode(), 0)
                return True
        except OSError:
            pass
        except BaseException:
            self.__exit__()  # an interrupt: nobody else gives the turn back
            raise
        return False

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                # Closing alone is not enough: a child forked meanwhile holds the same opening.
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _wait(self) -> bool:
        if self._timeout <= 0:
            return False  # who does not wait cannot tell whether the holder moves
        holder = self._holder()
        if self._passed_over.get(self._path) == holder:
            return False
        deadline = self._clock.elapsed_ns() + int(self._timeout * 1_000_000_000)
        pause = _FIRST_PAUSE_S
        while (left := (deadline - self._clock.elapsed_ns()) / 1_000_000_000) > 0:
            self._clock.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE_S)
            if self._try():
                return True
        if self._holder() == holder:
            self._passed_over[self._path] = holder
        return False

    def _holder(self) -> bytes:
        return os.pread(self._fd, _NAME_BYTES, 0)
