"""An engine that sleeps while its tables are dropped, made anew or tended by another adds nothing to what it finds."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sample_messages import SETTINGS, Sample, as_rows

from rmq_spark.client.store import Store
from rmq_spark.clock import ManualClock
from rmq_spark.errors import ExistsError, FencedError
from rmq_spark.query.messages import MessageQuery
from rmq_spark.storage.base import Bytes, Storage
from rmq_spark.tables import engine, upkeep
from rmq_spark.tables.delta_log import DeltaLog
from rmq_spark.tables.schemas import TABLES

BOTH = ("broker-0", "broker-1")
ROLLED_BACK = 0xC


class LateClock(ManualClock):
    """A clock that is moved on by hand, with tokens that differ between handles."""

    def token(self) -> str:
        return uuid.uuid4().hex


class Sleepy:
    """A storage whose user sleeps, once, just before or after it creates a name that `when` picks."""

    def __init__(self, inner: Storage, when: Callable[[str], bool], sleep: Callable[[], None], after: bool) -> None:
        self.inner = inner
        self.when = when
        self.sleep: Callable[[], None] | None = sleep
        self.after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create_if_absent(self, path: str, data: Sequence[Bytes], *, durable: bool = True) -> None:
        sleep = self.sleep if self.when(path) else None
        if sleep is not None:
            self.sleep = None
        if sleep is not None and not self.after:
            sleep()
        self.inner.create_if_absent(path, data, durable=durable)
        if sleep is not None and self.after:
            sleep()


def fresh(sample: Sample, storage: Any = None) -> Store:
    return Store(storage or sample.store.storage, SETTINGS, sample.clock, read_only=False)


def is_entry(path: str) -> bool:
    return path.startswith("tables/index/_delta_log/") and path.endswith(".json")


def is_file(path: str) -> bool:
    return path.startswith("tables/index/") and path.endswith(".parquet") and "_delta_log" not in path


def check_all(sample: Sample, brokers: tuple[str, ...] = ("broker-0",)) -> None:
    """Every row is in each table once, and the next build has nothing to repair."""
    store = fresh(sample)
    engine.reput(store)
    for name, expected in sample.expected(brokers).items():
        assert as_rows(engine.read_table(store, name)) == expected, name
    plain = [one for one in sample.visible(brokers) if one.kind != ROLLED_BACK and not one.topic.startswith("%")]
    assert MessageQuery(store).by_id(plain[-1].msg_id, topic=plain[-1].topic).messages.num_rows == 1


def built(versions: int) -> Sample:
    sample = Sample.new(1, clock=LateClock())
    for _ in range(versions):
        sample.grow(1)
        engine.reput(sample.store)
    return sample.grow(1)


@pytest.mark.parametrize("rebuild", [True, False], ids=["made anew", "dropped"])
@pytest.mark.parametrize("picked", [is_file, is_entry], ids=["before its file", "before its entry"])
def test_the_table_is_dropped_meanwhile(picked: Callable[[str], bool], rebuild: bool) -> None:
    """Made anew it counts on from where the old one ended: no name that the sleeper knows is free again."""
    sample = built(5)
    versions = engine.status(sample.store, tables=["index"])[0].version

    def sleep() -> None:
        other = fresh(sample)
        sample.outlast(lambda: engine.drop(other))
        if rebuild:
            _, end = sample.bounds()
            for part in range(1, versions + 2):
                engine.reput(other, end=end * part // (versions + 1))
            assert engine.status(other, tables=["index"])[0].version > versions

    store = fresh(sample, Sleepy(sample.store.storage, picked, sleep, after=False))
    with pytest.raises(FencedError):
        engine.reput(store)
    check_all(sample)


def test_an_entry_that_came_too_late_is_taken_back() -> None:
    """The table is deleted by hand and made anew between the look and the create, which nothing can rule out."""
    sample = built(3)
    spec = TABLES["index"]
    sleeper = Sleepy(sample.store.storage, is_entry, lambda: None, after=False)
    late = DeltaLog(sleeper, spec)
    late.refresh()

    def sleep() -> None:
        for directory in (spec.root, f"{spec.root}/_delta_log"):
            for info in list(sample.store.storage.list(directory)):
                sample.store.storage.delete(f"{directory}/{info.name}")
        _, end = sample.bounds()
        for part in range(1, 4):
            engine.reput(fresh(sample), tables=["index"], end=end * part // 3)

    sleeper.sleep = sleep
    with pytest.raises(ExistsError, match="dropped"):
        late.commit([], "WRITE", sample.clock.now_ms(), sample.clock.token())
    check_all(sample)


def is_checkpoint(path: str) -> bool:
    return path.startswith("tables/index/_delta_log/") and path.endswith(".checkpoint.parquet")


@pytest.mark.parametrize("more", [1, 4, 14], ids=["fewer versions", "some", "more versions"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_checkpoint_of_the_old_table_is_not_one_of_the_new(more: int, after: bool) -> None:
    """The sleeper was about to write it when another dropped the tables, built them anew and went on."""
    sample = built(upkeep.CHECKPOINT_EVERY - 1)

    def sleep() -> None:
        other = fresh(sample)
        sample.outlast(lambda: engine.drop(other))
        for _ in range(more):
            engine.reput(sample.grow(1).store)

    store = fresh(sample, Sleepy(sample.store.storage, is_checkpoint, sleep, after=after))
    slept = False
    for _ in range(4):
        try:
            engine.reput(store, range_messages=1)
        except FencedError:
            slept = True
    assert slept
    snapshot = DeltaLog(sample.store.storage, TABLES["index"]).refresh()
    assert snapshot is not None
    held = {info.name for info in sample.store.storage.list("tables/index")}
    assert set(snapshot.files) <= held
    check_all(sample)


class SleepyDelete:
    """A storage whose user sleeps, once, just before the delete of a table's file with this number."""

    def __init__(self, inner: Storage, number: int, sleep: Callable[[], None]) -> None:
        self.inner = inner
        self.left = number
        self.sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def delete(self, path: str) -> None:
        if path.startswith("tables/index/"):
            self.left -= 1
            if self.left == 0:
                self.sleep()
        self.inner.delete(path)


def test_whoever_drops_sleeps_before_a_delete_while_another_builds() -> None:
    number = 0
    while True:
        number += 1
        sample = built(5)

        def build(sample: Sample = sample) -> None:
            sample.outlast(lambda: engine.reput(fresh(sample)))

        sleeper = SleepyDelete(sample.store.storage, number, build)
        store = fresh(sample, sleeper)
        if sleeper.left > 0:
            try:
                engine.drop(store)
            except FencedError:
                assert sleeper.left <= 0
        if sleeper.left > 0:
            break  # there are not so many deletes
        check_all(sample)
    assert number > 8


def test_the_directory_is_deleted_between_two_ranges(tmp_path: Path) -> None:
    sample = Sample.new(2, str(tmp_path / "store"), clock=LateClock()).grow(12)
    engine.reput(sample.store, end=60)
    sleeper = Sleepy(sample.store.storage, is_entry, lambda: shutil.rmtree(tmp_path / "store" / "tables"), after=True)
    engine.reput(fresh(sample, sleeper), range_messages=40)
    check_all(sample)


def test_its_files_are_taken_for_those_of_a_dead_writer() -> None:
    sample = Sample.new(5, clock=LateClock())
    sample.store.create_topic("more", queues=1, brokers=BOTH)
    sample.grow(10, BOTH)
    engine.reput(sample.store)
    sample.grow(1)

    def sleep() -> None:
        sample.clock.advance(2 * 3600)
        for _ in range(12):  # enough versions for a checkpoint, and with it for deleting what nobody names
            sample.grow(1, ("broker-1",))
            sample.outlast(lambda: engine.reput(fresh(sample), brokers=["broker-1"]))

    store = fresh(sample, Sleepy(sample.store.storage, is_file, sleep, after=True))
    with pytest.raises(FencedError):
        engine.reput(store)
    check_all(sample, BOTH)
