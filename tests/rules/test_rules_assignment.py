"""RocketMQ's strategies share queues as its own clients do."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.message_queue import MessageQueue
from rmq_spark.rules import assignment
from rmq_spark.rules.assignment import Strategy

counts = st.integers(0, 20)
members_counts = st.integers(1, 8)


def queues_of(count: int, broker: str = "b") -> list[MessageQueue]:
    return [MessageQueue("t", broker, number) for number in range(count)]


def members_of(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def shared(strategy: Strategy, queues: list[MessageQueue], members: list[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy(member, queues, members)] for member in members]


@pytest.mark.parametrize(
    ("queues", "members", "expected"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, 5, [[0], [1], [2], [3], []]),
        (4, 4, [[0], [1], [2], [3]]),
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (6, 3, [[0, 1], [2, 3], [4, 5]]),
        (0, 2, [[], []]),
    ],
)
def test_averagely(queues: int, members: int, expected: list[list[int]]) -> None:
    assert shared(assignment.averagely, queues_of(queues), members_of(members)) == expected


def test_averagely_by_circle() -> None:
    got = shared(assignment.averagely_by_circle, queues_of(8), members_of(3))
    assert got == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_by_config_ignores_what_there_is() -> None:
    fixed = queues_of(2, "other")
    assert assignment.by_config(fixed)("nobody", [], []) == fixed


def test_by_machine_room_keeps_rooms_and_gives_the_rest_one_by_one() -> None:
    queues = [*queues_of(5, "x@1"), *queues_of(3, "y@1"), *queues_of(4, "plain")]
    strategy = assignment.by_machine_room({"x"})
    got = [strategy(member, queues, members_of(2)) for member in members_of(2)]
    assert [[queue.queue_id for queue in own] for own in got] == [[0, 1, 4], [2, 3]]
    assert {queue.broker for own in got for queue in own} == {"x@1"}


def test_by_machine_room_takes_another_way_to_tell_rooms() -> None:
    strategy = assignment.by_machine_room({"x"}, lambda broker: broker[0])
    assert len(strategy("c0", [*queues_of(2, "x1"), *queues_of(2, "y1")], ["c0"])) == 2


def test_the_consistent_hash_is_the_first_four_bytes_of_md5() -> None:
    assert assignment.ring_hash("c0-0") == int(hashlib.md5(b"c0-0").hexdigest()[:8], 16)


@given(counts, members_counts)
def test_the_consistent_hash_goes_to_the_next_node_of_the_ring(queues: int, members: int) -> None:
    ring = sorted((assignment.ring_hash(f"{one}-{node}"), one) for one in members_of(members) for node in range(10))
    strategy = assignment.by_consistent_hash()
    for queue in queues_of(queues):
        key = assignment.ring_hash(f"MessageQueue [topic=t, brokerName=b, queueId={queue.queue_id}]")
        owner = next((one for at, one in ring if at >= key), ring[0][1])
        assert [
            one for one in members_of(members) if queue in strategy(one, queues_of(queues), members_of(members))
        ] == [owner]


def test_few_queues_move_when_a_member_leaves_the_ring() -> None:
    strategy = assignment.by_consistent_hash()
    queues = queues_of(100)
    for member in members_of(4):
        before = set(strategy(member, queues, members_of(5)))
        assert before <= set(strategy(member, queues, members_of(4))), "what one had stays"


def nearby(inner: Strategy = assignment.averagely) -> Strategy:
    return assignment.machine_room_nearby(inner, lambda broker: broker.split("-")[0], lambda one: one.split("-")[0])


def test_nearby_queues_go_to_members_in_the_same_room() -> None:
    queues = [*queues_of(2, "x-1"), *queues_of(2, "y-1")]
    strategy = nearby()
    assert [queue.broker for queue in strategy("x-c0", queues, ["x-c0", "y-c0", "y-c1"])] == ["x-1", "x-1"]
    assert strategy("y-c1", queues, ["x-c0", "y-c0", "y-c1"]) == [MessageQueue("t", "y-1", 1)]


def test_rooms_without_members_are_shared_by_all_in_sorted_order() -> None:
    queues = [*queues_of(2, "z-1"), *queues_of(2, "y-1"), *queues_of(1, "x-1")]
    members = ["x-c0", "x-c1"]
    assert nearby()("x-c0", queues, members) == [
        MessageQueue("t", "x-1", 0),
        MessageQueue("t", "y-1", 0),
        MessageQueue("t", "z-1", 0),
    ]
    assert nearby()("x-c1", queues, members) == [MessageQueue("t", "y-1", 1), MessageQueue("t", "z-1", 1)]


def test_nearby_needs_every_room() -> None:
    strategy = assignment.machine_room_nearby(assignment.averagely, lambda _: "", lambda _: "x")
    with pytest.raises(InvalidRequestError, match="machine room"):
        strategy("c0", queues_of(1), ["c0"])


ALL = [*assignment.STRATEGIES.values(), assignment.by_machine_room({"b"}, lambda broker: broker), nearby()]


@pytest.mark.parametrize("strategy", ALL)
@given(queues=counts, members=members_counts, seed=st.integers(0, 99))
def test_every_queue_has_one_owner_whatever_the_order_of_the_lists(
    strategy: Strategy, queues: int, members: int, seed: int
) -> None:
    mixed_queues, mixed_members = queues_of(queues), members_of(members)
    random.Random(seed).shuffle(mixed_queues)
    random.Random(seed + 1).shuffle(mixed_members)
    got = [queue for member in members_of(members) for queue in strategy(member, mixed_queues, mixed_members)]
    assert sorted(got) == queues_of(queues)
    assert strategy("nobody", mixed_queues, mixed_members) == []
