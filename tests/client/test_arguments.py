"""Arguments of clients that are of another kind or out of bounds are refused at once, by name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from group_store import memory_store

from rmq_spark import InvalidRequestError, LitePullConsumer, Message, Producer, PushConsumer, SimpleConsumer, Store
from rmq_spark.clock import ManualClock

NO_NUMBER = ("4", float("nan"), float("inf"), True, [1])
HUGE = 10**400
"""No float holds it."""


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock()) as made:
        made.create_topic("t", queues=4)
        yield made


def refused(name: str) -> Any:
    return pytest.raises(InvalidRequestError, match=rf"{name}.*\({name}=|{name}.*\((value|type)=")


@pytest.mark.parametrize("wrong", [*NO_NUMBER, 1.5, -1])
@pytest.mark.parametrize("name", ["compress_over_bytes", "retries"])
def test_a_producer_refuses_what_is_no_whole_number(store: Store, name: str, wrong: Any) -> None:
    with refused(name):
        Producer(store, **{name: wrong})


@pytest.mark.parametrize("wrong", [*NO_NUMBER, -1, -0.5, timedelta(seconds=-1), None, HUGE])
@pytest.mark.parametrize("name", ["timeout", "check_immunity"])
def test_a_producer_refuses_what_is_no_duration(store: Store, name: str, wrong: Any) -> None:
    with refused(name):
        Producer(store, **{name: wrong})


@pytest.mark.parametrize(("name", "wrong"), [("hooks", 3), ("hooks", [3]), ("checker", 3), ("delays", "1s 5s")])
def test_a_producer_refuses_what_later_sends_would_stumble_over(store: Store, name: str, wrong: Any) -> None:
    with refused(name):
        Producer(store, **{name: wrong})


@pytest.mark.parametrize("wrong", [*NO_NUMBER, 1.5, 0, -1, None])
@pytest.mark.parametrize("name", ["threads", "batch_size"])
def test_a_push_consumer_refuses_what_is_no_whole_number(store: Store, name: str, wrong: Any) -> None:
    with refused(name):
        PushConsumer(store, "g", **{name: wrong})


def test_a_push_consumer_refuses_what_is_no_directory(store: Store) -> None:
    wrong: Any = 3
    with refused("offsets_home"):
        PushConsumer(store, "g", broadcasting=True, offsets_home=wrong)


@pytest.mark.parametrize("wrong", [float("nan"), True, [1], None, 10**18, "4 o'clock"])
@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer, SimpleConsumer])
def test_consumers_refuse_what_is_no_time(store: Store, kind: Any, wrong: Any) -> None:
    with refused("consume_from"):
        kind(store, "g", consume_from=wrong)


@pytest.mark.parametrize("wrong", [*NO_NUMBER, 1.5, 0, -1, None, 33])
def test_receive_refuses_what_is_no_number_of_messages(store: Store, wrong: Any) -> None:
    with SimpleConsumer(store, "g").subscribe("t") as consumer, refused("max_messages"):
        consumer.receive(wrong)


@pytest.mark.parametrize("wrong", [*NO_NUMBER, -1, None, HUGE])
@pytest.mark.parametrize("name", ["invisible_duration", "await_duration"])
def test_receive_refuses_what_is_no_duration(store: Store, name: str, wrong: Any) -> None:
    with SimpleConsumer(store, "g").subscribe("t") as consumer, refused(name):
        consumer.receive(**{name: wrong})


@pytest.mark.parametrize("wrong", [3, None, "text", [3]])
def test_only_messages_are_acknowledged(store: Store, wrong: Any) -> None:
    with SimpleConsumer(store, "g").subscribe("t") as consumer, pytest.raises(InvalidRequestError, match="message"):
        consumer.ack(wrong)


@pytest.mark.parametrize("wrong", [*NO_NUMBER, -1, -0.0001, None, HUGE])
def test_poll_refuses_what_is_no_duration(store: Store, wrong: Any) -> None:
    with LitePullConsumer(store, "g").subscribe("t") as consumer:
        for poll in (consumer.poll, consumer.poll_table):
            with refused("timeout"):
                poll(wrong)


@pytest.mark.parametrize("wrong", [*NO_NUMBER, 1.5, 0, -1, None])
def test_poll_refuses_what_is_no_number_of_messages(store: Store, wrong: Any) -> None:
    with LitePullConsumer(store, "g").subscribe("t") as consumer:
        with refused("max_messages"):
            consumer.poll(0, max_messages=wrong)
        with refused("max_rows"):
            consumer.poll_table(0, max_rows=wrong)


@pytest.mark.parametrize("wrong", [3, b"handle", True])
def test_recall_refuses_what_is_no_handle(store: Store, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="recall takes what send returned"):
        Producer(store).recall(wrong)


def test_a_batch_may_be_any_iterable(store: Store) -> None:
    producer = Producer(store)
    results = producer.send_batch(Message("t", b"%d" % number, queue_id=0) for number in range(3))
    assert [result.queue_offset for result in results] == [0, 1, 2]
    assert store.read("t")["body"].to_pylist() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("wrong", [3, None])
def test_a_batch_is_iterable(store: Store, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a batch is a list of messages"):
        Producer(store).send_batch(wrong)


def test_a_batch_without_messages_is_refused(store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="at least one message"):
        Producer(store).send_batch(iter(()))
