"""`kill -9` and SIGSTOP of POP consumers and revivers: each message is acknowledged or comes again, none held twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from itertools import pairwise
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pop_worker
import pytest
from pop_worker import GROUP, TOPIC, read_report

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store, append_records
from rmq_spark.model.message import Message
from rmq_spark.rules.pop import PopState
from rmq_spark.rules.topics import GroupConfigs

FINISH_SECONDS = 120


class Crowd:
    """Consumers and revivers of one store, each a process."""

    def __init__(self, store: Path, reports: Path, seed: int) -> None:
        self._store, self._reports, self._rng = str(store), reports, random.Random(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["pop_worker"])
        self._started = 0
        self.live: dict[ForkServerProcess, str] = {}

    def start(self, role: str, share_acked: float = 0.7) -> None:
        self._started += 1
        report = str(self._reports / f"report-{self._started:04d}")
        arguments: tuple[Any, ...] = (self._store, report)
        if role != "revive":
            arguments += (self._rng.randrange(1 << 30), share_acked)
        process = self._context.Process(target=getattr(pop_worker, role), args=arguments, daemon=True)
        process.start()
        self.live[process] = role

    def kill_one(self) -> str:
        process = self._rng.choice(list(self.live))
        role = self.live.pop(process)
        process.kill()
        process.join()
        return role

    def freeze_one(self, seconds: float) -> None:
        """A process sleeps, and does not know it."""
        pid = self._rng.choice(list(self.live)).pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        while self.live:
            self.kill_one()

    def events(self) -> list[Any]:
        return [event for path in sorted(self._reports.glob("report-*")) for event in read_report(path)]


def check(events: list[Any], sent: set[str]) -> tuple[int, int]:
    """Every message was acknowledged, and nobody got it while somebody else held it."""
    spans: dict[str, list[tuple[int, int]]] = {}
    changed: list[tuple[str, int, int]] = []
    acked: dict[str, int] = {}
    tried: set[str] = set()
    failed: set[tuple[str, int]] = set()
    for kind, values in events:
        assert kind != "error", values
        for msg_id, pop_ms, due_ms in values:
            if kind == "got":
                spans.setdefault(msg_id, []).append((pop_ms, due_ms))
            elif kind == "changed":
                changed.append((msg_id, pop_ms, due_ms))
            elif kind == "failed":
                failed.add((msg_id, pop_ms))
            elif kind == "acked":
                acked[msg_id] = pop_ms
            elif kind == "try":
                tried.add(msg_id)
    for msg_id, pop_ms, due_ms in changed:
        start, end = max(span for span in spans[msg_id] if span[0] <= pop_ms)
        spans[msg_id].remove((start, end))
        # The listener of one that failed gave it back when it liked; what is known is that it was held until then.
        spans[msg_id].append((start, pop_ms if (msg_id, pop_ms) in failed else due_ms))
    again = 0
    for msg_id, mine in spans.items():
        mine.sort()
        for (_, due_ms), (pop_ms, _) in pairwise(mine):
            assert pop_ms >= due_ms, f"{msg_id} was received at {pop_ms}, and held by another until {due_ms}"
            again += 1
        if msg_id in acked:
            assert all(pop_ms <= acked[msg_id] for pop_ms, _ in mine), f"{msg_id} came again after it was acknowledged"
    assert spans.keys() <= sent
    missing = sent - acked.keys() - tried
    assert not missing, f"{len(missing)} messages were lost, {sorted(missing)[:3]}"
    return len(acked), again


def run(place: Path, reports: Path, *, kills: int, batches: int) -> None:
    seed = int(os.environ.get("RMQ_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    rng = random.Random(seed)
    crowd = Crowd(place, reports, seed)
    with Store.create(str(place), services="off") as store:
        store.create_topic(TOPIC, queues=1)
        append_records(store.nameserver, GroupConfigs, {"group": GROUP, "retryMaxTimes": 10_000})
        producer = Producer(store)
        sent: set[str] = set()
        try:
            for role in ("work", "push", "revive", "revive"):
                crowd.start(role)
            for number in range(kills):
                for _ in range(batches):
                    sent.update(each.msg_id for each in producer.send_batch([Message(TOPIC, b"x" * 100)] * 20))
                    time.sleep(rng.random() * 0.1)
                if rng.random() < 0.5:
                    crowd.freeze_one(rng.choice([0.2, 1.5]))  # shorter, and longer than messages are held
                crowd.start(crowd.kill_one(), 1.0 if number == kills - 1 else 0.7)
            crowd.start("work", 1.0)
            deadline = time.monotonic() + FINISH_SECONDS
            while not _is_done(store):
                assert time.monotonic() < deadline, "messages are still in flight"
                time.sleep(0.1)
        finally:
            crowd.end()
    done, again = check(crowd.events(), sent)
    print(f"sent={len(sent)} acknowledged={done} received again={again}")
    assert again, "nothing was given back: the test shows nothing"


def _is_done(store: Store) -> bool:
    lag = GroupOffsets(store).lag(GROUP)
    held = store.log("broker-0", PopState).look(lambda view: len(view.state.fold(PopState).held))
    return bool(lag) and not held and not any(each.lag for each in lag)


def test_killed_and_frozen_consumers_lose_nothing_and_no_message_is_held_twice(
    quick_path: Path, tmp_path: Path
) -> None:
    run(quick_path / "store", tmp_path, kills=6, batches=6)


@pytest.mark.slow
def test_killed_and_frozen_consumers_lose_nothing_in_a_long_run(quick_path: Path, tmp_path: Path) -> None:
    run(quick_path / "store", tmp_path, kills=100, batches=15)
