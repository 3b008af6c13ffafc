"""Which names are legal, and how many queues a topic may have: checked before anything is written.

What a topic's name means (who may write to it, whose retry topic it is) is in `rules/system_topics.py`.
"""

from __future__ import annotations

import re
from typing import Final

from rmq_spark.errors import InvalidRequestError

TOPIC_CHARS_MAX: Final = 127
"""Length of an ordinary topic name."""
SYSTEM_TOPIC_CHARS_MAX: Final = 255
"""Length of a `%RETRY%` or `%DLQ%` topic name, which holds a group's name."""
GROUP_CHARS_MAX: Final = 120
"""Length of a consumer group's name."""
QUEUES_MAX: Final = 65_536
"""Queues of one topic on one broker."""

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
# `room@name` says which machine room a broker is in, as in RocketMQ.
_BROKER: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.@-]{0,126}")

SYSTEM_PREFIX: Final = "rmq_sys_"
"""Topics of the engine itself start with this."""
RETRY_PREFIX: Final = "%RETRY%"
"""Retry topics of groups start with this."""
DLQ_PREFIX: Final = "%DLQ%"
"""Dead-letter topics of groups start with this."""
POP_RETRY_MARK: Final = "+"
"""Stands between group and topic in the name of a POP retry topic; legal nowhere else, so that it is unambiguous."""

STATE_TOPICS: Final = frozenset(
    {
        "rmq_sys_fold",
        "rmq_sys_truncate",
        "rmq_sys_collect",
        "rmq_sys_sink_batch",
        "rmq_sys_topic_config",
        "rmq_sys_group_config",
        "rmq_sys_cluster_config",
        "rmq_sys_consumer_offset",
        "rmq_sys_table_lease",
        "rmq_sys_group_member",
        "rmq_sys_queue_lease",
        "rmq_sys_pop",
        "rmq_sys_service_lease",
        "rmq_sys_timer_progress",
        "rmq_sys_acl",
    }
)
"""Topics whose messages are records of a fold: they stand in commits, never in row files or tables."""


def check_topic(name: str) -> str:
    """Return `name` if RocketMQ would accept it as a topic.

    Raises:
        InvalidRequestError: empty, too long, or with a character outside `% | a-z A-Z 0-9 _ -` (a retry topic
            may have one `+`).
    """
    if not isinstance(name, str) or not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return _check("topic", name, TOPIC_CHARS_MAX)
    legal = name.replace(POP_RETRY_MARK, "_", 1) if name.startswith(RETRY_PREFIX) else name
    _check("topic", legal, SYSTEM_TOPIC_CHARS_MAX)
    return name


def check_group(name: str) -> str:
    """Return `name` if it is legal for a consumer group."""
    return _check("group", name, GROUP_CHARS_MAX)


def check_broker(name: str) -> str:
    """Return `name` if it can be a broker's name, which is also a directory's."""
    return _check_directory("broker", name, "broker name")


def check_instance(name: str) -> str:
    """Return `name` if a broadcasting consumer's file can have it in its path."""
    return _check_directory("instance", name, "instance")


def _check_directory(what: str, name: str, subject: str) -> str:
    _check_text(what, name)
    if not _BROKER.fullmatch(name):
        problem = f"{subject} must be 1 to 127 of a-z A-Z 0-9 _ . - @ and start with a letter or digit"
        raise InvalidRequestError(problem, **{what: name})
    return name


def check_queues(count: int) -> int:
    """Return `count` if a topic may have so many queues on one broker."""
    if type(count) is not int or not 1 <= count <= QUEUES_MAX:
        raise InvalidRequestError("a topic has 1 to 65536 queues", queues=count)
    return count


def _check_text(what: str, name: object) -> None:
    if not isinstance(name, str):
        raise InvalidRequestError(f"{what} name must be a text", name=name)


def _check(what: str, name: str, limit: int) -> str:
    _check_text(what, name)
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
