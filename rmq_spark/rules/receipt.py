"""The receipt handle of a message that was received by POP, as text (facts 8.2).

`startOffset popTime invisibleTime reviveQueue topicType broker queueId queueOffset [commitOffset]`, joined by spaces.
Each change of the invisible time makes a new handle, and the old one stops working (rule 31).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import names
from rmq_spark.rules import system_topics

FIFO_REVIVE_QUEUE: Final = 999
"""`revive_queue` of messages that are received in order."""
RECEIPT_CHARS_MAX: Final = 512
"""A longer text is no receipt."""

_NUMBER: Final = re.compile(r"-?\d{1,19}", re.ASCII)
_PLAIN: Final = re.compile(
    r"(\d{1,18}) (\d{1,18}) (\d{1,18}) (\d{1,18}) ([012]) (\S+) (\d{1,18}) (\d{1,18})(?: (\d{1,18}))?", re.ASCII
)
"""What nearly every handle looks like; up to 18 digits always fit."""
_PARTS: Final = (
    "startOffset",
    "popTime",
    "invisibleTime",
    "reviveQueue",
    "topicType",
    "broker",
    "queueId",
    "queueOffset",
)
_ALL_PARTS: Final = (*_PARTS, "commitOffset")
_BROKER_AT: Final = _PARTS.index("broker")


class TopicType(IntEnum):
    """Which topic the message was popped from."""

    NORMAL = 0
    RETRY_V1 = 1
    RETRY_V2 = 2


_KINDS: Final = {str(int(kind)): kind for kind in TopicType}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What an ack, or a change of the invisible time, says about the delivery that it is for."""

    start_offset: int
    """First queue offset of the claim."""
    pop_ms: int
    """When it was received: the log's time of the claim."""
    invisible_ms: int
    """For how long nobody else gets it."""
    revive_queue: int = 0
    topic_type: TopicType = TopicType.NORMAL
    broker: str
    queue_id: int
    queue_offset: int
    commit_offset: int | None = None

    @property
    def visible_again_ms(self) -> int:
        """When others may get the message unless it is acknowledged."""
        return self.pop_ms + self.invisible_ms

    @property
    def is_fifo(self) -> bool:
        """Whether it was received in order."""
        return self.revive_queue == FIFO_REVIVE_QUEUE

    def is_expired(self, now_ms: int) -> bool:
        """Whether the message is visible to others again."""
        return now_ms >= self.visible_again_ms

    def real_topic(self, group: str, topic: str) -> str:
        """The topic that the message was read from: the one consumed, or the group's retry topic for it."""
        if self.topic_type is TopicType.NORMAL:
            return topic
        return system_topics.pop_retry_topic(group, topic, int(self.topic_type))

    def to_text(self) -> str:
        """The handle that a client keeps and sends back."""
        parts = (
            self.start_offset,
            self.pop_ms,
            self.invisible_ms,
            self.revive_queue,
            int(self.topic_type),
            self.broker,
            self.queue_id,
            self.queue_offset,
        )
        text = " ".join(map(str, parts))
        return text if self.commit_offset is None else f"{text} {self.commit_offset}"


def parse_receipt(text: str) -> Receipt:
    """Return what a handle says.

    Raises:
        InvalidRequestError: not a handle; the part that is wrong is named.
    """
    if len(text) > RECEIPT_CHARS_MAX:
        raise InvalidRequestError("receipt handle is too long; pass the one that was received", characters=len(text))
    if plain := _PLAIN.fullmatch(text):
        start, pop_ms, invisible, revive, kind, broker, queue, offset, commit = plain.groups()
        return Receipt(
            start_offset=int(start),
            pop_ms=int(pop_ms),
            invisible_ms=int(invisible),
            revive_queue=int(revive),
            topic_type=_KINDS[kind],
            broker=names.check_broker(broker),
            queue_id=int(queue),
            queue_offset=int(offset),
            commit_offset=None if commit is None else int(commit),
        )
    parts = text.split(" ")
    if len(parts) not in (len(_PARTS), len(_ALL_PARTS)):
        raise InvalidRequestError(
            "receipt handle has the wrong number of parts; pass the one that was received",
            parts=len(parts),
            expected=f"{len(_PARTS)} or {len(_ALL_PARTS)}",
        )
    numbers = {
        name: _number(name, part)
        for at, (name, part) in enumerate(zip(_ALL_PARTS, parts, strict=False))
        if at != _BROKER_AT
    }
    if numbers["topicType"] not in (0, 1, 2):
        raise InvalidRequestError("receipt handle: topicType is 0, 1 or 2", topicType=numbers["topicType"])
    return Receipt(
        start_offset=numbers["startOffset"],
        pop_ms=numbers["popTime"],
        invisible_ms=numbers["invisibleTime"],
        revive_queue=numbers["reviveQueue"],
        topic_type=TopicType(numbers["topicType"]),
        broker=names.check_broker(parts[_BROKER_AT]),
        queue_id=numbers["queueId"],
        queue_offset=numbers["queueOffset"],
        commit_offset=numbers.get("commitOffset"),
    )


def _number(name: str, part: str) -> int:
    if not _NUMBER.fullmatch(part):
        raise InvalidRequestError(f"receipt handle: {name} is not a number", value=part)
    number = int(part)
    if not 0 <= number < 1 << 63:
        raise InvalidRequestError(f"receipt handle: {name} is negative or over 63 bits", value=part)
    return number
