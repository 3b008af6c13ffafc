"""How much a micro-batch takes: limits in messages and bytes, waiting for enough, AvailableNow and Once."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from micro_batches import Checkpoint, Query, run_once
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from store_world import World, in_queues, rows_in_queues

from rmq_spark.clock import ManualClock
from rmq_spark.log import files
from rmq_spark.spark.read_plan import Task
from rmq_spark.spark.stream_reader import RocketMQStreamReader
from rmq_spark.storage.base import Storage
from rmq_spark.storage.memory import MemoryStorage

PLAN = """
import json, sys
from pyspark_rocketmq import DefaultSource
from rmq_spark.spark.schema import READ_SCHEMA
options, start, end = map(json.loads, sys.argv[1:])
print([part.task for part in DefaultSource(options).streamReader(READ_SCHEMA).partitions(start, end)])
"""


def filled(
    *,
    commits: int = 10,
    brokers: tuple[str, ...] = ("broker-0",),
    body: bytes = b"x" * 100,
    uri: str | None = None,
) -> World:
    world = World.create(uri)
    world.store.create_topic("t", queues=2, brokers=brokers)
    world.store.create_topic("other", queues=1, brokers=brokers)
    for broker in brokers:
        for _ in range(commits):
            world.send("t", 0, 1, 1, broker=broker, body=body)
            world.send("other", broker=broker, body=body)
    return world


def sizes(checkpoint: Checkpoint) -> list[int]:
    return [len(checkpoint.rows[batch]) for batch in sorted(checkpoint.rows)]


def check(world: World, checkpoint: Checkpoint) -> None:
    assert rows_in_queues(checkpoint.delivered()) == in_queues(world.of("t"))


@pytest.mark.parametrize("rolled", [0, 1, 10_000_000])
@pytest.mark.parametrize("limit", [1, 4, 7, 29, 30, 1_000])
def test_a_limit_in_messages_is_exact(limit: int, rolled: int) -> None:
    world = filled()
    if rolled:
        world.roll(segment_bytes=rolled)
    checkpoint = Checkpoint()
    run_once(world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=limit), checkpoint)
    check(world, checkpoint)
    expected = [limit] * (30 // limit) + ([30 % limit] if 30 % limit else [])
    assert sizes(checkpoint) == expected


def test_a_limit_in_messages_is_shared_by_brokers_as_they_are_behind() -> None:
    world = filled(brokers=("broker-0", "broker-1"))
    for _ in range(30):
        world.send("t", 0, 1, broker="broker-1")
    checkpoint = Checkpoint()
    run_once(world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=40), checkpoint)
    check(world, checkpoint)
    first = [row["brokerName"] for row in checkpoint.rows[0]]
    assert (first.count("broker-0"), first.count("broker-1")) == (10, 30)
    assert all(size <= 40 for size in sizes(checkpoint))


@pytest.mark.parametrize("rolled", [False, True])
def test_a_limit_in_bytes_is_met_by_the_average_of_files(rolled: bool) -> None:
    world = filled(commits=40, body=b"x" * 10_000)
    if rolled:
        world.roll(segment_bytes=200_000)
    checkpoint = Checkpoint()
    run_once(world.options(topic="t", startingOffsets="earliest", maxBytesPerTrigger="100k"), checkpoint)
    check(world, checkpoint)
    whole = sizes(checkpoint)[:-1]
    assert whole and all(5 <= size <= 11 for size in whole), sizes(checkpoint)


def test_a_message_that_is_larger_than_the_limit_is_read_all_the_same() -> None:
    world = filled(commits=3, body=b"x" * 10_000)
    checkpoint = Checkpoint()
    run_once(world.options(topic="t", startingOffsets="earliest", maxBytesPerTrigger=1), checkpoint)
    check(world, checkpoint)
    assert sizes(checkpoint) == [1] * 9


def test_the_smaller_of_two_limits_counts() -> None:
    world = filled(commits=10, body=b"x" * 10_000)
    checkpoint = Checkpoint()
    limits = {"maxOffsetsPerTrigger": 4, "maxBytesPerTrigger": "1g"}
    run_once(world.options(topic="t", startingOffsets="earliest", **limits), checkpoint)
    assert max(sizes(checkpoint)) == 4
    checkpoint = Checkpoint()
    limits = {"maxOffsetsPerTrigger": 1000, "maxBytesPerTrigger": "30k"}
    run_once(world.options(topic="t", startingOffsets="earliest", **limits), checkpoint)
    check(world, checkpoint)
    assert max(sizes(checkpoint)) <= 4


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "7k"}, ReadMaxBytes(7 * 1024)),
        ({"maxOffsetsPerTrigger": "7", "maxBytesPerTrigger": "7k"}, ReadMaxRows(7)),
    ],
    ids=str,
)
def test_spark_is_told_that_there_is_a_limit(options: dict[str, str], limit: Any) -> None:
    world = filled(commits=1)
    assert Query(world.options(topic="t", **options), Checkpoint()).limit == limit


def test_trigger_once_takes_everything_whatever_the_limits() -> None:
    world = filled()
    checkpoint = Checkpoint()
    options = world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=3)
    Query(options, checkpoint, trigger="once").trigger()
    assert sizes(checkpoint) == [30]


# ------------------------------------------------------------ AvailableNow


def test_available_now_ends_at_the_end_as_it_was() -> None:
    world = filled()
    expected = world.of("t")
    checkpoint = Checkpoint()
    options = world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=7)
    query = Query(options, checkpoint, trigger="availableNow")
    turns = 0
    while query.trigger():
        world.send("t", 0, 1)  # a producer that never rests
        turns += 1
        assert turns < 50
    assert rows_in_queues(checkpoint.delivered()) == in_queues(expected)
    assert turns == 5
    query.stop()
    run_once(options, checkpoint)
    check(world, checkpoint)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_available_now_ends_when_messages_come_between_its_end_and_its_start(start: str) -> None:
    world = filled(commits=2)
    checkpoint = Checkpoint()
    query = Query(world.options(topic="t", startingOffsets=start), checkpoint, trigger="availableNow")
    before = world.of("t")
    world.send("t", 0)
    query.run()
    assert rows_in_queues(checkpoint.delivered()) == (in_queues(before) if start == "earliest" else {})


def test_available_now_does_not_wait_for_more() -> None:
    world = filled()
    checkpoint = Checkpoint()
    options = world.options(
        topic="t", startingOffsets="earliest", minOffsetsPerTrigger=20, maxOffsetsPerTrigger=20, maxTriggerDelay="1d"
    )
    run_once(options, checkpoint)
    check(world, checkpoint)
    world.send("t", 1)
    run_once(options, checkpoint)
    check(world, checkpoint)


# ------------------------------------------------------------ waiting for enough


def test_a_batch_waits_for_enough_messages_but_not_for_ever() -> None:
    world = filled(commits=1)
    clock = ManualClock()
    checkpoint = Checkpoint()
    options = world.options(topic="t", startingOffsets="earliest", minOffsetsPerTrigger=5, maxTriggerDelay="60s")
    query = Query(options, checkpoint)
    query.reader._plan._clock = clock
    query.reader._plan._waiting_since = clock.elapsed_ns()
    assert query.trigger(), "the first batch waits for nothing"
    world.send("t", 0, 1)
    clock.advance(59)
    assert not query.trigger()
    world.send("t", 0, 0, 1)
    assert query.trigger(), "five are enough"
    world.send("t", 1)
    clock.advance(59)
    assert not query.trigger()
    clock.advance(1)
    assert query.trigger(), "a minute is long enough"
    assert sizes(checkpoint) == [3, 5, 1]
    check(world, checkpoint)


# ------------------------------------------------------------ reports and tasks


def test_the_latest_offset_is_reported_beside_the_end_of_the_batch() -> None:
    world = filled()
    checkpoint = Checkpoint()
    query = Query(world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=7), checkpoint)
    query.trigger()
    assert query.latest is not None
    latest = json.loads(query.latest)["brokers"]["broker-0"]
    assert latest[:2] == [world.log().refresh().state.offset, 30]
    assert checkpoint.end()["brokers"]["broker-0"][1] == 7


def planned(reader: RocketMQStreamReader, start: str, end: str) -> list[Task]:
    return [part.task for part in reader.partitions(json.loads(start), json.loads(end))]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "split", [{}, {"minPartitions": 4}, {"minPartitions": 50}, {"maxRecordsPerPartition": 3}], ids=str
)
def test_the_same_range_is_planned_the_same_however_often(split: dict[str, int]) -> None:
    world = World.create()
    world.store.create_topic("t", queues=8, brokers=("broker-0", "broker-1"))
    for broker in ("broker-0", "broker-1"):
        for _ in range(6):
            world.send("t", *range(8), broker=broker)
    options = world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=48, **split)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    readers = [Query(options, checkpoint).reader for _ in range(2)]
    assert len(checkpoint.ends) == 2
    plans = [pickle.dumps(planned(reader, *checkpoint.ends.values())) for reader in readers for _ in range(3)]
    assert len(set(plans)) == 1


def test_the_same_range_is_planned_the_same_in_any_process(tmp_path: Path) -> None:
    """A driver that starts again has other hash values, and so another order of whatever was put into a set."""
    world = filled(brokers=tuple(f"broker-{number}" for number in range(5)), uri=str(tmp_path / "store"))
    options = world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=100, minPartitions=8)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    texts = [checkpoint.ends[0], checkpoint.ends[1]]
    plans = {
        subprocess.run(
            [sys.executable, "-c", PLAN, json.dumps(options), *texts],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert plans == {str(planned(Query(options, checkpoint).reader, *texts))}


def test_planning_a_range_again_reads_no_file_and_lists_none(monkeypatch: pytest.MonkeyPatch) -> None:
    world = filled()
    world.roll(segment_bytes=1)
    world.send("t", 0)
    reader = Query(world.options(topic="t", startingOffsets="earliest"), Checkpoint()).reader
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    first = reader.partitions(start, end)

    real = files.read_meta

    def fail(*_: object) -> Any:
        raise AssertionError("planned from what is known")

    def look_for_none(storage: Storage, path: str, kind: str, tail: tuple[bytes, int] | None = None) -> Any:
        real(storage, path, kind, tail)  # a look for a new commit finds none
        fail()

    monkeypatch.setattr(files, "read_meta", look_for_none)
    monkeypatch.setattr(MemoryStorage, "list", fail)
    assert pickle.dumps(reader.partitions(start, end)) == pickle.dumps(first)


@pytest.mark.parametrize("rolled", [1, 10_000_000])
def test_the_same_range_holds_the_same_messages_after_a_roll(rolled: int) -> None:
    world = filled(brokers=("broker-0", "broker-1"))
    options = world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=17)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    query = Query(options, checkpoint)
    before = query.reader.partitions(json.loads(checkpoint.ends[1]), json.loads(checkpoint.ends[2]))
    for broker in ("broker-0", "broker-1"):
        world.send("t", 0, broker=broker)
        world.roll(broker, segment_bytes=rolled)
    after = query.reader.partitions(json.loads(checkpoint.ends[1]), json.loads(checkpoint.ends[2]))
    for parts in (before, after):  # planned before, but its files are gone by now; planned after
        rows = [row for part in parts for batch in query.reader.read(part) for row in batch.to_pylist()]
        assert rows_in_queues(rows) == rows_in_queues(checkpoint.rows[2])


def test_a_batch_is_split_into_as_many_tasks_as_asked_for() -> None:
    world = filled(brokers=("broker-0", "broker-1"))
    options = world.options(topic="t", startingOffsets="earliest")
    whole = Checkpoint()
    run_once(options, whole)
    start = json.dumps(Query(options, Checkpoint()).reader.initialOffset())
    for least in (1, 5, 8, 60):
        reader = Query(options | {"minPartitions": str(least)}, Checkpoint()).reader
        assert len(planned(reader, start, whole.ends[0])) >= least
    reader = Query(options | {"maxRecordsPerPartition": "4"}, Checkpoint()).reader
    tasks = planned(reader, start, whole.ends[0])
    assert max(sum(part.rows for part in task.ranges) for task in tasks) <= 4
    assert sum(part.rows for task in tasks for part in task.ranges) == 60
