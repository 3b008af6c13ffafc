"""A second thread for long steps that let other threads run, such as moving a large column or writing a file.

Not an executor's: handing work over through a bare queue costs a fraction of that, so it is worth it for batches of
some thousand rows already.
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
    however often one asks; work that failed is done anew for the next who asks.
    """
    job = _Job(work)
    if many:
        with suppress(RuntimeError):  # the interpreter is about to end, or the system gives no more threads
            _jobs().put(job.run)
    return job.answer


class _Job(Generic[Answer]):
    """Work that is done once, by whoever comes first."""

    def __init__(self, work: Callable[[], Answer]) -> None:
        self._work: Callable[[], Answer] | None = work
        self._busy = threading.Lock()

    def run(self) -> None:
        """Do it, unless somebody does or did. For the second thread, which tells nobody what went wrong."""
        if self._busy.acquire(blocking=False):
            try:
                # Whoever asks finds it undone, does it again, and meets the error where it can be handled.
                with suppress(BaseException):
                    self._do()
            finally:
                self._busy.release()

    def answer(self) -> Answer:
        """What `work` returns; waits while the second thread is at it."""
        with self._busy:
            self._do()
        return self._answer

    def _do(self) -> None:
        if self._work is not None:
            self._answer = self._work()
            self._work = None  # with all that it held


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
