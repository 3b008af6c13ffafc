"""The mask and the row predicate come from one tree and must agree on every row of every batch."""

from __future__ import annotations

import pickle
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_spark.errors import InvalidRequestError
from rmq_spark.filter import FilterSyntaxError, compile_sql
from rmq_spark.testing import filter_cases

MAP = pa.map_(pa.string(), pa.string())


def batch_of(maps: list[list[tuple[str, str | None]] | None], **columns: list[str | None]) -> pa.RecordBatch:
    arrays = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict({**arrays, "properties": pa.array(maps, MAP)})


@settings(deadline=None, max_examples=300)
@given(st.randoms(use_true_random=False), st.integers(0, 12), st.integers(0, 3))
def test_mask_equals_row_predicate(random: Random, count: int, skipped: int) -> None:
    expression = filter_cases.expression(random)
    rows = [filter_cases.properties(random) for _ in range(count)]
    names = {"TAGS": "tags", "KEYS": "keys", "UNIQ_KEY": "msgId"}
    maps = [[item for item in row.items() if item[0] not in names] for row in rows]
    batch = batch_of(maps, **{column: [row.get(name) for row in rows] for name, column in names.items()})
    try:
        compiled = compile_sql(expression)
    except FilterSyntaxError as error:
        assert 0 <= error.position <= len(expression)
        assert error.expected
        return
    expected = [compiled.matches(row) for row in rows]
    assert compiled.mask(batch).to_pylist() == expected
    # A slice has offsets of its own in every buffer.
    assert compiled.mask(batch.slice(skipped)).to_pylist() == expected[skipped:]
    if compiled.columns:
        assert compiled.mask(batch.select(sorted(compiled.columns))).to_pylist() == expected


def test_side_that_is_not_evaluated_cannot_throw() -> None:
    batch = batch_of([[("b", "x")], [("a", "1"), ("b", "x")], [("a", "1"), ("b", "1")]])
    # `-(condition)` is null, or throws: here for b = "x", unless a is missing and nobody looks.
    assert compile_sql("a < -(b > 1) OR TRUE").mask(batch).to_pylist() == [True, False, True]
    assert compile_sql("a IS NULL OR b > 0").mask(batch).to_pylist() == [True, False, True]
    assert compile_sql("NOT (a IS NOT NULL AND b > 1)").mask(batch).to_pylist() == [True, False, True]


def test_last_value_of_a_repeated_name_counts() -> None:
    batch = batch_of([[("a", "1"), ("a", "2")], [("a", "2"), ("b", "9"), ("a", "1")], [("a", "1"), ("a", None)]])
    assert compile_sql("a = 2").mask(batch).to_pylist() == [True, False, False]
    assert compile_sql("a IS NULL").mask(batch).to_pylist() == [False, False, True]


def test_null_and_empty_maps_have_no_properties() -> None:
    batch = batch_of([None, [], [("a", "1")], None, [("a", None)]])
    assert compile_sql("a IS NULL").mask(batch).to_pylist() == [True, True, False, True, True]
    assert compile_sql("a IS NULL").mask(batch.slice(2, 2)).to_pylist() == [False, True]
    assert compile_sql("a IS NULL").mask(batch.slice(5)).to_pylist() == []


def test_null_map_that_spans_entries_has_no_properties() -> None:
    keys, items = pa.array(["a", "a"]), pa.array(["1", "1"])
    full = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), keys, items)
    holed = pa.Array.from_buffers(MAP, 2, [pa.py_buffer(b"\x02"), full.buffers()[1]], children=[full_child(full)])
    assert holed.is_null().to_pylist() == [True, False]
    batch = pa.RecordBatch.from_pydict({"properties": holed})
    assert compile_sql("a = 1").mask(batch).to_pylist() == [False, True]


def full_child(maps: pa.MapArray) -> pa.Array:
    return pa.StructArray.from_arrays(
        [maps.keys, maps.items],
        fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())],
    )


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_columns_of_any_text_type_are_read(kind: pa.DataType) -> None:
    tags = pa.array(["A", None, "B"], pa.string()).cast(kind)
    batch = pa.RecordBatch.from_pydict({"tags": tags})
    assert compile_sql("TAGS = 'A'").mask(batch).to_pylist() == [True, False, False]
    # "A" is no number, so the first side throws before the second is asked.
    assert compile_sql("TAGS > 1 OR TAGS IS NOT NULL").mask(batch).to_pylist() == [False, False, False]


def test_column_without_a_single_text_is_read() -> None:
    batch = pa.RecordBatch.from_pydict({"tags": pa.nulls(2, pa.string()), "keys": pa.nulls(2)})
    assert compile_sql("TAGS > 1").mask(batch).to_pylist() == [False, False]
    assert compile_sql("KEYS IS NULL").mask(batch).to_pylist() == [True, True]


def test_columns_name_what_the_mask_reads() -> None:
    assert compile_sql("TAGS = 'A' AND a > 1").columns == {"tags", "properties"}
    assert compile_sql("UNIQ_KEY = KEYS").columns == {"msgId", "keys"}
    assert compile_sql("1 = 1").columns == frozenset()
    no_columns = pa.RecordBatch.from_pydict({"other": pa.array([1, 2])})
    assert compile_sql("1 = 1").mask(no_columns).to_pylist() == [True, True]


def test_missing_or_foreign_column_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidRequestError, match="tags"):
        compile_sql("TAGS = 'A'").mask(pa.RecordBatch.from_pydict({"keys": pa.array(["x"])}))
    with pytest.raises(InvalidRequestError, match="int64"):
        compile_sql("TAGS = 'A'").mask(pa.RecordBatch.from_pydict({"tags": pa.array([1])}))
    with pytest.raises(InvalidRequestError, match="no map"):
        compile_sql("a = 'A'").mask(pa.RecordBatch.from_pydict({"properties": pa.array(["a"])}))


def test_compiled_filter_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(compile_sql("a > 1 AND TAGS = 'A'")))
    assert again.matches({"a": "2", "TAGS": "A"})
    assert again.columns == {"tags", "properties"}


def test_mask_of_many_rows_with_distinct_odd_and_plain_numbers() -> None:
    texts = [f"{i}" if i % 3 else f"+{i}" if i % 2 else f"x{i}" for i in range(30_000)]
    batch = batch_of([[("n", text)] for text in texts])
    compiled = compile_sql("n BETWEEN 100 AND 20000 AND n <> 777")
    assert compiled.mask(batch).to_pylist() == [compiled.matches({"n": text}) for text in texts]
