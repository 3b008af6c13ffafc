"""Properties of many messages as Arrow columns of text, null where a message has no such property.

The three properties with columns of their own (TAGS, KEYS, UNIQ_KEY) are read from there; the others come out
of the map column, without a loop over rows. A name that stands twice in one map counts with its last value,
as in Java's decoder.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import InvalidRequestError
from rmq_spark.filter import java_values
from rmq_spark.model.properties import COLUMN_OF

Bools = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]

MAP_COLUMN: Final = "properties"
"""The column that holds all properties without a column of their own."""

_SAMPLE_ROWS: Final = 8192


def column_of(name: str) -> str:
    """Return the column that holds the property `name`."""
    return COLUMN_OF.get(name, MAP_COLUMN)


class TextColumn:
    """One property of every message, and what was found out about it so far."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array
        """The texts, null where the property is missing."""
        self._numbers: dict[int | None, tuple[I64, Bools]] = {}

    @cached_property
    def missing(self) -> Bools:
        """Which messages have no such property."""
        if self.array.null_count == 0:
            return np.zeros(len(self.array), np.bool_)
        missing: Bools = to_numpy(self.array.is_null())
        return missing

    @cached_property
    def truth(self) -> Bools:
        """`Boolean.valueOf` of the texts."""
        truth: Bools = to_numpy(pc.equal(pc.ascii_lower(self.array), "true").fill_null(False))
        return truth

    @cached_property
    def _distinct(self) -> tuple[pa.Array, I64 | None]:
        """Texts without nulls to parse, and which of them each row has; None when they are the rows."""
        # Finding the distinct texts costs more than parsing, so it has to spare most of the parsing.
        sample = self.array[:_SAMPLE_ROWS]
        if len(sample.unique()) > len(sample) // 4:
            return self.array.fill_null("0") if self.array.null_count else self.array, None
        encoded = self.array.dictionary_encode()
        # A missing text may point anywhere, nobody looks at it; but there has to be something to point at.
        texts = encoded.dictionary if len(encoded.dictionary) else pa.array(["0"])
        return texts, to_numpy(encoded.indices.fill_null(0))

    def numbers(self, bits: int | None) -> tuple[I64, Bools]:
        """Return the texts as integers of `bits` bits, or (None) as doubles that sort as Java's do.

        Returns:
            Sort keys, and which texts are no such number; both undefined where the property is missing.
        """
        if bits not in self._numbers:
            texts, indices = self._distinct
            keys, bad = java_values.parse_doubles(texts) if bits is None else java_values.parse_integers(texts, bits)
            self._numbers[bits] = (keys, bad) if indices is None else (keys[indices], bad[indices])
        return self._numbers[bits]


def text_column(batch: pa.RecordBatch, name: str) -> TextColumn:
    """Return the property `name` of every row of `batch`.

    Raises:
        InvalidRequestError: `batch` has not the column that holds it, or that column has another type.
    """
    column_name = column_of(name)
    index = batch.schema.get_field_index(column_name)
    if index < 0:
        raise InvalidRequestError(
            "the batch lacks a column that the filter needs; read it too",
            column=column_name,
            columns=batch.schema.names,
        )
    column = batch.column(index)
    if column_name != MAP_COLUMN:
        return TextColumn(_as_text(column, column_name))
    if not pa.types.is_map(column.type):
        raise InvalidRequestError(
            "the column of properties is no map of text to text", column=column_name, type=str(column.type)
        )
    return TextColumn(_lookup(column, name))


def to_numpy(array: Any) -> Any:
    """Return an Arrow array without nulls as numpy."""
    return array.to_numpy(zero_copy_only=False)


def _as_text(column: Any, name: str) -> Any:
    kind = column.type
    if pa.types.is_string(kind):
        return column
    value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
    readable = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    if not any(is_kind(value_type) for is_kind in readable):
        raise InvalidRequestError("the column is no text", column=name, type=str(kind))
    return column.cast(pa.string())


def _lookup(maps: Any, name: str) -> Any:
    """Return the last value for `name` in each map."""
    offsets = maps.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    keys = _as_text(maps.keys[first:last], "properties.key")
    entries = np.flatnonzero(to_numpy(pc.equal(keys, name))) + first
    rows = np.repeat(np.arange(len(maps)), np.diff(offsets))[entries - first]
    # Entries are in the order of their rows: the last one of a row is followed by one of another row.
    final = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
    positions = np.full(len(maps), -1, np.int64)
    positions[rows[final]] = entries[final]
    if maps.null_count:
        # A null map may still span entries.
        positions[to_numpy(maps.is_null())] = -1
    return _as_text(maps.items.take(pa.array(positions, mask=positions < 0)), "properties.value")
