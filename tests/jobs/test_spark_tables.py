"""Tables by a real Spark: equal to the in-process engine's, whoever goes on, whatever dies on the way."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sample_messages import SETTINGS, RealClock, Sample, as_rows

from rmq_spark.client.store import Store
from rmq_spark.errors import FencedError, InvalidRequestError, PreconditionFailedError, UnavailableError
from rmq_spark.log.expire import expire
from rmq_spark.rules.all_folds import BROKER_FOLDS
from rmq_spark.spark import table_engine
from rmq_spark.tables import engine
from rmq_spark.tables.delta_log import DeltaLog
from rmq_spark.tables.engine import ReputResult
from rmq_spark.tables.lease import TableLease
from rmq_spark.tables.log_ranges import LogRange, LogRanges
from rmq_spark.tables.schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.spark.table_tasks import Part
    from rmq_spark.tables.delta_actions import DataFile

pytestmark = pytest.mark.spark
BROKERS = ("broker-0", "broker-1")


def new_sample(tmp_path: Path, seed: int = 1) -> Sample:
    sample = Sample.new(seed, str(tmp_path / "store"), clock=RealClock())
    sample.store.create_topic("orders", queues=3, brokers=BROKERS)
    return sample


def check(sample: Sample) -> None:
    expected = sample.expected(BROKERS)
    for name in TABLES:
        assert as_rows(engine.read_table(sample.store, name)) == expected[name], name
    for one in engine.status(sample.store):
        assert (one.mark or 0, one.lease) == (sample.bounds(one.broker)[1], None)


def test_engines_in_turns_give_what_each_would_give_alone(spark: SparkSession, tmp_path: Path) -> None:
    sample = new_sample(tmp_path).grow(30, BROKERS)
    sample.roll()
    sample.grow(20, BROKERS)
    done = table_engine.reput(spark, sample.store, part_messages=40)
    check(sample)
    assert done.messages == sum(sample.bounds(broker)[1] for broker in BROKERS)
    assert done.rows == {name: len(rows) for name, rows in sample.expected(BROKERS).items()}
    assert done.ranges > 2

    engine.reput(sample.grow(10, BROKERS).store, range_messages=70)
    check(sample)
    table_engine.reput(spark, sample.grow(10, BROKERS).store)
    check(sample)
    assert table_engine.reput(spark, sample.store).messages == 0

    before = {name: as_rows(engine.read_table(sample.store, name)) for name in TABLES}
    table_engine.rebuild(spark, sample.store, part_messages=100)
    assert {name: as_rows(engine.read_table(sample.store, name)) for name in TABLES} == before
    engine.rebuild(sample.store)
    assert {name: as_rows(engine.read_table(sample.store, name)) for name in TABLES} == before


def test_a_range_is_one_commit_of_a_table_with_its_mark(spark: SparkSession, tmp_path: Path) -> None:
    sample = new_sample(tmp_path).grow(30)
    table_engine.reput(spark, sample.store, brokers=["broker-0"], part_messages=100)
    delta = DeltaLog(sample.store.storage, TABLES["index"])
    snapshot = delta.refresh()
    assert snapshot is not None
    assert len(snapshot.files) > snapshot.version + 1  # several tasks, one commit
    assert snapshot.transactions == {"rmq-index-broker-0": sample.bounds()[1]}


def test_tables_that_are_apart_are_brought_together(spark: SparkSession, tmp_path: Path) -> None:
    sample = new_sample(tmp_path).grow(20, BROKERS)
    engine.reput(sample.store, tables=["index"], range_messages=50)
    sample.grow(10, BROKERS)
    table_engine.reput(spark, sample.store, tables=["consumer_offsets"])
    sample.grow(10, BROKERS)
    table_engine.reput(spark, sample.store)
    check(sample)


def test_a_job_that_dies_between_any_two_commits_is_gone_on_with(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = new_sample(tmp_path).grow(40, BROKERS)
    draw, land, left = random.Random(3), LogRanges.land, [0]

    def dying(self: LogRanges, table: str, current: LogRange, files: list[DataFile]) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise UnavailableError("died before its commit")
        land(self, table, current, files)
        if left[0] == 1 and draw.random() < 0.5:
            raise UnavailableError("died after its commit")

    deaths = 0
    with monkeypatch.context() as patch:
        patch.setattr(LogRanges, "land", dying)
        for step in range(6):
            left[0] = 1 + step % 4
            try:
                table_engine.reput(spark, sample.store, part_messages=60)
            except UnavailableError:
                deaths += 1
    assert deaths >= 4
    engine.reput(sample.store, end=sample.bounds()[1] - 20, brokers=["broker-0"])
    table_engine.reput(spark, sample.store, part_messages=60)
    check(sample)


def test_one_engine_at_a_time_and_a_lost_lease_is_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = new_sample(tmp_path).grow(10)
    with TableLease.acquire(sample.store), pytest.raises(PreconditionFailedError, match="another engine"):
        table_engine.reput(spark, sample.store)

    durable, hold, slept = LogRanges.make_durable, TableLease.hold, list[bool]()

    def sleep_through_the_lease(self: LogRanges, end: int) -> None:
        durable(self, end)
        if not slept:
            slept.append(True)
            sample.clock.sleep(0.3)
            engine.reput(sample.store)
            monkeypatch.setattr(TableLease, "hold", hold)

    monkeypatch.setattr(TableLease, "hold", lambda self: None)
    monkeypatch.setattr(LogRanges, "make_durable", sleep_through_the_lease)
    with pytest.raises(FencedError):
        table_engine.reput(spark, sample.store, lease_ms=200)
    assert slept
    check(sample)


def test_both_engines_started_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """Each takes over from the other again and again, while the log grows; the leases are that short.

    An engine that is ahead lets the other have a turn: nothing says which of two gets a lease that is free.
    """
    sample = new_sample(tmp_path).grow(40)
    taken = {"spark": 0, "in-process": 0}
    stop = threading.Event()

    def work(name: str, step: Callable[[Store], ReputResult]) -> None:
        with Store.open(sample.store.storage.uri, settings=SETTINGS) as store:
            while not stop.is_set():
                with suppress(PreconditionFailedError, FencedError):
                    taken[name] += step(store).ranges > 0
                while taken[name] > min(taken.values()) and not stop.wait(0.05):
                    pass

    engines: dict[str, Callable[[Store], ReputResult]] = {
        "spark": lambda store: table_engine.reput(spark, store, part_messages=400, lease_ms=300, wait_s=1),
        "in-process": lambda store: engine.reput(store, range_messages=25, lease_ms=300, wait_s=1),
    }
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(work, name, step) for name, step in engines.items()]
        deadline = time.monotonic() + 120
        while min(taken.values()) < 2 and time.monotonic() < deadline and not any(job.done() for job in jobs):
            sample.grow(2)
            time.sleep(0.2)
        stop.set()
        for job in jobs:
            job.result()
    assert min(taken.values()) >= 2, taken
    sample.outlast(lambda: engine.reput(sample.store, wait_s=5))
    check(sample)


def test_expired_rows_go(spark: SparkSession, tmp_path: Path) -> None:
    sample = new_sample(tmp_path).grow(40)
    table_engine.reput(spark, sample.store, part_messages=50)
    sample.roll()
    assert sample.expire() > 0
    table_engine.reput(spark, sample.grow(5).store)
    check(sample)


def test_a_range_that_expires_before_it_is_cut_is_left(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = new_sample(tmp_path).grow(10)
    sample.roll()
    cut = table_engine.cut
    passed = []

    def late(log: CommitLog, *arguments: Any) -> list[Part]:
        if not passed:
            with Store.open(log.storage.uri, settings=sample.store.settings) as other:
                whole = other.log(log.broker, *BROKER_FOLDS)
                passed.append(expire(whole, before_ms=sample.clock.now_ms() + 1).log_start)
        return cut(log, *arguments)

    monkeypatch.setattr(table_engine, "cut", late)
    table_engine.reput(spark, sample.store, part_messages=2)
    assert passed[0] > 8, "all of the first range, of two parts for each core, has to be gone"
    for status in engine.status(sample.store):
        assert (status.mark or 0, status.behind) == (sample.bounds(status.broker)[1], 0)


def test_what_cannot_work_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    sample = new_sample(tmp_path).grow(2)
    with pytest.raises(InvalidRequestError, match="not set up for delta-spark"):
        table_engine.reput(spark, sample.store, writer="delta")
    with pytest.raises(InvalidRequestError, match="no such table"):
        table_engine.reput(spark, sample.store, tables=["nothing"])
    with pytest.raises(InvalidRequestError, match="in memory"):
        table_engine.reput(spark, Sample.new(1).store)
    with pytest.raises(InvalidRequestError, match="at least one"):
        table_engine.reput(spark, sample.store, part_messages=0)
    assert engine.status(sample.store)[0].version is None


@pytest.mark.server
def test_hdfs(spark: SparkSession, hdfs_uri: str) -> None:
    sample = Sample.new(4, f"{hdfs_uri}/spark-tables-test/store", clock=RealClock()).grow(15)
    table_engine.reput(spark, sample.store, part_messages=100)
    engine.reput(sample.grow(5).store)
    table_engine.reput(spark, sample.grow(5).store, part_messages=100)
    expected = sample.expected()
    for name in TABLES:
        assert as_rows(engine.read_table(sample.store, name)) == expected[name]
