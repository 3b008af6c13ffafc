"""Which columns a DataFrame may be written with, and what becomes of their types."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.spark import bad_rows
from rmq_spark.spark.sink_columns import COLUMNS, check_columns, to_columns


def test_every_column_with_every_type_of_its_own() -> None:
    for name, kinds in COLUMNS.items():
        for kind in kinds:
            body = [] if name == "body" else [("body", "binary")]
            assert check_columns([*body, (name, kind)])[-1] == name


def test_names_are_compared_without_regard_to_case() -> None:
    assert check_columns([("BODY", "string"), ("queueid", "int")]) == ["body", "queueId"]


@pytest.mark.parametrize("kind", ["varchar(5)", "char(3)", "string collate UNICODE_CI", "void"])
def test_kinds_of_strings_and_columns_of_nulls(kind: str) -> None:
    assert check_columns([("tags", kind), ("body", "string")]) == ["tags", "body"]


def test_keys_may_be_an_array_of_collated_strings() -> None:
    assert check_columns([("keys", "array<string collate UTF8_LCASE>"), ("body", "string")]) == ["keys", "body"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([("tags", "string")], "the column body is missing"),
        ([("body", "string"), ("tag", "string")], "unknown column tag; did you mean tags"),
        ([("body", "string"), ("deliverTime", "bigint")], "did you mean deliverTimestamp"),
        ([("key", "string")], "unknown column key; did you mean keys"),
        ([("Value", "binary")], "unknown column Value; did you mean body"),
        ([("partition", "int")], "unknown column partition; did you mean queueId"),
        ([("headers", "string")], "unknown column headers; did you mean properties"),
        ([("body", "string"), ("queueOffset", "bigint")], "unknown column queueOffset"),
        ([("body", "int")], "column body has the wrong type"),
        ([("body", "void")], "column body has the wrong type"),
        ([("body", "string"), ("queueId", "string")], "column queueId has the wrong type"),
        ([("body", "string"), ("properties", "map<string,int>")], "column properties has the wrong type"),
        ([("body", "string"), ("properties", "string")], "column properties has the wrong type"),
        ([("body", "string"), ("bornTimestamp", "timestamp_ntz")], "column bornTimestamp has the wrong type"),
        ([("body", "string"), ("keys", "array<int>")], "column keys has the wrong type"),
        ([("body", "string"), ("Body", "string")], "given twice"),
    ],
)
def test_other_columns_are_refused(fields: list[tuple[str, str]], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        check_columns(fields)


def column(name: str, *chunks: pa.Array) -> pa.Array:
    batches = [pa.RecordBatch.from_arrays([chunk, pa.array(["x"] * len(chunk))], [name, "b"]) for chunk in chunks]
    return to_columns(batches, [name, "body"])[name]


MOMENT = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
MOMENT_MS = 1_769_860_800_000


@pytest.mark.parametrize(
    ("name", "array", "values", "kind"),
    [
        ("body", pa.array(["é", None]), ["é".encode(), None], pa.binary()),
        ("body", pa.array([b"a"], pa.large_binary()), [b"a"], pa.binary()),
        ("tags", pa.array(["a"], pa.large_string()), ["a"], pa.string()),
        ("queueId", pa.array([1, None], pa.int8()), [1, None], pa.int64()),
        ("keys", pa.array([["a", "b"], [], None, ["c", None], [None]]), ["a b", None, None, "c", None], pa.string()),
        ("keys", pa.array(["a b", "", None]), ["a b", None, None], pa.string()),
        ("bornTimestamp", pa.array([MOMENT, None], pa.timestamp("us", "UTC")), [MOMENT_MS, None], pa.int64()),
        ("deliverTimestamp", pa.array([MOMENT, None], pa.timestamp("us", "UTC")), [MOMENT_MS + 1, None], pa.int64()),
        ("deliverTimestamp", pa.array([7, None], pa.int64()), [7, None], pa.int64()),
        ("bornTimestamp", pa.array([-1], pa.timestamp("us", "UTC")), [-1], pa.int64()),
    ],
)
def test_columns_become_one_array_of_the_sink_s_own_type(
    name: str, array: pa.Array, values: list[Any], kind: pa.DataType
) -> None:
    if name == "body":
        batches = [pa.RecordBatch.from_arrays([part], ["body"]) for part in (array, array)]
        made = to_columns(batches, ["body"])["body"]
    else:
        made = column(name, array, array)
    assert made.to_pylist() == values + values
    assert made.type == kind


def test_a_column_of_nulls_is_left_out() -> None:
    assert "tags" not in to_columns(
        [pa.RecordBatch.from_pydict({"tags": pa.nulls(2), "body": ["a", "b"]})], ["tags", "body"]
    )


def test_the_docs_list_the_columns_with_their_types_and_the_properties_of_bad_rows() -> None:
    text = (Path(__file__).parents[2] / "docs/options.md").read_text()
    section = text.split("\n## Columns of a write\n")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section, re.MULTILINE))
    types = {
        name: {kind.replace("&lt;", "<").replace("&gt;", ">") for kind in kinds.split(", ")}
        for name, kinds in listed.items()
    }
    assert types == {name: set(kinds) for name, kinds in COLUMNS.items()}
    names = {value for name, value in vars(bad_rows).items() if name.startswith("BAD_")}
    assert set(re.findall(r"`(BAD_\w+)`", text)) == names
