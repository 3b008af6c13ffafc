"""Rows in another order, column by column, and what columns are like."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.log import schema
from rmq_spark.log.second_thread import meanwhile

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

TWO_THREADS_ROWS: Final = 20_000
"""From so many rows on, two threads move them: each step is long enough to be worth the hand-over."""
BODY: Final = schema.ROWS.get_field_index("body")


def permute(batch: pa.RecordBatch, order: I64) -> pa.RecordBatch:
    """The rows in another order; columns with one value only (many are) need no work."""
    indices = pa.array(order)

    def permuted(column: pa.Array) -> pa.Array:
        if _is_uniform(column):
            return column
        found = _take_equal_widths(column, order)
        return column.take(indices) if found is None else found

    # Taking a column is one long call that lets other threads run.
    body = meanwhile(partial(permuted, batch.column(BODY)), many=len(order) >= TWO_THREADS_ROWS)
    columns = [column if index == BODY else permuted(column) for index, column in enumerate(batch.columns)]
    columns[BODY] = body()
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _take_equal_widths(column: pa.Array, order: I64) -> pa.Array | None:
    """The rows of a text or binary column whose values all have the same length; None for any other column.

    numpy moves items of one size several times quicker than Arrow moves values of any size.
    """
    if column.null_count or not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return None
    offsets = offsets_of(column)
    begin, width = int(offsets[0]), equal_width(offsets)
    if not width:
        return None
    values = np.frombuffer(column.buffers()[2], f"V{width}", len(column), begin)
    # Memory from Arrow's pool, which keeps what it is given back. Arrays of numpy that live as long as the batch make
    # malloc trim its heap after each append, and getting it again, page by page, costs more than the copying.
    # A mode other than "raise" writes to `out` directly.
    target = pa.allocate_buffer(width * len(column))
    values.take(order, out=np.frombuffer(target, values.dtype), mode="clip")
    ends = column.buffers()[1]  # the same in any order, unless the column is part of a longer one
    if begin or column.offset:
        ends = pa.allocate_buffer(4 * len(offsets))
        np.subtract(offsets, begin, out=np.frombuffer(ends, np.int32))
    return pa.Array.from_buffers(column.type, len(column), [None, ends, target], 0)


def offsets_of(column: pa.Array) -> I32:
    """Where each value of a column of texts, binaries or maps begins, and where the last one ends."""
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def equal_width(offsets: I32) -> int:
    """The length of all values; 0 if they differ, or are empty."""
    width = int(offsets[1] - offsets[0])
    if int(offsets[-1] - offsets[0]) != width * (len(offsets) - 1) or np.any(offsets[1:] - offsets[:-1] != width):
        return 0
    return width


def _is_uniform(column: pa.Array) -> bool:
    if column.null_count:
        return bool(column.null_count == len(column))
    if pa.types.is_string(column.type):
        return is_constant(column)
    if pa.types.is_map(column.type):
        offsets = column.offsets
        return bool(offsets[0].as_py() == offsets[-1].as_py())  # no row has any entry
    if pa.types.is_binary(column.type):
        return False
    values = np.frombuffer(column.buffers()[1], f"i{column.type.bit_width // 8}")
    numbers = values[column.offset : column.offset + len(column)]
    return bool((numbers == numbers[0]).all())


def is_constant(column: pa.StringArray) -> bool:
    """Whether all values are the same; several times quicker than a dictionary, and most batches have one topic."""
    if column.null_count:
        return False
    offsets = offsets_of(column)
    width = int(offsets[1] - offsets[0])
    data = memoryview(column.buffers()[2] or b"")[int(offsets[0]) : int(offsets[-1])]
    if data[:width] != data[-width:]:  # most columns that differ at all differ here, and cost no pass
        return False
    if not equal_width(offsets):
        return False
    same = np.frombuffer(data, np.uint8)
    return bool((same[width:] == same[:-width]).all())  # each value equals the one before it
