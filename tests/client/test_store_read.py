"""Reading a topic as a table: what narrows it, and errors that name the nearest right answer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from group_store import memory_store

from rmq_spark import InvalidRequestError, Message, NotFoundError, Producer, Store
from rmq_spark.clock import ManualClock
from rmq_spark.log import schema
from rmq_spark.storage.memory import MemoryStorage


@pytest.fixture
def store() -> Iterator[Store]:
    clock = ManualClock()
    with memory_store(clock) as made:
        made.create_topic("orders", queues=2)
        producer = Producer(made, compress_over_bytes=100)
        for number in range(6):
            producer.send(
                Message(
                    "orders",
                    b"%d" % number * 200,
                    tags="paid" if number % 2 else "new",
                    keys=f"o-{number}",
                    properties={"amount": str(number)},
                    queue_id=number % 2,
                )
            )
            clock.advance(1)
        yield made


def numbers(table: pa.Table) -> list[int]:
    return sorted(int(body[:1]) for body in table["body"].to_pylist())


def test_read_gives_every_message_with_a_plain_body(store: Store) -> None:
    table = store.read("orders")
    assert table.schema == schema.MESSAGE
    assert numbers(table) == [0, 1, 2, 3, 4, 5]
    assert table["body"].to_pylist()[0] == b"0" * 200


def test_each_argument_narrows_it(store: Store) -> None:
    start = store.clock.now_ms() - 6_000
    assert numbers(store.read("orders", tags="paid")) == [1, 3, 5]
    assert numbers(store.read("orders", sql="amount > 3")) == [4, 5]
    assert numbers(store.read("orders", tags="paid", sql="amount > 3")) == [5]
    assert numbers(store.read("orders", keys="o-2")) == [2]
    assert numbers(store.read("orders", keys=["o-2", "o-5"])) == [2, 5]
    assert numbers(store.read("orders", queue=1)) == [1, 3, 5]
    assert numbers(store.read("orders", queue=[0, 1], since=start + 4_000)) == [4, 5]
    assert numbers(store.read("orders", until=datetime.fromtimestamp((start + 2_000) / 1000, UTC))) == [0, 1]


def test_columns_are_returned_in_the_order_asked_for(store: Store) -> None:
    assert store.read("orders", columns=["keys", "queueId"]).column_names == ["keys", "queueId"]
    assert store.read("orders", columns=["body"], keys="none").num_rows == 0
    assert store.read("orders", columns=["body"]).column_names == ["body"]


def test_scan_yields_record_batches_of_all_brokers() -> None:
    with memory_store() as store:
        store.create_topic("t", queues=1, brokers=("a", "b"))
        for _ in range(4):
            Producer(store).send(Message("t", b"x"))
        batches = list(store.scan("t", columns=["brokerName"]))
        assert sum(batch.num_rows for batch in batches) == 4
        assert {name for batch in batches for name in batch.column(0).to_pylist()} <= {"a", "b"}


def test_errors_name_the_nearest(store: Store) -> None:
    with pytest.raises(NotFoundError, match=r"no such topic \(topic='order', nearest='orders'\)"):
        store.read("order")
    with pytest.raises(NotFoundError, match=r"no such topic \(topic='ordes', nearest='orders'\)"):
        store.topic("ordes")
    with pytest.raises(NotFoundError, match=r"no such queue .*queue=7, nearest=1"):
        store.scan("orders", queue=7)
    with pytest.raises(NotFoundError, match=r"no such topic \(topic='ordes', nearest='orders'\)"):
        store.update_topic("ordes", queues=9)
    with pytest.raises(InvalidRequestError, match=r"unknown column \(column='value', nearest='body'"):  # as Kafka says
        store.read("orders", columns=["value"])
    with pytest.raises(InvalidRequestError, match=r"unknown column .*nearest='storeTimestamp'"):
        store.scan("orders", columns=["storeTime"])
    with pytest.raises(InvalidRequestError, match="list of names"):
        store.read("orders", columns="body")
    with pytest.raises(InvalidRequestError, match="since"):
        store.read("orders", since="yesterday")


@pytest.mark.parametrize(
    "wrong", [{"queue": "0"}, {"queue": ["0"]}, {"keys": 5}, {"keys": [5]}, {"tags": 5}, {"sql": 5}]
)
def test_values_of_another_type_are_refused(store: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        store.read("orders", **wrong)


def test_a_dead_letter_topic_can_be_read_before_it_has_messages(store: Store) -> None:
    assert store.read("%DLQ%billing").num_rows == 0


def test_open_creates_only_when_told() -> None:
    try:
        with pytest.raises(NotFoundError):
            Store.open("memory://not-there-yet")
        with pytest.raises(InvalidRequestError, match="reading only"):
            Store.open("memory://not-there-yet", create=True, read_only=True)
        with Store.open("memory://not-there-yet", create=True) as made:
            made.create_topic("t")
        with Store.open("memory://not-there-yet", create=True) as existing:
            assert [topic.name for topic in existing.topics()] == ["t"]
    finally:
        MemoryStorage.forget("not-there-yet")
