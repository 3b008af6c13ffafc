"""Producers, consumers and services as processes that join, leave, are killed and are stopped, at random.

Every acknowledged message reaches each group, ordered queues keep their order with one process inside, what comes twice
follows a kill, and the dead letters are the messages that failed 17 times.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from consumer_worker import FAIL
from crowd import (
    ATTEMPTS,
    Crowd,
    Visit,
    check_alone,
    check_dead_letters,
    check_duplicates,
    check_order,
    consumed,
    pick,
)

from rmq_spark import NotFoundError, Store
from rmq_spark.rules import timer
from rmq_spark.rules.timer import TimerProgress

QUEUES = 4
STUCK_SECONDS = 300
"""The run is stuck if nothing is consumed for so long; how long the run takes is the machine's affair."""
LEVEL_MS = 100
"""Delay of every level: 17 attempts need hours else."""
ORDERED, PLAIN = "ordered", "plain"


def ids_of(store: Store, topic: str, body: bytes | None = None) -> list[str]:
    try:
        rows = store.read(topic, columns=["msgId", "body"]).to_pylist()
    except NotFoundError:
        return []
    return [row["msgId"] for row in rows if body is None or row["body"] == body]


def disturb(crowd: Crowd, rng: random.Random, number: int) -> None:
    """One act of a run; the crowd is as large after it as before."""
    group = (ORDERED, PLAIN)[number % 2]
    act = ("kill", "stop", "leave", "kill producer", "kill service")[number % 5]
    if act == "kill":
        crowd.kill(pick(crowd.of("consume", group), rng))
        start_consumer(crowd, group)
    elif act == "stop":
        crowd.stop_for_a_while(pick(crowd.of("consume", group), rng))
    elif act == "leave":
        crowd.leave(pick(crowd.of("consume", group), rng))
        start_consumer(crowd, group)
    elif act == "kill producer":
        crowd.kill(pick(crowd.of("produce"), rng))
        start_producer(crowd)
    else:
        crowd.kill(pick(crowd.of("serve"), rng))
        crowd.start("serve")


def start_consumer(crowd: Crowd, group: str) -> None:
    crowd.start("consume", group=group, orderly=group == ORDERED, fails=group == PLAIN)


def start_producer(crowd: Crowd) -> None:
    crowd.start("produce", failing=0.02, pause=0.04)


def run(folder: Path, *, acts: int, pause: float) -> int:
    """Let the crowd work while it is disturbed `acts` times; returns how many deliveries were repeated."""
    rng = random.Random(acts)
    crowd = Crowd(folder)
    with Store.create(str(folder / "store")) as store:
        store.create_topic("t", queues=QUEUES)
        store.log("broker-0", TimerProgress).decide(timer.change_levels([LEVEL_MS] * 18))
        try:
            for _ in range(2):
                crowd.start("serve")
                start_producer(crowd)
                start_consumer(crowd, ORDERED)
                start_consumer(crowd, PLAIN)
            for number in range(acts):
                time.sleep(pause)
                disturb(crowd, rng, number)
            crowd.leave(*crowd.of("produce"))
            landed, failing = set(ids_of(store, "t")), set(ids_of(store, "t", FAIL))
            assert crowd.sent() <= landed, "an acknowledged message is not in the log"
            wait_until_done(crowd, store, landed, failing)
            crowd.leave(*crowd.of("consume", ORDERED), *crowd.of("consume", PLAIN), *crowd.of("serve"))
        finally:
            crowd.kill_all()
        dead = ids_of(store, f"%DLQ%{PLAIN}")
    ordered, plain = crowd.visits(ORDERED), crowd.visits(PLAIN)
    check_order(ordered)
    check_alone(ordered, crowd.woken)
    assert failing, "the run had no message that fails"
    check_dead_letters(plain, failing, set(dead))
    repeated = sum(check_duplicates(visits, crowd.disturbances()) for visits in (ordered, plain))
    print(
        f"{len(landed)} messages, {len(failing)} of them fail, {len(dead)} dead letters, {repeated} repeated deliveries"
    )
    return repeated


def wait_until_done(crowd: Crowd, store: Store, landed: set[str], failing: set[str]) -> None:
    seen, since = -1, time.monotonic()
    while True:
        ordered, plain = crowd.visits(ORDERED), crowd.visits(PLAIN)
        dead = set(ids_of(store, f"%DLQ%{PLAIN}"))
        if landed <= consumed(ordered) and landed - failing <= consumed(plain) and failing <= dead:
            return
        if len(ordered) + len(plain) + len(dead) > seen:
            seen, since = len(ordered) + len(plain) + len(dead), time.monotonic()
        left = len(landed - consumed(ordered)), len(landed - failing - consumed(plain)), len(failing - dead)
        assert time.monotonic() - since < STUCK_SECONDS, f"not consumed in order, plainly, not dead: {left}"
        time.sleep(0.2)


def test_the_checks_can_fail() -> None:
    early = [Visit(0, 0, 0, "a", 1.0, 2.0), Visit(0, 0, 2, "c", 3.0, 4.0)]
    with pytest.raises(AssertionError, match="before its predecessor"):
        check_order(early)
    both = [Visit(0, 0, 0, "a", 1.0, 2.0), Visit(1, 0, 0, "a", 1.5, 3.0)]
    with pytest.raises(AssertionError, match="two inside"):
        check_alone(both, [])
    check_order([Visit(0, 0, 0, "a", 1.0, 2.0), Visit(1, 0, 0, "a", 3.0, 4.0), Visit(1, 0, 1, "b", 5.0, 6.0)])
    check_alone([Visit(0, 0, 0, "a", 1.0, 20.0), Visit(1, 0, 0, "a", 10.0, 11.0)], [])  # it outlived its lease
    with pytest.raises(AssertionError, match="again without a kill"):
        check_duplicates(both, [(1, 1.2)])
    assert check_duplicates(both, [(0, 1.2)]) == 1
    retried = [Visit(0, 0, 5, "a", 4.0, 4.1, times=1), Visit(0, 0, 6, "a", 4.2, 4.3, times=1)]
    assert check_duplicates([*both, *retried], [(0, 1.2)]) == 2  # both deliveries were sent back
    with pytest.raises(AssertionError, match="a copy from nowhere"):
        check_duplicates([both[0], *retried], [])
    failed = [Visit(0, 0, at, "a", at, at + 0.5, times=at, succeeded=False) for at in range(ATTEMPTS)]
    check_dead_letters(failed, {"a"}, {"a"})
    with pytest.raises(AssertionError):
        check_dead_letters(failed[:-1], {"a"}, {"a"})
    with pytest.raises(AssertionError):
        check_dead_letters(failed, {"a"}, {"a", "b"})


def test_a_crowd_that_is_killed_and_stopped(tmp_path: Path) -> None:
    run(tmp_path, acts=5, pause=1.0)


@pytest.mark.slow
def test_a_crowd_that_is_killed_and_stopped_for_minutes(tmp_path: Path) -> None:
    run(tmp_path, acts=50, pause=2.0)
