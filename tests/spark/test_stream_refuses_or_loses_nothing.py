"""A stream loses and repeats nothing in rare situations, and refuses bad input and foreign checkpoints by name."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from micro_batches import Checkpoint, Killed, Query, run_once
from pyspark.sql.types import StringType, StructField, StructType
from pyspark_rocketmq import DefaultSource
from store_world import World, read_rows

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.store import Store
from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.errors import DataExpiredError, InvalidRequestError, NotFoundError
from rmq_spark.log.recover import recover
from rmq_spark.log.run_table import RunIndex
from rmq_spark.spark.schema import READ_SCHEMA
from rmq_spark.storage import paths


def world_of(topic: str = "t", queues: int = 1, messages: int = 0) -> World:
    clock = ManualClock(SystemClock().now_ms() - 3_600_000)
    world = World.create(clock=clock)
    world.store.create_topic(topic, queues=queues)
    for _ in range(messages):
        send(world, topic)
    return world


def send(world: World, topic: str, *queues: int) -> None:
    """One commit, later than the one before, so that retention can tell them apart."""
    assert isinstance(world.store.clock, ManualClock)
    world.store.clock.advance(1)
    world.send(topic, *queues)


def offsets(rows: list[dict[str, Any]], topic: str = "t") -> list[int]:
    return [row["queueOffset"] for row in rows if row["topic"] == topic]


def test_another_group_with_its_own_retries_on_an_old_checkpoint_loses_nothing() -> None:
    world = world_of(messages=5)
    for group in "AB":
        world.store.create_topic(f"%RETRY%{group}", queues=1)
    for _ in range(5):
        send(world, "%RETRY%A")
    checkpoint = Checkpoint()
    options = {"topic": "t", "includeRetry": "true", "startingOffsets": "earliest"}
    run_once(world.options(**options, consumerGroup="A"), checkpoint)
    query = Query(world.options(**options, consumerGroup="B"), checkpoint)
    for _ in range(10):
        send(world, "t")
        assert query.trigger()
    assert offsets(checkpoint.delivered()) == list(range(15))


def test_a_checkpoint_that_has_seen_more_than_there_is_is_refused() -> None:
    """Whatever it comes from: going on would skip as many new messages."""
    world = world_of(messages=3)
    checkpoint = Checkpoint()
    run_once(world.options(topic="t", startingOffsets="earliest"), checkpoint)
    end = checkpoint.end()
    end["brokers"]["broker-0"][1] += 1
    checkpoint.ends[max(checkpoint.ends)] = json.dumps(end)
    with pytest.raises(InvalidRequestError, match="more messages than there are"):
        run_once(world.options(topic="t"), checkpoint)


def test_a_log_that_was_cut_and_has_grown_again_is_refused(tmp_path: Path) -> None:
    world = World.create(str(tmp_path))
    world.store.create_topic("t", queues=1)
    for _ in range(10):
        world.send("t")
    checkpoint = Checkpoint()
    run_once(world.options(topic="t", startingOffsets="earliest"), checkpoint)
    log = world.log()
    log.storage.delete(paths.commit(log.root, 5))
    world.store.close()
    assert recover(log.storage, log.root, "broker-0", SystemClock(), force=True).log_end == 5
    world.store = Store.open(str(tmp_path))
    for number in range(8):
        world.append([world.message("t", 0, body=b"new %d" % number)])
    with pytest.raises(InvalidRequestError, match="was cut"):
        run_once(world.options(topic="t"), checkpoint)


def expiring_listing(world: World, monkeypatch: pytest.MonkeyPatch, below: int) -> None:
    """Retention runs after a plan has looked at the log, and before it lists the files."""
    real = RunIndex.list_runs

    def list_runs(self: RunIndex, *args: Any) -> Any:
        world.expire_below(below)
        return real(self, *args)

    monkeypatch.setattr(RunIndex, "list_runs", list_runs)


def test_retention_while_a_batch_of_a_stream_is_planned_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(messages=10)
    query = Query(world.options(topic="t", startingOffsets="earliest"), Checkpoint())
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, query.limit)
    expiring_listing(world, monkeypatch, 5)
    with pytest.raises(DataExpiredError):
        query.reader.partitions(start, end)


def test_retention_while_a_batch_read_is_planned_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(messages=10)
    expiring_listing(world, monkeypatch, 5)
    with pytest.raises(DataExpiredError):
        read_rows(world.options(topic="t", startingOffsets='{"t": {"0": 2}}'))


def test_retention_after_a_death_in_the_first_batch_and_other_topics_is_noticed() -> None:
    world = world_of("a")
    world.store.create_topic("b", queues=1)
    for topic in "bb":
        send(world, topic)
    for topic in "aaaa":
        send(world, topic)
    began = world.of("a")[0].ms
    for topic in "bbab":
        send(world, topic)
    checkpoint = Checkpoint()
    with pytest.raises(Killed):
        Query(world.options(topic="b", startingTimestamp=began), checkpoint).trigger(die="planned")
    assert world.expire_below(4) == 4  # two of b from before the start, and two of a that nobody has read
    with pytest.raises(DataExpiredError):
        Query(world.options(topic="a", startingTimestamp=began), checkpoint).run()


def test_a_group_is_not_thrown_back_where_a_stream_starts_late_in_a_queue() -> None:
    world = world_of(queues=2)
    for queue in [1] * 5 + [0] * 15:
        send(world, "t", queue)
    send(world, "t", 1, 1, 1)
    groups = GroupOffsets(world.store)
    place = ("t", "broker-0", 0)
    groups.commit("g", {place: 15, ("t", "broker-0", 1): 0})
    options = world.options(topic="t", consumerGroup="g", startingOffsets="group", maxOffsetsPerTrigger=3)
    checkpoint = Checkpoint()
    query = Query(options, checkpoint)
    for _ in range(4):
        query.trigger()
        assert groups.committed("g")[place] == 15
    again = Checkpoint()
    run_once(options, again)  # as if the checkpoint were lost
    assert all(row["queueId"] == 1 for row in again.delivered())


@pytest.mark.parametrize(
    "option",
    [
        {"startingOffsets": '{"t": {"7": 5}}'},
        {"startingOffsets": '{"t": {"broker-9": {"0": 5}}}'},
        {"endingOffsets": '{"t": {"broker-9": {"0": 5}}}'},
        {"startingOffsetsByTimestamp": '{"t": {"7": 5}}'},
        {"startingOffsetsByTimestamp": '{"t": {"broker-9": {"0": 5}}}'},
    ],
    ids=str,
)
def test_offsets_and_times_for_queues_that_do_not_exist_are_refused(option: dict[str, str]) -> None:
    world = world_of(queues=2, messages=3)
    with pytest.raises(InvalidRequestError, match=r"no such queue|no queues on this broker"):
        read_rows(world.options(topic="t", **option))
    if "endingOffsets" not in option:
        with pytest.raises(InvalidRequestError):
            Query(world.options(topic="t", **option), Checkpoint()).run()


def test_offsets_for_a_queue_that_is_not_assigned_are_refused() -> None:
    world = world_of(queues=2, messages=3)
    with pytest.raises(InvalidRequestError, match="not read"):
        read_rows(world.options(assign='{"t": [0]}', startingOffsets='{"t": {"1": 0}}'))


@pytest.mark.parametrize(
    "wrong", [{"topic": "ordres"}, {"assign": '{"orders": [9]}'}, {"assign": '{"orders": {"broker-7": [0]}}'}], ids=str
)
def test_a_restart_with_a_typing_error_is_refused(wrong: dict[str, str]) -> None:
    world = world_of("orders", messages=1)
    checkpoint = Checkpoint()
    run_once(world.options(topic="orders", startingOffsets="earliest"), checkpoint)
    send(world, "orders")
    with pytest.raises((NotFoundError, InvalidRequestError)):
        run_once(world.options(**wrong), checkpoint)


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_a_stream_from_a_time_that_has_not_come_is_refused_or_starts_at_the_end(option: str) -> None:
    world = world_of(queues=2, messages=1)
    later = SystemClock().now_ms() + 3_600_000
    value = later if option == "startingTimestamp" else json.dumps({"t": {"1": later}})
    with pytest.raises(InvalidRequestError, match="has not come yet"):
        run_once(world.options(topic="t", **{option: value}), Checkpoint())
    checkpoint = Checkpoint()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    query = Query(world.options(topic="t", **{option: value}, **strategy), checkpoint)
    query.run()
    send(world, "t", 1)
    query.run()
    assert [row["queueOffset"] for row in checkpoint.delivered() if row["queueId"] == 1] == [0]


def test_other_topics_on_two_brokers_give_about_as_many_tasks_as_asked_for() -> None:
    brokers = ("broker-0", "broker-1")
    world = World.create()
    for topic in "ab":
        world.store.create_topic(topic, queues=1, brokers=brokers)
    for _ in range(300):
        world.send("a")
    checkpoint = Checkpoint()
    run_once(world.options(topic="a", startingOffsets="earliest", minPartitions=4), checkpoint)
    for _ in range(10):
        world.send("b")
    world.append([world.message("b", 0) for _ in range(301)], "broker-1")
    query = Query(world.options(topic="b", minPartitions=4), checkpoint)
    end = query.reader.latestOffset(checkpoint.end(), query.limit)
    assert 4 <= len(query.reader.partitions(checkpoint.end(), end)) <= 6


def test_what_retention_takes_from_a_task_is_said(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of(messages=4)
    query = Query(world.options(topic="t", startingOffsets="earliest", failOnDataLoss="false"), Checkpoint())
    start = query.reader.initialOffset()
    parts = query.reader.partitions(start, query.reader.latestOffset(start, query.limit))
    world.expire_below(2)
    with caplog.at_level(logging.WARNING):
        assert sum(batch.num_rows for part in parts for batch in query.reader.read(part)) == 2
    assert "retention deleted [0, 1) of broker-0" in caplog.text


def test_a_blank_pattern_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="blank"):
        read_rows(world_of(messages=1).options(subscribePattern=" "))


@pytest.mark.parametrize("wrong", ["option", "schema"])
def test_a_stream_reader_checks_nothing_before_it_is_asked(wrong: str) -> None:
    """Spark 4.2 hides what a constructor raises behind an UnboundLocalError."""
    world = world_of(messages=1)
    options = world.options(topic="t", **({"tpoic": "t"} if wrong == "option" else {}))
    schema = StructType([StructField("bodyy", StringType())]) if wrong == "schema" else READ_SCHEMA
    reader = DefaultSource(options).streamReader(schema)
    for ask in (reader.initialOffset, reader.prepareForTriggerAvailableNow):
        with pytest.raises(InvalidRequestError, match=r"did you mean topic|nearest='body'"):
            ask()
    reader.stop()
