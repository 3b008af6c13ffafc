"""Receipt handles as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import InvalidRequestError
from rmq_spark.rules.receipt import Receipt, TopicType, parse_receipt

TEXT = "10 1700000000000 60000 3 0 broker-0 2 12 99"
numbers = st.integers(0, 2**63 - 1)
receipts = st.builds(
    Receipt,
    start_offset=numbers,
    pop_ms=numbers,
    invisible_ms=numbers,
    revive_queue=numbers,
    topic_type=st.sampled_from(TopicType),
    broker=st.sampled_from(["broker-0", "a.b"]),
    queue_id=numbers,
    queue_offset=numbers,
    commit_offset=st.one_of(st.none(), numbers),
)


@given(receipts)
def test_a_handle_says_what_it_was_made_of(receipt: Receipt) -> None:
    assert parse_receipt(receipt.to_text()) == receipt


def test_the_parts_are_in_rocketmqs_order() -> None:
    receipt = parse_receipt(TEXT)
    assert receipt == Receipt(
        start_offset=10,
        pop_ms=1_700_000_000_000,
        invisible_ms=60_000,
        revive_queue=3,
        topic_type=TopicType.NORMAL,
        broker="broker-0",
        queue_id=2,
        queue_offset=12,
        commit_offset=99,
    )
    assert receipt.to_text() == TEXT
    assert parse_receipt(TEXT.removesuffix(" 99")).commit_offset is None


def test_when_a_message_is_visible_again() -> None:
    receipt = parse_receipt(TEXT)
    assert receipt.visible_again_ms == 1_700_000_060_000
    assert not receipt.is_expired(1_700_000_059_999)
    assert receipt.is_expired(1_700_000_060_000)
    assert not receipt.is_fifo
    assert parse_receipt(TEXT.replace(" 3 0 ", " 999 0 ")).is_fifo


@pytest.mark.parametrize(("kind", "topic"), [("0", "t"), ("1", "%RETRY%g_t"), ("2", "%RETRY%g+t")])
def test_rule_30_the_topic_that_it_was_read_from(kind: str, topic: str) -> None:
    assert parse_receipt(TEXT.replace(" 3 0 ", f" 3 {kind} ")).real_topic("g", "t") == topic


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "wrong number of parts"),
        ("garbage", "wrong number of parts"),
        (TEXT + " 1", "wrong number of parts"),
        (TEXT.replace("10 ", "x ", 1), "startOffset is not a number"),
        (TEXT.replace("10 ", "-1 ", 1), "startOffset is negative"),
        (TEXT.replace(" 12 ", " 9223372036854775808 "), "queueOffset is negative or over"),
        (TEXT.replace(" 3 0 ", " 3 7 "), "topicType is 0, 1 or 2"),
        (TEXT.replace("broker-0", "../x"), "broker name"),
        (TEXT.replace(" 99", " "), "commitOffset is not a number"),
        (TEXT.replace("10", "\u0661", 1), "startOffset is not a number"),
        ("1" * 600, "too long"),
    ],
)
def test_what_is_no_handle_is_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        parse_receipt(text)
