"""A limit on what groups have left to consume refuses sends, and costs nothing between two looks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from group_store import memory_store
from push_steps import advance

from rmq_spark import Admin, BackPressureError, Message, Producer, SimpleConsumer, Store
from rmq_spark.client import back_pressure
from rmq_spark.clock import ManualClock


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock(1_700_000_000_000), retention_ms=10**9) as made:
        made.create_topic("t", queues=1)
        Admin(made).update_topic("t", backlog_max=3)
        Admin(made).offsets.commit("slow", {("t", "broker-0", 0): 0})
        yield made


def send(store: Store, count: int, producer: Producer | None = None) -> None:
    sender = producer or Producer(store)
    for _ in range(count):
        sender.send(Message("t", b"x"))
        advance(store, 1)


def test_sends_are_refused_at_the_limit_and_taken_again_when_the_group_has_caught_up(store: Store) -> None:
    producer = Producer(store)
    send(store, 3, producer)
    with pytest.raises(BackPressureError) as caught:
        producer.send(Message("t", b"x"))
    assert caught.value.retriable
    assert caught.value.context == {"topic": "t", "group": "slow", "backlog": 3, "limit": 3}
    with pytest.raises(BackPressureError):
        producer.send_table("t", pa.table({"body": [b"x"]}))
    with producer.begin_transaction() as tx, pytest.raises(BackPressureError):
        producer.send(Message("t", b"x"), transaction=tx)
    assert store.read("t").num_rows == 3, "nothing was written"
    Admin(store).offsets.commit("slow", {("t", "broker-0", 0): 3})
    advance(store, 1)
    producer.send(Message("t", b"x"))


def test_the_group_that_is_behind_most_counts(store: Store) -> None:
    Admin(store).offsets.commit("quick", {("t", "broker-0", 0): 0})
    send(store, 3)
    Admin(store).offsets.commit("quick", {("t", "broker-0", 0): 3})
    with pytest.raises(BackPressureError, match="slow"):
        Producer(store).send(Message("t", b"x"))
    Admin(store).delete_group("slow", force=True)
    Producer(store).send(Message("t", b"x"))


def test_the_stores_limit_counts_for_topics_without_one(store: Store) -> None:
    store.create_topic("u", queues=1)
    Admin(store).update_settings(backlog_max=1)
    Admin(store).offsets.commit("g", {("u", "broker-0", 0): 0})
    producer = Producer(store)
    producer.send(Message("u", b"x"))
    advance(store, 1)
    with pytest.raises(BackPressureError):
        producer.send(Message("u", b"x"))
    Admin(store).update_topic("u", backlog_max=0)
    Producer(store).send(Message("u", b"x"))


def test_backlogs_are_looked_at_once_a_second(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    real = back_pressure.BackPressure._furthest_behind
    monkeypatch.setattr(
        back_pressure.BackPressure,
        "_furthest_behind",
        lambda self, topic: (looks.append(topic.name), real(self, topic))[1],
    )
    producer = Producer(store)
    for _ in range(10):
        producer.send(Message("t", b"x"))
    assert looks == ["t"]
    advance(store, 1)
    with pytest.raises(BackPressureError):
        producer.send(Message("t", b"x"))
    assert looks == ["t", "t"]


def test_topics_without_a_limit_are_not_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("looked")

    monkeypatch.setattr(back_pressure.BackPressure, "check", fail)
    Producer(store).send(Message("free", b"x"))


def test_what_pop_consumers_hold_is_left_to_consume(store: Store) -> None:
    Admin(store).delete_group("slow", force=True)
    producer = Producer(store)
    send(store, 3, producer)
    consumer = SimpleConsumer(store, "pop", consume_from="earliest").subscribe("t")
    held = consumer.receive(3, 60, 0)
    advance(store, 1)
    with pytest.raises(BackPressureError, match="pop"):
        producer.send(Message("t", b"x"))
    consumer.ack(held[:1])
    advance(store, 1)
    producer.send(Message("t", b"x"))


def test_what_a_fifo_group_holds_is_counted_once(store: Store) -> None:
    Admin(store).delete_group("slow", force=True)
    producer = Producer(store)
    send(store, 2, producer)
    Admin(store).update_group("pop", orderly=True)
    consumer = SimpleConsumer(store, "pop", consume_from="earliest").subscribe("t")
    assert len(consumer.receive(2, 60, 0)) == 2
    advance(store, 1)
    producer.send(Message("t", b"x"))
