"""Delayed messages: after some seconds, at a time, by RocketMQ's delay level, and one that is recalled.

Run it with `python examples/delayed_messages.py`. It makes a store in a temporary directory. Nothing else has to run:
the open store delivers what is due. If the process ends earlier, another one that has the store open does it.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta

from rmq_spark import Message, Producer, SimpleConsumer, Store


def main() -> None:
    """Send, receive, print."""
    with tempfile.TemporaryDirectory() as directory, Store.open(f"{directory}/store", create=True) as store:
        producer = Producer(store)
        producer.send(Message("reminders", b"after half a second", delay=0.5))
        producer.send(Message("reminders", b"at a time", deliver_at=datetime.now(UTC) + timedelta(seconds=0.7)))
        producer.send(Message("reminders", b"level 1: after one second", delay_level=1))
        producer.send(Message("reminders", b"a time that has passed is now", deliver_at="2020-01-01T00:00:00Z"))
        mistake = producer.send(Message("reminders", b"never", delay=30))
        producer.recall(mistake)

        arrived: list[bytes] = []
        with SimpleConsumer(store, "readers", consume_from="earliest").subscribe("reminders") as consumer:
            while len(arrived) < 4:
                for message in consumer.receive(await_duration=15.0):
                    print("arrived:", message.body.decode())
                    arrived.append(message.body)
                    consumer.ack(message)
        assert b"never" not in arrived


if __name__ == "__main__":
    main()
