"""Which kind of message it is, and whether its topic takes that kind (facts 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import properties as names
from rmq_spark.model.message import Message


class MessageType(StrEnum):
    """RocketMQ's `message.type`."""

    UNSPECIFIED = "UNSPECIFIED"
    """Only of topics: nobody said, so every kind is taken."""
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    PRIORITY = "PRIORITY"
    MIXED = "MIXED"
    """Only of topics: every kind is taken."""


_ANY = frozenset({MessageType.UNSPECIFIED, MessageType.MIXED})
_DELAYED = frozenset({names.DELAY_LEVEL, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS})


def type_of(properties: Mapping[str, str]) -> MessageType:
    """The kind of a message, from its properties; the first that applies of transaction, delay, FIFO, priority."""
    if properties.get(names.TRANSACTION_PREPARED) == "true":
        return MessageType.TRANSACTION
    if not _DELAYED.isdisjoint(properties):
        return MessageType.DELAY
    if names.SHARDING_KEY in properties:
        return MessageType.FIFO
    return MessageType.PRIORITY if names.PRIORITY in properties else MessageType.NORMAL


def type_of_message(message: Message, *, in_transaction: bool) -> MessageType:
    """The kind of a message that is about to be sent."""
    if in_transaction:
        return MessageType.TRANSACTION
    if message.is_delayed:
        return MessageType.DELAY
    if message.sharding_key is not None:
        return MessageType.FIFO
    return MessageType.NORMAL if message.priority is None else MessageType.PRIORITY


def check_type(topic: str, topic_type: MessageType, message_type: MessageType) -> None:
    """Check that a topic takes messages of a kind. Topics without a type take all, as stores from before types do.

    Except for priorities: consumers drain the queues of PRIORITY topics only by their order, so elsewhere a priority
    would be ignored.

    Raises:
        InvalidRequestError: it is for messages of another kind.
    """
    if topic_type in _ANY:
        if message_type is MessageType.PRIORITY:
            raise InvalidRequestError(
                "a message with a priority needs a topic whose queues are priorities; create one with "
                "message_type PRIORITY",
                topic=topic,
                actual=str(topic_type),
            )
        return
    if topic_type is not message_type:
        raise InvalidRequestError(
            "topic is for messages of another type; send to another topic or change its message.type",
            topic=topic,
            expected=str(topic_type),
            actual=str(message_type),
        )
