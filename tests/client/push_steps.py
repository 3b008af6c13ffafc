"""Push consumers without threads: each step is taken by the test, and time is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rmq_spark import Store
from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.push_consumer import Handle, PushConsumer
from rmq_spark.client.stored_rows import plain_rows, stored_messages
from rmq_spark.clock import ManualClock
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.rules import delay, system_topics


class Steps:
    """One consumer whose threads are the test."""

    def __init__(self, store: Store, handle: Handle, group: str = "g", **options: Any) -> None:
        subscriptions = options.pop("subscriptions", {"t": {}})
        self.consumer = PushConsumer(store, group, **options)
        for topic, wanted in subscriptions.items():
            self.consumer.subscribe(topic, **wanted)
        self.engine = self.consumer._make_engine(handle)
        self.engine.tick()

    def run(self) -> None:
        """Take every step that can be taken at this moment."""
        while True:
            self.engine.tick()
            read = [self.engine.fetch(broker)[0] for broker in sorted(self.engine.brokers())]
            if not (self.work() or any(read)):
                return

    def work(self) -> int:
        """Consume everything that was read; returns how many turns that took."""
        turns = 0
        while self.engine.work():
            turns += 1
        return turns

    def queues(self) -> list[int]:
        return [queue.queue_id for queue in self.engine.queues() if not system_topics.is_retry(queue.topic)]

    def leave(self) -> None:
        self.engine.stop()
        self.engine.leave()


@contextmanager
def leaving(*consumers: Steps) -> Iterator[None]:
    try:
        yield
    finally:
        for each in consumers:
            each.leave()


def committed(store: Store, group: str = "g", topic: str = "t") -> dict[int, int]:
    """Committed offsets by queue."""
    return {queue: at for (name, _, queue), at in GroupOffsets(store).committed(group).items() if name == topic}


class RetryTimer:
    """Delivers delayed messages that are due: what the timer service does, for one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._delivered: set[tuple[str, int]] = set()

    def run(self) -> int:
        count = 0
        for broker in self._store.brokers():
            for batch in list(self._store.log(broker).scan()):
                for message in stored_messages(plain_rows(batch)):
                    key = (broker, message.commit_offset)
                    if not system_topics.is_waiting(message.topic) or key in self._delivered:
                        continue
                    if delay.due_ms(message) <= self._store.clock.now_ms():
                        self._delivered.add(key)
                        self._store.log(broker).append(MessageBatch.from_rows([delay.unpark(message)]))
                        count += 1
        return count


def advance(store: Store, seconds: float) -> None:
    clock = store.clock
    assert isinstance(clock, ManualClock)
    clock.advance(seconds)
