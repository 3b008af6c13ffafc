"""What happens to a message that a consumer failed on: the delay of its next attempt, or the dead-letter topic.

A failed message does not hold its queue: a copy goes to the group's retry topic, delayed, and the offset moves on
(rule 10). The copy keeps its id, body and time of birth; `reconsumeTimes` is one more. Broadcasting has no retry
(rule 9), and orderly listeners retry in place (rule 8).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import properties as names
from rmq_spark.model.message_id import offset_id
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import system_topics
from rmq_spark.rules.delay import LEVELS_MS, Delay

RETRY_MAX_TIMES: Final = 16
"""A concurrent listener fails 17 times before a message is given up."""
ORDERLY_MAX_TIMES: Final = 2**31 - 1
"""An orderly listener never gives up unless told."""
FIRST_RETRY_LEVEL: Final = 3
"""The first retry waits at this delay level (rule 6)."""


class DefaultTimes(int):
    """16, where nobody has said how often to retry: the group's settings count then, and orderly listeners go on."""


DEFAULT_TIMES: Final[int] = DefaultTimes(RETRY_MAX_TIMES)
"""What a consumer's `max_reconsume_times` is unless it is given; it can be told from a 16 that is."""
DLQ_QUEUE: Final = 0
"""Dead-letter topics have one queue."""
DLQ_NOW: Final = -1
"""Delay level by which a listener asks for the dead-letter topic at once."""

EXPONENTIAL_FIRST_MS: Final = 5_000
EXPONENTIAL_MAX_MS: Final = 7_200_000
_POWER_MAX: Final = 32


class Path(Enum):
    """How a failed message comes back: what counts as too often differs (rule 7)."""

    SEND_BACK = "send back"
    """The consumer gives it back: given up when it failed at least the maximum before."""
    DIRECT_SEND = "direct send"
    """Sent to the retry topic like any message: given up when it failed more than the maximum before."""
    POP = "pop"
    """Not acknowledged in time: given up when it was delivered once more than the maximum."""


@dataclass(frozen=True, slots=True)
class CustomizedPolicy:
    """A list of delays, RocketMQ's default: the third of them for the first retry."""

    delays_ms: tuple[int, ...] = LEVELS_MS

    def delay_ms(self, reconsume_times: int) -> int:
        """Delay of the next attempt after `reconsume_times` earlier failures."""
        at = max(reconsume_times, 0) + FIRST_RETRY_LEVEL - 1
        return self.delays_ms[min(at, len(self.delays_ms) - 1)]


@dataclass(frozen=True, slots=True)
class ExponentialPolicy:
    """Twice as long each time, up to a limit."""

    first_ms: int = EXPONENTIAL_FIRST_MS
    max_ms: int = EXPONENTIAL_MAX_MS
    multiplier: int = 2

    def delay_ms(self, reconsume_times: int) -> int:
        """Delay of the next attempt after `reconsume_times` earlier failures."""
        power: int = self.multiplier ** min(max(reconsume_times, 0), _POWER_MAX)
        return min(self.max_ms, self.first_ms * power)


RetryPolicy = CustomizedPolicy | ExponentialPolicy
"""How long a group waits between attempts (`groupRetryPolicy`)."""
DEFAULT_POLICY: Final = CustomizedPolicy()


def max_times(asked: int, *, orderly: bool = False, group_max: int = RETRY_MAX_TIMES) -> int:
    """How often a message is retried, from a consumer's `max_reconsume_times`.

    -1, or nothing given, is as the group's settings say (16), and endless for orderly listeners (rule 8).
    """
    if is_given(asked):
        return asked
    return ORDERLY_MAX_TIMES if orderly else group_max


def check_times(asked: int) -> None:
    """Refuse a `max_reconsume_times` that says nothing.

    Raises:
        InvalidRequestError: no number, or below -1.
    """
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < -1:
        raise InvalidRequestError(
            "max_reconsume_times is a number from 0 on, or -1 for what the group's settings say",
            max_reconsume_times=asked,
        )


def is_given(asked: int) -> bool:
    """Whether a consumer's `max_reconsume_times` says something of its own."""
    return asked >= 0 and not isinstance(asked, DefaultTimes)


def is_given_up(reconsume_times: int, maximum: int, path: Path = Path.SEND_BACK, *, level: int = 0) -> bool:
    """Whether a message that failed `reconsume_times` times before goes to the dead-letter topic now.

    Args:
        reconsume_times: of the message that failed (for `POP`: that is about to be delivered).
        maximum: see `max_times`.
        path: how it comes back.
        level: delay level that the listener asks for; negative asks for the dead-letter topic.
    """
    if level < 0:
        return True
    return reconsume_times >= maximum if path is Path.SEND_BACK else reconsume_times > maximum


def retry_delay(reconsume_times: int, now_ms: int, policy: RetryPolicy = DEFAULT_POLICY, *, level: int = 0) -> Delay:
    """The delay of the next attempt: what the listener asks for, else level 3 + earlier failures.

    A group with a policy of its own waits as that says.
    """
    if level > 0:
        return Delay(level=level)
    if policy == DEFAULT_POLICY:
        return Delay(level=FIRST_RETRY_LEVEL + max(reconsume_times, 0))
    return Delay(deliver_ms=now_ms + policy.delay_ms(reconsume_times))


def pop_nack_ms(reconsume_times: int, policy: RetryPolicy = DEFAULT_POLICY, *, level: int = 0) -> int:
    """How long a message stays invisible after a POP push listener failed on it: 1 s, 5 s, 10 s, … (rule 6).

    A level that the listener asks for, or a policy of the group's own, goes before that.
    """
    if level > 0:
        return LEVELS_MS[min(level, len(LEVELS_MS)) - 1]
    if policy != DEFAULT_POLICY:
        return policy.delay_ms(reconsume_times)
    return LEVELS_MS[min(max(reconsume_times, 0), len(LEVELS_MS) - 1)]


def retry_row(message: StoredMessage, retry_topic: str, queue_id: int = 0) -> MessageRow:
    """The copy of a failed message for a retry topic; park it with `retry_delay`.

    The first topic and the first place are set once and kept over later failures.
    """
    changed = dict(message.properties)
    changed.setdefault(names.RETRY_TOPIC, message.topic)
    changed.setdefault(names.ORIGIN_MESSAGE_ID, _offset_id(message))
    changed[names.WAIT] = "false"
    return message.to_row()._replace(
        topic=retry_topic,
        queue_id=queue_id,
        reconsume_times=message.reconsume_times + 1,
        properties=list(changed.items()),
    )


def dead_letter_row(message: StoredMessage, group: str) -> MessageRow:
    """The copy of a message that `group` gives up, for its dead-letter topic. It says where it came from."""
    row = retry_row(message, system_topics.dlq_topic(group), DLQ_QUEUE)
    changed = dict(row.properties)
    # A delay is over: the copy must not look as if it waited for another.
    changed.pop(names.DELAY_LEVEL, None)
    changed.setdefault(names.DLQ_ORIGIN_TOPIC, changed[names.RETRY_TOPIC])
    changed.setdefault(names.DLQ_ORIGIN_MESSAGE_ID, message.msg_id)
    return row._replace(properties=list(changed.items()))


def dead_letter_origin(message: StoredMessage) -> str:
    """The topic that a dead letter was first sent to."""
    return message.properties.get(names.DLQ_ORIGIN_TOPIC) or original_topic(message)


def replay_row(message: StoredMessage, topic: str, queue_id: int) -> MessageRow:
    """The copy of a dead letter that is sent again, as if it had never been delivered; its id stays.

    In a retry topic it says where it came from, as every retried message does.
    """
    changed = dict(message.properties)
    for name in (names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID, names.WAIT):
        changed.pop(name, None)
    if not system_topics.is_retry(topic):
        changed.pop(names.RETRY_TOPIC, None)
        changed.pop(names.ORIGIN_MESSAGE_ID, None)
    return message.to_row()._replace(
        topic=topic, queue_id=queue_id, reconsume_times=0, properties=list(changed.items())
    )


def original_topic(message: StoredMessage) -> str:
    """The topic that a message was first sent to: what listeners see of a retried message."""
    return message.properties.get(names.RETRY_TOPIC, message.topic)


def _offset_id(message: StoredMessage) -> str:
    # No broker runs at an address: only the place in the log counts.
    return offset_id("0.0.0.0", 0, message.commit_offset)  # noqa: S104 - an id, no socket
