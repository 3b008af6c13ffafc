"""Consume, transform, produce by processes that are killed, stopped, join and leave: each input has one output."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from crowd import Crowd, pick

from rmq_spark import Message, Producer, Store

STUCK_SECONDS = 300
"""The run is stuck if no output comes for so long; how long the run takes is the machine's affair."""
GROUP = "transform"


def outputs(store: Store) -> Counter[bytes]:
    return Counter(store.read("out", columns=["body"])["body"].to_pylist())


def disturb(crowd: Crowd, rng: random.Random, number: int) -> None:
    act = ("kill", "stop", "leave")[number % 3]
    member = pick(crowd.of("transform", GROUP), rng)
    if act == "stop":
        crowd.stop_for_a_while(member)
        return
    if act == "kill":
        crowd.kill(member)
    else:
        crowd.leave(member)
    crowd.start("transform", group=GROUP, pause=0.1)


def run(folder: Path, *, messages: int, acts: int, pause: float) -> None:
    rng = random.Random(acts)
    crowd = Crowd(folder)
    with Store.create(str(folder / "store")) as store:
        store.create_topic("t", queues=4)
        store.create_topic("out", queues=2)
        producer = Producer(store)
        bodies = [b"%d" % number for number in range(messages)]
        try:
            for _ in range(3):
                crowd.start("transform", group=GROUP, pause=0.1)
            for number in range(acts):
                part = bodies[number * messages // acts : (number + 1) * messages // acts]
                producer.send_batch([Message("t", body) for body in part])
                time.sleep(pause)
                disturb(crowd, rng, number)
            seen, since = 0, time.monotonic()
            while len(found := outputs(store)) < messages:
                if found.total() > seen:
                    seen, since = found.total(), time.monotonic()
                assert time.monotonic() - since < STUCK_SECONDS, f"{messages - len(found)} inputs have no output"
                time.sleep(0.2)
            crowd.leave(*crowd.of("transform", GROUP))
        finally:
            crowd.kill_all()
        assert outputs(store) == Counter(bodies)


def test_each_input_has_one_output_whoever_is_killed_or_stopped(tmp_path: Path) -> None:
    run(tmp_path, messages=200, acts=3, pause=1.0)


@pytest.mark.slow
def test_each_input_has_one_output_for_minutes(tmp_path: Path) -> None:
    run(tmp_path, messages=5_000, acts=30, pause=2.0)
