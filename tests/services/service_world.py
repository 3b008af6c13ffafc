"""A store in memory with a clock that only moves when told to, and what readers of its topics see."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import stored_messages
from rmq_spark.clock import ManualClock
from rmq_spark.log.scan import Query
from rmq_spark.model.settings import LogSettings
from rmq_spark.model.stored_message import StoredMessage

_NUMBERS = itertools.count()


@dataclass
class ServiceWorld:
    store: Store
    clock: ManualClock

    @classmethod
    def create(cls, **settings: int) -> ServiceWorld:
        clock = ManualClock()
        uri = f"memory://services-{next(_NUMBERS)}"
        return cls(Store.create(uri, clock=clock, settings=LogSettings(**settings)), clock)

    def again(self) -> Store:
        """The same store, opened by another process, so to speak."""
        return Store.open(self.store.storage.uri, clock=self.clock, settings=self.store.settings)

    def producer(self, **options: object) -> Producer:
        return Producer(self.store, **options)  # type: ignore[arg-type]

    def messages(self, *topics: str) -> list[StoredMessage]:
        """All messages of the topics in the order of the log, as a plain reader sees them."""
        return sorted(self._scan(topics), key=lambda message: message.commit_offset)

    def bodies(self, *topics: str) -> list[bytes]:
        return [message.body for message in self.messages(*topics)]

    def _scan(self, topics: tuple[str, ...]) -> Iterator[StoredMessage]:
        for broker in self.store.brokers():
            for batch in self.store.log(broker).scan(Query(topics=frozenset(topics))):
                yield from stored_messages(batch)
