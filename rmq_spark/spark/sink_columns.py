"""Columns that a DataFrame may be written with, and their Arrow form whatever their type was. Knows no pyspark.

Names are compared without regard to case, as Spark does. What a row means is decided in `sink_rows.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.kafka_names import KAFKA_NAMES

I64 = npt.NDArray[np.int64]
Columns = dict[str, pa.Array]
"""A batch of rows: one array for each column that it has, by the sink's own names."""

_TEXT: Final = frozenset({"string"})
_WHOLE: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_TIME: Final = frozenset({"timestamp", "bigint"})

COLUMNS: Final[Mapping[str, frozenset[str]]] = {
    "body": frozenset({"string", "binary"}),
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _TEXT | {"array<string>"},
    "queueId": _WHOLE,
    "shardingKey": _TEXT,
    "properties": frozenset({"map<string,string>"}),
    "deliverTimestamp": _TIME,
    "delayTimeLevel": _WHOLE,
    "flag": _WHOLE,
    "bornTimestamp": _TIME,
}
"""Column -> the types it may have, as Spark writes them. Only `body` is required; a bigint time is milliseconds."""

_NAMES: Final = {name.lower(): name for name in COLUMNS}
_LOOK_ALIKE: Final = re.compile(r"\b(?:var)?char\(\d+\)|\bstring collate \w+")
"""Types that are plain strings once they are in Arrow."""


def check_columns(fields: Iterable[tuple[str, str]]) -> list[str]:
    """Return the sink's own name of each column, in order.

    Args:
        fields: name and type of each, as Spark's `simpleString` writes it.

    Raises:
        InvalidRequestError: `body` is missing, a column is unknown or given twice, or has another type.
    """
    names: list[str] = []
    for column, kind in fields:
        name = _NAMES.get(column.lower())
        if name is None:
            near = KAFKA_NAMES.get(column.lower(), "").lower()
            near = near if near in _NAMES else difflib.get_close_matches(column.lower(), _NAMES, 1, 0.0)[0]
            raise InvalidRequestError(
                f"unknown column {column}; did you mean {_NAMES[near]}? Select or drop columns before writing",
                column=column,
                known=list(COLUMNS),
            )
        if name in names:
            raise InvalidRequestError("a column is given twice", column=name)
        # A column of nothing but `NULL` literals is void.
        absent = kind == "void" and name != "body"
        if not absent and _LOOK_ALIKE.sub("string", kind) not in COLUMNS[name]:
            raise InvalidRequestError(
                f"column {name} has the wrong type; cast it", column=name, type=kind, allowed=sorted(COLUMNS[name])
            )
        names.append(name)
    if "body" not in names:
        raise InvalidRequestError("the column body is missing", columns=names)
    return names


def to_columns(batches: list[pa.RecordBatch], names: list[str]) -> Columns:
    """The batches as one array for each column, in the type that the sink works with; void columns are left out.

    body is binary; topic, tags, keys and shardingKey are strings; numbers and times (milliseconds) are int64;
    properties are a map of strings.
    """
    table = pa.Table.from_batches(batches).combine_chunks()
    columns: Columns = {}
    for name, column in zip(names, table.columns, strict=True):
        if pa.types.is_null(column.type):
            continue
        array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        columns[name] = _CONVERT[name](array)
    return columns


def numbers_of(columns: Columns, name: str) -> I64 | None:
    """A column of whole numbers with 0 for null; None when no row has any."""
    column = columns.get(name)
    if column is None or column.null_count == len(column):
        return None
    numbers: I64 = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return numbers


def _binary(array: pa.Array) -> pa.Array:
    return array if pa.types.is_binary(array.type) else array.cast(pa.binary())


def _text(array: pa.Array) -> pa.Array:
    return array if pa.types.is_string(array.type) else array.cast(pa.string())


def _whole(array: pa.Array) -> pa.Array:
    return array if pa.types.is_int64(array.type) else array.cast(pa.int64())


def _born(array: pa.Array) -> pa.Array:
    return _milliseconds(array, 0)


def _deliver(array: pa.Array) -> pa.Array:
    return _milliseconds(array, 999)  # up, for a message must not be delivered early


def _milliseconds(array: pa.Array, add_us: int) -> pa.Array:
    if not pa.types.is_timestamp(array.type):
        return _whole(array)
    micros = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
    numbers = pc.fill_null(micros, 0).to_numpy(zero_copy_only=False)
    made = numbers // 1_000 + (numbers % 1_000 + add_us) // 1_000  # in two parts: the sum could be too large
    return pa.array(made, mask=np.asarray(array.is_null())) if array.null_count else pa.array(made)


def _keys(array: pa.Array) -> pa.Array:
    """Several keys joined by one space; null elements and rows without any key give nothing."""
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        lists = array.cast(pa.list_(pa.string()))
        if lists.flatten().null_count:
            rows, single = pc.list_parent_indices(lists), lists.flatten()
            kept = single.is_valid()
            lists = from_parts(len(lists), rows.filter(kept).to_numpy(zero_copy_only=False), single.filter(kept))
        array = pc.binary_join(lists, " ")
    text = _text(array)
    empty = pc.equal(pc.binary_length(text), 0)
    return pc.if_else(empty, pa.scalar(None, pa.string()), text) if pc.any(empty).as_py() else text


def from_parts(count: int, rows: npt.NDArray[Any], values: pa.Array) -> pa.ListArray:
    """A list column of `count` rows from values and the ascending row number of each."""
    return pa.ListArray.from_arrays(list_offsets(count, rows), values)


def list_offsets(count: int, rows: npt.NDArray[Any]) -> pa.Array:
    """Offsets of a list or map column of `count` rows, from the row number of each of its elements."""
    offsets = np.zeros(count + 1, np.int32)
    if len(rows):
        np.cumsum(np.bincount(rows, minlength=count), out=offsets[1:])
    return pa.array(offsets)


def _properties(array: pa.Array) -> pa.Array:
    return array


_CONVERT: Final = {
    "body": _binary,
    "topic": _text,
    "tags": _text,
    "keys": _keys,
    "queueId": _whole,
    "shardingKey": _text,
    "properties": _properties,
    "deliverTimestamp": _deliver,
    "delayTimeLevel": _whole,
    "flag": _whole,
    "bornTimestamp": _born,
}
