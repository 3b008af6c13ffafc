"""Giving back messages that POP consumers held too long: to the group's retry topic, or to its dead-letter topic."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from rmq_spark.client.group_settings import group_settings
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import stored_messages
from rmq_spark.errors import DataExpiredError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.queue_reader import read_queue
from rmq_spark.log.view import LogView
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import pop_decisions
from rmq_spark.rules.pop import Claim, Place, PopState
from rmq_spark.rules.pop_decisions import Overdue, Revived
from rmq_spark.services.parts import BROKERS, Parts

LOOK_SECONDS: Final = 1.0
"""How long the service sleeps at most: a message that is held from now on may be due after that."""
LOOK_SECONDS_MIN: Final = 0.01
MESSAGES_MAX: Final = 500
"""Messages of a queue that one commit gives back."""
GAP_MAX: Final = 64
"""Messages that are read in vain rather than by another read."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    """A message that is overdue."""

    claim: Claim
    fifo_times: int | None


class ReviveService:
    """Gives back what is overdue, on all brokers of a store. Run as many copies as you like.

    What was not acknowledged in time goes to the group's retry topic for the topic, once; after the group's maximum to
    `%DLQ%group`. Both topics are created as needed. Messages of FIFO groups stay in their queue until the maximum. A
    message that retention took while it was held is lost, which is logged.
    """

    name = "revive"

    def __init__(self, store: Store) -> None:
        self._store = store
        self.parts = Parts(self.name, store.clock)
        self.done = Revived()
        """What this copy has given back since it was made."""

    def run_once(self) -> float:
        """Give back everything that is due by now, and return in how many seconds to look again.

        Raises:
            RmqError: as `CommitLog.decide`; what is due stays due.
        """
        work = {broker: partial(self._revive_broker, broker) for broker in self._store.brokers()}
        waits = self.parts.each(BROKERS, work, or_raise=True)
        return max(LOOK_SECONDS_MIN, min(waits.values(), default=LOOK_SECONDS))

    def behind_ms(self) -> int:
        """How long the oldest message has been overdue; 0 when none is."""
        now_ms = self._store.clock.now_ms()
        brokers = [broker for broker in self._store.brokers() if self.parts.works(BROKERS, broker)]
        logs = [self._store.log(broker, *pop_decisions.FOLDS) for broker in brokers]
        return max((log.look(partial(overdue_ms, now_ms=now_ms)) for log in logs), default=0)

    def _revive_broker(self, broker: str) -> float:
        """Give back everything that is due on a broker; returns in how many seconds more is."""
        log = self._store.log(broker, *pop_decisions.FOLDS)
        while True:
            work = {
                f"group {place[0]} topic {place[1]} queue {place[2]}": partial(self._revive, broker, log, place, held)
                for place, held in log.look(self._overdue)
            }
            if not sum(self.parts.each(f"{BROKERS} {broker}", work).values()):
                break  # nothing is left, another copy was faster, or the log's time is behind this machine's
        now_ms = self._store.clock.now_ms()
        next_ms = log.look(partial(_next_due, now_ms=now_ms))
        return LOOK_SECONDS if next_ms is None else min(LOOK_SECONDS, (next_ms - now_ms) / 1000)

    def _overdue(self, view: LogView) -> list[tuple[Place, dict[int, _Held]]]:
        pop = view.state.fold(PopState)
        due: list[tuple[Place, dict[int, _Held]]] = []
        for place, claims in pop.overdue(max(view.state.store_ms, self._store.clock.now_ms()), MESSAGES_MAX):
            order = pop.orders.get(place)
            times = {} if order is None else dict(zip(order.offsets, order.reconsume_times, strict=True))
            due.append((place, {offset: _Held(claim, times.get(offset)) for offset, claim in claims.items()}))
        return due

    def _revive(self, broker: str, log: CommitLog, place: Place, held: dict[int, _Held]) -> int:
        """Give back messages of one queue; returns how many."""
        group, topic, queue = place
        maximum = group_settings(self._store, group).retry_max_times
        first = log.look(lambda view: view.state.queues.bounds(topic, queue)[0])
        held = {
            offset: each
            for offset, each in held.items()
            if each.fifo_times is None or pop_decisions.is_spent(each.fifo_times, maximum) or offset < first
        }
        if not held:
            return 0
        messages = _read(log, topic, queue, sorted(held))
        overdue = {
            offset: Overdue(claim=each.claim, message=messages.get(offset), fifo_times=each.fifo_times)
            for offset, each in held.items()
        }
        self._create_topics(broker, place, overdue, maximum)
        done = log.decide(pop_decisions.revive(place, overdue, retry_max_times=maximum)).answer
        if done.lost:
            _log.warning(
                "messages expired before they were acknowledged: group=%s topic=%s queue=%d messages=%d",
                group,
                topic,
                queue,
                done.lost,
            )
        before = self.done
        self.done = Revived(before.retried + done.retried, before.dead + done.dead, before.lost + done.lost)
        return done.retried + done.dead + done.lost

    def _create_topics(self, broker: str, place: Place, overdue: dict[int, Overdue], maximum: int) -> None:
        rows = [pop_decisions.copy_of(place, each, maximum) for each in overdue.values() if each.message is not None]
        for topic in sorted({row.topic for row in rows}):
            self._store.ensure_queues(topic, broker, queues=1)


def overdue_ms(view: LogView, now_ms: int) -> int:
    """How long the oldest message has been overdue; 0 when none is. Messages of FIFO groups stay where they are."""
    pop = view.state.fold(PopState)
    claims = [claim for place, held in pop.held.items() if place not in pop.orders for claim in held.values()]
    return max(0, now_ms - min((claim.due_ms for claim in claims), default=now_ms))


def _next_due(view: LogView, now_ms: int) -> int | None:
    return view.state.fold(PopState).next_due_ms(now_ms)


def _read(log: CommitLog, topic: str, queue: int, offsets: Sequence[int]) -> dict[int, StoredMessage]:
    """The messages at ascending `offsets`, those that are still held."""
    messages: dict[int, StoredMessage] = {}
    wanted = frozenset(offsets)
    for low, high in _ranges(offsets):
        at = low
        while at < high:
            try:
                read = read_queue(log, topic, queue, at, rows_max=high - at)
            except DataExpiredError as error:
                at = int(str(error.context["first"]))
                continue
            stored = stored_messages(read.messages)
            messages.update((each.queue_offset, each) for each in stored if each.queue_offset in wanted)
            at = high
    return messages


def _ranges(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges that cover ascending `offsets`, with gaps of up to `GAP_MAX`."""
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and offset - ranges[-1][1] <= GAP_MAX:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges
