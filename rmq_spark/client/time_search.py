"""Time travel over all brokers of a store: which offset a moment means, and which time span each queue still holds."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rmq_spark.client.store import Store
from rmq_spark.log.time_search import Backlog, Boundary, Queue, Span, TimeSearch

QueueKey = tuple[str, str, int]
"""Topic, broker name and queue id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpan:
    """What one queue still holds."""

    topic: str
    broker: str
    queue: int
    first: int
    """First offset."""
    end: int
    """Exclusive end."""
    first_ms: int | None
    """storeTimestamp of the first message; None when the queue is empty."""
    last_ms: int | None
    """storeTimestamp of the last message; None when the queue is empty."""


class QueueTimes:
    """Searches queues by time. Safe to use from any thread; keep it, because it remembers metadata that it has read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._searches: dict[str, TimeSearch] = {}

    def search(self, topic: str, ms: int, boundary: Boundary = Boundary.LOWER) -> dict[QueueKey, int]:
        """The offset that the moment `ms` means in each queue of a topic (RocketMQ's `searchOffset`, 5.1.1 and later).

        With `LOWER` the first message stored at `ms` or later, or the queue's end; with `UPPER` the last one stored at
        `ms` or before, or 0.

        Raises:
            NotFoundError: there is no such topic.
            CorruptDataError: a file is damaged or missing.
        """
        existing = self._store.topic(topic)
        return self.search_queues([(topic, *place) for place in existing.message_queues()], ms, boundary)

    def search_queues(
        self, queues: Iterable[QueueKey], ms: int, boundary: Boundary = Boundary.LOWER
    ) -> dict[QueueKey, int]:
        """As `search`, for the queues named."""
        offsets: dict[QueueKey, int] = {}
        for broker, mine in by_broker(dict.fromkeys(queues, 0)).items():
            for (topic, queue), offset in self._on(broker).search(mine, ms, boundary).items():
                offsets[topic, broker, queue] = offset
        return offsets

    def spans(self, topic: str) -> list[QueueSpan]:
        """Which offsets and which time span each queue of a topic still holds, in routing order.

        Raises:
            NotFoundError: there is no such topic.
            CorruptDataError: a file is damaged or missing.
        """
        spans: dict[QueueKey, Span] = {}
        keys = [(topic, *place) for place in self._store.topic(topic).message_queues()]
        for broker, mine in by_broker(dict.fromkeys(keys, 0)).items():
            for (_, queue), span in self._on(broker).spans(mine).items():
                spans[topic, broker, queue] = span
        return [
            QueueSpan(
                topic=topic,
                broker=broker,
                queue=queue,
                first=span.first,
                end=span.end,
                first_ms=span.first_ms,
                last_ms=span.last_ms,
            )
            for (_, broker, queue), span in spans.items()
        ]

    def backlogs(self, offsets: Mapping[QueueKey, int]) -> dict[QueueKey, Backlog]:
        """What each queue holds from its offset on, or from the first that it still holds; in the order of `offsets`.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """
        backlogs: dict[QueueKey, Backlog] = {}
        for broker, mine in by_broker(offsets).items():
            for (topic, queue), backlog in self._on(broker).backlogs(mine).items():
                backlogs[topic, broker, queue] = backlog
        return {key: backlogs[key] for key in offsets}

    def _on(self, broker: str) -> TimeSearch:
        with self._lock:
            search = self._searches.get(broker)
            if search is None:
                search = self._searches[broker] = TimeSearch(self._store.log(broker))
            return search


def by_broker(offsets: Mapping[QueueKey, int]) -> dict[str, dict[Queue, int]]:
    """The same offsets, parted by broker."""
    grouped: dict[str, dict[Queue, int]] = {}
    for (topic, broker, queue), offset in offsets.items():
        grouped.setdefault(broker, {})[topic, queue] = offset
    return grouped
