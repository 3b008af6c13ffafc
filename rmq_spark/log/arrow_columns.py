"""Low-level Arrow column helpers: reordering rows, views on buffers, and columns built from buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


class RowReorderer:
    """Takes rows of a batch in another order, a part at a time. Each column is inspected once, at the start."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._schema = batch.schema
        self._columns = [_taker(column) for column in batch.columns]

    def take(self, order: I64) -> pa.RecordBatch:
        """The rows with these numbers, in this order."""
        return pa.RecordBatch.from_arrays([take(order) for take in self._columns], schema=self._schema)


def copied_bytes(batch: pa.RecordBatch) -> int:
    """Approximate bytes of all rows once they are copied: what lies beneath nulls is not."""
    some_nulls = range(1, batch.num_rows)
    rows = [column.drop_null() if column.null_count in some_nulls else column for column in batch.columns]
    return sum(int(column.nbytes) for column in rows)


def _taker(column: pa.Array) -> Callable[[I64], pa.Array]:
    """The fastest function that takes rows of this column."""
    if _is_uniform(column):  # many columns have only one value
        return lambda order: column.slice(0, len(order))
    if column.null_count == 0 and pa.types.is_primitive(column.type):
        return _numbers_taker(column)
    return _equal_widths_taker(column) or (lambda order: column.take(pa.array(order)))


def _numbers_taker(column: pa.Array) -> Callable[[I64], pa.Array]:
    values = integers_of(column)

    return lambda order: pa.Array.from_buffers(column.type, len(order), [None, _gathered(values, order)], 0)


def _equal_widths_taker(column: pa.Array) -> Callable[[I64], pa.Array] | None:
    """Takes rows of a text or binary column whose values all have the same length; None for any other column.

    numpy copies items of one size several times faster than Arrow copies values of any size.
    """
    if column.null_count or not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return None
    offsets = offsets_of(column)
    begin, width = int(offsets[0]), equal_width(offsets)
    if not width:
        return None
    values = np.frombuffer(column.buffers()[2], f"V{width}", len(column), begin)
    ends = pa.py_buffer(offsets - np.int32(begin))  # the same in any order

    def take(order: I64) -> pa.Array:
        buffers = [None, ends.slice(0, 4 * len(order) + 4), _gathered(values, order)]
        return pa.Array.from_buffers(column.type, len(order), buffers, 0)

    return take


def _gathered(values: npt.NDArray[Any], order: I64) -> pa.Buffer:
    # Memory from Arrow's pool, which keeps freed memory. Large numpy arrays make malloc return memory to the system
    # after each append, and the page faults of getting it again cost more than the copy.
    # A mode other than "raise" writes to `out` directly.
    target = pa.allocate_buffer(values.itemsize * len(order))
    values.take(order, out=np.frombuffer(target, values.dtype), mode="clip")
    return target


def integers(values: npt.NDArray[Any]) -> pa.Array:
    """As `pa.array` of integers, which would import pandas first, if installed, for a quarter of a second."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)], 0)


def repeated(text: str, count: int) -> pa.StringArray:
    """As `pa.repeat` of a text, in a fortieth of the time and without importing pandas."""
    data = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(data * count))


def offsets_of(column: pa.Array) -> I32:
    """The offsets buffer of a column of texts, binaries or maps: one entry more than there are values."""
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def bytes_of(column: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of all values of a column of texts or binaries, including bytes beneath nulls."""
    offsets = offsets_of(column)
    return np.frombuffer(column.buffers()[2] or b"", np.uint8)[int(offsets[0]) : int(offsets[-1])]


def has_byte(column: pa.Array, byte: str) -> bool:
    """Whether any text has this ASCII character; bytes beneath nulls count, too."""
    return bool((bytes_of(column) == ord(byte)).any())


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
    numbers = integers_of(column)
    return bool((numbers == numbers[0]).all())


def integers_of(column: pa.Array) -> npt.NDArray[Any]:
    """A column of integers or times as an array; the value at a null is arbitrary."""
    values = np.frombuffer(column.buffers()[1] or b"", f"i{column.type.bit_width // 8}")
    return values[column.offset : column.offset + len(column)]


def is_constant(column: pa.StringArray) -> bool:
    """Whether all values are equal; several times faster than a dictionary, and most batches have one topic."""
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
