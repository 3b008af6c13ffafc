"""Services and Spark: what readers see of delayed and transactional messages and of POP, and what the sink parks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_spark import Message, Producer, SimpleConsumer, Store
from rmq_spark.clock import ManualClock
from rmq_spark.model.settings import LogSettings
from rmq_spark.services.revive import ReviveService
from rmq_spark.services.timer import TimerService

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WAIT = 120
"""Longer than any machine takes; nothing is expected to take so long."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(str(tmp_path / "store"), services="off") as made:  # each service runs when a test says so
        made.create_topic("t", queues=1)
        yield made


def rows(spark: SparkSession, store: Store, topic: str = "t") -> list[tuple[str, int]]:
    """Body and offset of every message that a batch read sees."""
    df = spark.read.format("rocketmq").option("store", store.storage.uri).option("topic", topic).load()
    return [(bytes(row["body"]).decode(), row["queueOffset"]) for row in df.orderBy("queueOffset").collect()]


def deliver(store: Store, topic: str, count: int) -> None:
    """Run the timer service until so many messages are there."""
    service, deadline = TimerService(store), time.monotonic() + WAIT
    while store.read(topic).num_rows < count:
        assert time.monotonic() < deadline
        service.wait(min(0.1, service.run_once()))


def test_rule_20_a_message_appears_when_it_is_delivered_at_its_delivery_offset(
    spark: SparkSession, store: Store
) -> None:
    producer = Producer(store, group="p")
    producer.send(Message("t", b"late", delay=1.0))
    tx = producer.begin_transaction()
    producer.send(Message("t", b"half"), transaction=tx)
    producer.send(Message("t", b"plain"))
    assert rows(spark, store) == [("plain", 0)], "parked and half messages are invisible (rules 5 and 17)"
    tx.commit()
    deliver(store, "t", 3)
    assert rows(spark, store) == [("plain", 0), ("half", 1), ("late", 2)]


def test_a_stream_gets_each_once_when_it_is_delivered_and_nothing_of_the_engine(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.create_topic("u", queues=1)
    reader = spark.readStream.format("rocketmq").option("store", store.storage.uri).option("subscribePattern", ".*")
    source = reader.option("startingOffsets", "earliest").load().selectExpr("topic", "cast(body as string) text")

    def run() -> list[tuple[str, str]]:
        query = (
            source.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect())

    producer = Producer(store, group="p")
    producer.send(Message("u", b"now"))
    producer.send(Message("t", b"late", delay=0.2))
    with producer.begin_transaction() as tx:
        producer.send(Message("t", b"half"), transaction=tx)
        assert run() == [("u", "now")]
        tx.commit()
    deliver(store, "t", 2)
    assert run() == [("t", "half"), ("t", "late"), ("u", "now")]
    consumer = SimpleConsumer(store, "g", consume_from="earliest").subscribe("u")
    (held,) = consumer.receive(1, 0.05, 10)
    deadline = time.monotonic() + WAIT
    revive = ReviveService(store)
    while not revive.done.retried:
        assert time.monotonic() < deadline
        store.clock.sleep(min(0.05, revive.run_once()))
    assert run() == [("t", "half"), ("t", "late"), ("u", "now")], "neither claims nor copies for one group"
    assert held.body == b"now"


def test_what_the_sink_parks_is_delivered_by_the_timer_service(spark: SparkSession, store: Store) -> None:
    now_ms = store.clock.now_ms()
    df = spark.createDataFrame(
        [("now", None, None), ("level", None, 18), ("time", now_ms + HOUR_MS, None), ("past", now_ms - 1_000, None)],
        "body string, deliverTimestamp long, delayTimeLevel int",
    )
    df.write.format("rocketmq").mode("append").option("store", store.storage.uri).option("topic", "t").save()
    at_once = {"now", "past"}
    assert {body for body, _ in rows(spark, store)} == at_once, "a time that has passed is now (rule 14)"
    clock = ManualClock(now_ms + HOUR_MS - 1)
    settings = LogSettings(clock_ahead_max_ms=DAY_MS)
    with Store.open(store.storage.uri, clock=clock, settings=settings, services="off") as later:
        service = TimerService(later)
        service.run_once()
        assert {body for body, _ in rows(spark, store)} == at_once, "never early"
        clock.advance(0.001)
        service.run_once()
        assert {body for body, _ in rows(spark, store)} == {*at_once, "time"}
        clock.advance(2 * 3600)
        service.run_once()
    assert {body for body, _ in rows(spark, store)} == {*at_once, "time", "level"}


def test_rule_14_the_sink_refuses_a_time_beyond_its_longest_delay(spark: SparkSession, store: Store) -> None:
    ahead_ms = store.clock.now_ms() + 4 * DAY_MS
    df = spark.createDataFrame([("far", ahead_ms)], "body string, deliverTimestamp long")
    writer = df.write.format("rocketmq").mode("append").option("store", store.storage.uri).option("topic", "t")
    with pytest.raises(PySparkException, match="too far ahead"):
        writer.option("timerMaxDelay", "3d").save()
    assert TimerService(store).pending == 0
    writer.option("timerMaxDelay", "5d").save()
    service = TimerService(store)
    service.run_once()
    assert service.pending == 1
