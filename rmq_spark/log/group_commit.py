"""Group commit: callers of one process share a commit, without a thread of their own.

The first caller leads: it takes what is queued, commits it for all, and hands the lead to the next in the queue.
While a leader waits for the disk, the others queue up, so the group grows with the load. The leader waits a
moment for as many callers as were seen lately, never longer than the linger: without that, threads fall into
two halves that alternate, and each commit carries only one half.

A commit's callers are woken one by the other, not all by the leader: threads that wake at once only wait again, for the
interpreter's lock, and each of them is switched to twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rmq_spark.clock import Clock
from rmq_spark.errors import OutcomeUnknownError
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
    leads: bool = False
    """Whether its caller is the one who commits for the others."""
    follower: Request | None = None
    """Who is woken by this one's caller as soon as it is awake itself."""
    gone: bool = False
    """Whether its caller was interrupted before anybody woke it."""
    left: bool = False
    """Whether its caller has begun to leave the group."""

    @property
    def alone(self) -> bool:
        """Whether it needs a commit of its own: a failing condition must not fail the others."""
        return bool(self.expect or self.app or self.files or self.again)

    @property
    def key(self) -> object:
        """What tells that a caller appends the same thing again: the batch object, or the files' names."""
        return tuple(file.name for file in self.files) if self.files else id(self.batch)

    def wake(self) -> None:
        """Let its caller go on; each caller waits once. To be called under the group's lock."""
        latch = self.latch
        if latch is not None:
            if latch.locked():
                latch.release()
            self.latch = None  # last: whoever is interrupted before it may wake again

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
        self._taken: list[Request] = []
        """The group that the leader is busy with."""
        self._expected = 1
        self._commit_seconds = 0.0

    def submit(self, request: Request) -> None:
        """Block until `request` is done; its outcome is in it.

        An interrupt of one caller leaves the others served: the lead goes on, and what was being committed for them
        is reported as unclear.
        """
        try:
            latch = self._enter(request)
            if latch is not None:
                latch.acquire()
                if request.follower is not None:
                    with self._lock:
                        self._wake_follower(request)
            if request.leads:
                self._lead()
        finally:
            try:
                self._leave(request)
            except BaseException:
                if not request.left:  # interrupted before it began: without it nobody would lead any more
                    self._leave(request)
                raise

    def _enter(self, request: Request) -> threading.Lock | None:
        with self._lock:
            latch = None
            if self._leading:
                latch = request.latch = threading.Lock()
                latch.acquire()
            else:
                self._leading = request.leads = True
            self._queue.append(request)
            if len(self._queue) >= self._expected:
                self._arrived.notify()
        return latch

    def _leave(self, request: Request) -> None:
        """After whatever happened: out of the queue, nobody left waiting, the lead handed on."""
        with self._lock:
            request.left = True
            if not request.done and request in self._queue:
                self._queue.remove(request)
            request.gone = request.latch is not None
            if request.follower is not None and not request.gone:
                self._wake_follower(request)  # interrupted between waking up and doing so
            if not request.leads:
                return
            last = request
            for other in self._taken:
                if not other.done:
                    other.error = OutcomeUnknownError(
                        "the caller who committed for this one was interrupted; append the same batch again"
                    )
                if other is not request:
                    last.follower = last = other
            self._wake_follower(request)
            self._taken = []
            if self._queue:
                self._queue[0].leads = True
                self._queue[0].wake()
            else:
                self._leading = False
            request.leads = False

    @staticmethod
    def _wake_follower(request: Request) -> None:
        """Wake the next caller of the same commit that is still there."""
        follower = request.follower
        while follower is not None and follower.gone:
            follower = follower.follower
        if follower is not None:
            follower.wake()
        request.follower = None

    def _lead(self) -> None:
        with self._lock:
            if len(self._queue) < self._expected:
                wait = min(self._settings.linger_ms / 1000, 2 * self._commit_seconds)
                self._arrived.wait_for(lambda: len(self._queue) >= self._expected, wait)
            group = self._taken = self._take()
        started = self._clock.elapsed_ns()
        self._commit(group)
        self._commit_seconds = (self._clock.elapsed_ns() - started) / 1e9
        self._expected = len(group) + len(self._queue)

    def _take(self) -> list[Request]:
        group = [self._queue.popleft()]
        if group[0].alone or not self._queue:
            return group
        rows, size = group[0].batch.num_rows, group[0].batch.body_bytes
        while self._queue and not self._queue[0].alone:
            batch = self._queue[0].batch
            rows, size = rows + batch.num_rows, size + batch.body_bytes
            if rows > self._settings.group_rows_max or size > self._settings.group_bytes_max:
                break
            group.append(self._queue.popleft())
        return group
