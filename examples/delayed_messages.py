"""Delayed messages: after some seconds, at a time, by RocketMQ's delay level, and one that is recalled.

Run it with `python examples/delayed_messages.py`. It makes a store in a temporary directory.
"""

from __future__ import annotations

import tempfile
import time
from datetime import UTC, datetime, timedelta

from rmq_spark import Message, Producer, Store
from rmq_spark.log.scan import Query
from rmq_spark.services.runner import ServiceRunner
from rmq_spark.services.timer import TimerService


def arrived(store: Store) -> list[bytes]:
    """Bodies of the messages that a reader of the topic sees."""
    batches = store.log().scan(Query(topics=frozenset({"reminders"}), columns=("body",)))
    return sorted(body for batch in batches for body in batch.column("body").to_pylist())


def main() -> None:
    """Send, wait, print."""
    with tempfile.TemporaryDirectory() as directory, Store.create(f"{directory}/store") as store:
        producer = Producer(store)
        with ServiceRunner([TimerService(store)], store.clock):
            producer.send(Message("reminders", b"after half a second", delay=0.5))
            producer.send(Message("reminders", b"at a time", deliver_at=datetime.now(UTC) + timedelta(seconds=0.7)))
            producer.send(Message("reminders", b"level 1: after one second", delay_level=1))
            producer.send(Message("reminders", b"a time that has passed is now", deliver_at="2020-01-01T00:00:00Z"))
            mistake = producer.send(Message("reminders", b"never", delay=0.9))
            producer.recall(mistake)
            print("at once:", arrived(store))
            while len(arrived(store)) < 4:
                time.sleep(0.05)
            print("later:", arrived(store))
            assert b"never" not in arrived(store)


if __name__ == "__main__":
    main()
