"""Which queues of a store a read is about, and what is known of them without reading a message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.log.queues import Queues
from rmq_spark.log.state import LogState
from rmq_spark.log.view import LogView
from rmq_spark.rules import system_topics
from rmq_spark.rules.topics import TopicConfigs
from rmq_spark.spark.bounds import Bound, ByOffsets, QueueKey, TimestampsByQueue
from rmq_spark.spark.options import ReadOptions

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class QueueBounds:
    """One queue's readable offsets [first, end)."""

    topic: str
    queue: int
    first: int
    end: int


class Subscription:
    """The topics and queues that the options select, in one broker's log."""

    def __init__(self, options: ReadOptions, broker: str) -> None:
        self._options = options
        self._broker = broker

    def selects(self, topic: str) -> bool:
        """Whether some queue of `topic` is read. A pattern never finds the engine's own topics."""
        if not self._options.selects(topic):
            return False
        if self._options.pattern is None or topic == self._options.retry_topic:
            return True
        return system_topics.is_found_by_pattern(topic, self._options.pattern)

    def select(self, topic: str, queues: I64) -> BOOL:
        """Which of the queues of `topic` are read."""
        if not self.selects(topic):
            return np.zeros(len(queues), np.bool_)
        assign = self._options.assign
        if assign is None or topic == self._options.retry_topic:
            return np.ones(len(queues), np.bool_)
        wanted = assign.get((topic, self._broker), ()) + assign.get((topic, None), ())
        return np.isin(queues, np.array(wanted, np.int64))

    def queues(self, state: LogState) -> list[QueueBounds]:
        """Every selected queue that ever had a message."""
        bounds = []
        for topic in filter(self.selects, state.queues.topics()):
            first, end = state.queues.arrays(topic)
            used = np.flatnonzero(end > 0)
            used = used[self.select(topic, used)]
            bounds += [QueueBounds(topic, queue, int(first[queue]), int(end[queue])) for queue in used.tolist()]
        return bounds

    def count(self, queues: Queues) -> int:
        """How many messages the selected queues ever had, deleted ones included."""
        total = 0
        for topic in filter(self.selects, queues.topics()):
            _, end = queues.arrays(topic)
            total += int(end[self.select(topic, np.arange(len(end)))].sum())
        return total

    def hidden(self, view: LogView) -> dict[tuple[str, int], int]:
        """First readable offsets of the queues whose messages before that are in the log, but of a deleted topic."""
        old = Queues.load(view.mark.starts)
        return {
            (queue.topic, queue.queue): queue.first
            for queue in self.queues(view.state)
            if queue.first > old.bounds(queue.topic, queue.queue)[1]
        }


def check_topics(store: Store, options: ReadOptions) -> None:
    """Check that what is read by name exists: a typing error would else read nothing for ever.

    Raises:
        NotFoundError: a topic does not exist; the nearest name is given.
        InvalidRequestError: a queue or a broker that is named does not exist.
    """
    configs = store.nameserver.refresh().state.fold(TopicConfigs).configs
    for topic in options.topics or [topic for topic, _ in options.assign or ()]:
        if topic not in configs and not system_topics.is_made_by_engine(topic):
            near = difflib.get_close_matches(topic, configs, 1, 0.6)
            raise NotFoundError("no such topic", topic=topic, **({"nearest": near[0]} if near else {}))
    for (topic, broker), queues in (options.assign or {}).items():
        if topic in configs:
            _check_queues(topic, configs[topic]["queues"], broker, queues)


def check_bounds(store: Store, options: ReadOptions) -> None:
    """Check that the queues exist for which offsets or times are given: others would be read whole, for a typing error.

    Raises:
        InvalidRequestError: one does not exist.
    """
    named = [*_named(options.starting), *_named(options.ending)]
    if not named:
        return
    configs = store.nameserver.refresh().state.fold(TopicConfigs).configs
    for topic, broker, queue in named:
        if topic in configs:  # one that a pattern selects may come later
            _check_queues(topic, configs[topic]["queues"], broker, (queue,))


def _named(bound: Bound) -> Iterable[QueueKey]:
    if isinstance(bound, ByOffsets):
        return bound.offsets
    return bound.times if isinstance(bound, TimestampsByQueue) else ()


def _check_queues(topic: str, by_broker: dict[str, int], broker: str | None, queues: Iterable[int]) -> None:
    if broker is not None and broker not in by_broker:
        raise InvalidRequestError("topic has no queues on this broker", topic=topic, broker=broker)
    most = by_broker[broker] if broker is not None else max(by_broker.values())
    for queue in queues:
        if queue >= most:
            raise InvalidRequestError("no such queue", topic=topic, queue=queue, queues=most)
