"""Where a stream starts, and that it stays there, whatever is appended, committed or rolled while no driver runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from micro_batches import Checkpoint, Killed, Point, Query, run_once
from store_world import Sent, World, in_queues, rows_in_queues

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.clock import ManualClock
from rmq_spark.errors import CorruptDataError, DataExpiredError, InvalidRequestError, NotFoundError
from rmq_spark.spark.start_file import QueueStarts, write_starts
from rmq_spark.storage.memory import MemoryStorage

NOW = 1_700_000_000_000
POINTS: list[Point] = ["planned", "reading", "sunk"]


@dataclass
class Start:
    """A kind of start whose meaning changes with time: asked again after a crash, it would be another place."""

    options: dict[str, str]
    first: Callable[[Sent], bool]
    """Whether a message that was there before the query is read."""
    meanwhile: Callable[[World], None] = lambda world: None
    """What moves the start while the driver is dead."""


def _commit_group(world: World) -> None:
    GroupOffsets(world.store).commit("g", {("t", "broker-0", 0): 3, ("t", "broker-0", 1): 3})


STARTS = {
    "earliest": Start({"startingOffsets": "earliest"}, lambda sent: True),
    "latest": Start({"startingOffsets": "latest"}, lambda sent: False),
    "time before": Start({"startingTimestamp": str(NOW + 1_000)}, lambda sent: sent.ms >= NOW + 1_000),
    "time ahead": Start({"startingTimestamp": str(NOW + 9_000)}, lambda sent: False),
    "queues by time": Start(
        {
            "startingOffsetsByTimestamp": json.dumps({"t": {"0": NOW + 1_000, "1": NOW + 9_000}}),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        lambda sent: sent.queue == 0 and sent.ms >= NOW + 1_000,
    ),
    "offsets": Start(
        {"startingOffsets": '{"t": {"0": 2, "1": -1}}'}, lambda sent: sent.place[2] == 0 and sent.queue_offset >= 2
    ),
    "group": Start(
        {"startingOffsets": "group", "consumerGroup": "g"},
        lambda sent: sent.queue == 1 or sent.queue_offset >= 1,
        _commit_group,
    ),
}


def prepared() -> tuple[World, ManualClock]:
    clock = ManualClock(NOW)
    world = World.create(clock=clock)
    world.store.create_topic("t", queues=2)
    world.store.create_topic("other", queues=1)
    for _ in range(3):
        world.send("t", 0, 1)
        world.send("other")
        clock.advance(1)
    GroupOffsets(world.store).commit("g", {("t", "broker-0", 0): 1})
    return world, clock


def check(world: World, checkpoint: Checkpoint, expected: list[Sent]) -> None:
    assert rows_in_queues(checkpoint.delivered()) == in_queues(expected)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", STARTS)
def test_a_crash_in_the_first_batch_moves_no_start(kind: str, point: Point) -> None:
    start = STARTS[kind]
    world, clock = prepared()
    expected = [sent for sent in world.of("t") if start.first(sent)]
    options = world.options(topic="t", **start.options)
    checkpoint = Checkpoint()
    query = Query(options, checkpoint)
    query.reader.initialOffset()
    expected += world.send("t", 0, 1)  # between the question for the start and the first batch
    with pytest.raises(Killed):
        query.trigger(die=point)
    expected += world.send("t", 0)
    start.meanwhile(world)
    clock.advance(10)
    expected += world.send("t", 1)
    world.roll(segment_bytes=10_000_000)
    run_once(options, checkpoint)
    check(world, checkpoint, expected)
    expected += world.send("t", 0, 1)
    run_once(options, checkpoint)
    check(world, checkpoint, expected)


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.parametrize("point", [None, *POINTS])
def test_a_first_run_without_news_keeps_the_start_too(kind: str, point: Point | None) -> None:
    start = STARTS[kind]
    world, clock = prepared()
    expected = [sent for sent in world.of("t") if start.first(sent)]
    options = world.options(topic="t", **start.options)
    checkpoint = Checkpoint()
    query = Query(options, checkpoint)
    if point is None:
        query.run()
        query.stop()
    else:
        with pytest.raises(Killed):
            query.trigger(die=point)
    expected += world.send("t", 0)
    start.meanwhile(world)
    clock.advance(10)
    expected += world.send("t", 1)
    for _ in range(2):
        run_once(options, checkpoint)
    check(world, checkpoint, expected)


@pytest.mark.parametrize("kind", ["latest", "time ahead"])
def test_a_first_batch_without_rows_has_an_end_of_its_own_that_tells_the_start(kind: str) -> None:
    """With the start's own text as its end, whether there is a batch would be Spark's affair."""
    world, _ = prepared()
    query = Query(world.options(topic="t", **STARTS[kind].options), Checkpoint())
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, query.limit)
    assert start["new"] is True
    assert "new" not in end
    assert end["from"] == end["brokers"] == start["brokers"]


@pytest.mark.parametrize("kind", STARTS)
def test_a_start_is_found_out_once_however_often_spark_asks(kind: str) -> None:
    world, clock = prepared()
    query = Query(world.options(topic="t", **STARTS[kind].options), Checkpoint())
    first = query.reader.initialOffset()
    world.send("t", 0, 1)
    STARTS[kind].meanwhile(world)
    clock.advance(10)
    world.send("t", 0, 1)
    assert query.reader.initialOffset() == first


@pytest.mark.parametrize("kind", STARTS)
def test_starts_hold_with_small_batches_and_restarts_between_them(kind: str) -> None:
    """First offsets per queue matter until the stream has passed them: over many batches and drivers."""
    start = STARTS[kind]
    world, clock = prepared()
    world.roll(segment_bytes=10_000_000)  # one file: positions inside of it cannot tell queues apart
    expected = [sent for sent in world.of("t") if start.first(sent)]
    options = world.options(topic="t", maxOffsetsPerTrigger=1, **start.options)
    checkpoint = Checkpoint()
    query = Query(options, checkpoint)
    query.trigger()
    query.stop()
    start.meanwhile(world)
    clock.advance(10)
    for step in range(12):
        if step < 3:
            expected += world.send("t", step % 2)
        query = Query(options, checkpoint)
        query.trigger()
        query.stop()
    check(world, checkpoint, expected)
    assert "starts" not in checkpoint.end(), "passed, so not carried along any more"


# ------------------------------------------------------------ topics that were deleted before


def recreated() -> World:
    world = World.create(clock=ManualClock(NOW))
    world.store.create_topic("t", queues=2)
    for _ in range(3):
        world.send("t", 0, 1)
    world.delete_topic("t")
    world.store.create_topic("t", queues=2)
    return world


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "2"}], ids=["all", "limited"])
@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("start", [{"startingOffsets": "earliest"}, {"startingTimestamp": str(NOW)}], ids=str)
def test_messages_of_a_topic_deleted_before_the_start_are_no_loss(
    start: dict[str, str], rolled: bool, limit: dict[str, str]
) -> None:
    world = recreated()
    for _ in range(3):
        world.send("t", 0, 1)
    if rolled:
        world.roll(segment_bytes=10_000_000)
    checkpoint = Checkpoint()
    run_once(world.options(topic="t", **start, **limit), checkpoint)
    check(world, checkpoint, world.of("t"))


def test_a_time_start_in_a_segment_of_deleted_messages_alone() -> None:
    clock = ManualClock(NOW)
    world = World.create(clock=clock)
    world.store.create_topic("t", queues=1)
    world.send("t")
    clock.advance(5)
    world.send("t")
    world.roll(segment_bytes=10_000_000)
    world.delete_topic("t")
    world.store.create_topic("t", queues=1)
    options = world.options(topic="t", startingTimestamp=str(NOW + 1_000))
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    assert checkpoint.delivered() == []
    expected = world.send("t")
    run_once(options, checkpoint)
    check(world, checkpoint, expected)


# ------------------------------------------------------------ mistakes


def test_a_topic_that_does_not_exist_stops_a_new_query() -> None:
    world, _ = prepared()
    with pytest.raises(NotFoundError, match=r"no such topic.*nearest='other'"):
        run_once(world.options(topic="othr"), Checkpoint())


def test_a_start_behind_the_end_stops_a_new_query() -> None:
    world, _ = prepared()
    with pytest.raises(InvalidRequestError, match=r"behind the queue's end.*offset=4, end=3"):
        run_once(world.options(topic="t", startingOffsets='{"t": {"0": 4}}'), Checkpoint())


def test_a_time_without_a_message_stops_a_new_query_unless_told_otherwise() -> None:
    world, _ = prepared()
    options = world.options(topic="t", startingOffsetsByTimestamp=json.dumps({"t": {"0": NOW + 9_000}}))
    with pytest.raises(InvalidRequestError, match="startingOffsetsByTimestampStrategy=latest"):
        run_once(options, Checkpoint())


@pytest.mark.parametrize("kind", ["offsets", "group"])
def test_a_start_that_retention_has_taken(kind: str) -> None:
    world, _ = prepared()
    world.expire_below(6)
    start = {"startingOffsets": '{"t": {"0": 0}}'} if kind == "offsets" else STARTS["group"].options
    options = world.options(topic="t", **start)
    with pytest.raises(DataExpiredError, match=r"topic='t', queue=0, first=[01], end=2"):
        run_once(options, Checkpoint())
    checkpoint = Checkpoint()
    run_once(options | {"failOnDataLoss": "false"}, checkpoint)
    check(world, checkpoint, world.of("t"))
    assert len(world.of("t")) == 2


@pytest.mark.parametrize("content", [None, b"", b'{"settled":{"broker-0":9},"offsets":{}}'], ids=str)
def test_a_lost_or_damaged_start_file_is_told(content: bytes | None) -> None:
    world, _ = prepared()
    options = world.options(topic="t", maxOffsetsPerTrigger=1, **STARTS["offsets"].options)
    checkpoint = Checkpoint()
    query = Query(options, checkpoint)
    query.trigger()
    query.stop()
    name = f"spark/starts/{checkpoint.end()['starts']}.json"
    world.store.storage.delete(name)
    if content is not None:
        world.store.storage.create_if_absent(name, [content])
    with pytest.raises(NotFoundError if content is None else CorruptDataError, match="spark/starts"):
        Query(options, checkpoint).trigger()


def test_a_start_file_is_durable_before_a_checkpoint_names_it() -> None:
    flags = []

    class Watched(MemoryStorage):
        def create_if_absent(self, path: str, data: Any, *, durable: bool = True) -> None:
            flags.append(durable)
            super().create_if_absent(path, data, durable=durable)

    write_starts(Watched(), QueueStarts({"broker-0": {("t", 0): 1}}, {"broker-0": 9}))
    assert flags == [True]
