"""Following the tail of a log: one object for everybody in the process who waits for new commits.

On a local disk the file system tells when a commit appears; elsewhere the follower looks, often while messages come and
seldom while they don't. Own appends wake whoever waits at once. The thread starts with the first who waits, and sleeps
while nobody does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from rmq_spark.clock import Clock
from rmq_spark.errors import ClosedError, RmqError
from rmq_spark.storage.base import Storage, Watch

LOOK_SECONDS: Final = 1.0
"""A notice may be lost (a network mount, a full queue of notices): so often the follower looks in any case."""
POLL_SECONDS_MIN: Final = 0.005
POLL_SECONDS_MAX: Final = 0.5
"""Without notices: how long between two looks, just after a commit and after a long quiet time."""
POLL_GROWTH: Final = 1.3

_log = logging.getLogger(__name__)


class Follower:
    """Tells when a log has grown. Safe to use from any thread.

    Args:
        storage: of the log.
        directory: where commits appear.
        look: folds what has been appended, and returns the log's end.
        clock: for waiting.
    """

    def __init__(self, storage: Storage, directory: str, look: Callable[[], int], clock: Clock) -> None:
        self._storage = storage
        self._directory = directory
        self._look = look
        self._clock = clock
        self._changed = threading.Condition()
        self._end = -1
        self._waiting = 0
        self._woken = 0
        self._error: Exception | None = None
        """Why nobody can wait any more: the log was closed, or it is damaged."""
        self._thread: threading.Thread | None = None
        self._watch: Watch | None = None

    def wait(self, offset: int, timeout: float) -> bool:
        """Block until the log's end is behind `offset`; False if it is not after `timeout` seconds, or at a `wake`.

        Raises:
            ClosedError: the log was closed meanwhile.
            CorruptDataError: the log is damaged.
        """
        with self._changed:
            self._check()
            if self._end > offset:
                return True
            self._waiting += 1
            woken = self._woken
            try:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="rmq-follow", daemon=True)
                    self._thread.start()
                self._changed.notify_all()  # the thread may be asleep
                self._changed.wait_for(lambda: self._error or self._end > offset or self._woken != woken, timeout)
                self._check()
                return self._end > offset
            finally:
                self._waiting -= 1

    def note_end(self, end: int) -> None:
        """The process itself has appended, or folded what others have."""
        with self._changed:
            if end > self._end:
                self._end = end
                if self._waiting:
                    self._changed.notify_all()

    def wake(self) -> None:
        """Let everybody who waits return, as after their time: somebody of this process wants to end."""
        with self._changed:
            self._woken += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Wake everybody who waits, and end."""
        self._fail(ClosedError("the log handle was closed"))
        watch, thread = self._watch, self._thread
        if watch is not None:
            watch.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._watch = self._storage.watch(self._directory)
        except RmqError as error:
            _log.info("the follower polls: %s", error)
        try:
            self._follow()
        finally:
            if self._watch is not None:
                self._watch.close()  # again, most likely; but a close may have come before the watch

    def _follow(self) -> None:
        pause = POLL_SECONDS_MIN
        while True:
            with self._changed:
                if not self._waiting and self._error is None:
                    self._changed.wait()
                if self._error is not None:
                    return
            grown = self._look_once()
            pause = POLL_SECONDS_MIN if grown else min(pause * POLL_GROWTH, POLL_SECONDS_MAX)
            if grown:
                continue  # whoever waits for more than that is not served yet, and more may have come
            if self._watch is not None:
                self._watch.wait(LOOK_SECONDS)
            else:
                self._clock.sleep(pause)

    def _look_once(self) -> bool:
        before = self._end
        try:
            end = self._look()
        except Exception as error:  # noqa: BLE001 - a bug, too, is told to those who wait: they would wait for nothing
            if isinstance(error, RmqError) and error.retriable:
                _log.warning("the log could not be followed, trying again: %s", error)
            else:
                self._fail(error)
            return False
        self.note_end(end)
        return end > before
