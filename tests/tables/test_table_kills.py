"""Real processes: engines that are killed at any moment, several at a time, leave every row in the tables once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from sample_messages import SETTINGS, RealClock, Sample, as_rows

from rmq_spark.client.store import Store
from rmq_spark.errors import FencedError, PreconditionFailedError
from rmq_spark.query.messages import MessageQuery
from rmq_spark.storage.open import open_storage
from rmq_spark.tables import engine
from rmq_spark.tables.delta_log import DeltaLog
from rmq_spark.tables.schemas import TABLES

LEASE_MS = 250


def work(uri: str, seed: int) -> None:
    """Advance the tables for ever, in small ranges; now and then empty or drop them."""
    draw = random.Random(seed)
    store = Store(open_storage(uri), SETTINGS, RealClock(), read_only=False)
    while True:
        with suppress(PreconditionFailedError, FencedError):
            if draw.random() < 0.05:
                engine.empty(store, wait_s=1, lease_ms=LEASE_MS)
            elif draw.random() < 0.05:
                engine.drop(store, wait_s=1, lease_ms=LEASE_MS)
            engine.reput(store, range_messages=draw.choice((7, 40, 300)), wait_s=1, lease_ms=LEASE_MS)
        time.sleep(draw.random() * 0.01)


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rmq_spark.tables.engine", "rmq_spark.storage.local", "test_table_kills"])
    return context


def run(sample: Sample, uri: str, processes: ForkServerContext, kills: int, engines: int, seed: int) -> None:
    """Keep `engines` engines running, kill one after the other, and let the log grow meanwhile."""
    draw = random.Random(seed)
    running = []
    try:
        for number in range(kills):
            while len(running) < engines:
                worker = processes.Process(target=work, args=(uri, seed * 1000 + number * 10 + len(running)))
                worker.start()
                running.append(worker)
            if len(sample.sent) < 3000:
                sample.grow(draw.randrange(3))
            if draw.random() < 0.1:
                sample.roll()
            time.sleep(draw.random() * 0.3)
            victim = running.pop(draw.randrange(len(running)))
            assert victim.is_alive(), f"an engine ended by itself with code {victim.exitcode}"
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
    finally:
        for worker in running:
            worker.kill()
            worker.join()


def check(sample: Sample) -> None:
    time.sleep(LEASE_MS / 1000)
    for status in engine.status(sample.store):
        rows = as_rows(engine.read_table(sample.store, status.table))
        assert rows == sample.expected(mark=status.mark or 0)[status.table], "before anybody repairs anything"
    engine.reput(sample.store, wait_s=5, lease_ms=LEASE_MS)
    expected = sample.expected()
    for name in TABLES:
        assert as_rows(engine.read_table(sample.store, name)) == expected[name]
    query = MessageQuery(sample.store)
    for one in sample.visible()[::97]:
        found = query.by_id(one.msg_id, topic=one.topic).messages["commitOffset"].to_pylist()
        assert found == ([one.commit_offset] if one.kind != 0xC else [])


def test_engines_that_are_killed_double_and_lose_nothing(tmp_path: Path, processes: ForkServerContext) -> None:
    uri = str(tmp_path / "store")
    sample = Sample.new(1, uri, clock=RealClock()).grow(30)
    run(sample, uri, processes, kills=4, engines=1, seed=1)
    run(sample, uri, processes, kills=4, engines=2, seed=2)
    check(sample)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_kills(tmp_path: Path, processes: ForkServerContext, seed: int) -> None:
    uri = str(tmp_path / "store")
    sample = Sample.new(seed, uri, clock=RealClock()).grow(50)
    run(sample, uri, processes, kills=20, engines=1, seed=seed)
    check(sample)
    run(sample, uri, processes, kills=20, engines=3, seed=seed + 100)
    check(sample)


def test_two_engines_at_once_share_the_work(tmp_path: Path, processes: ForkServerContext) -> None:
    """Both stop through their leases again and again (they are that short), so both write at the same time."""
    uri = str(tmp_path / "store")
    sample = Sample.new(3, uri, clock=RealClock()).grow(60)
    workers = [processes.Process(target=work_briefly, args=(uri, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    for _ in range(10):
        sample.grow(2)
        time.sleep(0.05)
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    check(sample)
    snapshot = DeltaLog(sample.store.storage, TABLES["index"]).refresh()
    assert snapshot is not None
    assert snapshot.version > 3


def work_briefly(uri: str, seed: int) -> None:
    """Advance the tables in tiny ranges with a lease that is over before a range is."""
    store = Store(open_storage(uri), SETTINGS, RealClock(), read_only=False)
    for _ in range(8):
        with suppress(PreconditionFailedError, FencedError):
            engine.reput(store, range_messages=25, wait_s=2, lease_ms=1)
