"""The engine: each range enters each table exactly once, whatever happens in between."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sample_messages import HOUR_MS, SETTINGS, Sample, as_rows

from rmq_spark.client.store import Store
from rmq_spark.errors import (
    CorruptDataError,
    FencedError,
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
    UnsupportedVersionError,
)
from rmq_spark.storage.open import open_storage
from rmq_spark.tables import consumer_offsets, data_files, engine, kernel, upkeep
from rmq_spark.tables.delta_log import DeltaLog
from rmq_spark.tables.lease import LEASE_MS, TableLease
from rmq_spark.tables.schemas import TABLES

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog


def stored_rows(store: Store) -> dict[str, list[tuple[object, ...]]]:
    return {name: as_rows(engine.read_table(store, name)) for name in TABLES}


def test_tables_hold_the_whole_log() -> None:
    sample = Sample.new(1).grow(40)
    result = engine.reput(sample.store)
    assert stored_rows(sample.store) == sample.expected()
    assert result.messages == sample.bounds()[1]
    assert result.rows == {name: len(rows) for name, rows in sample.expected().items()}
    for status in engine.status(sample.store):
        assert (status.mark, status.behind) == (sample.bounds()[1], 0)
        assert status.rows == len(sample.expected()[status.table])


def test_a_group_that_commits_often_does_not_make_a_range_be_read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sample.new(11)
    for _ in range(25):
        sample._append_rows("broker-0")
        sample._append_offsets("broker-0")
    passes = []

    def counting(log: CommitLog, start: int, end: int, **wanted: Any) -> Iterator[pa.RecordBatch]:
        passes.append((start, end))
        return kernel.read_range(log, start, end, **wanted)

    monkeypatch.setattr(consumer_offsets, "read_range", counting)
    engine.reput(sample.store, tables=["consumer_offsets"])
    assert stored_rows(sample.store)["consumer_offsets"] == sample.expected()["consumer_offsets"]
    assert len(passes) == 2  # one for the commits, one for the messages that they are about


def test_a_second_call_adds_nothing_and_a_third_only_what_is_new() -> None:
    sample = Sample.new(2).grow(20)
    engine.reput(sample.store, range_messages=50)
    assert engine.reput(sample.store).messages == 0
    assert stored_rows(sample.store) == sample.expected()
    sample.grow(20)
    engine.reput(sample.store, range_messages=37)
    assert stored_rows(sample.store) == sample.expected()


def test_an_end_leaves_tables_half_built() -> None:
    sample = Sample.new(3).grow(30)
    engine.reput(sample.store, end=123, range_messages=40)
    assert stored_rows(sample.store) == sample.expected(mark=123)
    assert {status.mark for status in engine.status(sample.store)} == {123}


def test_tables_that_have_come_to_different_places_meet() -> None:
    sample = Sample.new(4).grow(30)
    engine.reput(sample.store, tables=["consumequeue"], end=100)
    engine.reput(sample.store, tables=["index"], end=250)
    engine.reput(sample.store, range_messages=60)
    assert stored_rows(sample.store) == sample.expected()


def test_brokers_share_tables() -> None:
    brokers = ("broker-0", "broker-1", "other.broker_2")
    sample = Sample.new(5)
    sample.store.create_topic("orders", brokers=brokers)
    sample.grow(40, brokers)
    engine.reput(sample.store, brokers=["broker-1"])
    assert stored_rows(sample.store) == sample.expected(("broker-1",))
    engine.reput(sample.store, range_messages=50)
    assert stored_rows(sample.store) == sample.expected(brokers)


def test_retention_trims_the_tables_to_what_the_log_holds() -> None:
    sample = Sample.new(6).grow(30)
    sample.roll()
    sample.grow(30)
    engine.reput(sample.store, range_messages=70)
    sample.roll()
    assert sample.expire() > 0
    engine.reput(sample.store)
    expected = sample.expected()
    assert stored_rows(sample.store) == expected
    assert len(expected["index"]) < len(sample.index(mark=1 << 60)) or sample.bounds()[0] > 0


def test_trimming_drops_whole_files_without_reading_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Sample.new(6).grow(30)
    sample.roll()
    start, middle = sample.bounds()
    sample.clock.advance(2 * HOUR_MS / 1000)
    sample.grow(10).roll()
    engine.reput(sample.store, range_messages=middle)
    from rmq_spark.log.expire import expire

    assert expire(sample.store.log(), before_ms=sample.clock.now_ms() - HOUR_MS).log_start == middle
    monkeypatch.setattr(upkeep.data_files, "read", lambda *_: pytest.fail("a whole file goes without being read"))
    engine.reput(sample.store)
    monkeypatch.undo()
    assert start == 0
    assert stored_rows(sample.store) == sample.expected()


def compact(store: Store, table: str, brokers: tuple[str, ...]) -> None:
    """Put all rows into one file, in no order, as another engine's compaction does."""
    delta = DeltaLog(store.storage, TABLES[table])
    snapshot = delta.refresh()
    assert snapshot is not None
    files = list(snapshot.files.values())
    assert {file.broker for file in files} == set(brokers)
    rows = pa.concat_tables([data_files.read(store.storage, delta.spec, file) for file in files])
    order = list(range(rows.num_rows))
    random.Random(1).shuffle(order)
    added = data_files.write(store.storage, delta.spec, rows.take(pa.array(order)), f"part-{table}", store.clock)
    actions = [file.remove(data_change=False, now_ms=0) for file in files]
    delta.commit([*actions, added.add(data_change=False)], "OPTIMIZE", 0, store.clock.token())


@pytest.mark.parametrize("brokers", [("broker-0",), ("broker-0", "broker-1")])
def test_retention_trims_files_that_another_engine_has_compacted(brokers: tuple[str, ...]) -> None:
    sample = Sample.new(9)
    sample.store.create_topic("orders", brokers=brokers)
    sample.grow(60, brokers)
    for broker in brokers:
        sample.roll(broker)
    engine.reput(sample.store, range_messages=100)
    for table in TABLES:
        before = sum(status.rows for status in engine.status(sample.store, tables=[table]))
        compact(sample.store, table, brokers)
        after = engine.status(sample.store, tables=[table])
        assert sum(status.rows for status in after) == before > 0
        holders = (engine.SHARED,) if len(brokers) > 1 else brokers
        assert [status.broker for status in after if status.files] == [*holders]
    for broker in brokers:  # the first time, the file holds messages below one broker's start and above the other's
        assert sample.expire(broker) > 0
        engine.reput(sample.store)
        assert stored_rows(sample.store) == sample.expected(brokers)
    for table in TABLES:
        snapshot = DeltaLog(sample.store.storage, TABLES[table]).refresh()
        assert snapshot is not None
        assert {file.broker for file in snapshot.files.values()} == set(brokers)
        for file in snapshot.files.values():
            rows = data_files.read(sample.store.storage, TABLES[table], file)
            assert rows.equals(data_files.in_order(rows, TABLES[table])), "a file says that it is sorted"


def test_an_expired_gap_between_mark_and_log_is_stepped_over() -> None:
    sample = Sample.new(8).grow(30)
    engine.reput(sample.store, end=50)
    sample.roll()
    sample.grow(30).roll()
    assert sample.expire() > 50
    engine.reput(sample.store, range_messages=64)
    rows = stored_rows(sample.store)
    assert rows["consumequeue"] == sample.consumequeue()
    assert rows["index"] == sample.index()


def test_rebuilding_gives_the_same_tables() -> None:
    sample = Sample.new(9).grow(40)
    engine.reput(sample.store, range_messages=33)
    before = stored_rows(sample.store)
    engine.rebuild(sample.store, range_messages=200)
    assert stored_rows(sample.store) == before == sample.expected()


@pytest.mark.parametrize("compacted", [False, True])
def test_rebuilding_for_one_broker_leaves_the_rows_of_others(compacted: bool) -> None:
    brokers = ("broker-0", "broker-1")
    sample = Sample.new(12)
    sample.store.create_topic("orders", brokers=brokers)
    sample.grow(40, brokers)
    engine.reput(sample.store, range_messages=100)
    if compacted:
        for table in TABLES:
            compact(sample.store, table, brokers)
    before = stored_rows(sample.store)
    marks = {(status.table, status.broker): status.mark for status in engine.status(sample.store)}
    engine.empty(sample.store, brokers=["broker-1"])
    after = engine.status(sample.store)
    assert {(one.table, one.broker): one.mark for one in after if one.broker == "broker-0"} == {
        place: mark for place, mark in marks.items() if place[1] == "broker-0"
    }
    assert {one.mark for one in after if one.broker == "broker-1"} == {0}
    kept = stored_rows(sample.store)
    names = {name: TABLES[name].schema.names.index("brokerName") for name in TABLES}
    for name, at in names.items():
        assert kept[name] == [row for row in before[name] if row[at] != "broker-1"]
    engine.reput(sample.store)
    assert stored_rows(sample.store) == before == sample.expected(brokers)
    engine.rebuild(sample.store, brokers=["broker-0"], range_messages=70)
    assert stored_rows(sample.store) == before
    with pytest.raises(NotFoundError, match="no such broker"):
        engine.rebuild(sample.store, brokers=["nope"])
    assert stored_rows(sample.store) == before


def test_a_lease_of_no_time_is_refused() -> None:
    sample = Sample.new(12).grow(1)
    with pytest.raises(InvalidRequestError, match="a millisecond"):
        engine.reput(sample.store, lease_ms=0)


def test_dropping_leaves_no_row_and_building_starts_anew() -> None:
    sample = Sample.new(10).grow(20)
    assert engine.drop(sample.store) == []
    engine.reput(sample.store, range_messages=30)
    assert engine.drop(sample.store) == list(TABLES)
    before = {status.table: status.version for status in engine.status(sample.store)}
    for name, spec in TABLES.items():
        assert list(sample.store.storage.list(spec.root)) == []
        kept = sorted(info.name for info in sample.store.storage.list(f"{spec.root}/_delta_log"))
        assert kept == [f"{before[name]:020d}.checkpoint.parquet", f"{before[name]:020d}.json", "_last_checkpoint"]
    assert {(status.mark, status.files) for status in engine.status(sample.store)} == {(None, 0)}
    assert engine.drop(sample.store) == []
    assert {status.table: status.version for status in engine.status(sample.store)} == before
    engine.reput(sample.store)
    assert stored_rows(sample.store) == sample.expected()
    assert all(status.version > before[status.table] for status in engine.status(sample.store)), "no name twice"


@pytest.mark.parametrize(
    "damage",
    [
        *("hole", "no beginning", "no JSON", "other columns", "deletion vectors", "newer"),
        *("schema no JSON", "no time", "no version", "no hash", "no size", "no count", "no text"),
    ],
)
def test_a_damaged_or_foreign_table_is_an_error_and_can_be_dropped(damage: str) -> None:
    sample = Sample.new(21).grow(10)
    engine.reput(sample.store, range_messages=20)
    storage = sample.store.storage
    log = "tables/index/_delta_log"
    entries = sorted(info.name for info in storage.list(log) if info.name.endswith(".json"))
    victim = entries[0] if damage != "hole" else entries[1]
    data = storage.read(f"{log}/{victim}")
    changes = {
        "hole": None,
        "no beginning": b'{"commitInfo":{}}',
        "no JSON": b"{",
        "other columns": data.replace(b"keyHash", b"keyHush"),
        "deletion vectors": data.replace(b'"dataChange":true', b'"dataChange":true,"deletionVector":{"x":1}'),
        "newer": data.replace(b'"minReaderVersion":1', b'"minReaderVersion":3'),
        "schema no JSON": data.replace(b'"schemaString":"{', b'"schemaString":"'),
        "no time": re.sub(rb'(storeTimestamp\\":\\"?)20', rb"\1xx", data),
        "no version": re.sub(rb'("version":)[0-9]+', rb'\1"x"', data),
        "no hash": re.sub(rb'(keyHash\\":)-?[0-9]+', rb'\1\\"x\\"', data),
        "no size": re.sub(rb'("size":)[0-9]+', rb'\1"x"', data),
        "no count": re.sub(rb'(numRecords\\":)[0-9]+', rb'\1\\"x\\"', data),
        "no text": re.sub(rb'(brokerName\\":)\\"[^"]*"', rb"\g<1>7", data),
    }
    assert changes[damage] != data
    for name in [name for name in entries if damage == "no beginning"]:
        storage.delete(f"{log}/{name}")
    for info in list(storage.list(log)):
        if "checkpoint" in info.name:
            storage.delete(f"{log}/{info.name}")
    storage.delete(f"{log}/{victim}")
    changed = changes[damage]
    if changed is not None:
        storage.create_if_absent(f"{log}/{victim}", [changed])
    for ask in (engine.status, engine.reput, lambda store: engine.read_table(store, "index")):
        with pytest.raises((CorruptDataError, UnsupportedVersionError), match=r"drop|rebuild|no JSON|cannot be read"):
            ask(sample.store)
    assert engine.drop(sample.store) == list(TABLES)
    assert list(storage.list("tables/index")) == []
    engine.reput(sample.store)
    assert stored_rows(sample.store) == sample.expected()


def test_small_files_are_merged_and_old_files_deleted_in_time() -> None:
    sample = Sample.new(11)
    for _ in range(30):
        sample.grow(1)
        engine.reput(sample.store)
    assert stored_rows(sample.store) == sample.expected()
    snapshot = DeltaLog(sample.store.storage, TABLES["index"]).refresh()
    assert snapshot is not None
    assert len(snapshot.files) < 2 * upkeep.MERGE_FILES
    assert snapshot.checkpoint > 0
    assert snapshot.removed
    kept = {info.name for info in sample.store.storage.list("tables/index") if info.name.endswith(".parquet")}
    assert kept == set(snapshot.files) | set(snapshot.removed)
    sample.clock.advance(2 * 24 * HOUR_MS / 1000)
    for _ in range(12):
        sample.grow(1)
        engine.reput(sample.store)
    later = DeltaLog(sample.store.storage, TABLES["index"]).refresh()
    assert later is not None
    names = {info.name for info in sample.store.storage.list("tables/index")}
    assert not names & set(snapshot.removed)
    entries = sorted(info.name for info in sample.store.storage.list("tables/index/_delta_log"))
    assert entries[0] >= f"{snapshot.checkpoint:020d}"
    assert stored_rows(sample.store) == sample.expected()


def test_a_table_ahead_of_its_log_is_refused() -> None:
    sample = Sample.new(12).grow(10)
    engine.reput(sample.store)
    end = sample.bounds()[1]
    delta = DeltaLog(sample.store.storage, TABLES["index"])
    delta.refresh()
    delta.commit([{"txn": {"appId": "rmq-index-broker-0", "version": end + 1}}], "WRITE", 0, sample.clock.token())
    with pytest.raises(CorruptDataError, match="ahead of its log"):
        engine.reput(sample.store)


def test_bad_requests_change_nothing() -> None:
    sample = Sample.new(13).grow(5)
    with pytest.raises(InvalidRequestError, match="no such table"):
        engine.reput(sample.store, tables=["indexx"])
    with pytest.raises(InvalidRequestError, match="no such table"):
        engine.read_table(sample.store, "indexx")
    with pytest.raises(InvalidRequestError, match="at least one message"):
        engine.reput(sample.store, range_messages=0)
    assert not any(stored_rows(sample.store).values())


# ------------------------------------------------------------ leases


def test_one_engine_writes_at_a_time() -> None:
    sample = Sample.new(14).grow(10)
    with TableLease.acquire(sample.store, name="spark") as lease:
        with pytest.raises(PreconditionFailedError, match="another engine") as error:
            engine.reput(sample.store)
        assert "spark-" in str(error.value)
        with pytest.raises(PreconditionFailedError):
            engine.drop(sample.store)
        assert {status.lease.holder for status in engine.status(sample.store) if status.lease} == {lease.holder}
    engine.reput(sample.store)
    assert stored_rows(sample.store) == sample.expected()
    assert not any(status.lease for status in engine.status(sample.store))


def test_tables_have_leases_of_their_own() -> None:
    sample = Sample.new(15).grow(10)
    with TableLease.acquire(sample.store, ["index"]):
        engine.reput(sample.store, tables=["consumequeue"])
        with pytest.raises(PreconditionFailedError):
            engine.reput(sample.store, tables=["consumequeue", "index"])


def test_a_lease_is_taken_over_after_its_time_and_its_holder_notices() -> None:
    sample = Sample.new(16).grow(10)
    dead = TableLease.acquire(sample.store)
    sample.clock.advance(LEASE_MS / 1000 - 1)
    with pytest.raises(PreconditionFailedError):
        engine.reput(sample.store)
    sample.clock.advance(2)
    with TableLease.acquire(sample.store) as lease:
        assert {lease.epochs[name] - dead.epochs[name] for name in TABLES} == {1}
        with pytest.raises(FencedError):
            dead.hold()
        dead.release()  # must not end the new holder's lease
        with pytest.raises(PreconditionFailedError):
            engine.reput(sample.store)


def test_a_lease_is_renewed_while_it_is_held() -> None:
    sample = Sample.new(17)
    with TableLease.acquire(sample.store) as lease:
        for _ in range(5):
            sample.clock.advance(LEASE_MS / 1000 * 0.6)
            lease.hold()
        with pytest.raises(PreconditionFailedError):
            TableLease.acquire(sample.store)


@pytest.mark.parametrize("wait_s", [float("inf"), float("nan"), 1e300, -1.0])
def test_a_wait_that_is_no_time_is_refused(wait_s: float) -> None:
    sample = Sample.new(1)
    with pytest.raises(InvalidRequestError, match="wait"):
        TableLease.acquire(sample.store, wait_s=wait_s)


def test_waiting_for_a_lease() -> None:
    sample = Sample.new(18).grow(5)
    TableLease.acquire(sample.store)  # and never given back
    engine.reput(sample.store, wait_s=LEASE_MS / 1000 + 1)
    assert stored_rows(sample.store) == sample.expected()


# ------------------------------------------------------------ races


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_that_slept_through_its_lease_doubles_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between writing its files and committing them, others take over, do the work, and more."""
    sample = Sample.new(seed).grow(20)
    draw = random.Random(seed)
    commit = DeltaLog.commit
    slept = []

    def slow(self: DeltaLog, *args: object) -> object:
        if not slept and draw.random() < 0.4:
            slept.append(self.spec.name)
            other = Store(sample.store.storage, SETTINGS, sample.clock, read_only=False)
            sample.outlast(lambda: engine.reput(other, range_messages=11))
        return commit(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaLog, "commit", slow)
    while not slept:
        with suppress(FencedError):
            engine.reput(sample.store, range_messages=40)
        sample.grow(5)
    monkeypatch.undo()
    sample.clock.advance(LEASE_MS / 1000 + 1)
    engine.reput(sample.store)
    assert stored_rows(sample.store) == sample.expected()
    orphans = {info.name for info in sample.store.storage.list("tables/index") if info.name.endswith(".parquet")}
    current = DeltaLog(sample.store.storage, TABLES["index"]).refresh()
    assert current is not None
    assert orphans == set(current.files) | set(current.removed), "files that lost the race are deleted"


def test_a_handle_follows_a_table_that_was_dropped_and_built_anew() -> None:
    sample = Sample.new(19).grow(20)
    engine.reput(sample.store, range_messages=20)
    follower = DeltaLog(sample.store.storage, TABLES["index"])
    before = follower.refresh()
    assert before is not None
    version = before.version
    engine.drop(sample.store)
    while True:
        sample.grow(2)
        engine.reput(sample.store, range_messages=5)
        fresh = DeltaLog(sample.store.storage, TABLES["index"]).refresh()
        assert fresh is not None
        if fresh.version > version:
            break
        again = follower.refresh()
        assert again is not None
        assert set(again.files) == set(before.files), "until then it knows the old table, which was true, too"
    now = follower.refresh()
    assert now is not None
    assert (now.version, set(now.files), now.transactions) == (fresh.version, set(fresh.files), fresh.transactions)


def test_a_name_that_is_taken_by_no_entry_is_an_error_not_a_wait(tmp_path: Path) -> None:
    sample = Sample.new(22, str(tmp_path)).grow(3)
    engine.reput(sample.store)
    log = tmp_path / "tables" / "index" / "_delta_log"
    (log / f"{len(list(log.glob('*.json'))):020d}.json").mkdir()
    sample.grow(2)
    with pytest.raises(CorruptDataError, match="no entry stands in a table's log"):
        engine.reput(sample.store)
    engine.drop(sample.store)


@pytest.mark.parametrize("what", ["deep", "far"])
def test_a_drop_cures_entries_that_nobody_can_read(what: str) -> None:
    sample = Sample.new(23).grow(5)
    engine.reput(sample.store)
    storage = sample.store.storage
    entries = [info.name for info in storage.list("tables/index/_delta_log") if info.name.endswith(".json")]
    if what == "deep":
        storage.create_if_absent(f"tables/index/_delta_log/{len(entries):020d}.json", [b"[" * 100_000])
        with pytest.raises(CorruptDataError, match="no JSON"):
            engine.reput(sample.store)
    else:
        storage.create_if_absent(f"tables/index/_delta_log/{10**20 - 1}.json", [b"{}"])
        engine.reput(sample.grow(1).store)  # no version has such a number: a foreign file
    engine.drop(sample.store)
    assert not [info.name for info in storage.list("tables/index/_delta_log") if info.name.startswith("9")]
    engine.reput(sample.store)
    assert stored_rows(sample.store) == sample.expected()


def test_a_store_on_disk_gives_the_same(tmp_path: object) -> None:
    uri = str(tmp_path)
    sample = Sample.new(20, f"{uri}/store")
    sample.grow(20).roll()
    sample.grow(10)
    engine.reput(sample.store, range_messages=100)
    assert stored_rows(sample.store) == sample.expected()
    reopened = Store(open_storage(f"{uri}/store"), SETTINGS, sample.clock, read_only=True)
    assert stored_rows(reopened) == sample.expected()
