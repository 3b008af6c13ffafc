"""A message is checked when it is made, so that nothing bad reaches a log."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.message import Message
from rmq_spark.model.names import STATE_TOPICS
from rmq_spark.model.properties import RESERVED


def test_a_message_with_everything() -> None:
    message = Message(
        topic="orders",
        body=b"x",
        tags="paid",
        keys=["a", "b"],
        properties={"region": "eu"},
        sharding_key="customer-1",
        queue_id=3,
    )
    assert message.keys_text() == "a b"
    assert message.stored_properties() == {"region": "eu", "__SHARDINGKEY": "customer-1"}
    # name + value + 2 separators, for region, __SHARDINGKEY, TAGS and KEYS
    assert message.properties_size() == (6 + 2 + 2) + (13 + 10 + 2) + (4 + 4 + 2) + (4 + 3 + 2)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"topic": "a b"}, "illegal character"),
        ({"body": b""}, "empty"),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, "over 4 MiB"),
        ({"tags": ""}, "not blank"),
        ({"tags": " "}, "not blank"),
        ({"tags": "a||b"}, "no '|'"),
        ({"properties": {"": "x"}}, "blank"),
        ({"properties": {"x": " "}}, "blank"),
        ({"properties": {"TAGS": "x"}}, "reserved"),
        ({"properties": {"x": "y" * 32_767}}, "32767"),
        ({"keys": "k" * 32_767}, "32767"),
        ({"tags": "\ud800"}, "surrogate"),
        ({"keys": ["a", "\udfff"]}, "surrogate"),
        ({"properties": {"x": "\ud83d"}}, "surrogate"),
        ({"sharding_key": "\ud800"}, "surrogate"),
    ],
)
def test_what_rocketmq_would_refuse_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem.replace("|", r"\|")):
        Message(**{"topic": "orders", "body": b"x", **changes})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"topic": 5}, "topic must be a text (topic=5)"),
        ({"body": "text"}, "body must be bytes; encode a text (body='str')"),
        ({"body": None}, "body must be bytes"),
        ({"tags": 5}, "tags must be a text (tags=5)"),
        ({"tags": b"paid"}, "tags must be a text"),
        ({"keys": 5}, "keys must be a text or a list of texts (keys=5)"),
        ({"keys": ["a", 1]}, "keys must be a text or a list of texts (keys=['a', 1])"),
        ({"keys": b"a"}, "keys must be a text or a list of texts"),
        ({"properties": {"a": 1}}, "property names and values must be texts (property='a', value=1)"),
        ({"properties": {1: "a"}}, "property names and values must be texts (property=1, value='a')"),
        ({"properties": ["a"]}, "properties must be a mapping of texts to texts (properties=['a'])"),
        ({"properties": None}, "properties must be a mapping of texts to texts"),
        ({"sharding_key": 5}, "sharding_key must be a text (sharding_key=5)"),
        ({"msg_id": 5}, "msg_id must be a text (msg_id=5)"),
        ({"flag": "1"}, "flag must be a whole number (flag='1')"),
        ({"queue_id": "1"}, "queue_id must be a whole number (queue_id='1')"),
        ({"queue_id": True}, "queue_id must be a whole number (queue_id=True)"),
        ({"born_timestamp_ms": 1.5}, "born_timestamp_ms must be a whole number (born_timestamp_ms=1.5)"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_field(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Message(**{"topic": "orders", "body": b"x", **changes})
    assert problem in str(caught.value)


def test_subclasses_of_the_usual_types_are_accepted() -> None:
    class Text(str):
        __slots__ = ()

    message = Message(topic=Text("orders"), body=b"x", tags=Text("paid"), keys=(Text("a"), "b"))
    assert (message.tags, message.keys_text()) == ("paid", "a b")


def test_the_largest_body_is_accepted() -> None:
    assert len(Message(topic="orders", body=bytes(4 * 1024 * 1024)).body) == 4 * 1024 * 1024


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_every_reserved_property_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="reserved"):
        Message(topic="orders", body=b"x", properties={name: "x"})


@pytest.mark.parametrize(("keys", "text"), [(None, None), ("", None), ([], None), ("a b", "a b"), (("a",), "a")])
def test_keys_are_joined_by_a_space(keys: Any, text: str | None) -> None:
    assert Message(topic="orders", body=b"x", keys=keys).keys_text() == text


def table(**changes: Any) -> pa.Table:
    columns: dict[str, Any] = {
        "topic": ["orders", "orders"],
        "queueId": pa.array([0, 1], pa.int32()),
        "msgId": ["1", "2"],
        "body": [b"x", b"y"],
        "bornTimestamp": pa.array([0, 0], pa.timestamp("ms", tz="UTC")),
    }
    return pa.table({name: value for name, value in {**columns, **changes}.items() if value is not None})


def test_arrow_rows_get_defaults() -> None:
    row = MessageBatch.from_arrow(table()).table().to_pylist()[1]
    assert (row["tags"], row["keys"], row["flag"], row["properties"]) == (None, None, 0, [])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"topic": None}, "required column is missing"),
        ({"msgId": None}, "required column is missing"),
        ({"bornTimestamp": None}, "required column is missing"),
        ({"extra": [1, 2]}, "unknown columns"),
        ({"queueId": ["a", "b"]}, "wrong type"),
        ({"topic": ["orders", None]}, "topic is null"),
        ({"body": pa.array([b"x", None], pa.binary())}, "body is null"),
        ({"topic": ["orders", "a b"]}, "illegal character"),
        ({"queueId": pa.array([0, -1], pa.int32())}, "negative"),
        ({"queueId": pa.array([0, 65_536], pa.int32())}, "65535"),
        ({"body": [b"x", bytes(4 * 1024 * 1024 + 1)]}, "over 4 MiB"),
        ({"tags": ["a", "y" * 32_768]}, "32767"),
    ],
)
def test_bad_arrow_rows_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        MessageBatch.from_arrow(table(**changes))


def test_a_bad_arrow_row_is_named() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        MessageBatch.from_arrow(table(queueId=pa.array([0, -1], pa.int32())))
    assert caught.value.context["row"] == 1
    assert caught.value.context["msgId"] == "2"


@pytest.mark.parametrize("topic", sorted(STATE_TOPICS))
def test_a_table_has_no_state_messages(topic: str) -> None:
    with pytest.raises(InvalidRequestError, match="state messages are appended one by one"):
        MessageBatch.from_arrow(table(topic=["t", topic]))


@pytest.mark.parametrize("topic", ["rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"])
def test_a_table_may_have_messages_that_wait(topic: str) -> None:
    assert MessageBatch.from_arrow(table(topic=["t", topic])).num_rows == 2
