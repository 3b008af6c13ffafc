"""Bytes of properties in RocketMQ's property string, for whole columns; `model/limits.py` has the scalar form."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.model.limits import PAIR_MARKS_BYTES

I64 = npt.NDArray[np.int64]


def property_sizes(maps: pa.MapArray) -> I64:
    """Bytes of the pairs of each map: name, value and two marks. Pairs without a value are not stored."""
    offsets = maps.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return np.zeros(len(maps), np.int64)
    items = maps.items[first:last]
    pairs = text_sizes(maps.keys[first:last]) + text_sizes(items) + PAIR_MARKS_BYTES
    if items.null_count:
        pairs *= items.is_valid().to_numpy(zero_copy_only=False)
    ends = np.concatenate(([0], np.cumsum(pairs)))
    sizes: I64 = np.diff(ends[offsets - first])
    if maps.null_count:
        # A null map may still span entries.
        sizes[maps.is_null().to_numpy(zero_copy_only=False)] = 0
    return sizes


def text_sizes(texts: pa.Array) -> I64:
    """Bytes of each text; 0 for null."""
    lengths = pc.binary_length(texts)
    filled = lengths.fill_null(0) if lengths.null_count else lengths
    sizes: I64 = filled.to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes
