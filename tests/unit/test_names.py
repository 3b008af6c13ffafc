"""Which names RocketMQ accepts."""

from __future__ import annotations

import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import names


@pytest.mark.parametrize("name", ["a", "orders", "A_b-9", "%RETRY%group", "a|b", "x" * 127, "%DLQ%" + "g" * 250])
def test_legal_topics(name: str) -> None:
    assert names.check_topic(name) == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "empty"),
        ("x" * 128, "longer than 127"),
        ("%RETRY%" + "g" * 249, "longer than 255"),
        ("a b", "illegal character"),
        ("a/b", "illegal character"),
        ("..", "illegal character"),
        ("ü", "illegal character"),
        ("a\n", "illegal character"),
        ("\u0661", "illegal character"),
    ],
)
def test_illegal_topics(name: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        names.check_topic(name)


def test_an_illegal_character_is_named() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        names.check_topic("or$ders")
    assert caught.value.context == {"name": "or$ders", "character": "$"}


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_topic_config"])
def test_topics_of_the_engine_cannot_be_sent_to(name: str) -> None:
    assert names.is_system_topic(name)
    with pytest.raises(InvalidRequestError, match="reserved"):
        names.check_sendable(name)


@pytest.mark.parametrize("name", ["%RETRY%g", "%DLQ%g"])
def test_topics_of_consumer_groups_take_no_rows_of_jobs(name: str) -> None:
    assert names.check_sendable(name) == name, "a consumer sends to them"
    with pytest.raises(InvalidRequestError, match="belongs to a consumer group"):
        names.check_sink(name)
    assert names.check_sink("orders") == "orders"


def test_ordinary_topics_can_be_sent_to() -> None:
    assert names.check_sendable("orders") == "orders"
    assert not names.is_system_topic("orders")


@pytest.mark.parametrize("name", ["broker-0", "a.b", "_x", "9"])
def test_legal_brokers(name: str) -> None:
    assert names.check_broker(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "-a", "a/b", "b" * 128, "a\n"])
def test_illegal_brokers(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        names.check_broker(name)


@pytest.mark.parametrize("count", [1, 65_536])
def test_legal_queue_numbers(count: int) -> None:
    assert names.check_queues(count) == count


@pytest.mark.parametrize("count", [0, -1, 65_537])
def test_illegal_queue_numbers(count: int) -> None:
    with pytest.raises(InvalidRequestError):
        names.check_queues(count)


def test_groups_have_their_own_limit() -> None:
    assert names.check_group("g" * 120)
    with pytest.raises(InvalidRequestError, match="longer than 120"):
        names.check_group("g" * 121)
