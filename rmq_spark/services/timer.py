"""Delivering delayed messages when they are due: never early, each once, however many deliverers there are.

One round: look at the mark, bring the index up to the log's end, take what is due, append the copies together with the
new mark as one decision. Whoever loses the race, or dies in between, has changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.client.delays import adopt_levels, set_delay_levels
from rmq_spark.client.store import Store
from rmq_spark.errors import (
    CorruptDataError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageFullError,
    UnavailableError,
)
from rmq_spark.log.arrow_columns import RowReorderer
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.point_read import Places, fetch_messages
from rmq_spark.log.state import LogState
from rmq_spark.log.view import LogView
from rmq_spark.rules import service_lease, timer
from rmq_spark.rules.service_lease import ServiceLeases
from rmq_spark.rules.timer import Progress, TimerProgress
from rmq_spark.services.parked_messages import WAITING_TOPICS, Levels, carried, delivered, due_times
from rmq_spark.services.parts import BROKERS, Parts
from rmq_spark.services.timer_index import Step, TimerIndex

__all__ = ["BrokerTimers", "TimerService", "set_delay_levels"]

I64 = npt.NDArray[np.int64]

LOOK_SECONDS: Final = 1.0
"""So often a deliverer looks in any case."""
PACE_SECONDS: Final = 0.05
"""A busy log wakes deliverers at most so often."""
SEVERAL_LOGS_SECONDS: Final = 0.1
"""So often a deliverer of several logs looks at all of them."""
ROWS_FIRST: Final = 256
ROWS_MAX: Final = 100_000
"""Messages of one commit: few at first, because their size is not known before they are read, then as many as make
`BYTES_AIM`."""
BYTES_AIM: Final = 32 * 1024 * 1024
GROWTH: Final = 32
"""How many times as many messages the next read may have."""
AHEAD_MS: Final = 5_000
AHEAD_STEPS: Final = 2
"""What is due within so long is read ahead, as much as goes into so many commits."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What a round goes by, as of one refresh."""

    mark: Progress
    end: int
    log_start: int
    log_ms: int
    levels: Levels
    parked: int
    """How many messages were ever parked."""
    lease_ms: int
    """Until when another copy is preferred; 0 if none is."""
    durable: int
    """Up to where the log survives a power loss."""


class BrokerTimers:
    """Delivers the delayed messages of one log.

    Args:
        log: the broker's.
        holder: who this is, for the lease.
    """

    def __init__(self, log: CommitLog, holder: str) -> None:
        log.use(TimerProgress, ServiceLeases)
        self.log = log
        self.index = TimerIndex(log)
        self.delivered = 0
        """How many messages this copy has delivered."""
        self._holder = holder
        self._rows = ROWS_FIRST
        self._rebuilt = False
        self._ahead: tuple[I64, pa.RecordBatch | None] = (np.empty(0, np.int64), None)
        """Log offsets, rising, and messages that were read before they were due."""
        self._may_read_more = False

    def run_once(self) -> None:
        """Deliver everything that is due now, unless another copy is at it.

        Raises:
            RmqError: the log could not be read or written; call again.
        """
        while True:
            look = self._look()
            now = max(look.log_ms, self.log.clock.now_ms())
            due = self.index.next_due()
            if due is None or (look.lease_ms > now and now - due < service_lease.TAKEOVER_MS):
                return
            if due > now:
                if due <= now + AHEAD_MS:
                    self._read_ahead(now, look.levels)
                return
            step = self.index.due(now, self._rows)
            if step is None:
                return
            self._deliver(look, step)

    def next_due_ms(self) -> int | None:
        """When the next message is due that this copy knows of."""
        return self.index.next_due()

    def carry_forward(self, before: int) -> int:
        """Append pending messages below the log offset `before` again, so that retention may take them.

        Returns:
            Up to where the log may be deleted: `before`, or less if messages could not be carried.
        """
        while True:
            look = self._look()
            due, commit, reach = self.index.below(before, self._rows)
            if not len(due):
                return before
            try:
                copies = carried(self._fetch(commit, due, look.levels), due)
                self.log.decide(timer.carry(look.mark, reach, copies))
            except (PreconditionFailedError, OutcomeUnknownError):
                continue  # the mark says what has become of it
            except StorageFullError:
                if not self.log.storage.release_reserve():
                    return int(commit[0])
            except UnavailableError:
                return int(commit[0])

    def _look(self) -> _Look:
        def ask(view: LogView) -> _Look:
            state, timers = view.state, view.state.fold(TimerProgress)
            lease = state.fold(ServiceLeases).leases.get(timer.SERVICE)
            other = lease is not None and lease.holder != self._holder
            return _Look(
                timers.progress,
                state.offset,
                view.mark.log_start,
                state.store_ms,
                timers.levels(),
                sum(last for topic in WAITING_TOPICS for _, _, last in state.queues.of_topic(topic)),
                lease.until_ms if lease is not None and other else 0,
                max(state.durable, view.mark.floor),  # what was rolled is durable
            )

        look = self.log.look(ask)
        self.index.refresh(look.mark, look.end, look.levels, look.log_start, look.parked, durable=look.durable)
        return look

    def _deliver(self, look: _Look, step: Step) -> None:
        def renewal(state: LogState) -> list[tuple[str, Mapping[str, Any]]]:
            return service_lease.renewal(state, timer.SERVICE, self._holder)

        messages = self._read(step.due, step.commit, max(look.log_ms, self.log.clock.now_ms()), look.levels)
        if len(step.due) > 2 * self._rows:
            return  # larger messages than before: they were read, and go out in several commits
        copies = delivered(messages, step.due)
        try:
            self.delivered += self.log.decide(timer.deliver(look.mark, step.after, copies, renewal)).answer
        except (PreconditionFailedError, OutcomeUnknownError):
            # Another copy was faster, or the clock went back, or it may have landed: the mark says what is left.
            self.log.clock.sleep(0.001)

    def _read_ahead(self, now_ms: int, levels: Levels) -> None:
        """Read what is due soon, while there is time: as much as can be kept, once their size is known."""
        due, commit = self.index.soon(now_ms + AHEAD_MS, 1)
        self._read(due, commit, now_ms, levels)
        while self._may_read_more:
            self._ahead = (np.empty(0, np.int64), None)
            self._read(due, commit, now_ms, levels)

    def _read(self, due: I64, commit: I64, now_ms: int, levels: Levels) -> pa.RecordBatch:
        """The messages with these due times and commit offsets; those due next are read along, for later steps.

        Messages that are due at the same time may lie anywhere in the log: a file is read once for many of them.
        """
        known, messages = self._ahead
        at = np.searchsorted(known, commit)
        if messages is not None and (at < len(known)).all() and np.array_equal(known[at], commit):
            return RowReorderer(messages).take(at)
        limit = AHEAD_STEPS * self._rows
        next_due, next_commit = self.index.soon(now_ms + AHEAD_MS, limit)
        known, first = np.unique(np.concatenate((commit, next_commit)), return_index=True)
        messages = self._fetch(known, np.concatenate((due, next_due))[first], levels)
        self._ahead = (known, messages)
        self._may_read_more = len(next_due) == limit and limit < AHEAD_STEPS * self._rows
        return RowReorderer(messages).take(np.searchsorted(known, commit))

    def _fetch(self, commit: I64, due: I64, levels: Levels) -> pa.RecordBatch:
        """The parked messages at these log offsets, checked to be what the index says they are."""
        try:
            messages = fetch_messages(self.log, Places(commit))
        except (pa.ArrowException, MemoryError) as error:
            # Arrow takes 2 GiB of bodies at once; how large they are is not known before they are read.
            if self._rows == 1:
                raise
            self._rows = max(1, self._rows // GROWTH)
            raise UnavailableError("the messages are too large to be read together; fewer are read next") from error
        if messages.num_rows:
            size = max(1, messages.nbytes // messages.num_rows)
            self._rows = max(1, min(GROWTH * self._rows, ROWS_MAX, BYTES_AIM // size))
        if messages.num_rows == len(commit) and np.array_equal(due_times(messages, levels), due):
            self._rebuilt = False
            return messages
        if self._rebuilt:
            raise CorruptDataError(
                "parked messages are not where the log says they are; run `rmq verify`", first=int(commit.min())
            )
        self._rebuilt = True
        self.index.forget()
        raise UnavailableError("the timer index does not fit the log; it is rebuilt from the log")


class TimerService:
    """Delivers the delayed messages of a store; see `Service`.

    Args:
        store: an open store.
        brokers: only these logs; all by default.
    """

    name = "timer"

    def __init__(self, store: Store, brokers: tuple[str, ...] = ()) -> None:
        self._store = store
        self._brokers = brokers
        self._holder = store.clock.token()
        self.parts = Parts(self.name, store.clock)
        self._known: tuple[str, ...] = ()
        self._timers: dict[str, BrokerTimers] = {}
        self._looked_ns: int | None = None
        """When the store was last asked which brokers it has."""

    def timers(self, broker: str) -> BrokerTimers:
        """The deliverer of one log."""
        if broker not in self._timers:
            self._timers[broker] = BrokerTimers(self._store.log(broker), self._holder)
        return self._timers[broker]

    def run_once(self) -> float:
        now_ns = self._store.clock.elapsed_ns()
        looks = self._looked_ns is None or now_ns - self._looked_ns >= LOOK_SECONDS * 1e9
        if looks:
            # A busy log wakes it a hundred times a second; brokers come once in a while.
            self._known = self._brokers or tuple(self._store.brokers())
            self._looked_ns = now_ns
        self.parts.each(BROKERS, {name: partial(self._run_broker, name, looks) for name in self._known}, or_raise=True)
        due = [at for each in self._working() if (at := each.next_due_ms()) is not None]
        if not due:
            return LOOK_SECONDS
        return min(LOOK_SECONDS, max(0.001, (min(due) - self._store.clock.now_ms()) / 1000))

    def wait(self, seconds: float) -> None:
        pace = min(PACE_SECONDS, seconds)
        working = self._working()
        if working and seconds > pace:
            # With several logs the first one may wake it; the others are looked at often enough.
            timers = working[0]
            limit = seconds if len(self._timers) == 1 else min(seconds, SEVERAL_LOGS_SECONDS)
            timers.log.wait(timers.index.frontier, limit - pace)
        self._store.clock.sleep(pace)

    def wake(self) -> None:
        for timers in list(self._timers.values()):
            timers.log.wake()

    def behind_ms(self) -> int:
        now = self._store.clock.now_ms()
        due = [at for each in self._timers.values() if (at := each.next_due_ms()) is not None]
        return max(0, now - min(due)) if due else 0

    def _run_broker(self, broker: str, looks: bool) -> None:
        if looks:
            adopt_levels(self._store, [broker])  # whoever set them may have died on the way, or met another
        self.timers(broker).run_once()

    def _working(self) -> list[BrokerTimers]:
        return [each for name, each in self._timers.items() if self.parts.works(BROKERS, name)]

    @property
    def pending(self) -> int:
        """How many messages wait, as far as this copy knows."""
        return sum(each.index.count for each in self._timers.values())
