"""Brokers of a store: adding one, making it read-only, and seeing it drained before it is given up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rmq_spark.client.delays import adopt_levels
from rmq_spark.client.routes import ROUTE_SECONDS
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import stored_messages
from rmq_spark.errors import NotFoundError
from rmq_spark.log.fold import Fold
from rmq_spark.log.scan import Query
from rmq_spark.log.view import LogView
from rmq_spark.model import names, times
from rmq_spark.rules import cluster, delay, system_topics
from rmq_spark.rules.cluster import ClusterConfig
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.rules.pop import PopState
from rmq_spark.rules.timer import TimerProgress
from rmq_spark.rules.transaction import Transactions

LOOK_SECONDS: Final = 0.5
"""So often it is looked how far a broker is drained."""
_FOLDS: Final[tuple[type[Fold], ...]] = (ConsumerOffsets, PopState, TimerProgress, Transactions)

Progress = Callable[[int, int], None]
"""Called with how much is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker: one log of the store."""

    name: str
    read_only: bool
    """Whether producers leave it alone."""
    topics: int
    """Topics that have queues on it."""
    messages: int
    """Messages that its queues hold, the engine's own topics left out."""
    end: int
    """The end of its log."""
    store_ms: int
    """storeTimestamp of its last commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """How far a broker is drained."""

    broker: str
    read_only: bool
    routed: bool
    """Whether producers may still send to it: they remember routes for 30 s."""
    left: Mapping[str, int]
    """Messages that a group has not consumed, its retries and those in flight included; groups that are done are left
    out."""
    delayed: int
    """Messages that wait for their time."""
    transactions: int
    """Transactions that are neither committed nor rolled back."""

    @property
    def remaining(self) -> int:
        """How much is left, all together."""
        return sum(self.left.values()) + self.delayed + self.transactions

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left, and nothing more can come."""
        return self.read_only and not self.routed and not self.remaining


class Brokers:
    """The brokers of a store. Safe to use from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> list[Broker]:
        """All brokers, by name."""
        topics = self._store.topics()
        read_only = self._store.nameserver.look(lambda view: view.state.fold(ClusterConfig).read_only())
        brokers = []
        for name in self._store.brokers():
            messages, end, store_ms = self._store.log(name).look(_extent)
            mine = sum(name in topic.queues for topic in topics)
            brokers.append(
                Broker(
                    name=name,
                    read_only=name in read_only,
                    topics=mine,
                    messages=messages,
                    end=end,
                    store_ms=store_ms,
                )
            )
        return brokers

    def add(self, name: str) -> None:
        """Make a broker known; topics get queues on it by `update_topic`. The same again changes nothing.

        Raises:
            InvalidRequestError: an illegal name.
        """
        names.check_broker(name)
        adopt_levels(self._store, [name])
        self._store.nameserver.decide(cluster.put_broker(name))

    def set_read_only(self, name: str, read_only: bool = True) -> None:
        """Let producers leave a broker alone, or use it again; consumers go on. Producers follow within 30 s.

        Raises:
            NotFoundError: there is no such broker.
        """
        self._check(name)
        self._store.nameserver.decide(cluster.put_broker(name, read_only=read_only))

    def drained(self, name: str) -> Drain:
        """How far a broker is drained.

        Raises:
            NotFoundError: there is no such broker.
            CorruptDataError: a file of its log is damaged or missing.
        """
        self._check(name)
        config = self._store.nameserver.look(lambda view: view.state.fold(ClusterConfig).brokers.get(name))
        read_only = config is not None and config.read_only
        since_ms = config.since_ms if config is not None and read_only else self._store.clock.now_ms()
        log = self._store.log(name, *_FOLDS)
        left, transactions = log.look(lambda view: (_left(view), len(view.state.fold(Transactions).open)))
        return Drain(
            broker=name,
            read_only=read_only,
            routed=self._store.clock.now_ms() < since_ms + ROUTE_SECONDS * 1000,
            left={group: count for group, count in sorted(left.items()) if count},
            delayed=self._delayed(name),
            transactions=transactions,
        )

    def drain(self, name: str, *, timeout: timedelta | float | None = None, progress: Progress | None = None) -> Drain:
        """Make a broker read-only, wait until nothing is left on it, and return how far it is drained.

        Args:
            name: the broker.
            timeout: after so many seconds it waits no longer; None: it waits until it is drained.
            progress: told how much was consumed since the call, and how much there was.

        Raises:
            as `drained`.
        """
        limit_ms = None if timeout is None else times.wait_ms(timeout, "timeout")
        self.set_read_only(name)
        clock = self._store.clock
        deadline = None if limit_ms is None else clock.elapsed_ns() + limit_ms * 1_000_000
        most = 0
        while True:
            state = self.drained(name)
            most = max(most, state.remaining)
            if progress is not None:
                progress(most - state.remaining, most)
            if state.is_drained or (deadline is not None and clock.elapsed_ns() >= deadline):
                return state
            clock.sleep(LOOK_SECONDS)

    def _delayed(self, name: str) -> int:
        log = self._store.log(name, TimerProgress)
        mark, levels = log.look(
            lambda view: (view.state.fold(TimerProgress).progress, view.state.fold(TimerProgress).levels())
        )
        waiting = frozenset({system_topics.SCHEDULE_TOPIC, system_topics.TIMER_TOPIC})
        count = 0
        for batch in log.scan(Query(topics=waiting)):
            for message in stored_messages(batch):
                at = message.commit_offset
                mine = next(settings for offset, settings in reversed(levels) if offset <= at)
                early = at < mark.position and (delay.due_ms(message, mine), at) < mark.key
                count += not (at < mark.floor or early)
        return count

    def _check(self, name: str) -> None:
        names.check_broker(name)
        if name not in (known := self._store.brokers()):
            raise NotFoundError("no such broker", broker=name, known=known)


def _is_users(topic: str) -> bool:
    return not system_topics.is_system(topic) and not system_topics.is_waiting(topic)


def _extent(view: LogView) -> tuple[int, int, int]:
    queues = view.state.queues
    held = sum(end - first for topic in filter(_is_users, queues.topics()) for _, first, end in queues.of_topic(topic))
    return held, view.state.offset, view.state.store_ms


def _left(view: LogView) -> dict[str, int]:
    """Messages that each group has not consumed."""
    queues, offsets = view.state.queues, view.state.fold(ConsumerOffsets).offsets
    left: dict[str, int] = {}
    for topic in filter(_is_users, queues.topics()):
        if system_topics.is_dlq(topic):
            continue
        owner = system_topics.group_of(topic)
        for group in [owner] if owner is not None else [group for group, topics in offsets.items() if topic in topics]:
            topics = offsets.get(group)
            known: Mapping[int, int] = (topics.get(topic) or {}) if topics is not None else {}
            behind = sum(max(0, end - max(first, known.get(queue, 0))) for queue, first, end in queues.of_topic(topic))
            left[group] = left.get(group, 0) + behind
    for (group, _, _), held in view.state.fold(PopState).held.items():
        left[group] = left.get(group, 0) + len(held)
    return left
