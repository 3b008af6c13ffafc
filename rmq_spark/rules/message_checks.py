"""What a batch of messages must be like, and how to split one that is too large (facts 4).

The limits of single messages are in `model/limits.py`, because a `Message` checks itself when it is made. The rules of
a batch are RocketMQ's, for callers that promise them (the proxy, a batch that goes to one queue). `Producer.send_batch`
takes more: messages of any topics, delayed ones too, because each row of a commit stands for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import limits, names
from rmq_spark.model.message import Message
from rmq_spark.model.properties import UNIQ_KEY, WAIT
from rmq_spark.rules.system_topics import is_retry

BATCH_BYTES_MAX: Final = limits.BODY_BYTES_MAX
"""Encoded size of a batch."""

# Sizes of the record, of the body and of the properties; magic, checksum and flag.
_RECORD_BYTES: Final = 22
_ID_CHARACTERS: Final = 32
_SYSTEM_PAIRS_BYTES: Final = len(UNIQ_KEY) + _ID_CHARACTERS + len(WAIT) + len("true") + 2 * limits.PAIR_MARKS_BYTES


def encoded_bytes(message: Message) -> int:
    """Bytes of a message in RocketMQ's encoding of a batch, with the id and the flag that its producers add."""
    return _RECORD_BYTES + len(message.body) + message.properties_size() + _SYSTEM_PAIRS_BYTES


def check_batch(messages: Sequence[Message]) -> None:
    """Check that messages may be one batch of RocketMQ's.

    Delivery times are refused, too: RocketMQ takes them and ignores them without an error (rule 38).

    Raises:
        InvalidRequestError: none, several topics, a retry topic, a delayed message, or over 4 MiB together.
    """
    if not messages:
        raise InvalidRequestError("a batch needs at least one message")
    topic = messages[0].topic
    if is_retry(topic):
        raise InvalidRequestError("a batch cannot go to a retry topic; send its messages one by one", topic=topic)
    if len(topic) > names.TOPIC_CHARS_MAX:
        raise InvalidRequestError("a batch's topic is longer than 127 characters", topic=topic)
    for message in messages:
        if message.topic != topic:
            raise InvalidRequestError("messages of a batch have one topic", topic=topic, other=message.topic)
        if message.is_delayed:
            raise InvalidRequestError("a delayed message cannot be part of a batch; send it alone", topic=topic)
    size = sum(map(encoded_bytes, messages))
    if size > BATCH_BYTES_MAX:
        raise InvalidRequestError("a batch is over 4 MiB; split it with split_batches", topic=topic, bytes=size)


def split_batches(messages: Iterable[Message], max_bytes: int = BATCH_BYTES_MAX) -> Iterator[list[Message]]:
    """Yield the messages in order, as lists whose encoded size is at most `max_bytes`.

    Raises:
        InvalidRequestError: a message is too large by itself; those before it have been yielded.
    """
    batch: list[Message] = []
    filled = 0
    for message in messages:
        size = encoded_bytes(message)
        if size > max_bytes:
            raise InvalidRequestError(
                "a message is larger than a batch may be; send it alone",
                topic=message.topic,
                bytes=size,
                limit_bytes=max_bytes,
            )
        if filled + size > max_bytes:
            yield batch
            batch, filled = [], 0
        batch.append(message)
        filled += size
    if batch:
        yield batch
