"""What a batch may hold, and how a large one is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import schema
from rmq_spark.model import limits
from rmq_spark.model.message import Message
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import message_checks
from rmq_spark.rules.message_checks import check_batch, encoded_bytes, split_batches


def sized(count: int, topic: str = "t") -> Message:
    return Message(topic, bytes(count))


def test_messages_of_one_topic_are_a_batch() -> None:
    check_batch([Message("t", b"x", tags="a"), Message("t", b"y", sharding_key="k")])


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "at least one"),
        ([Message("t", b"x"), Message("u", b"x")], "one topic"),
        ([Message("%RETRY%g", b"x")], "retry topic"),
        ([Message("%DLQ%" + "g" * 123, b"x")], "longer than 127"),
        ([Message("t", b"x"), Message("t", b"x", delay_level=1)], "delayed"),
        ([sized(limits.BODY_BYTES_MAX // 2)] * 2, "over 4 MiB"),
    ],
)
def test_what_is_no_batch_is_refused(messages: list[Message], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        check_batch(messages)


@pytest.mark.parametrize("timer", [{"delay": 1}, {"deliver_at": 5}])
def test_rule_38_times_in_a_batch_are_refused_and_not_ignored(timer: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="delayed"):
        check_batch([Message("t", b"x", **timer)])  # type: ignore[arg-type]


def test_the_encoded_size_counts_properties_and_the_id() -> None:
    plain = encoded_bytes(Message("t", b"x"))
    assert plain == 22 + 1 + (8 + 32 + 2) + (4 + 4 + 2)
    assert encoded_bytes(Message("t", b"x", tags="ab", properties={"p": "中"})) == plain + (4 + 2 + 2) + (1 + 3 + 2)


@given(st.lists(st.integers(1, 400), max_size=30))
def test_a_split_keeps_every_message_in_order_and_fits(sizes: list[int]) -> None:
    messages = [sized(size) for size in sizes]
    batches = list(split_batches(messages, 500))
    assert [message for batch in batches for message in batch] == messages
    assert all(0 < sum(map(encoded_bytes, batch)) <= 500 for batch in batches)
    for batch, after in pairwise(batches):
        assert sum(map(encoded_bytes, [*batch, after[0]])) > 500, "no batch is smaller than needed"


def test_a_message_that_fits_no_batch_is_named() -> None:
    got = split_batches([sized(1), sized(1000, "u")], 500)
    with pytest.raises(InvalidRequestError, match="larger than a batch") as caught:
        list(got)
    assert caught.value.context["topic"] == "u"


def test_what_is_split_may_be_sent() -> None:
    for batch in split_batches([sized(limits.BODY_BYTES_MAX // 2)] * 3):
        check_batch(batch)
    assert message_checks.BATCH_BYTES_MAX == 4 * 1024 * 1024


def test_a_row_has_the_columns_of_the_log_in_their_order() -> None:
    camel = {"born_ms": "bornTimestamp"}
    names = [
        camel.get(name, name.split("_")[0] + name.title().replace("_", "")[len(name.split("_")[0]) :])
        for name in MessageRow._fields
    ]
    assert names == schema.ROWS.names


def test_a_stored_message_becomes_the_row_that_it_came_from() -> None:
    message = StoredMessage(
        topic="t",
        broker="b",
        queue_id=1,
        queue_offset=2,
        commit_offset=3,
        msg_id="id",
        tags="a",
        keys="k",
        body=b"x",
        flag=4,
        sys_flag=5,
        born_ms=6,
        born_host="h",
        store_ms=7,
        reconsume_times=8,
        properties={"p": "1"},
    )
    assert message.to_row() == ("t", 1, "id", "a", "k", b"x", 4, 5, 6, "h", 8, [("p", "1")])
    assert (message.delivery_attempt, message.receipt) == (9, None)
