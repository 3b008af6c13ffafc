"""The kind of a message, and whether a topic takes it."""

from __future__ import annotations

import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.message import Message
from rmq_spark.rules.message_type import MessageType, check_type, type_of

KINDS = [kind for kind in MessageType if kind not in (MessageType.UNSPECIFIED, MessageType.MIXED)]


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, MessageType.NORMAL),
        ({"p": "1", "TRAN_MSG": "false"}, MessageType.NORMAL),
        ({"_SYS_MSG_PRIORITY_": "1"}, MessageType.PRIORITY),
        ({"_SYS_MSG_PRIORITY_": "1", "__SHARDINGKEY": "k"}, MessageType.FIFO),
        ({"__SHARDINGKEY": "k", "DELAY": "1"}, MessageType.DELAY),
        ({"TIMER_DELIVER_MS": "1"}, MessageType.DELAY),
        ({"TIMER_DELAY_SEC": "1"}, MessageType.DELAY),
        ({"TIMER_DELAY_MS": "1"}, MessageType.DELAY),
        ({"TRAN_MSG": "true", "DELAY": "1", "__SHARDINGKEY": "k"}, MessageType.TRANSACTION),
    ],
)
def test_the_first_property_that_applies_tells_the_kind(properties: dict[str, str], kind: MessageType) -> None:
    assert type_of(properties) is kind


def test_what_a_producer_stores_tells_the_kind() -> None:
    assert type_of(Message("t", b"x", sharding_key="k").stored_properties()) is MessageType.FIFO
    assert type_of(Message("t", b"x", priority=2).stored_properties()) is MessageType.PRIORITY


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_takes_its_own_kind_only_unless_it_is_mixed_or_has_none(kind: MessageType) -> None:
    for free in (MessageType.MIXED, MessageType.UNSPECIFIED):
        if kind is MessageType.PRIORITY:  # consumers of such a topic would not look at it
            with pytest.raises(InvalidRequestError, match="needs a topic whose queues are priorities"):
                check_type("t", free, kind)
        else:
            check_type("t", free, kind)
    for expected in KINDS:
        if expected is kind:
            check_type("t", expected, kind)
            continue
        with pytest.raises(InvalidRequestError, match="another type") as caught:
            check_type("t", expected, kind)
        assert caught.value.context == {"topic": "t", "expected": str(expected), "actual": str(kind)}
