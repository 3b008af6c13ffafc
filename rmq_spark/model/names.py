"""Which names and sizes are legal: RocketMQ's limits, checked before anything is written."""

from __future__ import annotations

import re
from typing import Final

from rmq_spark.errors import InvalidRequestError

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""A message body may have 4 MiB."""
PROPERTIES_BYTES_MAX: Final = 32_767
"""The encoded property string of RocketMQ is a signed short long."""
TOPIC_CHARS_MAX: Final = 127
"""Length of an ordinary topic name."""
SYSTEM_TOPIC_CHARS_MAX: Final = 255
"""Length of a `%RETRY%` or `%DLQ%` topic name, which holds a group's name."""
GROUP_CHARS_MAX: Final = 120
"""Length of a consumer group's name."""
QUEUES_MAX: Final = 65_536
"""Queues of one topic on one broker."""

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_BROKER: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,126}")
_SEND_REFUSED: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)

RETRY_PREFIX: Final = "%RETRY%"
"""Before a group's name: the topic of messages that it is to get again."""
GROUP_PREFIXES: Final = (RETRY_PREFIX, "%DLQ%")
"""Before a group's name: topics that the group's consumers write."""
SYSTEM_PREFIX: Final = "rmq_sys_"
"""Topics of the engine itself start with this."""

STATE_TOPICS: Final = frozenset(
    {
        "rmq_sys_fold",
        "rmq_sys_truncate",
        "rmq_sys_collect",
        "rmq_sys_sink_batch",
        "rmq_sys_topic_config",
        "rmq_sys_group_config",
        "rmq_sys_consumer_offset",
        "rmq_sys_table_lease",
    }
)
"""Topics whose messages are records of a fold: they stand in commits, never in row files or tables."""


def check_topic(name: str) -> str:
    """Return `name` if RocketMQ would accept it as a topic.

    Raises:
        InvalidRequestError: empty, too long, or with a character outside `% | a-z A-Z 0-9 _ -`.
    """
    limit = SYSTEM_TOPIC_CHARS_MAX if name.startswith(GROUP_PREFIXES) else TOPIC_CHARS_MAX
    return _check("topic", name, limit)


def check_sendable(name: str) -> str:
    """Return `name` if a client may send to it: a legal topic that the engine does not keep for itself."""
    check_topic(name)
    if name in _SEND_REFUSED or name.startswith(SYSTEM_PREFIX):
        raise InvalidRequestError("topic is reserved for the engine; send to another", topic=name)
    return name


def check_sink(name: str) -> str:
    """Return `name` if a job may write rows to it: one that can be sent to, and that no consumer group owns."""
    check_sendable(name)
    if name.startswith(GROUP_PREFIXES):
        raise InvalidRequestError(
            "topic belongs to a consumer group, whose consumers write it; write to another", topic=name
        )
    return name


def check_group(name: str) -> str:
    """Return `name` if it is legal for a consumer group."""
    return _check("group", name, GROUP_CHARS_MAX)


def check_broker(name: str) -> str:
    """Return `name` if it can be a broker's name, which is also a directory's."""
    if not _BROKER.fullmatch(name):
        raise InvalidRequestError(
            "broker name must be 1 to 127 of a-z A-Z 0-9 _ . - and start with a letter or digit", broker=name
        )
    return name


def check_queues(count: int) -> int:
    """Return `count` if a topic may have so many queues on one broker."""
    if not 1 <= count <= QUEUES_MAX:
        raise InvalidRequestError("a topic has 1 to 65536 queues", queues=count)
    return count


def is_system_topic(name: str) -> bool:
    """Whether the engine keeps state in this topic, so that users' listings leave it out."""
    return name.startswith(SYSTEM_PREFIX) or name in _SEND_REFUSED


def _check(what: str, name: str, limit: int) -> str:
    if not name:
        raise InvalidRequestError(f"{what} name is empty")
    if len(name) > limit:
        raise InvalidRequestError(f"{what} name is longer than {limit} characters", name=name)
    if not _LEGAL.fullmatch(name):
        bad = next(char for char in name if not _LEGAL.fullmatch(char))
        raise InvalidRequestError(
            f"{what} name has an illegal character; allowed are a-z A-Z 0-9 _ - % |",
            name=name,
            character=bad,
        )
    return name
