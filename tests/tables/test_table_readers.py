"""Other programs read the tables, and see the same marks; what they write, this project reads."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sample_messages import Sample, as_rows

from rmq_spark.query.messages import MessageQuery
from rmq_spark.tables import engine, kernel
from rmq_spark.tables.delta_log import DeltaLog
from rmq_spark.tables.schemas import TABLES


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    return Sample.new(1, str(tmp_path / "store")).grow(25)


def uri(sample: Sample, table: str) -> str:
    return f"{sample.store.storage.uri.removeprefix('file://')}/tables/{table}"


def read_by_deltalake(sample: Sample, table: str) -> list[tuple[object, ...]]:
    found = deltalake.DeltaTable(uri(sample, table)).to_pyarrow_table().cast(TABLES[table].schema)
    return as_rows(found)


def test_deltalake_reads_rows_and_marks(sample: Sample) -> None:
    for _ in range(4):
        engine.reput(sample.store, range_messages=60)
        sample.grow(10)
    engine.reput(sample.store)
    expected = sample.expected()
    for name, spec in TABLES.items():
        table = deltalake.DeltaTable(uri(sample, name))
        assert read_by_deltalake(sample, name) == expected[name]
        assert table.transaction_version(spec.app_id("broker-0")) == sample.bounds()[1]
        assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
        assert table.metadata().partition_columns == []


def test_deltalake_reads_checkpoints_and_merged_files(sample: Sample) -> None:
    for _ in range(12):
        sample.grow(1)
        engine.reput(sample.store)
    place = Path(uri(sample, "index")) / "_delta_log"
    last = max(place.glob("*.checkpoint.parquet"))
    for entry in place.glob("*.json"):
        if entry.name[:20] <= last.name[:20]:
            entry.unlink()
    assert read_by_deltalake(sample, "index") == sample.index()
    assert as_rows(engine.read_table(sample.store, "index")) == sample.index()
    table = deltalake.DeltaTable(uri(sample, "index"))
    assert table.transaction_version("rmq-index-broker-0") == sample.bounds()[1]
    (place / "_last_checkpoint").unlink()
    assert read_by_deltalake(sample, "index") == sample.index()


def test_deltalake_skips_files_by_the_statistics(sample: Sample) -> None:
    engine.reput(sample.store, range_messages=50)
    table = deltalake.DeltaTable(uri(sample, "index"))
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert len(actions) > 3
    rows = as_rows(engine.read_table(sample.store, "index"))
    for action in actions:
        mine = [row for row in rows if action["min.commitOffset"] <= row[4] <= action["max.commitOffset"]]
        assert action["num_records"] == len(mine)
        assert action["min.keyHash"] == min(row[2] for row in mine)
        assert action["max.keyHash"] == max(row[2] for row in mine)
        assert action["min.topic"] == min(row[0] for row in mine)
        times = [action[f"{end}.storeTimestamp"].timestamp() * 1000 for end in ("min", "max")]
        assert times == [min(row[7] for row in mine), max(row[7] for row in mine)]
    dataset = table.to_pyarrow_dataset()
    for wanted in rows[::20]:
        for column, value in (("keyHash", wanted[2]), ("key", wanted[1]), ("topic", wanted[0])):
            found = dataset.filter(pc.field(column) == value).to_table()
            assert wanted[4] in found["commitOffset"].to_pylist(), column


def test_polars_and_duckdb_read_them(sample: Sample) -> None:
    engine.reput(sample.store)
    frame = polars.read_delta(uri(sample, "consumequeue"))
    assert frame.height == len(sample.consumequeue())
    queued = deltalake.DeltaTable(uri(sample, "consumequeue")).to_pyarrow_dataset()
    assert queued is not None
    by_topic = duckdb.sql("select topic, count(*) from queued group by topic").fetchall()
    topics = [row[0] for row in sample.consumequeue()]
    assert dict(by_topic) == {topic: topics.count(topic) for topic in set(topics)}


def test_another_engine_may_go_on_where_this_one_stopped(sample: Sample) -> None:
    """The marks are Delta's own transaction ids: rows and mark of a range written by delta-rs count here."""
    end = sample.bounds()[1]
    middle = end // 2
    engine.reput(sample.store, end=middle)
    batches = list(kernel.read_range(sample.store.log(), middle, end))
    [batch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    for name, rows in (("consumequeue", kernel.consumequeue_rows(batch)), ("index", kernel.index_rows(batch))):
        deltalake.write_deltalake(
            uri(sample, name),
            pa.Table.from_batches([kernel.plain(rows, TABLES[name].schema)]),
            mode="append",
            commit_properties=deltalake.CommitProperties(
                app_transactions=[deltalake.Transaction(TABLES[name].app_id("broker-0"), end)]
            ),
        )
    sample.grow(10)
    engine.reput(sample.store, range_messages=70)
    for name in ("consumequeue", "index"):
        assert read_by_deltalake(sample, name) == sample.expected()[name]
        assert as_rows(engine.read_table(sample.store, name)) == sample.expected()[name]
    query = MessageQuery(sample.store)
    for one in sample.visible()[::9]:
        found = query.by_id(one.msg_id, topic=one.topic).messages["commitOffset"].to_pylist()
        assert found == ([one.commit_offset] if one.kind != 0xC else [])


def test_a_checkpoint_of_delta_rs_is_read(sample: Sample) -> None:
    engine.reput(sample.store, range_messages=40)
    deltalake.DeltaTable(uri(sample, "index")).create_checkpoint()
    place = Path(uri(sample, "index")) / "_delta_log"
    for entry in place.glob("*.json"):
        entry.unlink()
    assert as_rows(engine.read_table(sample.store, "index")) == sample.index()
    sample.grow(5)
    engine.reput(sample.store)
    assert as_rows(engine.read_table(sample.store, "index")) == sample.index()
    assert read_by_deltalake(sample, "index") == sample.index()


def test_delta_rs_cleans_up_after_this_engine(sample: Sample) -> None:
    for _ in range(10):
        sample.grow(1)
        engine.reput(sample.store)
    table = deltalake.DeltaTable(uri(sample, "index"))
    removed = DeltaLog(sample.store.storage, TABLES["index"]).refresh()
    assert removed is not None
    assert set(table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True)) == set(removed.removed)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert as_rows(engine.read_table(sample.store, "index")) == sample.index()
    sample.grow(3)
    engine.reput(sample.store)
    assert as_rows(engine.read_table(sample.store, "index")) == sample.index()


def test_the_log_entries_say_who_wrote_what(sample: Sample) -> None:
    engine.reput(sample.store)
    entry = Path(uri(sample, "index")) / "_delta_log" / f"{0:020d}.json"
    kinds = [next(iter(json.loads(line))) for line in entry.read_text().splitlines()]
    assert kinds == ["commitInfo", "protocol", "metaData", "add", "txn"]
    history = deltalake.DeltaTable(uri(sample, "index")).history()
    assert history[0]["operation"] == "WRITE"
    assert history[0]["engineInfo"] == "rmq-spark"
