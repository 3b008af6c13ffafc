"""Streams by a real Spark: starts that stay, group progress, what comes and goes while a query runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from store_world import World, in_queues, rows_in_queues

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.clock import ManualClock
from rmq_spark.spark import track

pytestmark = pytest.mark.spark

LIMIT_S = 120.0
"""Longest wait for something that a busy machine does in a second."""


class Sink:
    """What a query has delivered, by batch; a batch that is repeated replaces its first attempt. May fail on demand."""

    def __init__(self) -> None:
        self.batches: dict[int, list[dict[str, Any]]] = {}
        self.error: Exception | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        found = [row.asDict(recursive=True) for row in frame.collect()]
        if self.error is not None:
            raise self.error
        self.batches[batch] = found

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]


def start(spark: SparkSession, options: dict[str, str], sink: Sink, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    stream = spark.readStream.format("rocketmq").options(**options).load()
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(**trigger) if trigger else writer).start()


def run(spark: SparkSession, options: dict[str, str], sink: Sink, checkpoint: Path) -> StreamingQuery:
    """An AvailableNow run to its end."""
    query = start(spark, options, sink, checkpoint, availableNow=True)
    assert query.awaitTermination(LIMIT_S)
    return query


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def lag(world: World, group: str) -> int:
    return sum(queue.lag for queue in GroupOffsets(world.store).lag(group))


def test_a_crash_in_the_first_batch_moves_no_start(spark: SparkSession, tmp_path: Path) -> None:
    """Latest, a time and a group's offset: each would be another place when it is asked for again."""
    clock = ManualClock()
    world = World.create(str(tmp_path / "store"), clock=clock)
    world.store.create_topic("t", queues=2)
    for _ in range(3):
        world.send("t", 0, 1)
    GroupOffsets(world.store).commit("g", {("t", "broker-0", 0): 1, ("t", "broker-0", 1): 1})
    starts: dict[str, dict[str, object]] = {
        "latest": {"startingOffsets": "latest"},
        "time": {"startingTimestamp": clock.wall_ms + 5_000},
        "group": {"startingOffsets": "group", "consumerGroup": "g"},
    }
    first = {"latest": [], "time": [], "group": [one for one in world.of("t") if one.queue_offset]}
    options = {kind: world.options(topic="t", **given) for kind, given in starts.items()}
    sinks = {kind: Sink() for kind in starts}
    for sink in sinks.values():
        sink.error = RuntimeError("the sink is away")
    queries = [start(spark, options[kind], sinks[kind], tmp_path / kind, availableNow=True) for kind in starts]
    for query in queries:
        with pytest.raises(StreamingQueryException, match="the sink is away"):
            query.awaitTermination(LIMIT_S)
    after = world.send("t", 0)
    clock.advance(10)
    after += world.send("t", 1)
    GroupOffsets(world.store).commit("g", {("t", "broker-0", 0): 4, ("t", "broker-0", 1): 4})
    for sink in sinks.values():
        sink.error = None
    queries = [start(spark, options[kind], sinks[kind], tmp_path / kind, availableNow=True) for kind in starts]
    for query in queries:
        assert query.awaitTermination(LIMIT_S)
    for kind, sink in sinks.items():
        assert rows_in_queues(sink.rows) == in_queues([*first[kind], *after]), kind


def test_available_now_takes_what_is_there_in_batches_and_ends(spark: SparkSession, tmp_path: Path) -> None:
    world = World.create(str(tmp_path / "store"))
    world.store.create_topic("t", queues=2)
    for _ in range(5):
        world.send("t", 0, 1)
    sink = Sink()
    options = world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=4)
    query = start(spark, options, sink, tmp_path / "checkpoint", availableNow=True)
    assert query.awaitTermination(LIMIT_S)
    assert rows_in_queues(sink.rows) == in_queues(world.of("t"))
    assert [len(rows) for rows in sink.batches.values()] == [4, 4, 2]
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in progress] == [4, 4, 2]
    source = progress[0]["sources"][0]
    assert json.loads(source["endOffset"])["brokers"]["broker-0"][:2] == [4, 4]
    assert json.loads(source["latestOffset"])["brokers"]["broker-0"][:2] == [10, 10]
    before = len(list((tmp_path / "checkpoint/offsets").glob("[0-9]*")))
    run(spark, options, sink, tmp_path / "checkpoint")
    assert len(list((tmp_path / "checkpoint/offsets").glob("[0-9]*"))) == before, "nothing new is no batch"


def test_a_groups_lag_is_seen_and_replaces_a_lost_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    world = World.create(str(tmp_path / "store"))
    world.store.create_topic("t", queues=2)
    for _ in range(4):
        world.send("t", 0, 1)
    options = world.options(topic="t", startingOffsets="group,earliest", consumerGroup="g", maxOffsetsPerTrigger=5)
    sink = Sink()
    run(spark, options, sink, tmp_path / "checkpoint")
    assert [len(rows) for rows in sink.batches.values()] == [5, 3]
    assert lag(world, "g") == 3, "Spark tells the source of a batch only while it plans the next one"
    tracker = track(spark)
    try:
        expected = world.of("t") + world.send("t", 0)
        run(spark, options, sink, tmp_path / "checkpoint")
        assert rows_in_queues(sink.rows) == in_queues(expected)
        wait_for(lambda: lag(world, "g") == 0, "the listener notes the last batch")
        new = world.send("t", 0, 1)
        assert lag(world, "g") == 2
        fresh = Sink()
        run(spark, options, fresh, tmp_path / "another")
        assert rows_in_queues(fresh.rows) == in_queues(new)
        wait_for(lambda: lag(world, "g") == 0, "the listener notes the new query's batch")
    finally:
        spark.streams.removeListener(tracker)
        tracker.close()


def test_what_comes_while_a_query_runs_and_what_is_no_news(spark: SparkSession, tmp_path: Path) -> None:
    world = World.create(str(tmp_path / "store"))
    world.store.create_topic("orders_a", queues=1)
    world.store.create_topic("other", queues=1)
    world.send("orders_a", 0)
    sink = Sink()
    options = world.options(subscribePattern="orders_.*", startingOffsets="earliest", consumerGroup="g")
    query = start(spark, options, sink, tmp_path / "checkpoint", processingTime="50 milliseconds")
    try:
        query.processAllAvailable()
        world.store.create_topic("orders_b", queues=2, brokers=("broker-0", "broker-1"))
        world.send("orders_b", 0, 1)
        world.send("orders_b", 1, broker="broker-1")
        query.processAllAvailable()
        assert rows_in_queues(sink.rows) == in_queues(world.of("orders_a", "orders_b"))
        batches = len(sink.batches)
        for number in range(20):
            world.send("other", 0)
            GroupOffsets(world.store).commit("h", {("other", "broker-0", 0): number})
            time.sleep(0.05)
        query.processAllAvailable()
        assert len(sink.batches) == batches, "other topics and groups are no news"
        world.roll(segment_bytes=10_000_000)
        world.send("orders_a", 0)
        query.processAllAvailable()
        assert rows_in_queues(sink.rows) == in_queues(world.of("orders_a", "orders_b"))
        assert len(sink.batches) == batches + 1
    finally:
        query.stop()


def test_retention_that_passes_a_stopped_query_is_told(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock()
    world = World.create(str(tmp_path / "store"), clock=clock)
    world.store.create_topic("t", queues=1)
    sink = Sink()
    options = world.options(topic="t", startingOffsets="earliest")
    world.send("t", 0)
    run(spark, options, sink, tmp_path / "checkpoint")
    read = len(sink.rows)
    for _ in range(3):
        clock.advance(1)
        world.send("t", 0)
    assert world.expire_below(2) == 2
    with pytest.raises(StreamingQueryException) as error:
        run(spark, options, sink, tmp_path / "checkpoint")
    assert "retention deleted messages before they were read" in str(error.value)
    assert "broker='broker-0', first=1, end=2, messages=1" in str(error.value)
    run(spark, options | {"failOnDataLoss": "false"}, sink, tmp_path / "checkpoint")
    assert rows_in_queues(sink.rows[read:]) == in_queues(world.of("t"))


def test_a_checkpoint_of_another_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    worlds = [World.create(str(tmp_path / name)) for name in ("one", "other")]
    for world in worlds:
        world.store.create_topic("t", queues=1)
        world.send("t", 0)
    sink = Sink()
    run(spark, worlds[0].options(topic="t", startingOffsets="earliest"), sink, tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match="the checkpoint belongs to another store"):
        run(spark, worlds[1].options(topic="t"), sink, tmp_path / "checkpoint")


def test_a_schema_narrows_a_stream_and_filters_push_down(spark: SparkSession, tmp_path: Path) -> None:
    world = World.create(str(tmp_path / "store"))
    world.store.create_topic("t", queues=2)
    for number in range(6):
        world.send("t", number % 2, tags=f"tag{number % 3}", properties=[("n", str(number))])
    sink = Sink()
    reader = spark.readStream.format("rocketmq").schema("tags string, body string, queueOffset long")
    options = world.options(topic="t", startingOffsets="earliest", subExpression="tag0 || tag1", filter="n > 0")
    stream = reader.options(**options).load()
    query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c"))
    assert query.trigger(availableNow=True).start().awaitTermination(LIMIT_S)
    found = sorted((row["tags"], row["body"], row["queueOffset"]) for row in sink.rows)
    assert found == [("tag0", "m4", 1), ("tag1", "m2", 0), ("tag1", "m5", 2)]
    assert stream.columns == ["tags", "body", "queueOffset"]
