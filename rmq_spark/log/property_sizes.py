"""Bytes of properties in RocketMQ's property string, for whole columns; `model/limits.py` has the scalar form."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.log.arrow_columns import booleans_of, integers_of
from rmq_spark.model.limits import PAIR_MARKS_BYTES

I64 = npt.NDArray[np.int64]


def property_sizes(maps: pa.MapArray) -> I64:
    """Bytes of the pairs of each map: name, value and two marks. Pairs without a value are not stored."""
    offsets = integers_of(maps.offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return np.zeros(len(maps), np.int64)
    items = maps.items[first:last]
    pairs = text_sizes(maps.keys[first:last]) + text_sizes(items) + PAIR_MARKS_BYTES
    if items.null_count:
        pairs *= booleans_of(items.is_valid())
    ends = np.concatenate(([0], np.cumsum(pairs)))
    sizes: I64 = np.diff(ends[offsets - first])
    if maps.null_count:
        # A null map may still span entries.
        sizes[booleans_of(maps.is_null())] = 0
    return sizes


def text_sizes(texts: pa.Array) -> I64:
    """Bytes of each text; 0 for null."""
    sizes: I64 = integers_of(pc.binary_length(texts)).astype(np.int64)
    if texts.null_count:
        sizes[booleans_of(texts.is_null())] = 0
    return sizes
