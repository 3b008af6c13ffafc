"""Group commit: callers of one process share a commit, without a thread of their own.

The first caller leads: it takes what is queued, commits it for all, and hands the lead to the next in the queue.
While a leader waits for the disk, the others queue up, so the group grows with the load. The leader waits a
moment for as many callers as were seen lately, never longer than the linger: without that, threads fall into
two halves that alternate, and each commit carries only one half.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmq_spark.clock import Clock
from rmq_spark.log.append import Attempt, Expect, Landed
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.rows import RowFile
from rmq_spark.model.settings import LogSettings


@dataclass(eq=False)
class Request:
    """One caller's append."""

    batch: MessageBatch
    expect: Expect | None = None
    app: tuple[str, int] | None = None
    files: Sequence[RowFile] = ()
    again: Attempt | None = None
    """An attempt of the same rows that ended unclear."""
    first_row: int = 0
    """Where its rows begin in the merged commit."""
    landed: Landed | None = None
    error: BaseException | None = None
    latch: threading.Lock | None = None
    """Held until it is done or has to lead; only those that wait have one. A tenth of the cost of an `Event`."""

    @property
    def alone(self) -> bool:
        """Whether it needs a commit of its own: a failing condition must not fail the others."""
        return bool(self.expect or self.app or self.files or self.again)

    @property
    def key(self) -> object:
        """What tells that a caller appends the same thing again: the batch object, or the files' names."""
        return tuple(file.name for file in self.files) if self.files else id(self.batch)

    def wake(self) -> None:
        """Let its caller go on; each caller waits once."""
        latch, self.latch = self.latch, None
        if latch is not None:
            latch.release()

    @property
    def done(self) -> bool:
        """Whether its outcome is known."""
        return self.landed is not None or self.error is not None


class GroupCommit:
    """Gathers requests and hands groups of them to `commit`, one group at a time."""

    def __init__(self, commit: Callable[[list[Request]], None], settings: LogSettings, clock: Clock) -> None:
        self._commit = commit
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._queue: deque[Request] = deque()
        self._leading = False
        self._expected = 1
        self._commit_seconds = 0.0

    def submit(self, request: Request) -> None:
        """Block until `request` is done; its outcome is in it."""
        with self._lock:
            self._queue.append(request)
            lead = not self._leading
            self._leading = True
            if not lead:
                latch = request.latch = threading.Lock()
                latch.acquire()
            if not lead and len(self._queue) >= self._expected:
                self._arrived.notify()
        try:
            if not lead:
                latch.acquire()
                if request.done:
                    return
            with self._lock:
                group = self._gather()
        except BaseException:
            self._abandon(request)  # an interrupt must not leave the others without a leader
            raise
        self._lead(group)

    def _abandon(self, request: Request) -> None:
        """Take an interrupted request out of the queue; if it was to lead, the next one does."""
        with self._lock:
            if request not in self._queue:
                return  # another leader has taken it: it is being committed
            led = request.latch is None  # the first to come, or woken to lead; a waiting one still has its latch
            self._queue.remove(request)
            if led and self._queue:
                self._queue[0].wake()
            elif led:
                self._leading = False

    def _gather(self) -> list[Request]:
        if len(self._queue) < self._expected:
            wait = min(self._settings.linger_ms / 1000, 2 * self._commit_seconds)
            self._arrived.wait_for(lambda: len(self._queue) >= self._expected, wait)
        return self._take()

    def _lead(self, group: list[Request]) -> None:
        started = self._clock.elapsed_ns()
        try:
            self._commit(group)
        except BaseException as error:
            for request in group:
                if not request.done:
                    request.error = error
            raise
        finally:
            self._commit_seconds = (self._clock.elapsed_ns() - started) / 1e9
            with self._lock:
                self._expected = len(group) + len(self._queue)
                if self._queue:
                    self._queue[0].wake()  # the next leader; it stays in the queue until it takes itself
                else:
                    self._leading = False
            for request in group:
                request.wake()

    def _take(self) -> list[Request]:
        group = [self._queue.popleft()]
        if group[0].alone:
            return group
        rows, size = group[0].batch.num_rows, group[0].batch.body_bytes
        while self._queue and not self._queue[0].alone:
            batch = self._queue[0].batch
            rows, size = rows + batch.num_rows, size + batch.body_bytes
            if rows > self._settings.group_rows_max or size > self._settings.group_bytes_max:
                break
            group.append(self._queue.popleft())
        return group
