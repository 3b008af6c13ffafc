"""A second thread for long steps that let other threads run: hashing, moving and check-summing large columns.

A hand-over costs some 50 µs, a third of what an executor's takes, so it is worth it for batches of some thousand rows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

MANY_ROWS: Final = 5_000
"""From so many rows on, a batch is prepared by two threads."""

Answer = TypeVar("Answer")


def meanwhile(work: Callable[[], Answer], *, many: bool) -> Callable[[], Answer]:
    """Begin `work` in a second thread if there is much of it; what is returned waits for its answer.

    Whoever asks does the work if nobody has begun it: there is not much, or the second thread is busy. It is done once,
    however often one asks.
    """
    job = _Job(work)
    if many:
        with suppress(RuntimeError):  # the interpreter is about to end, or the system gives no more threads
            _jobs().put(job.run)
    return job.answer


class _Job(Generic[Answer]):
    """Work that is done once, by whoever claims it first."""

    def __init__(self, work: Callable[[], Answer]) -> None:
        self._work = work
        self._claim = threading.Lock()
        self._undone = threading.Lock()
        self._undone.acquire()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it, unless somebody else does; the answer, or what went wrong, waits for the caller."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._answer = self._work()
        except BaseException as error:  # noqa: BLE001  the caller's, whatever it is
            self._error = error
        finally:
            self._undone.release()

    def answer(self) -> Answer:
        """What `work` returned or raised."""
        self.run()
        with self._undone:
            pass
        if self._error is not None:
            raise self._error
        return self._answer


@cache
def _jobs() -> SimpleQueue[Callable[[], None]]:
    """Where the second thread takes its work from."""
    jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def serve() -> None:
        while True:
            jobs.get()()

    # A daemon: it holds nothing that would need an orderly end.
    threading.Thread(target=serve, name="rmq-second", daemon=True).start()
    return jobs


os.register_at_fork(after_in_child=_jobs.cache_clear)  # threads do not survive a fork; a child starts its own
