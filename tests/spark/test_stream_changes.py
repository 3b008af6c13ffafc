"""What changes under a running stream: topics, queues and brokers that come, topics and messages that go, options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from micro_batches import Checkpoint, Killed, Query, run_once
from store_world import World, in_queues, rows_in_queues

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.clock import ManualClock
from rmq_spark.errors import DataExpiredError, InvalidRequestError
from rmq_spark.spark.stream_offset import StreamOffset


def created(*topics: str, queues: int = 2) -> tuple[World, ManualClock]:
    clock = ManualClock()
    world = World.create(clock=clock)
    for topic in topics:
        world.store.create_topic(topic, queues=queues)
    return world, clock


def check(checkpoint: Checkpoint, expected: list) -> None:  # type: ignore[type-arg]
    assert rows_in_queues(checkpoint.delivered()) == in_queues(expected)


# ------------------------------------------------------------ what comes


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "1"}], ids=["all", "limited"])
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_topics_queues_and_brokers_that_come_are_read_from_their_first_message(
    start: str, limit: dict[str, str]
) -> None:
    world, _ = created("orders_a", "stock")
    world.send("orders_a", 0, 1)
    expected = world.of("orders_a") if start == "earliest" else []
    options = world.options(subscribePattern="orders_.*", startingOffsets=start, **limit)
    checkpoint = Checkpoint()
    query = Query(options, checkpoint)
    query.run()
    world.store.create_topic("orders_b", queues=1)
    world.store.create_topic("restock", queues=1)
    expected += world.send("orders_b")
    world.send("restock")
    query.run()
    check(checkpoint, expected)
    expected += world.send("orders_a", 1, 0)
    world.store.create_topic("orders_c", queues=2, brokers=("broker-0", "broker-7"))
    expected += world.send("orders_c", 0, 1, broker="broker-7")
    expected += world.send("orders_c", 0, 1)
    query.run()
    check(checkpoint, expected)
    query.stop()
    expected += world.send("orders_c", 1, broker="broker-7")
    run_once(options, checkpoint)
    check(checkpoint, expected)


def test_a_pattern_finds_neither_the_engines_topics_nor_those_of_groups() -> None:
    world, _ = created("a", "b")
    world.send("a", 0)
    world.send("%RETRY%g", 0)
    world.send("%DLQ%g", 0)
    GroupOffsets(world.store).commit("g", {("a", "broker-0", 0): 0})
    checkpoint = Checkpoint()
    run_once(world.options(subscribePattern=".*", startingOffsets="earliest"), checkpoint)
    check(checkpoint, world.of("a", "b"))
    checkpoint = Checkpoint()
    run_once(world.options(subscribePattern="%DLQ%.*|a", startingOffsets="earliest"), checkpoint)
    check(checkpoint, world.of("a", "%DLQ%g"))


def test_assigned_queues_and_no_others_are_read() -> None:
    world, _ = created("a", "b")
    world.store.create_topic("c", queues=2, brokers=("broker-0", "broker-1"))
    options = world.options(
        assign=json.dumps({"a": [1], "c": {"broker-1": [0], "broker-0": [1]}}), startingOffsets="earliest"
    )
    for topic in ("a", "b"):
        world.send(topic, 0, 1)
    for broker in ("broker-0", "broker-1"):
        world.send("c", 0, 1, broker=broker)
    wanted = {("a", "broker-0", 1), ("c", "broker-1", 0), ("c", "broker-0", 1)}
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    check(checkpoint, [sent for sent in world.sent if sent.place in wanted])


# ------------------------------------------------------------ a busy log that brings nothing


def test_a_stream_that_waits_on_a_busy_log_makes_no_batches() -> None:
    world, _ = created("t", "other")
    world.send("t", 0, 1)
    checkpoint = Checkpoint()
    query = Query(world.options(topic="t", startingOffsets="earliest", consumerGroup="g"), checkpoint)
    query.run()
    for _ in range(20):
        world.send("other", 0, 1)
        GroupOffsets(world.store).commit("somebody", {("other", "broker-0", 0): len(world.of("other"))})
        assert not query.trigger()
    expected = world.of("t") + world.send("t", 1)
    assert query.run() == 1
    check(checkpoint, expected)


def test_the_groups_own_commits_are_no_news() -> None:
    world, _ = created("t")
    world.send("t", 0, 1)
    checkpoint = Checkpoint()
    query = Query(world.options(topic="t", startingOffsets="earliest", consumerGroup="g"), checkpoint)
    query.run()
    end = world.log().refresh().state.offset
    for _ in range(5):
        query.reader.commit(json.loads(checkpoint.ends[max(checkpoint.ends)]))
        assert not query.trigger()
    assert len(checkpoint.ends) == 1
    # The first commit was noted, with the record that names its fold; the same again writes nothing.
    assert world.log().refresh().state.offset == end + 2


def test_waiting_looks_at_a_commit_once() -> None:
    """Spark asks every few milliseconds; what was found to hold nothing is not looked at again."""
    world, _ = created("t", "other")
    world.send("t", 0)
    checkpoint = Checkpoint()
    query = Query(world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=5), checkpoint)
    query.run()
    for _ in range(30):
        world.send("other", 0)
        assert not query.trigger()
    cursor = query.reader._plan._cursors["broker-0"]
    looked = []
    real = cursor._runs._meta
    cursor._runs._meta = lambda source: looked.append(source) or real(source)  # type: ignore[method-assign, func-returns-value]
    world.send("t", 1)
    assert query.run() == 1
    assert {source.first for source in looked} == {31}


# ------------------------------------------------------------ retention


def expired(*, unread: int) -> tuple[World, dict[str, str], Checkpoint]:
    """A stream that was stopped, and a log whose retention went on; so many unread messages are gone."""
    world, clock = created("t", "other")
    options = world.options(topic="t", startingOffsets="earliest")
    for _ in range(3):
        world.send("t", 0, 1)
        clock.advance(1)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    for _ in range(2):
        world.send("other", 0)
        clock.advance(1)
    for _ in range(3):
        world.send("t", 0, 1)
        clock.advance(1)
    assert world.expire_below(8 + unread) == 8 + unread
    return world, options, checkpoint


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "1"}, {"maxBytesPerTrigger": "1"}], ids=str)
def test_retention_behind_the_reader_takes_nothing_from_it(limit: dict[str, str]) -> None:
    world, options, checkpoint = expired(unread=0)
    before = checkpoint.delivered()
    run_once(options | limit, checkpoint)
    assert rows_in_queues(checkpoint.delivered()[len(before) :]) == in_queues(world.of("t"))
    assert len(world.of("t")) == 6


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "1"}], ids=["all", "limited"])
def test_retention_that_passes_the_reader_stops_it_and_says_what_is_gone(limit: dict[str, str]) -> None:
    _, options, checkpoint = expired(unread=2)
    query = Query(options | limit, checkpoint)
    with pytest.raises(DataExpiredError, match=r"failOnDataLoss=false.*broker='broker-0', first=6, end=10, messages=2"):
        query.run()


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "1"}, {"maxBytesPerTrigger": "1"}], ids=str)
def test_retention_that_passes_the_reader_may_be_told_and_passed_over(
    limit: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    world, options, checkpoint = expired(unread=2)
    before = checkpoint.delivered()
    run_once(options | limit | {"failOnDataLoss": "false"}, checkpoint)
    assert rows_in_queues(checkpoint.delivered()[len(before) :]) == in_queues(world.of("t"))
    warned = [record for record in caplog.records if "retention deleted messages" in record.message]
    assert warned and "'messages': 2" in warned[0].message
    world.send("t", 0)
    caplog.clear()
    run_once(options, checkpoint)
    assert "deleted" not in caplog.text


def test_retention_that_takes_all_but_the_last_segment() -> None:
    world, options, checkpoint = expired(unread=4)
    run_once(options | {"failOnDataLoss": "false"}, checkpoint)
    assert rows_in_queues(checkpoint.delivered()[6:]) == in_queues(world.of("t"))


def test_retention_between_plan_and_task() -> None:
    world, clock = created("t")
    for _ in range(4):
        world.send("t", 0)
        clock.advance(1)
    for loss in ("true", "false"):
        query = Query(world.options(topic="t", startingOffsets="earliest", failOnDataLoss=loss), Checkpoint())
        start = query.reader.initialOffset()
        end = query.reader.latestOffset(start, query.limit)
        partitions = query.reader.partitions(start, end)
        if loss == "true":
            world.expire_below(2)
            with pytest.raises(DataExpiredError, match="while it was read"):
                list(query.reader.read(partitions[0]))
        else:
            world.expire_below(3)
            rows = [row for batch in query.reader.read(partitions[0]) for row in batch.to_pylist()]
            assert rows_in_queues(rows) == in_queues(world.of("t"))


# ------------------------------------------------------------ topics that go


def test_a_topic_deleted_before_it_was_read_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    world, _ = created("a", "b")
    options = world.options(topic="a,b", startingOffsets="earliest")
    world.send("a", 0)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    expected = world.of("a")
    world.send("a", 0, 0, 1)
    expected += world.send("b", 0)
    world.delete_topic("a")
    with pytest.raises(DataExpiredError, match=r"topic='a', queue=0, first=1, end=3"):
        run_once(options, checkpoint)
    run_once(options | {"failOnDataLoss": "false"}, checkpoint)
    check(checkpoint, expected)
    assert "'topic': 'a', 'queue': 1" in caplog.text


def test_a_topic_deleted_after_it_was_read_is_none() -> None:
    world, _ = created("a", "b")
    options = world.options(topic="a,b", startingOffsets="earliest")
    world.send("a", 0, 1)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    expected = world.of("a")
    world.delete_topic("a")
    expected += world.send("b", 0)
    run_once(options, checkpoint)
    check(checkpoint, expected)
    world.store.create_topic("a", queues=2)
    expected += world.send("a", 0)
    run_once(options, checkpoint)
    check(checkpoint, expected)
    assert expected[-1].queue_offset == 1, "offsets go on"


def test_a_limited_stream_passes_messages_that_were_deleted() -> None:
    world, clock = created("a", "b", "x")
    options = world.options(topic="a,b", startingOffsets="earliest", maxOffsetsPerTrigger=1, failOnDataLoss="false")
    world.send("a", 0)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    expected = world.of("a")
    for _ in range(3):
        world.send("x", 0)
        clock.advance(1)
    world.send("b", 0, 0, 0)
    assert world.expire_below(4) == 4, "retention has passed the position, though it took nothing unread"
    world.delete_topic("b")
    world.store.create_topic("b", queues=2)
    for _ in range(4):
        expected += world.send("b", 0)
    run_once(options, checkpoint)
    check(checkpoint, expected)


# ------------------------------------------------------------ a checkpoint and other options


def test_other_topics_are_read_from_the_same_place_on() -> None:
    world, _ = created("a", "b")
    world.store.create_topic("c", queues=1, brokers=("broker-0", "broker-1"))
    for _ in range(5):
        world.send("a", 0)
    world.send("b", 0)
    world.send("c", broker="broker-1")
    checkpoint = Checkpoint()
    run_once(world.options(topic="a,c", startingOffsets="earliest"), checkpoint)
    seen = len(checkpoint.delivered())
    expected = world.send("b", 1)
    world.send("a", 0)
    for _ in range(3):
        run_once(world.options(topic="b,c"), checkpoint)
        assert rows_in_queues(checkpoint.delivered()[seen:]) == in_queues(expected)
        expected += world.send("b", 0)
        expected += world.send("c", broker="broker-1")
    run_once(world.options(subscribePattern="[a-c]"), checkpoint)
    assert rows_in_queues(checkpoint.delivered()[seen:]) == in_queues(expected)


def test_other_topics_and_retention_that_passed_the_reader() -> None:
    """How many messages of the new topics are gone cannot be known: told as a loss."""
    _, options, checkpoint = expired(unread=0)
    with pytest.raises(DataExpiredError, match="messages='unknown'"):
        run_once(options | {"topic": "t,other"}, checkpoint)


def test_a_checkpoint_of_another_store_is_refused() -> None:
    one, other = World.create(), World.create()
    for world in (one, other):
        world.store.create_topic("t", queues=2)
    one.send("t", 0, 1)
    checkpoint = Checkpoint()
    run_once(one.options(topic="t", startingOffsets="earliest"), checkpoint)
    for messages in (0, 1, 5):  # fewer and more than the checkpoint has seen
        for _ in range(messages):
            other.send("t", 0)
        with pytest.raises(InvalidRequestError, match="the checkpoint belongs to another store"):
            run_once(other.options(topic="t"), checkpoint)


def test_a_batch_of_another_store_is_not_replayed() -> None:
    one, other = World.create(), World.create()
    for world in (one, other):
        world.store.create_topic("t", queues=2)
    for world in (one, other):
        world.send("t", 0, 1)
    checkpoint = Checkpoint()
    with pytest.raises(Killed):
        Query(one.options(topic="t", startingOffsets="earliest"), checkpoint).trigger(die="planned")
    with pytest.raises(InvalidRequestError, match="the checkpoint belongs to another store"):
        Query(other.options(topic="t"), checkpoint).trigger()


def test_a_checkpoint_ahead_of_the_log_is_refused() -> None:
    """`rmq recover` has cut what a power loss took: what the stream read is not there any more."""
    world, _ = created("t")
    world.send("t", 0, 1)
    checkpoint = Checkpoint()
    run_once(world.options(topic="t", startingOffsets="earliest"), checkpoint)
    value = checkpoint.end()
    value["brokers"]["broker-0"] = [5, 5]
    checkpoint.ends[0] = json.dumps(StreamOffset.from_json(value).to_json())
    with pytest.raises(InvalidRequestError, match=r"ahead of the log.*position=5, end=2"):
        run_once(world.options(topic="t"), checkpoint)


@pytest.mark.parametrize("group", [{}, {"consumerGroup": "g"}], ids=["plain", "group"])
def test_another_spelling_of_the_uri_is_the_same_store(tmp_path: Path, group: dict[str, str]) -> None:
    world = World.create(str(tmp_path / "store"))
    world.store.create_topic("t", queues=1)
    world.send("t")
    checkpoint = Checkpoint()
    run_once(world.options(topic="t", startingOffsets="earliest", **group), checkpoint)
    for uri in (f"file://{tmp_path}/store", f"{tmp_path}/./store", f"file://localhost{tmp_path}/store"):
        options = world.options(topic="t", **group) | {"store": uri}
        assert run_once(options, checkpoint) == 0
        world.send("t")
        assert run_once(options, checkpoint) == 1
        check(checkpoint, world.of("t"))


def test_limits_and_filters_may_change_between_runs() -> None:
    world, _ = created("t")
    for number in range(6):
        world.send("t", 0, tags=f"tag{number % 2}")
    checkpoint = Checkpoint()
    query = Query(world.options(topic="t", startingOffsets="earliest", maxOffsetsPerTrigger=2), checkpoint)
    query.trigger()
    query.stop()
    run_once(world.options(topic="t", subExpression="tag1"), checkpoint)
    assert [row["body"] for row in checkpoint.delivered()] == [b"m1", b"m2", b"m4", b"m6"]
