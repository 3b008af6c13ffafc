"""Which names RocketMQ accepts."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import names


@pytest.mark.parametrize(
    "name", ["a", "orders", "A_b-9", "%RETRY%group", "%RETRY%group+topic", "a|b", "x" * 127, "%DLQ%" + "g" * 250]
)
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
        ("a+b", "illegal character"),
        ("%DLQ%a+b", "illegal character"),
        ("%RETRY%a+b+c", "illegal character"),
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


@pytest.mark.parametrize("count", ["2", 2.0, True, None])
def test_a_number_of_queues_that_is_no_whole_number_is_refused(count: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a topic has 1 to 65536 queues"):
        names.check_queues(count)


@pytest.mark.parametrize("name", [["orders"], 5, None, b"orders"])
@pytest.mark.parametrize("check", [names.check_topic, names.check_group, names.check_broker])
def test_a_name_that_is_no_text_is_refused(check: Any, name: Any) -> None:
    with pytest.raises(InvalidRequestError, match="name must be a text"):
        check(name)
