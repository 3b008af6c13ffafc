"""Batch reads against a plain list of what was sent: selections, bounds, filters, brokers, retention. No Spark runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType
from store_world import Sent, World, batch_tasks, in_queues, read_rows, rows_in_queues

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.clock import ManualClock
from rmq_spark.errors import DataExpiredError, InvalidRequestError, NotFoundError
from rmq_spark.filter import compile_sql, compile_tags
from rmq_spark.log.scan import Query
from rmq_spark.model.settings import LogSettings
from rmq_spark.testing import filter_cases

NOW = 1_700_000_000_000
BROKERS = ("broker-0", "broker-1")


def make(*, commits: int = 6, rolled: bool = False) -> World:
    """Two topics on two brokers; each commit is a second after the one before."""
    clock = ManualClock(NOW)
    world = World.create(clock=clock)
    for topic in ("a", "b"):
        world.store.create_topic(topic, queues=2, brokers=BROKERS)
    for _ in range(commits):
        for broker in BROKERS:
            world.append([world.message("a", 0), world.message("b", 1), world.message("a", 1)], broker)
        clock.advance(1)
    if rolled:
        for broker in BROKERS:
            world.roll(broker, segment_bytes=10_000)
    return world


def check(world: World, expected: list[Sent], **options: object) -> None:
    assert rows_in_queues(read_rows(world.options(**options))) == in_queues(expected)


ROLLED = pytest.mark.parametrize("rolled", [False, True], ids=["commits", "segments"])


@ROLLED
def test_all_columns_are_those_of_a_plain_scan(rolled: bool) -> None:
    world = make(rolled=rolled)
    plain = [
        row | {"properties": row["properties"] or None}  # decision 0009
        for broker in BROKERS
        for batch in world.log(broker).scan(Query(topics=frozenset({"a"})))
        for row in batch.to_pylist()
    ]
    rows = read_rows(world.options(topic="a"))
    key = ["brokerName", "commitOffset"]
    assert sorted(rows, key=lambda row: [row[name] for name in key]) == sorted(
        plain, key=lambda row: [row[name] for name in key]
    )


# ------------------------------------------------------------ which messages


@ROLLED
@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        ({"topic": "a"}, lambda sent: sent.topic == "a"),
        ({"topic": "a, b"}, lambda sent: True),
        ({"subscribe": "b"}, lambda sent: sent.topic == "b"),
        ({"subscribePattern": "[bc]"}, lambda sent: sent.topic == "b"),
        ({"subscribePattern": ".*"}, lambda sent: True),
        ({"assign": '{"a": [1]}'}, lambda sent: sent.topic == "a" and sent.queue == 1),
        (
            {"assign": '{"a": {"broker-1": [0]}, "b": [0, 1]}'},
            lambda sent: sent.topic == "b" or sent.place == ("a", "broker-1", 0),
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_selections(selection: dict[str, str], wanted: Callable[[Sent], bool], rolled: bool) -> None:
    world = make(rolled=rolled)
    check(world, [sent for sent in world.sent if wanted(sent)], **selection)


def test_the_groups_retry_topic_comes_along_when_asked_for() -> None:
    world = make(commits=1)
    world.send("%RETRY%g", 0)
    world.send("%RETRY%h", 0)
    check(world, world.of("a"), topic="a", consumerGroup="g")
    check(world, world.of("a", "%RETRY%g"), topic="a", consumerGroup="g", includeRetry=True)
    check(world, world.of("a", "%RETRY%g"), assign='{"a": [0, 1]}', consumerGroup="g", includeRetry=True)
    check(world, world.of("%RETRY%h"), topic="%RETRY%h")


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"topic": "aa"}, NotFoundError, r"no such topic \(topic='aa', nearest='a'\)"),
        ({"topic": "zzzzzz"}, NotFoundError, r"no such topic \(topic='zzzzzz'\)"),
        ({"assign": '{"a": [2]}'}, InvalidRequestError, r"no such queue \(topic='a', queue=2, queues=2\)"),
        ({"assign": '{"a": {"x": [0]}}'}, InvalidRequestError, "no queues on this broker.*broker='x'"),
        ({"assign": '{"c": [0]}'}, NotFoundError, "no such topic"),
    ],
    ids=str,
)
def test_what_does_not_exist_is_named(options: dict[str, str], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        read_rows(make(commits=1).options(**options))


def test_topics_without_messages_are_empty() -> None:
    world = World.create()
    world.store.create_topic("t", queues=3)
    assert batch_tasks(world.options(topic="t")) == []
    assert batch_tasks(world.options(subscribePattern="no_such.*")) == []
    assert batch_tasks(world.options(topic="t", startingOffsets='{"t": {"0": 0, "2": -2}}')) == []
    with pytest.raises(InvalidRequestError, match="a queue that has no messages"):
        read_rows(world.options(topic="t", startingOffsets='{"t": {"broker-0": {"0": 1}}}'))


def test_ten_thousand_queues() -> None:
    world = World.create()
    world.store.create_topic("wide", queues=10_000)
    messages = [world.message("wide", queue) for queue in range(10_000)]
    world.append(messages[:6_000])
    world.append(messages[6_000:] + [world.message("wide", queue) for queue in range(0, 10_000, 3)])
    world.roll()
    world.append([world.message("wide", queue) for queue in range(0, 10_000, 7)])
    check(world, world.of("wide"), topic="wide")
    few = list(range(0, 10_000, 1_111))
    check(world, [sent for sent in world.sent if sent.queue in few], assign=json.dumps({"wide": few}))
    starts = {"wide": {str(queue): 1 for queue in range(10_000)}}
    check(world, [sent for sent in world.sent if sent.queue_offset], topic="wide", startingOffsets=json.dumps(starts))
    times = {"wide": {str(queue): 0 for queue in range(10_000)}}
    check(world, world.of("wide"), topic="wide", startingOffsetsByTimestamp=json.dumps(times))


# ------------------------------------------------------------ from where to where


@ROLLED
@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, lambda sent: True),
        ({"startingOffsets": '{"a": {"0": 2}}'}, lambda sent: sent.queue != 0 or sent.queue_offset >= 2),
        ({"endingOffsets": '{"a": {"0": 2, "1": -1}}'}, lambda sent: sent.queue != 0 or sent.queue_offset < 2),
        (
            {"startingOffsets": '{"a": {"broker-1": {"1": 4}, "0": -2}}', "endingOffsets": '{"a": {"0": 3}}'},
            lambda sent: (
                (sent.place != ("a", "broker-1", 1) or sent.queue_offset >= 4)
                and (sent.queue != 0 or sent.queue_offset < 3)
            ),
        ),
        (
            {"startingOffsets": '{"a": {"0": 1, "broker-0": {"0": 3}}}'},
            lambda sent: sent.queue != 0 or sent.queue_offset >= (3 if sent.broker == "broker-0" else 1),
        ),
        ({"startingOffsets": '{"a": {"0": 6}}'}, lambda sent: sent.queue != 0),
        ({"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"0": 2}}'}, lambda sent: sent.queue != 0),
        ({"startingTimestamp": NOW + 2_000}, lambda sent: sent.ms >= NOW + 2_000),
        ({"endingTimestamp": NOW + 2_000}, lambda sent: sent.ms < NOW + 2_000),
        (
            {"startingTimestamp": "2023-11-14T22:13:21Z", "endingTimestamp": "2023-11-14T22:13:23"},
            lambda sent: NOW + 1_000 <= sent.ms < NOW + 3_000,
        ),
        ({"startingTimestamp": NOW + 60_000}, lambda sent: False),
        ({"endingTimestamp": NOW}, lambda sent: False),
        (
            {"startingTimestamp": NOW + 2_000, "endingOffsets": '{"a": {"1": 4}}'},
            lambda sent: sent.ms >= NOW + 2_000 and (sent.queue != 1 or sent.queue_offset < 4),
        ),
        (
            {"startingOffsets": '{"a": {"1": 4}}', "endingTimestamp": NOW + 5_000},
            lambda sent: sent.ms < NOW + 5_000 and (sent.queue != 1 or sent.queue_offset >= 4),
        ),
        (
            {"startingOffsetsByTimestamp": json.dumps({"a": {"0": NOW + 3_000}})},
            lambda sent: sent.queue != 0 or sent.ms >= NOW + 3_000,
        ),
        (
            {"startingOffsetsByTimestamp": json.dumps({"a": {"broker-0": {"0": NOW + 2_999}, "0": NOW + 4_001}})},
            lambda sent: sent.queue != 0 or sent.ms >= NOW + (2_999 if sent.broker == "broker-0" else 4_001),
        ),
        (
            {"endingOffsetsByTimestamp": json.dumps({"a": {"1": NOW + 3_000, "0": NOW + 99_000}})},
            lambda sent: sent.queue != 1 or sent.ms < NOW + 3_000,
        ),
        (
            {
                "startingOffsetsByTimestamp": json.dumps({"a": {"0": NOW + 99_000}}),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            lambda sent: sent.queue != 0,
        ),
        (
            {"startingTimestamp": NOW + 4_000, "startingOffsets": '{"a": {"0": 5, "1": 5}}'},
            lambda sent: sent.ms >= NOW + 4_000,
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bounds(bounds: dict[str, object], wanted: Callable[[Sent], bool], rolled: bool) -> None:
    world = make(rolled=rolled)
    check(world, [sent for sent in world.of("a") if wanted(sent)], topic="a", **bounds)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"startingOffsets": '{"a": {"0": 7}}'}, "starting offset is behind the queue's end.*offset=7, end=6"),
        ({"endingOffsets": '{"a": {"broker-1": {"1": 9}}}'}, "ending offset is behind the queue's end.*offset=9"),
        (
            {"startingOffsetsByTimestamp": json.dumps({"a": {"0": NOW + 99_000}})},
            "no message at the starting time or later; startingOffsetsByTimestampStrategy=latest",
        ),
    ],
    ids=str,
)
def test_bounds_that_cannot_be_kept_are_named(bounds: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_rows(make().options(topic="a", **bounds))


@cache
def sliced(rolled: bool) -> World:
    return make(commits=8, rolled=rolled)


@ROLLED
@given(low=st.integers(-1_500, 8_500), high=st.integers(-1_500, 8_500), step=st.sampled_from([1, 500]))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_slice_of_time(rolled: bool, low: int, high: int, step: int) -> None:
    world = sliced(rolled)
    low, high = NOW + low // step * step, NOW + high // step * step
    expected = [sent for sent in world.of("a", "b") if low <= sent.ms < high]
    check(world, expected, topic="a,b", startingTimestamp=low, endingTimestamp=high)


@ROLLED
def test_what_a_group_has_done_and_what_is_left_for_it(rolled: bool) -> None:
    world = make(rolled=rolled)
    done = {("a", "broker-0", 0): 2, ("a", "broker-1", 1): 6, ("b", "broker-0", 1): 1}
    GroupOffsets(world.store).commit("g", done)
    left = [sent for sent in world.of("a") if sent.queue_offset >= done.get(sent.place, 0)]
    check(world, left, topic="a", startingOffsets="group", consumerGroup="g")
    before = [sent for sent in world.of("a") if sent.place not in done or sent.queue_offset < done[sent.place]]
    check(world, before, topic="a", endingOffsets="group", consumerGroup="g")
    check(world, world.of("a"), topic="a", startingOffsets="group,earliest", consumerGroup="unheard_of")


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_group_that_has_committed_nothing_here_is_refused(option: str) -> None:
    world = make()
    GroupOffsets(world.store).commit("billing", {("b", "broker-0", 0): 1})
    with pytest.raises(NotFoundError, match=r"group,earliest.*group='biling', nearest='billing'"):
        read_rows(world.options(topic="a,b", consumerGroup="biling", **{option: "group"}))
    with pytest.raises(NotFoundError, match=r"no offset of these topics.*group='billing'\)"):
        read_rows(world.options(topic="a", consumerGroup="billing", **{option: "group"}))
    read_rows(world.options(topic="a,b", consumerGroup="billing", **{option: "group"}))


# ------------------------------------------------------------ filters


@cache
def filtered() -> tuple[World, list[tuple[Sent, dict[str, str]]]]:
    """Messages with awkward tags, keys and properties; with each what a row predicate sees of it."""
    random = Random(4)
    world = World.create(settings=LogSettings(segment_bytes=20_000, block_bytes=2_000, delete_grace_ms=0))
    world.store.create_topic("t", queues=3)
    seen: list[tuple[Sent, dict[str, str]]] = []
    for number in range(12):
        messages, properties = [], []
        for _ in range(random.randint(1, 12)):
            values = {name: value for name, value in filter_cases.properties(random).items() if value.strip()}
            own = {name: value for name, value in values.items() if name not in ("TAGS", "KEYS", "UNIQ_KEY")}
            tags = random.choice([None, "a", "b", "Aa", "BB", "中文"])
            keys = random.choice([None, "k1", "k2", "k1 k2", "k12", "x k1 y"])
            message = world.message("t", random.randint(0, 2), tags=tags, keys=keys, properties=own.items())
            messages.append(message)
            assert message.rows is not None
            row = {**own, "UNIQ_KEY": message.rows[0][2]}
            properties.append(row | ({"TAGS": tags} if tags else {}) | ({"KEYS": keys} if keys else {}))
        seen += zip(world.append(messages), properties, strict=True)
        if number % 5 == 4:
            world.roll(segment_bytes=20_000, block_bytes=2_000)
    return world, seen


@pytest.mark.parametrize("expression", ["a", "a || b", "Aa", "BB||中文", "*", "nothing", " a ||  ", "b || nothing"])
def test_tags_are_those_of_the_row_predicate(expression: str) -> None:
    world, seen = filtered()
    wanted = compile_tags(expression)
    check(world, [sent for sent, row in seen if wanted.matches(row)], topic="t", subExpression=expression)


def test_equal_hash_codes_are_no_equal_tags() -> None:
    world, seen = filtered()
    assert compile_tags("Aa").codes == compile_tags("BB").codes
    check(world, [sent for sent, row in seen if row.get("TAGS") == "Aa"], topic="t", subExpression="Aa")


@pytest.mark.parametrize("keys", ["k1", "k2", "k1,k2", "k12 y", "k", "none"])
def test_keys_are_words_among_a_messages_keys(keys: str) -> None:
    world, seen = filtered()
    wanted = set(keys.replace(",", " ").split())
    expected = [sent for sent, row in seen if wanted & set(row.get("KEYS", "").split())]
    check(world, expected, topic="t", keys=keys)


def test_one_message_by_its_id() -> None:
    world, seen = filtered()
    for sent, row in seen[::7]:
        check(world, [sent], topic="t", msgId=row["UNIQ_KEY"])
    check(world, [], topic="t", msgId="F" * 32)


@pytest.mark.parametrize(
    "expression",
    [
        "a IS NOT NULL",
        "a > 0",
        "a BETWEEN 0 AND 100 OR b = 'x'",
        "TAGS = 'a' AND c IS NULL",
        "KEYS IN ('k1', 'k2')",
        "NOT (a = b)",
        "c CONTAINS 'a'",
        "1 = 1",
        "1 = 2",
        "_x$1 <> 'x'",
    ],
)
def test_expressions_are_those_of_the_row_predicate(expression: str) -> None:
    world, seen = filtered()
    wanted = compile_sql(expression)
    check(world, [sent for sent, row in seen if wanted.matches(row)], topic="t", filter=expression)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_expressions_are_those_of_the_row_predicate(seed: int) -> None:
    world, seen = filtered()
    expression = filter_cases.expression(Random(seed))
    try:
        wanted = compile_sql(expression)
    except InvalidRequestError:
        with pytest.raises(InvalidRequestError, match="option filter"):
            read_rows(world.options(topic="t", filter=expression))
        return
    check(world, [sent for sent, row in seen if wanted.matches(row)], topic="t", filter=expression)


def test_all_filters_have_to_hold_and_columns_need_not_be_asked_for() -> None:
    world, seen = filtered()
    tags, sql = compile_tags("a || b"), compile_sql("a IS NOT NULL")
    expected = [
        sent.queue_offset
        for sent, row in seen
        if tags.matches(row) and sql.matches(row) and "k1" in row.get("KEYS", "").split()
    ]
    options = world.options(topic="t", subExpression="a || b", filter="a IS NOT NULL", keys="k1")
    rows = read_rows(options, StructType([StructField("queueOffset", LongType())]))
    assert expected and sorted(row["queueOffset"] for row in rows) == sorted(expected)


def test_filters_and_bounds_together() -> None:
    world, seen = filtered()
    expected = [
        sent for sent, row in seen if row.get("TAGS") == "a" and sent.queue == 1 and 3 <= sent.queue_offset < 20
    ]
    bounds = {"startingOffsets": '{"t": {"1": 3}}', "endingOffsets": '{"t": {"1": 20}}'}
    check(world, expected, assign='{"t": [1]}', subExpression="a", **bounds)


# ------------------------------------------------------------ retention


def test_what_retention_has_left_is_read() -> None:
    world = make()
    assert world.expire_below(9) == 9
    check(world, world.of("a"), topic="a")
    check(world, world.of("a"), topic="a", startingTimestamp=NOW)
    check(world, world.of("a"), topic="a", startingOffsets='{"a": {"0": -2, "1": -2}}')
    assert len(world.of("a", broker="broker-0")) == 6


def test_an_offset_that_retention_has_taken() -> None:
    world = make()
    world.expire_below(9)
    options = {"topic": "a", "startingOffsets": '{"a": {"0": 1}}'}
    with pytest.raises(DataExpiredError, match=r"failOnDataLoss=false.*topic='a', queue=0, first=1, end=3"):
        read_rows(world.options(**options))
    expected = [sent for sent in world.of("a") if sent.place != ("a", "broker-1", 0) or sent.queue_offset >= 1]
    check(world, expected, **options, failOnDataLoss=False)


def test_a_group_that_retention_has_passed() -> None:
    world = make()
    GroupOffsets(world.store).commit("g", {("a", "broker-0", 0): 2})
    world.expire_below(9)
    options = {"topic": "a", "startingOffsets": "group", "consumerGroup": "g"}
    with pytest.raises(DataExpiredError, match="first=2, end=3"):
        read_rows(world.options(**options))
    check(world, world.of("a"), **options, failOnDataLoss=False)


@pytest.mark.parametrize("loss", [True, False])
def test_retention_between_the_plan_and_its_tasks(loss: bool) -> None:
    world = make()
    tasks = batch_tasks(world.options(topic="a", failOnDataLoss=loss))
    world.expire_below(9)
    if loss:
        with pytest.raises(DataExpiredError, match="while it was read"):
            list(tasks[0])
    else:
        rows = [row for task in tasks for batch in task for row in batch.to_pylist()]
        assert rows_in_queues(rows) == in_queues(world.of("a"))


def test_files_that_move_between_the_plan_and_its_tasks() -> None:
    world = make()
    tasks = batch_tasks(world.options(topic="a"))
    expected = world.of("a")
    for broker, size in pairwise([*BROKERS, 1, 10_000_000]):
        if isinstance(broker, str):
            world.send("a", 0, broker=broker)
            world.roll(broker, segment_bytes=size if isinstance(size, int) else 1)
            world.roll(broker, segment_bytes=10_000_000)
    rows = [row for task in tasks for batch in task for row in batch.to_pylist()]
    assert rows_in_queues(rows) == in_queues(expected)


def test_a_deleted_topic_is_gone_and_its_successor_starts_where_it_ended() -> None:
    world = make()
    world.delete_topic("a")
    with pytest.raises(NotFoundError, match="no such topic"):
        read_rows(world.options(topic="a"))
    check(world, world.of("b"), subscribePattern="[ab]")
    world.store.create_topic("a", queues=2, brokers=BROKERS)
    new = world.send("a", 0)
    check(world, new, topic="a")
    assert new[0].queue_offset == 6
    with pytest.raises(DataExpiredError, match="first=2, end=6"):
        read_rows(world.options(topic="a", startingOffsets='{"a": {"0": 2}}'))


def test_a_read_sees_whole_commits_and_nothing_after_its_plan() -> None:
    world = make()
    expected = world.of("a")
    tasks = batch_tasks(world.options(topic="a"))
    world.send("a", 0, 1)
    rows: list[dict[str, Any]] = [row for task in tasks for batch in task for row in batch.to_pylist()]
    assert rows_in_queues(rows) == in_queues(expected)
