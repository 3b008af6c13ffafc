"""A consumer group follows a stream: its lag is seen outside the checkpoint, and it serves when that is lost."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from micro_batches import Checkpoint, Query, run_once
from store_world import World, in_queues, rows_in_queues

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.errors import NotFoundError, UnavailableError
from rmq_spark.spark.listener import GroupTracker


def prepared(*, brokers: tuple[str, ...] = ("broker-0",)) -> World:
    world = World.create()
    world.store.create_topic("t", queues=3, brokers=brokers)
    world.store.create_topic("u", queues=1)
    for broker in brokers:
        for _ in range(2):
            world.send("t", 0, 1, broker=broker)
    return world


def lag(world: World, group: str = "g") -> int:
    return sum(queue.lag for queue in GroupOffsets(world.store).lag(group))


def options_of(world: World, **more: object) -> dict[str, str]:
    return world.options(topic="t", startingOffsets="earliest", consumerGroup="g", **more)


def test_the_group_is_one_batch_behind_and_knows_of_every_queue() -> None:
    world = prepared()
    options = options_of(world, maxOffsetsPerTrigger=2)
    query = Query(options, Checkpoint())
    query.trigger()
    assert GroupOffsets(world.store).groups() == [], "Spark has not told the source that the batch is done"
    query.trigger()
    assert GroupOffsets(world.store).committed("g") == {("t", "broker-0", 0): 1, ("t", "broker-0", 1): 1}
    assert lag(world) == 2
    world.send("t", 2)
    query.trigger()
    assert GroupOffsets(world.store).committed("g") == {("t", "broker-0", 0): 2, ("t", "broker-0", 1): 2}
    assert lag(world) == 1
    assert GroupOffsets(world.store).activity("g").member == "spark"


def test_a_start_at_latest_has_no_lag_on_queues_that_are_quiet() -> None:
    world = prepared()
    query = Query(world.options(topic="t", consumerGroup="g"), Checkpoint())
    query.trigger()
    world.send("t", 0)
    query.trigger()
    world.send("t", 1)
    query.trigger()
    assert GroupOffsets(world.store).committed("g") == {("t", "broker-0", 0): 3, ("t", "broker-0", 1): 2}
    assert lag(world) == 1


def note(tracker: GroupTracker, checkpoint: Checkpoint) -> None:
    """What Spark's progress reports tell a listener, for every batch."""
    ends = [checkpoint.ends[batch] for batch in sorted(checkpoint.ends)]
    for start, end in zip([None, *ends], ends, strict=False):
        report(tracker, start, end)


def report(tracker: GroupTracker, start: str | None, end: str | None) -> None:
    source = SimpleNamespace(startOffset=start, endOffset=end)
    event: Any = SimpleNamespace(progress=SimpleNamespace(sources=[source]))
    tracker.onQueryProgress(event)


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "1"}], ids=["one batch", "many"])
@pytest.mark.parametrize(
    "selection",
    [{"topic": "t"}, {"subscribePattern": "[tu]"}, {"assign": '{"t": [0, 1], "u": {"broker-0": [0]}}'}],
    ids=["topic", "pattern", "assign"],
)
def test_the_listener_completes_it(selection: dict[str, str], limit: dict[str, str]) -> None:
    world = prepared(brokers=("broker-0", "broker-1"))
    world.send("u")
    options = world.options(startingOffsets="earliest", consumerGroup="g", **selection, **limit)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    assert not GroupOffsets(world.store).groups() or lag(world) > 0
    tracker = GroupTracker()
    note(tracker, checkpoint)
    assert lag(world) == 0
    world.send("t", 0)
    assert lag(world) == 1
    run_once(options, checkpoint)
    note(tracker, checkpoint)
    assert lag(world) == 0
    tracker.close()


def test_the_same_progress_is_written_once() -> None:
    world = prepared()
    checkpoint = Checkpoint()
    run_once(options_of(world), checkpoint)
    tracker = GroupTracker()
    note(tracker, checkpoint)
    end = world.log().refresh().state.offset
    note(tracker, checkpoint)
    query = Query(options_of(world), checkpoint)
    query.reader.commit(checkpoint.end())
    assert world.log().refresh().state.offset == end
    tracker.close()


def test_the_listener_leaves_other_sources_alone() -> None:
    world = prepared()
    checkpoint = Checkpoint()
    run_once(world.options(topic="t", startingOffsets="earliest"), checkpoint)  # without a group
    tracker = GroupTracker()
    note(tracker, checkpoint)
    for text in (None, "", "17", '{"topic-0":{"0":5}}', '{"sub": 1}', "[1]", "{nonsense"):
        report(tracker, None, text)
    assert GroupOffsets(world.store).groups() == []
    tracker.close()


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "1"}], ids=["one batch", "many"])
def test_a_lost_checkpoint_is_replaced_by_the_group(limit: dict[str, str]) -> None:
    world = prepared(brokers=("broker-0", "broker-1"))
    checkpoint = Checkpoint()
    options = world.options(topic="t", startingOffsets="group,earliest", consumerGroup="g", **limit)
    run_once(options, checkpoint)
    assert rows_in_queues(checkpoint.delivered()) == in_queues(world.of("t")), "a new group starts at the beginning"
    tracker = GroupTracker()
    note(tracker, checkpoint)
    expected = [*world.send("t", 0, 2), *world.send("t", 1, broker="broker-1")]
    world.roll(segment_bytes=10_000_000)
    again = Checkpoint()
    run_once(options, again)
    assert rows_in_queues(again.delivered()) == in_queues(expected)
    tracker.close()


def test_a_mistyped_group_is_refused_with_the_nearest_name_and_is_not_created() -> None:
    world = prepared()
    GroupOffsets(world.store).commit("billing", {("t", "broker-0", 0): 1})
    for group, nearest in (("biling", ", nearest='billing'"), ("audit", "")):
        options = world.options(topic="t", startingOffsets="group", consumerGroup=group)
        with pytest.raises(NotFoundError, match=rf"group,earliest.*\(group='{group}'{nearest}\)"):
            run_once(options, Checkpoint())
    assert GroupOffsets(world.store).groups() == ["billing"]


def test_a_new_group_starts_where_it_is_told_and_a_known_one_where_it_was() -> None:
    world = prepared()
    options = world.options(topic="t", startingOffsets="group,latest", consumerGroup="g")
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    new = world.send("t", 0)
    run_once(options, checkpoint)
    assert rows_in_queues(checkpoint.delivered()) == in_queues(new)
    GroupOffsets(world.store).commit("known", {("t", "broker-0", 0): 1})
    again = Checkpoint()
    run_once(options | {"consumerGroup": "known"}, again)
    left = [sent for sent in world.of("t") if sent.queue != 0 or sent.queue_offset >= 1]
    assert rows_in_queues(again.delivered()) == in_queues(left), "queues without an offset are read from their start"


def test_without_the_listener_the_group_repeats_the_last_batch_and_loses_none() -> None:
    world = prepared()
    checkpoint = Checkpoint()
    run_once(options_of(world, maxOffsetsPerTrigger=3), checkpoint)
    assert [len(rows) for rows in checkpoint.rows.values()] == [3, 1]
    again = Checkpoint()
    run_once(world.options(topic="t", startingOffsets="group", consumerGroup="g"), again)
    assert rows_in_queues(again.delivered()) == rows_in_queues(checkpoint.rows[1])


def test_the_checkpoint_counts_where_there_is_one() -> None:
    world = prepared()
    checkpoint = Checkpoint()
    run_once(options_of(world), checkpoint)
    GroupOffsets(world.store).commit("g", {("t", "broker-0", 0): 0, ("t", "broker-0", 1): 0})
    assert run_once(world.options(topic="t", startingOffsets="group", consumerGroup="g"), checkpoint) == 0
    assert rows_in_queues(checkpoint.delivered()) == in_queues(world.of("t"))


def test_a_deleted_topic_keeps_no_progress_back() -> None:
    world = prepared()
    world.send("u")
    world.delete_topic("u")
    options = world.options(
        subscribePattern="[tu]", startingOffsets="earliest", consumerGroup="g", maxOffsetsPerTrigger=2
    )
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    tracker = GroupTracker()
    note(tracker, checkpoint)
    assert GroupOffsets(world.store).committed("g") == {("t", "broker-0", 0): 2, ("t", "broker-0", 1): 2}
    tracker.close()


@pytest.mark.parametrize("exists", [True, False])
def test_the_retry_topic_is_read_and_noted_if_it_exists(exists: bool) -> None:
    world = prepared()
    if exists:
        world.store.create_topic("%RETRY%g", queues=1)
    world.send("%RETRY%g")
    world.send("%RETRY%other")
    checkpoint = Checkpoint()
    run_once(options_of(world, includeRetry=True), checkpoint)
    assert rows_in_queues(checkpoint.delivered()) == in_queues(world.of("t", "%RETRY%g"))
    tracker = GroupTracker()
    note(tracker, checkpoint)
    noted = GroupOffsets(world.store).committed("g")
    assert noted.pop(("%RETRY%g", "broker-0", 0), None) == (1 if exists else None)
    assert noted == {("t", "broker-0", 0): 2, ("t", "broker-0", 1): 2}
    tracker.close()


def test_progress_that_cannot_be_noted_stops_no_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = prepared()
    checkpoint = Checkpoint()

    def fail(*_: object, **__: object) -> bool:
        raise UnavailableError("the storage is away")

    with monkeypatch.context() as broken:
        broken.setattr(GroupOffsets, "commit", fail)
        run_once(options_of(world, maxOffsetsPerTrigger=1), checkpoint)
        tracker = GroupTracker()
        note(tracker, checkpoint)
    assert rows_in_queues(checkpoint.delivered()) == in_queues(world.of("t"))
    assert "the group's progress could not be noted" in caplog.text
    assert "the progress of group g could not be noted" in caplog.text
    note(tracker, checkpoint)
    assert lag(world) == 0
    tracker.close()


def test_the_offset_names_store_and_group_only_where_there_is_one() -> None:
    world = prepared()
    with_group, without = Checkpoint(), Checkpoint()
    run_once(options_of(world), with_group)
    run_once(world.options(topic="t", startingOffsets="earliest"), without)
    assert (with_group.end()["group"], with_group.end()["store"]) == ("g", world.uri)
    assert not {"group", "store"} & json.loads(without.ends[0]).keys()
