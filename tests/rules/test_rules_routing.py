"""Which queue a message goes to."""

from __future__ import annotations

from collections import Counter
from itertools import count

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import InvalidRequestError
from rmq_spark.rules import routing
from rmq_spark.rules.routing import BrokerLatency, QueueNumbers

QUEUES = [(broker, queue) for broker in ("a", "b") for queue in range(3)]


def never(topic: str) -> int:
    raise AssertionError(f"no turn of {topic} is needed")


# ------------------------------------------------------------ read and write numbers


def test_producers_see_write_queues_and_consumers_read_queues() -> None:
    numbers = [
        QueueNumbers(broker="b", read=1, write=1),
        QueueNumbers(broker="a", read=3, write=2),
        QueueNumbers(broker="c", read=1, write=1, permission=routing.READ),
        QueueNumbers(broker="d", read=1, write=1, permission=routing.WRITE),
    ]
    assert routing.write_queues(numbers) == [("a", 0), ("a", 1), ("b", 0), ("d", 0)]
    assert routing.read_queues(numbers) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0)]


def test_rule_22_write_shrinks_first_and_read_last() -> None:
    def numbers(read: int, write: int) -> QueueNumbers:
        return QueueNumbers(broker="a", read=read, write=write)

    routing.check_resize(numbers(8, 8), numbers(8, 4), undrained=[5])
    with pytest.raises(InvalidRequestError, match="still hold messages") as caught:
        routing.check_resize(numbers(8, 4), numbers(4, 4), undrained=[5, 3])
    assert caught.value.context["queues"] == [5]
    routing.check_resize(numbers(8, 4), numbers(4, 4), undrained=[3])
    with pytest.raises(InvalidRequestError, match="raise the read number first"):
        routing.check_resize(numbers(4, 4), numbers(4, 8))
    routing.check_resize(numbers(4, 4), numbers(8, 8))


# ------------------------------------------------------------ one message


def test_turns_go_on_by_one_from_a_random_start() -> None:
    starts = count(100, 100)
    turns = routing.RoundRobin(lambda: next(starts))
    assert [turns.next("t"), turns.next("t"), turns.next("u"), turns.next("t")] == [100, 101, 200, 102]


def test_messages_go_round_the_queues() -> None:
    turns = routing.RoundRobin(lambda: 4)
    got = [routing.place("t", QUEUES, turns.next) for _ in range(7)]
    assert got == [QUEUES[(4 + number) % 6] for number in range(7)]


def test_an_explicit_queue_goes_before_a_key_and_a_key_before_a_priority() -> None:
    assert routing.place("t", QUEUES, never, queue_id=2, sharding_key="k", priority=0) == ("a", 2)
    assert routing.place("t", QUEUES, never, sharding_key="k", priority=0) == routing.queue_for_key("k", QUEUES)
    with pytest.raises(InvalidRequestError, match="no such queue"):
        routing.place("t", QUEUES, never, queue_id=3)
    with pytest.raises(InvalidRequestError, match="no queues"):
        routing.place("t", [], never)


def test_rule_23_keys_are_hashed_as_java_does_over_the_sorted_queues() -> None:
    assert routing.queue_for_key("a", QUEUES) == QUEUES[97 % 6]
    # Its hash is Java's least integer, which has no positive twin there.
    assert routing.queue_for_key("polygenelubricants", QUEUES) == QUEUES[(1 << 31) % 6]


def test_a_priority_is_a_queue_of_each_broker_in_turn() -> None:
    turns = count()
    got = [routing.place("t", QUEUES, lambda _: next(turns), priority=priority) for priority in (0, 1, 2, 9)]
    assert got == [("a", 0), ("b", 1), ("a", 2), ("b", 2)]
    assert [routing.priority_queue(priority, 4) for priority in (-1, 0, 3, 4)] == [0, 0, 3, 3]
    assert routing.drain_order([0, 2, 1]) == [2, 1, 0]


def test_a_selector_chooses_among_the_queues() -> None:
    assert routing.selected("t", QUEUES, lambda queues: queues[-1]) == ("b", 2)
    with pytest.raises(InvalidRequestError, match="one of the queues"):
        routing.selected("t", QUEUES, lambda queues: ("c", 0))


# ------------------------------------------------------------ retries and slow brokers


def test_a_retry_avoids_the_broker_that_failed() -> None:
    for turn in range(6):
        assert routing.choose(QUEUES, turn, avoid="a")[0] == "b"
    assert routing.choose([("a", 0)], 3, avoid="a") == ("a", 0)
    assert [routing.choose(QUEUES, turn) for turn in range(6)] == QUEUES


@pytest.mark.parametrize(
    ("latency", "left_out"),
    [
        (0, 0),
        (50, 0),
        (100, 0),
        (549, 0),
        (550, 2000),
        (1799, 2000),
        (1800, 5000),
        (3000, 6000),
        (5000, 10_000),
        (14_999, 10_000),
        (15_000, 30_000),
        (10**6, 30_000),
    ],
)
def test_slow_brokers_are_left_out_by_the_table(latency: int, left_out: int) -> None:
    assert routing.unavailable_ms(latency) == left_out


def test_a_failure_counts_as_ten_seconds() -> None:
    seen = BrokerLatency()
    seen.note("a", 1, now_ms=0, failed=True)
    assert not seen.is_available("a", 9999)
    assert seen.is_available("a", 10_000)
    assert seen.is_available("b", 0)
    seen.note("a", 10, now_ms=5)
    assert seen.is_available("a", 5)


def test_available_brokers_are_preferred_and_sending_is_never_refused() -> None:
    seen = BrokerLatency()
    seen.note("a", 600, now_ms=0)
    assert {routing.choose(QUEUES, turn, latency=seen, now_ms=1)[0] for turn in range(6)} == {"b"}
    assert routing.choose(QUEUES, 0, avoid="b", latency=seen, now_ms=1)[0] == "b", "slow is worse than avoided"
    seen.note("b", 5000, now_ms=0)
    assert routing.choose(QUEUES, 3, latency=seen, now_ms=1)[0] == "a", "it comes back first"
    assert routing.choose(QUEUES, 3, avoid="a", latency=seen, now_ms=1)[0] == "b"
    with pytest.raises(InvalidRequestError, match="no queues"):
        routing.choose([], 0)


# ------------------------------------------------------------ columns


@given(st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=20), st.integers(1, 9))
def test_rule_23_columns_are_hashed_as_single_keys_are(keys: list[str | None], queues: int) -> None:
    got = routing.queues_for_keys(pa.array(keys, pa.string()), np.full(len(keys), queues, np.int64))
    places = [("b", queue) for queue in range(queues)]
    assert got.tolist() == [0 if key is None else routing.queue_for_key(key, places)[1] for key in keys]


@given(st.integers(0, 50), st.integers(1, 9), st.integers(0, 100))
def test_slices_are_as_even_as_turns(rows: int, queues: int, start: int) -> None:
    got = routing.even_slices(rows, queues, start).tolist()
    assert got == sorted(got)
    assert Counter(got) == Counter((start + number) % queues for number in range(rows))


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(0, 9))
def test_rows_of_several_topics_are_dealt_out_each_in_its_turn(topics: list[int], start: int) -> None:
    queues, starts = [1, 3, 4], [start, start + 1, start + 2]
    turns = list(starts)
    expected = []
    for topic in topics:
        expected.append(turns[topic] % queues[topic])
        turns[topic] += 1
    got, after = routing.deal_out(np.array(topics, np.int32), np.array(queues), np.array(starts))
    assert got.tolist() == expected
    assert after.tolist() == turns
