"""The stream's offset as text: equal offsets are equal texts, and it stays small. Spark compares and keeps the text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from micro_batches import Checkpoint, Query, run_once
from store_world import World

from rmq_spark.errors import InvalidRequestError, UnsupportedVersionError
from rmq_spark.spark.options import parse_read
from rmq_spark.spark.stream_offset import Position, StreamOffset, assigned, subscription_json

NAMES = st.text("abcXYZ019_-", min_size=1, max_size=8)
POSITIONS = st.builds(Position, st.integers(0, 2**62), st.integers(0, 2**62))
BROKERS = st.dictionaries(NAMES, POSITIONS, max_size=4)
OFFSETS = st.builds(
    StreamOffset,
    BROKERS,
    st.just({"topics": ["a", "b"]}),
    is_new=st.booleans(),
    origin=st.none() | BROKERS,
    starts=st.none() | NAMES,
    store=st.none() | NAMES,
    group=st.none() | NAMES,
    store_id=NAMES,
)


def text(offset: StreamOffset) -> str:
    return json.dumps(offset.to_json())


def reverse(value: dict[Any, Any] | None) -> dict[Any, Any] | None:
    return None if value is None else dict(reversed(value.items()))


@given(offset=OFFSETS)
def test_an_offset_survives_the_checkpoint(offset: StreamOffset) -> None:
    assert StreamOffset.from_json(json.loads(text(offset))) == offset


@given(offset=OFFSETS)
def test_equal_offsets_are_equal_texts(offset: StreamOffset) -> None:
    other = replace(
        offset, brokers=reverse(dict(offset.brokers)), origin=reverse(offset.origin and dict(offset.origin))
    )
    assert other == offset
    assert text(other) == text(offset) == text(StreamOffset.from_json(json.loads(text(offset))))
    assert text(offset) == json.dumps(json.loads(text(offset)), sort_keys=True), "keys are sorted at every level"


@given(one=OFFSETS, other=OFFSETS)
def test_different_offsets_are_different_texts(one: StreamOffset, other: StreamOffset) -> None:
    assert (one == other) == (text(one) == text(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"topic": "a,b"}, {"topic": "b, a"}),
        ({"subscribe": "a"}, {"topic": "a"}),
        ({"assign": '{"a": [0, 1], "b": {"x": [3]}}'}, {"assign": '{"b": {"x": [3]}, "a": [1, 0]}'}),
        ({"subscribePattern": "a.*"}, {"SUBSCRIBEPATTERN": "a.*"}),
        *(
            (
                {**one, "consumerGroup": "g", "includeRetry": "true"},
                {"includeRetry": "true", "consumerGroup": "g", **one},
            )
            for one in ({"topic": "a,b"}, {"subscribePattern": "a.*"}, {"assign": '{"a": [1]}'})
        ),
    ],
)
def test_equal_subscriptions_are_equal_texts(one: dict[str, str], other: dict[str, str]) -> None:
    values = [json.dumps(subscription_json(parse_read({"store": "/s", **o}, streaming=True))) for o in (one, other)]
    assert values[0] == values[1] == json.dumps(json.loads(values[0]), sort_keys=True)


@given(queues=st.sets(st.integers(0, 65_535), min_size=1))
def test_assigned_queues_are_kept_exactly(queues: set[int]) -> None:
    options = parse_read({"store": "/s", "assign": json.dumps({"t": {"b": sorted(queues)}})}, streaming=True)
    kept = json.loads(json.dumps(subscription_json(options)))
    assert assigned(kept) == {("t", "b"): tuple(sorted(queues))}
    assert assigned({"topics": ["t"]}) is None


@pytest.mark.parametrize(
    "start",
    [
        {"startingOffsets": "earliest"},
        {"startingOffsets": "latest"},
        {"startingTimestamp": "0"},
        {"startingOffsets": "group,earliest", "consumerGroup": "g"},
        {"startingOffsets": '{"t": {"0": 1, "9999": 0}}'},
        {"assign": json.dumps({"t": list(range(10_000))})},
    ],
    ids=lambda start: next(iter(start.items()))[1][:10],
)
def test_it_stays_small_with_ten_thousand_queues_and_several_brokers(start: dict[str, str]) -> None:
    world = World.create()
    brokers = tuple(f"broker-{number}" for number in range(5))
    world.store.create_topic("t", queues=10_000, brokers=brokers)
    for broker in brokers:
        world.append([world.message("t", queue) for queue in range(0, 10_000, 25)], broker)
    options = world.options(**({} if "assign" in start else {"topic": "t"}), **start)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    world.append([world.message("t", 7)])
    run_once(options, checkpoint)
    assert len(checkpoint.ends) >= 2
    assert max(map(len, checkpoint.ends.values())) < 600


@pytest.mark.parametrize("group", [{}, {"consumerGroup": "g"}], ids=["plain", "group"])
@pytest.mark.parametrize("start", ["earliest", "latest", '{"t": {"0": 1}}'])
def test_a_stream_without_news_repeats_its_text_in_every_process(start: str, group: dict[str, str]) -> None:
    world = World.create()
    world.store.create_topic("t", queues=2, brokers=("broker-1", "broker-0"))
    for broker in ("broker-1", "broker-0"):
        world.send("t", 0, 1, 0, broker=broker)
    options = world.options(topic="t", startingOffsets=start, **group)
    checkpoint = Checkpoint()
    run_once(options, checkpoint)
    batches = len(checkpoint.ends)
    for _ in range(3):
        query = Query(options, checkpoint)
        for _ in range(3):
            assert not query.trigger(), "nothing new is no batch"
        query.stop()
    assert len(checkpoint.ends) == batches


def test_an_offset_of_a_newer_version_says_so() -> None:
    value = StreamOffset({}, {}).to_json() | {"v": 2}
    with pytest.raises(UnsupportedVersionError, match="upgrade rmq-spark"):
        StreamOffset.from_json(value)


@pytest.mark.parametrize(
    "value", [{}, {"v": 1}, {"v": 1, "brokers": 3, "sub": {}, "id": ""}, {"orders": {"0": 5}}, {"v": 1, "brokers": {}}]
)
def test_an_offset_of_another_source_says_so(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="not an offset of this source"):
        StreamOffset.from_json(value)
