"""Planning: every message in exactly one task, queues in order, splits that lose and repeat nothing. No Spark runs."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from store_world import World, batch_tasks, in_queues, rows_in_queues

from rmq_spark.clock import ManualClock
from rmq_spark.log.run_table import RunIndex
from rmq_spark.log.scan import Query
from rmq_spark.model.settings import LogSettings
from rmq_spark.spark import read_plan
from rmq_spark.spark.batch_reader import RocketMQBatchReader, TaskPartition
from rmq_spark.spark.options import parse_read
from rmq_spark.spark.read_plan import QueueRange, Task, make_tasks, queue_ranges
from rmq_spark.spark.schema import READ_SCHEMA
from rmq_spark.spark.subscription import Subscription

TOPICS = ("a", "b")
BROKERS = ("broker-0", "broker-1")
QUEUES = 3
PLACES = st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, QUEUES - 1)), min_size=1, max_size=7)
STEP = st.one_of(
    st.tuples(st.just("commit"), PLACES),
    st.tuples(st.just("files"), st.lists(PLACES, min_size=1, max_size=3)),
    st.tuples(st.just("roll"), st.sampled_from([1, 30_000, 10_000_000])),
    st.tuples(st.just("expire"), st.floats(0, 1)),
    st.tuples(st.just("delete"), st.sampled_from(TOPICS)),
    st.tuples(st.just("wait"), st.integers(1, 50)),
)
STEPS = st.lists(st.tuples(st.sampled_from(BROKERS), STEP), min_size=1, max_size=25)
SLOW = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


def build(steps: list[tuple[str, tuple[str, Any]]]) -> World:
    clock = ManualClock()
    world = World.create(clock=clock, settings=LogSettings(segment_bytes=1, block_bytes=2_000, delete_grace_ms=0))
    for topic in TOPICS:
        world.store.create_topic(topic, queues=QUEUES, brokers=BROKERS)
    for broker, (what, value) in steps:
        if what == "commit":
            world.append([world.message(*place) for place in value], broker)
        elif what == "files":
            world.append_files([[world.message(*place) for place in part] for part in value], broker)
        elif what == "roll":
            world.roll(broker, segment_bytes=value)
        elif what == "expire":
            world.expire_below(int(value * world.log(broker).refresh().state.offset), broker)
        elif what == "delete":
            world.delete_topic(value)
            world.store.create_topic(value, queues=QUEUES, brokers=BROKERS)
        else:
            clock.advance(value)
    return world


def planned(world: World, **options: object) -> list[Task]:
    reader = RocketMQBatchReader(parse_read(world.options(**options), streaming=False), READ_SCHEMA)
    tasks = []
    for part in reader.partitions():
        assert isinstance(part, TaskPartition)
        tasks.append(part.task)
    return tasks


def by_task(world: World, **options: object) -> list[list[dict[str, Any]]]:
    tasks = batch_tasks(world.options(**options))
    return [[row for batch in task for row in batch.to_pylist()] for task in tasks]


@given(steps=STEPS, wanted=st.sets(st.sampled_from(TOPICS), min_size=1))
@SLOW
def test_each_queue_is_in_one_task_and_in_order(steps: list[Any], wanted: set[str]) -> None:
    world = build(steps)
    tasks = by_task(world, topic=",".join(sorted(wanted)))
    homes = Counter(place for task in tasks for place in rows_in_queues(task))
    assert all(count == 1 for count in homes.values()), "a queue is read by one task"
    assert rows_in_queues(row for task in tasks for row in task) == in_queues(world.of(*wanted))


@given(steps=STEPS, least=st.none() | st.integers(1, 9), most=st.none() | st.integers(1, 5))
@SLOW
def test_splits_lose_and_repeat_nothing(steps: list[Any], least: int | None, most: int | None) -> None:
    assume(least or most)
    world = build(steps)
    limits: dict[str, object] = {}
    if least:
        limits["minPartitions"] = least
    if most:
        limits["maxRecordsPerPartition"] = most
    tasks = by_task(world, topic=",".join(TOPICS), **limits)
    found = Counter((row["brokerName"], row["commitOffset"]) for task in tasks for row in task)
    assert found == Counter((one.broker, one.commit_offset) for one in world.sent)
    for task in tasks:
        assert task, "no task without a message"
        assert most is None or len(task) <= most
        for rows in rows_in_queues(task).values():
            offsets = [offset for offset, _ in rows]
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), "a task reads a range of a queue"
    for broker in BROKERS:
        mine = [one for one in world.sent if one.broker == broker]
        if least and mine:
            assert sum(1 for task in tasks if task[0]["brokerName"] == broker) >= min(least, len(mine))


@given(steps=STEPS)
@SLOW
def test_a_task_is_given_only_files_that_hold_its_rows(steps: list[Any]) -> None:
    world = build(steps)
    where = {(*one.place, one.queue_offset): one.commit_offset for one in world.sent}
    for task in planned(world, topic=",".join(TOPICS), minPartitions=4):
        rows = [
            where[part.topic, task.broker, part.queue, offset]
            for part in task.ranges
            for offset in range(part.low, part.high)
        ]
        for source in task.sources:
            holds = [offset for offset in rows if source.first <= offset < source.end]
            assert holds or len(planned_sources(world, task.broker)) == 1
            rows = [offset for offset in rows if offset not in holds]
        assert not rows, "every row lies in one of the task's files"


def planned_sources(world: World, broker: str) -> list[Any]:
    subscription = Subscription(parse_read(world.options(topic=",".join(TOPICS)), streaming=False), broker)
    return RunIndex(world.log(broker)).list_runs(Query(), subscription.select).sources


@given(steps=STEPS, data=st.data())
@SLOW
def test_ranges_are_the_runs_cut_to_bounds_and_to_what_is_left(steps: list[Any], data: st.DataObject) -> None:
    world = build(steps)
    log = world.log("broker-0")
    end = log.refresh().state.offset
    low = data.draw(st.integers(0, end))
    high = data.draw(st.integers(low, end))
    bounds = data.draw(
        st.dictionaries(
            st.tuples(st.sampled_from(TOPICS), st.integers(0, QUEUES - 1)),
            st.tuples(st.integers(0, 9), st.integers(0, 9)),
        )
    )
    everything = Subscription(parse_read(world.options(topic=",".join(TOPICS)), streaming=False), "broker-0").select
    table = RunIndex(log).list_runs(Query(start=low, end=high), everything)
    found = {
        (part.topic, part.queue, offset)
        for part in queue_ranges(table, bounds, log.view.state.queues.starts())
        for offset in range(part.low, part.high)
    }
    expected = {
        (one.topic, one.queue, one.queue_offset)
        for one in world.of(*TOPICS, broker="broker-0")
        if low <= one.commit_offset < high
        and bounds.get((one.topic, one.queue), (0, 1 << 60))[0] <= one.queue_offset
        and one.queue_offset < bounds.get((one.topic, one.queue), (0, 1 << 60))[1]
    }
    assert found == expected


def test_a_small_read_is_one_task_and_a_large_one_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.create()
    world.store.create_topic("t", queues=4)
    for _ in range(5):
        world.send("t", 0, 1, 2, 3)
    assert len(planned(world, topic="t")) == 1
    monkeypatch.setattr(read_plan, "TASK_ROWS", 5)
    tasks = planned(world, topic="t")
    assert [sum(part.rows for part in task.ranges) for task in tasks] == [5, 5, 5, 5]
    monkeypatch.setattr(read_plan, "TASK_ROWS", 7)
    assert sorted(sum(part.rows for part in task.ranges) for task in planned(world, topic="t")) == [5, 5, 10]


def queues_of(tasks: list[Task]) -> list[list[int]]:
    return [[part.queue for part in task.ranges] for task in tasks]


def test_neighbouring_queues_share_a_task_unless_that_is_uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_plan, "TASK_ROWS", 12)
    world = World.create()
    world.store.create_topic("t", queues=4)
    for _ in range(6):
        world.send("t", 0, 1, 2, 3)
    assert queues_of(planned(world, topic="t")) == [[0, 1], [2, 3]]
    world.send("t", *[0] * 12)  # 18, 6, 6, 6 messages
    monkeypatch.setattr(read_plan, "TASK_ROWS", 18)
    assert queues_of(planned(world, topic="t")) == [[0], [1, 2, 3]]
    world.send("t", *[2] * 12)  # 18, 6, 18, 6: by neighbours 24 and 24
    monkeypatch.setattr(read_plan, "TASK_ROWS", 24)
    assert queues_of(planned(world, topic="t")) == [[0, 1], [2, 3]]
    world.send("t", *[1] * 12)  # 18, 18, 18, 6
    monkeypatch.setattr(read_plan, "TASK_ROWS", 30)
    rows = [sum(part.rows for part in task.ranges) for task in planned(world, topic="t")]
    assert sorted(rows) == [24, 36]


@pytest.mark.parametrize(
    ("more", "columns", "tasks"),
    [
        ({}, "body", 4),
        ({}, "queueOffset", 2),
        ({"subExpression": "a"}, "body", 2),
        ({"subExpression": "*"}, "body", 4),
        ({"filter": "a = 1"}, "body", 2),
        ({"keys": "k"}, "body", 2),
        ({"minPartitions": "4"}, "queueOffset", 4),
    ],
)
def test_tasks_that_read_little_of_each_message_have_more_of_them(
    more: dict[str, str], columns: str, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_plan, "TASK_ROWS", 5)
    monkeypatch.setattr(read_plan, "LIGHT_TASK_ROWS", 10)
    world = World.create()
    world.store.create_topic("t", queues=4)
    for _ in range(5):
        world.send("t", 0, 1, 2, 3, tags="a", keys="k")
    schema = StructType([field for field in READ_SCHEMA if field.name == columns])
    reader = RocketMQBatchReader(parse_read(world.options(topic="t", **more), streaming=False), schema)
    assert len(reader.partitions()) == tasks


def test_large_messages_are_shared_out_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few in number, but one task would read them all while the other cores have nothing to do."""
    world = World.create()
    world.store.create_topic("t", queues=8)
    for _ in range(3):
        world.append([world.message("t", queue, body=b"x" * 10_000) for queue in range(8)])
    weight = 24 * 10_300
    for tasks in (1, 2, 4, 8):
        monkeypatch.setattr(read_plan, "TASK_BYTES", weight // tasks)
        assert len(planned(world, topic="t")) == tasks
    monkeypatch.setattr(read_plan, "TASK_BYTES", 1)
    assert len(planned(world, topic="t")) == 8  # a queue is never split
    assert len(planned(world, topic="t", subExpression="a")) == 1
    # What counts is what is read, not what there is.
    monkeypatch.setattr(read_plan, "TASK_BYTES", weight // 3)
    ends = {"t": {"broker-0": {str(queue): 2 for queue in range(8)}}}
    assert len(planned(world, topic="t")) == 3
    assert len(planned(world, topic="t", startingOffsets=json.dumps(ends))) == 1


@pytest.mark.parametrize(("queues", "rows", "least"), [(2, 3, 5), (3, 3, 4), (4, 5, 6), (1, 10, 7), (3, 2, 100)])
def test_min_partitions_is_reached_as_long_as_there_are_messages(queues: int, rows: int, least: int) -> None:
    world = World.create()
    world.store.create_topic("t", queues=queues)
    for _ in range(rows):
        world.send("t", *range(queues))
    assert len(planned(world, topic="t", minPartitions=least)) >= min(least, queues * rows)


def test_nothing_to_read_is_no_task() -> None:
    world = World.create()
    world.store.create_topic("t", queues=4)
    table = RunIndex(world.log()).list_runs(Query(), lambda topic, queues: queues >= 0)
    assert queue_ranges(table, None, {}) == []
    assert make_tasks("broker-0", table, [], tasks_min=3, rows_max=2) == []
    assert make_tasks("broker-0", table, [QueueRange("t", 0, 5, 5)], tasks_min=None, rows_max=None) == []
    assert planned(world, topic="t") == []


class TestPlansOfOneProcess:
    """Spark plans every read of a session in one process, which keeps the store open and what it knows of files."""

    def test_a_second_plan_reads_no_metadata_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = World.create(settings=LogSettings(segment_bytes=1))
        world.store.create_topic("t", queues=2)
        for _ in range(3):
            world.send("t", 0, 1)
        world.roll("broker-0", segment_bytes=1)
        world.send("t", 0, 1)
        first = planned(world, topic="t")
        monkeypatch.setattr("rmq_spark.log.files.read_meta", lambda *_: pytest.fail("a file was read again"))
        monkeypatch.setattr("rmq_spark.log.view.LogView.walk", lambda _: None)
        assert planned(world, topic="t") == first

    def test_it_sees_what_was_appended_rolled_and_expired_since(self) -> None:
        world = World.create(settings=LogSettings(segment_bytes=1, delete_grace_ms=0))
        world.store.create_topic("t", queues=2)
        for expected in range(1, 4):
            world.send("t", 0, 1)
            assert [part.high for task in planned(world, topic="t") for part in task.ranges] == [expected, expected]
        world.roll("broker-0", segment_bytes=1)
        assert {source.kind for task in planned(world, topic="t") for source in task.sources} == {"segment"}
        world.expire_below(2, "broker-0")
        assert [part.low for task in planned(world, topic="t") for part in task.ranges] == [1, 1]

    def test_a_store_that_was_made_anew_is_opened_anew(self, tmp_path: Path) -> None:
        place = tmp_path / "store"
        for count in (5, 2):
            shutil.rmtree(place, ignore_errors=True)
            world = World.create(str(place))
            world.store.create_topic("t", queues=1)
            world.send("t", *[0] * count)
            assert [part.high for task in planned(world, topic="t") for part in task.ranges] == [count]
            world.store.close()
