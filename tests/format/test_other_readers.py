"""pyarrow, polars and DuckDB open the files of a log without this project."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset
import pytest
import sample_log

from rmq_spark.log import schema


@pytest.fixture(scope="module")
def sample() -> sample_log.Sample:
    return sample_log.build(large_rows=90)


@pytest.fixture(params=["small commit", "large commit", "segment", "row file"])
def case(
    request: pytest.FixtureRequest, sample: sample_log.Sample, tmp_path: Path
) -> tuple[Path, list[dict[str, Any]]]:
    """A file of the log on a local disk, and its rows as this project reads them."""
    place = {"segment": "segments", "row file": "data"}.get(request.param, "commitlog")
    for path in sample.files():
        meta = sample_log.meta_of(sample.storage, path)
        is_wanted = f"/{place}/" in path and not meta.doc.get("files")
        if is_wanted and ("blocks" in meta.doc) == (request.param in ("large commit", "segment", "row file")):
            break
    target = tmp_path / "copy.arrow"
    target.write_bytes(sample.storage.read(path))
    rows = sample.messages
    if request.param == "row file":
        owner = next(
            found
            for file in sample.files()
            if "/commitlog/" in file and (found := sample_log.meta_of(sample.storage, file)).doc.get("files")
        )
        names = [file[0] for file in owner.doc["files"]]
        part = names.index(path.rsplit("/", 1)[1])
        first = owner.doc["first"] + sum(file[2] for file in owner.doc["files"][:part])
    else:
        first = meta.doc["first"]
    mine = rows.filter(pa.compute.field("commitOffset") >= first).filter(
        pa.compute.field("commitOffset") < first + meta.rows
    )
    names = schema.SEGMENT.names if place == "segments" else schema.ROWS.names
    return target, mine.select(names).to_pylist()


def with_pyarrow(path: Path) -> list[dict[str, Any]]:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all().to_pylist()


def with_polars(path: Path) -> list[dict[str, Any]]:
    return polars.read_ipc(path).to_dicts()


def with_duckdb(path: Path) -> list[dict[str, Any]]:
    messages = pyarrow.dataset.dataset(path, format="ipc")
    with duckdb.connect() as connection:
        connection.register("messages", messages)
        found = connection.sql("select * from messages").to_arrow_table()
    return found.to_pylist()


def as_map(value: Any) -> list[tuple[str, str]]:
    """A map as pairs: polars and DuckDB hand it over in forms of their own."""
    if isinstance(value, dict):
        return list(value.items())
    return [tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) for pair in value]


@pytest.mark.parametrize("reader", [with_pyarrow, with_polars, with_duckdb])
def test_another_reader_finds_every_row_and_column(
    case: tuple[Path, list[dict[str, Any]]], reader: Callable[[Path], list[dict[str, Any]]]
) -> None:
    path, expected = case
    rows = reader(path)
    assert len(rows) == len(expected) > 0
    for row, wanted in zip(rows, expected, strict=True):
        assert as_map(row.pop("properties")) == as_map(wanted["properties"])
        assert row == {name: value for name, value in wanted.items() if name != "properties"}


def test_duckdb_can_ask_a_segment_about_offsets(sample: sample_log.Sample, tmp_path: Path) -> None:
    path = next(path for path in sample.files() if "/segments/" in path)
    (tmp_path / "segment.arrow").write_bytes(sample.storage.read(path))
    segment = pyarrow.dataset.dataset(tmp_path / "segment.arrow", format="ipc")
    with duckdb.connect() as connection:
        connection.register("segment", segment)
        gaps = connection.sql(
            """select count(*) from (
                 select queueOffset - lag(queueOffset) over (partition by topic, queueId order by commitOffset) as step
                 from segment) where step <> 1"""
        ).fetchall()
        ((first, end),) = connection.sql("select min(commitOffset), max(commitOffset) + 1 from segment").fetchall()
    assert gaps == [(0,)]
    meta = sample_log.meta_of(sample.storage, path)
    assert (first, end) == (meta.doc["first"], meta.doc["end"])
