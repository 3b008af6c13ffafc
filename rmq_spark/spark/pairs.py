"""Properties as they are put together: names and values with the number of their row, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import repeated
from rmq_spark.spark.sink_columns import list_offsets

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Some properties of a batch. Rows ascend."""

    rows: I64
    names: pa.Array
    values: pa.Array

    def filter(self, keep: npt.NDArray[np.bool_]) -> Pairs:
        """Only the pairs where `keep` is true."""
        mask = pa.array(keep)
        return Pairs(self.rows[keep], self.names.filter(mask), self.values.filter(mask))

    def sizes(self, count: int) -> I64:
        """Bytes of each row's property string in RocketMQ's encoding, for `count` rows."""
        lengths = pc.add(pc.binary_length(self.names), pc.binary_length(self.values))
        weights = lengths.to_numpy(zero_copy_only=False) + 2
        return np.bincount(self.rows, weights, count).astype(np.int64)


def of_maps(maps: pa.MapArray) -> Pairs:
    """The entries of a map column; an entry without value counts as absent, as in RocketMQ."""
    offsets = maps.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    rows = np.repeat(np.arange(len(maps), dtype=np.int64), np.diff(offsets))
    names, values = (child.slice(first, last - first) for child in (maps.keys, maps.items))
    pairs = Pairs(rows, _string(names), _string(values))
    if maps.null_count:
        pairs = pairs.filter(maps.is_valid().to_numpy(zero_copy_only=False)[rows])
    if pairs.values.null_count:
        pairs = pairs.filter(pairs.values.is_valid().to_numpy(zero_copy_only=False))
    return pairs


def constant(name: str, values: pa.Array, rows: I64 | None = None) -> Pairs:
    """One property for some rows (all of `values` unless told); rows whose value is null do not get it."""
    rows = np.arange(len(values), dtype=np.int64) if rows is None else rows
    if values.null_count:
        kept = values.is_valid()
        rows, values = rows[kept.to_numpy(zero_copy_only=False)], values.filter(kept)
    return Pairs(rows, repeated(name, len(values)), values)


def join(parts: Sequence[Pairs]) -> Pairs:
    """All pairs, by row; within a row in the order of `parts`."""
    filled = [part for part in parts if len(part.rows)]
    if not filled:
        empty = pa.array([], pa.string())
        return Pairs(np.zeros(0, np.int64), empty, empty)
    if len(filled) == 1:
        return filled[0]
    rows = np.concatenate([part.rows for part in filled])
    order = np.argsort(rows, kind="stable")
    indices = pa.array(order)
    names = pa.concat_arrays([part.names for part in filled]).take(indices)
    values = pa.concat_arrays([part.values for part in filled]).take(indices)
    return Pairs(rows[order], names, values)


def to_maps(pairs: Pairs, count: int) -> pa.MapArray:
    """A map column of `count` rows."""
    return pa.MapArray.from_arrays(list_offsets(count, pairs.rows), pairs.names, pairs.values).cast(schema.PROPERTIES)


def _string(array: pa.Array) -> pa.Array:
    return array if pa.types.is_string(array.type) else array.cast(pa.string())
