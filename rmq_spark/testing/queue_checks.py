"""What the tests of a queue share: sending, receiving until enough has come, and looking that nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pytest

from rmq_spark.errors import PreconditionFailedError
from rmq_spark.model.message import Message
from rmq_spark.testing.queue_world import Feature, QueueSimpleConsumer, QueueWorld, Received

LONG: Final = 600.0
"""Seconds that nobody gets a message for that a test holds to its end."""


def needs(world: QueueWorld, *features: Feature) -> None:
    """Skip the test if the queue lacks something."""
    for feature in features:
        if not world.has(feature):
            pytest.skip(f"this queue lacks {feature.value}")


def send(world: QueueWorld, topic: str, texts: Iterable[str]) -> None:
    """Send one message for each text."""
    producer = world.producer()
    for text in texts:
        producer.send(Message(topic, text.encode()))


def send_in_order(world: QueueWorld, topic: str, *, keys: str, count: int) -> None:
    """Send numbered messages of several sharding keys, the keys taking turns."""
    producer = world.producer()
    for number in range(count):
        for key in keys:
            producer.send(Message(topic, f"{key} {number}".encode(), sharding_key=key))


def note_order(order: dict[str, list[int]], message: Received) -> None:
    """Add the message's number to those of its key."""
    key, number = message.body.decode().split()
    order.setdefault(key, []).append(int(number))


def receive(
    world: QueueWorld,
    consumer: QueueSimpleConsumer,
    count: int,
    invisible_seconds: float = LONG,
    *,
    ack: bool = False,
    max_messages: int = 16,
) -> list[Received]:
    """Receive until there are `count` messages; an empty answer in between is legal."""
    got: list[Received] = []

    def enough() -> bool:
        while len(got) < count:
            messages = consumer.receive(max_messages, invisible_seconds, 0)
            if not messages:
                return False
            got.extend(messages)
            if ack:
                for message in messages:
                    consumer.ack(message)
        return True

    world.wait_until(enough, f"{count} messages")
    assert len(got) == count, f"more messages than expected: {bodies(got)}"
    return got


def nothing(world: QueueWorld, consumer: QueueSimpleConsumer) -> bool:
    """Whether there is nothing to receive now."""
    world.settle()
    return not consumer.receive(16, LONG, 0)


def acknowledge_in_vain(consumer: QueueSimpleConsumer, message: Received) -> None:
    """Acknowledge by a receipt that does not count any more: refused, or without effect."""
    try:
        consumer.ack(message)
    except PreconditionFailedError:
        return


def bodies(messages: Sequence[Received]) -> list[str]:
    """The texts, sorted."""
    return sorted(message.body.decode() for message in messages)


def collect(into: list[str]) -> Callable[[Received], Any]:
    """A listener that notes what it sees."""
    return lambda message: into.append(message.body.decode())
