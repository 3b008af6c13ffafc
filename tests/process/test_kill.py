"""`kill -9` of writers and maintainers at random moments: nothing acknowledged is lost, nothing is half there."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from worker import BROKER, ROOT
from worker_pool import Workers

from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.storage.local import LocalStorage
from rmq_spark.testing.history import Checked, check_log

SETTINGS = {"snapshot_every_commits": 7, "delete_grace_ms": 0, "segment_bytes": 300_000, "linger_ms": 1}


def seed_of_run() -> int:
    seed = int(os.environ.get("RMQ_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    return seed


def check(workers: Workers, store: Path) -> Checked:
    """Gather what the writers were told, and check the log against it."""
    acked: list[tuple[str, list[Any]]] = []
    attempted: dict[str, list[str]] = {}
    for report in workers.reports():
        for kind, *values in report:
            assert kind != "error", values[0]
            if kind == "ack":
                acked.append((values[0], [(*message[:5], message[5].encode()) for message in values[1]]))
            elif kind == "try":
                attempted[values[0]] = values[1]
    return check_log(LocalStorage(store), ROOT, BROKER, acked=acked, attempted=attempted)


def run(workers: Workers, store: Path, *, kills: int, seed: int, expire_age_ms: int = 0) -> Checked:
    """Keep several workers running, kill one at a time at random, start another in its place."""
    rng = random.Random(seed)
    started = 0

    def start(role: str) -> int:
        nonlocal started
        started += 1
        job: dict[str, Any] = {"store": str(store), "seed": rng.randrange(1 << 32), "settings": SETTINGS}
        if role == "write":
            job |= {"name": f"w{started}", "threads": rng.choice((1, 1, 3)), "pause": rng.choice((0, 0.02, 0.05))}
            job |= {"many": rng.choice((0, 0, 0.2))}
        else:
            job |= {"expire_age_ms": expire_age_ms}
        return workers.start(role, **job)

    live = {start(role): role for role in ("write", "write", "write", "maintain", "maintain")}
    every = max(4, kills // 5)
    for number in range(kills):
        time.sleep(rng.random() ** 2 * 0.5)
        victim = rng.choice(sorted(live))
        role = live.pop(victim)
        workers.kill(victim)
        live[start(role)] = role
        if number % every == every - 1:
            for pid in live:
                workers.kill(pid)
            done = check(workers, store)
            live = {start(role): role for role in ("write", "write", "write", "maintain", "maintain")}
    for pid in live:
        workers.kill(pid)
    done = check(workers, store)
    with CommitLog(LocalStorage(store), ROOT, BROKER) as log:
        landed = log.append(MessageBatch.of(topic="after", queue_id=0, msg_id="z", body=b"z", born_timestamp_ms=0))
        assert landed.commit_offsets is not None
        assert landed.commit_offsets.tolist() == [done.log_end]
    rolls = sum(line[1] > 0 for report in workers.reports() for line in report if line[0] == "roll")
    print(f"kills={kills} rolls={rolls} {done}")
    return done


def test_few_kills(workers: Workers, quick_path: Path) -> None:
    done = run(workers, quick_path / "store", kills=12, seed=seed_of_run())
    assert done.acked > 0


def test_few_kills_while_old_messages_expire(workers: Workers, quick_path: Path) -> None:
    run(workers, quick_path / "store", kills=6, seed=seed_of_run(), expire_age_ms=300)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_kills(workers: Workers, tmp_path: Path, quick_path: Path, part: int) -> None:
    """On a disk, where an append mostly waits for fsync, and in memory, where it mostly does not."""
    done = run(workers, (tmp_path, quick_path)[part % 2] / "store", kills=55, seed=seed_of_run() + part)
    assert done.acked > 100


@pytest.mark.slow
def test_many_kills_while_old_messages_expire(workers: Workers, quick_path: Path) -> None:
    done = run(workers, quick_path / "store", kills=60, seed=seed_of_run(), expire_age_ms=1_000)
    assert done.expired > 0
