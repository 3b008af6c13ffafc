"""Topics with a meaning: retry, dead-letter, waiting and bookkeeping topics, and who may write to them.

RocketMQ's names are kept, so that its tools and users recognise them.

| Topic | Holds | Clients may send | Found by a pattern | Has table rows |
| --- | --- | --- | --- | --- |
| `%RETRY%…` | messages that a group failed on | yes (consumers do) | when the pattern has a `%` | yes |
| `%DLQ%…` | messages that a group gave up | yes (replays do) | when the pattern has a `%` | yes |
| schedule, timer wheel | delayed messages until they are due | no | no | yes |
| half, op, check-max | transactions | no | no | yes |
| trace | message traces | yes (clients write them) | no | yes |
| other `rmq_sys_…` | state of the engine | no | no | no |
"""

from __future__ import annotations

from typing import Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import names
from rmq_spark.model.names import DLQ_PREFIX, POP_RETRY_MARK, RETRY_PREFIX, SYSTEM_PREFIX

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Messages with a delay level wait here, in queue level - 1."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Messages with a delivery time wait here, in queue 0."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Messages of open transactions wait here; only the topic makes them invisible (rule 17)."""
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Says which half messages are settled."""
CHECK_MAX_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages whose producer was asked too often."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Message traces that clients write."""
TRACE_DATA_PREFIX: Final = "rmq_sys_TRACE_DATA_"
"""Trace topics of a region."""

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
"""Groups of the engine itself start with this; users' listings leave them out."""

POP_RETRY_V1: Final = 1
"""`%RETRY%group_topic`: RocketMQ's default. Group `a_b` on topic `c` and group `a` on `b_c` share it."""
POP_RETRY_V2: Final = 2
"""`%RETRY%group+topic`: unambiguous, because no user's name has a `+`. What this project writes."""

_REFUSE_SENDS: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, CHECK_MAX_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
)
"""The six topics of RocketMQ that refuse sends."""


def retry_topic(group: str) -> str:
    """The topic that holds what consumers of `group` failed on."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic that holds what `group` gave up."""
    return DLQ_PREFIX + group


def pop_retry_topic(group: str, topic: str, version: int = POP_RETRY_V2) -> str:
    """The retry topic of a group's POP consumers for one topic.

    Raises:
        InvalidRequestError: an unknown version.
    """
    if version not in (POP_RETRY_V1, POP_RETRY_V2):
        raise InvalidRequestError("a POP retry topic has version 1 or 2", version=version)
    return f"{RETRY_PREFIX}{group}{'_' if version == POP_RETRY_V1 else POP_RETRY_MARK}{topic}"


def is_retry(topic: str) -> bool:
    """Whether it is some group's retry topic."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq(topic: str) -> bool:
    """Whether it is some group's dead-letter topic."""
    return topic.startswith(DLQ_PREFIX)


def is_trace(topic: str) -> bool:
    """Whether clients write message traces to it."""
    return topic == TRACE_TOPIC or topic.startswith(TRACE_DATA_PREFIX)


def is_waiting(topic: str) -> bool:
    """Whether delayed messages wait in it."""
    return topic in (SCHEDULE_TOPIC, TIMER_TOPIC)


def group_of(topic: str) -> str | None:
    """Whose retry or dead-letter topic it is; None for other topics.

    A POP retry topic of version 1 does not tell where the group's name ends: all of it is given.
    """
    if is_dlq(topic):
        return topic[len(DLQ_PREFIX) :]
    return topic[len(RETRY_PREFIX) :].partition(POP_RETRY_MARK)[0] if is_retry(topic) else None


def is_system(topic: str) -> bool:
    """Whether it is the engine's: users' listings leave it out, and no pattern of a Spark read finds it."""
    return topic.startswith(SYSTEM_PREFIX) or topic in _REFUSE_SENDS or is_trace(topic)


def is_found_by_pattern(topic: str, pattern: str) -> bool:
    """Whether a pattern that matches the name is meant to find it.

    Retry and dead-letter topics belong to groups: `.*` does not mean them, a pattern with a `%` does.
    """
    return not is_system(topic) and (not (is_retry(topic) or is_dlq(topic)) or "%" in pattern)


def is_made_by_engine(topic: str) -> bool:
    """Whether it comes into being without anybody creating it, so that a reader may name it before it exists."""
    return is_system(topic) or is_retry(topic) or is_dlq(topic)


def has_table_rows(topic: str) -> bool:
    """Whether its messages enter the tables: not the engine's state, but messages of users wherever they wait."""
    return not topic.startswith(SYSTEM_PREFIX) or topic == TIMER_TOPIC or is_trace(topic)


def check_sendable(topic: str) -> str:
    """Return `topic` if a client may send to it: a legal name that the engine does not keep for itself.

    Raises:
        InvalidRequestError: an illegal name, or a topic of the engine.
    """
    names.check_topic(topic)
    if topic in _REFUSE_SENDS or (topic.startswith(SYSTEM_PREFIX) and not is_trace(topic)):
        raise InvalidRequestError("topic is reserved for the engine; send to another", topic=topic)
    return topic


def check_sink(topic: str) -> str:
    """Return `topic` if a job may write rows to it: one that can be sent to, and that no consumer group owns.

    Raises:
        InvalidRequestError: an illegal name, a topic of the engine, or one of a consumer group.
    """
    check_sendable(topic)
    if is_retry(topic) or is_dlq(topic):
        raise InvalidRequestError(
            "topic belongs to a consumer group, whose consumers write it; write to another", topic=topic
        )
    return topic
