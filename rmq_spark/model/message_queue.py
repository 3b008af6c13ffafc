"""The identity of a queue: topic, broker and number, as RocketMQ's MessageQueue."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. Sorts by topic, broker and number, as RocketMQ's clients sort queues."""

    topic: str
    broker: str
    queue_id: int
