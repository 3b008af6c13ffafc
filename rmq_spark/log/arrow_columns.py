"""Low-level Arrow column helpers: reordering rows, views on buffers, and columns built from buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import InvalidRequestError

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


class RowReorderer:
    """Takes rows of a batch in another order, a part at a time."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        # Many columns have only one value: each row is as the next one.
        self._uniform = [column[1:].equals(column[:-1]) for column in batch.columns]

    def take(self, order: I64) -> pa.RecordBatch:
        """The rows with these numbers, in this order."""
        numbers = integers(order)
        columns = [
            column[: len(order)] if uniform else column.take(numbers)
            for column, uniform in zip(self._batch.columns, self._uniform, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._batch.schema)


def copied_bytes(batch: pa.RecordBatch) -> int:
    """Approximate bytes of all rows once they are copied: what lies beneath nulls is not."""
    some_nulls = range(1, batch.num_rows)
    rows = [column.drop_null() if column.null_count in some_nulls else column for column in batch.columns]
    return sum(int(column.nbytes) for column in rows)


def integers(values: npt.NDArray[Any]) -> pa.Array:
    """As `pa.array` of integers, which would import pandas first, if installed, for a quarter of a second."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)], 0)


def booleans(values: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """As `pa.array` of truth values, without importing pandas."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """As `pa.array` of texts, binaries, integers or times without nulls, and as `integers` without pandas."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        data = [value.encode() if isinstance(value, str) else value for value in values]
        ends = np.cumsum([0, *map(len, data)], dtype=np.int64)
        if ends[-1] > np.iinfo(np.int32).max:
            raise InvalidRequestError("over 2 GB in one column", bytes=int(ends[-1]))
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(data))]
    else:
        buffers = [None, pa.py_buffer(np.array(values, f"i{kind.bit_width // 8}"))]
    return pa.Array.from_buffers(kind, len(values), buffers, 0)


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


def integers_of(column: pa.Array) -> npt.NDArray[Any]:
    """A column of integers or times as an array; the value at a null is arbitrary.

    Arrow's own `to_numpy` imports pandas first, if it is installed, for half a second.
    """
    values = np.frombuffer(column.buffers()[1] or b"", f"i{column.type.bit_width // 8}")
    return values[column.offset : column.offset + len(column)]


def booleans_of(column: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """A column of truth values as an array; a null is False. As `integers_of`, without pandas."""

    def bits(buffer: pa.Buffer | None) -> npt.NDArray[np.bool_]:
        unpacked = np.unpackbits(np.frombuffer(buffer or b"", np.uint8), bitorder="little")
        return unpacked[column.offset : column.offset + len(column)].view(np.bool_)

    validity, values = column.buffers()
    return bits(values) & bits(validity) if column.null_count else bits(values)
