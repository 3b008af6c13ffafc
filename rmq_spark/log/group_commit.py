"""Group commit: callers of one process share a commit, without a thread of their own.

The first caller leads: it takes what is queued, commits it for all, and hands the lead to the next in the queue.
While a leader waits for the disk, the others queue up, so the group grows with the load. The leader waits a
moment for as many callers as were seen lately, never longer than the linger: without that, threads fall into
two halves that alternate, and each commit carries only one half.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from rmq_spark.clock import Clock
from rmq_spark.errors import OutcomeUnknownError
from rmq_spark.log.request import Request
from rmq_spark.model.settings import LogSettings

LEAVE_TRIES: Final = (None,) * 100
"""To be looped over. Python looks for signals after calls: behind `range` a caller could be interrupted."""


class GroupCommit:
    """Gathers requests and hands groups of them to `commit`, one group at a time."""

    def __init__(self, commit: Callable[[list[Request]], None], settings: LogSettings, clock: Clock) -> None:
        self._commit = commit
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: deque[Request] = deque()
        self._leader: Request | None = None
        """The one whose caller commits for the others."""
        self._gathering: threading.Lock | None = None
        """Held while the leader waits for more callers; whoever makes the group complete lets it go."""
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
            if self._leader is request:
                self._lead(request)
        finally:
            interrupt = None
            try:
                for _ in LEAVE_TRIES:
                    try:
                        self._leave(request)
                        break
                    except BaseException as error:  # noqa: BLE001 - all of it again: half of it lets others wait for ever
                        interrupt = error
            except BaseException as error:  # noqa: BLE001 - on the way from one try to the next
                self._leave(request)
                interrupt = error
            if interrupt is not None:
                raise interrupt

    def _enter(self, request: Request) -> threading.Lock | None:
        with self._lock:
            latch = None
            if self._leader is None:
                self._leader = request
            else:
                latch = _held()
                request.latch = latch
            self._queue.append(request)
            if self._gathering is not None and len(self._queue) >= self._expected:
                gathering, self._gathering = self._gathering, None
                gathering.release()
        return latch

    def _leave(self, request: Request) -> None:
        """After whatever happened: out of the queue, nobody left waiting, the lead handed on.

        May be interrupted at any point and called again. So each step is a single assignment, or looks first whether
        it was done; and what tells of a step is cleared only after it.
        """
        with self._lock:
            if not request.done and request in self._queue:
                self._queue.remove(request)
            if request.group:
                self._settle(request)
            if self._leader is request:
                self._leader = self._queue[0] if self._queue else None
            if self._leader is not None:
                self._leader.wake()

    def _settle(self, leader: Request) -> None:
        """Each caller of the leader's group gets an outcome, and goes on."""
        while self._queue and self._queue[0] in leader.group:
            self._queue.popleft()  # the leader was interrupted while it took them
        for other in leader.group:
            if not other.done:
                other.error = OutcomeUnknownError(
                    "the caller who committed for this one was interrupted; append the same batch again"
                )
            if other is not leader:
                other.wake()
        leader.group = ()

    def _lead(self, request: Request) -> None:
        gathering = None
        with self._lock:
            request.latch = None  # who leads is awake, even if the one who woke it was interrupted before it said so
            if len(self._queue) < self._expected:
                gathering = self._gathering = _held()
        if gathering is not None:
            gathering.acquire(timeout=min(self._settings.linger_ms / 1000, 2 * self._commit_seconds))
        with self._lock:
            self._gathering = None
            count = self._group_size()
            request.group = group = list(islice(self._queue, count))
            for _ in range(count):
                self._queue.popleft()
        started = self._clock.elapsed_ns()
        self._commit(group)
        self._commit_seconds = (self._clock.elapsed_ns() - started) / 1e9
        self._expected = len(group) + len(self._queue)

    def _group_size(self) -> int:
        """How many of those in the queue are committed together."""
        if self._queue[0].alone:
            return 1
        rows = size = count = 0
        for request in self._queue:
            if request.alone:
                break
            rows, size = rows + request.weight[0], size + request.weight[1]
            if count and (rows > self._settings.group_rows_max or size > self._settings.group_bytes_max):
                break
            count += 1
        return count


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
