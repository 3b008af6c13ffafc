"""Decodes many small files at once.

Opening an Arrow file of one row takes many times as long as reading its bytes, and so does joining batches of one row
with pyarrow. Small files of a kind have record batch messages whose headers differ in numbers only: rows, nulls, places
and lengths of buffers. These numbers are read as arrays over all files, and each column is gathered at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, InvalidRequestError
from rmq_spark.log import file_layout, ipc_file

BYTES_MAX: Final = (1 << 31) - 1
"""Rows of one call, in bytes: offsets of texts have 32 bits."""
GROUP_FILES: Final = 1_000
"""Files whose rows are gathered together: their headers and messages fit the processor's cache."""

I64 = npt.NDArray[np.int64]


def decode_small_files(files: Sequence[bytes], kind: str = "commit", version: int | None = None) -> pa.RecordBatch:
    """Return the rows of `files`, in order, as one record batch.

    Each file must be whole and checked by `file_format.parse`, of this kind and format version (by default the one
    that is written), and must have one block: no block table, no references to row files.

    Raises:
        CorruptDataError: a file has other columns, or rows that cannot be decoded.
        InvalidRequestError: the files have over 2 GB.
    """
    version = file_layout.VERSION if version is None else version
    schema, head = file_layout.SCHEMAS[version][kind], file_layout.head(version, kind)[0]
    messages = []
    for number, data in enumerate(files):
        if not data.startswith(head):
            raise CorruptDataError("file has other columns", number=number, kind=kind, version=version)
        footer: int = struct.unpack_from("<i", data, len(data) - 10)[0]
        messages.append(data[len(head) : len(data) - 10 - footer - len(ipc_file.END_OF_STREAM)])
    if sum(map(len, messages)) > BYTES_MAX:
        raise InvalidRequestError("over 2 GB of small files; decode them in parts", files=len(files))
    if not messages:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    try:
        groups = [messages[at : at + GROUP_FILES] for at in range(0, len(messages), GROUP_FILES)]
        return pa.concat_batches([_decode(schema, group) for group in groups])
    except (pa.ArrowException, IndexError, OSError, ValueError, struct.error) as error:
        raise CorruptDataError("rows cannot be decoded", kind=kind, files=len(files), reason=str(error)) from error


def _decode(schema: pa.Schema, messages: list[bytes]) -> pa.RecordBatch:
    joined = _join(messages)
    if joined is None:
        return _decode_stream(schema, messages)
    columns = _Columns(joined)
    return pa.RecordBatch.from_arrays([columns.next(field.type) for field in schema], schema=schema)


def _decode_stream(schema: pa.Schema, messages: list[bytes]) -> pa.RecordBatch:
    """As an Arrow stream, which allows any headers: files that different versions of pyarrow wrote."""
    stream = b"".join([schema.serialize().to_pybytes(), *messages, ipc_file.END_OF_STREAM])
    table = pa.ipc.open_stream(stream).read_all().combine_chunks()
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=schema)


class _Messages(NamedTuple):
    """Record batch messages whose headers differ in their numbers only, one behind the other."""

    memory: bytes
    lengths: I64
    headers: npt.NDArray[np.uint8]
    """One row for each message."""
    layout: ipc_file.HeaderLayout


def _join(messages: list[bytes]) -> _Messages | None:
    """None if the headers differ in more than their numbers."""
    layout = ipc_file.header_layout(messages[0])
    lengths = np.array([len(message) for message in messages], np.int64)
    if lengths.min() < layout.size:
        return None
    memory = b"".join(messages)
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(memory, np.uint8), layout.size)
    headers: npt.NDArray[np.uint8] = windows[np.cumsum(lengths) - lengths]
    fixed = np.ones(layout.size, np.bool_)
    for at, count in (
        (layout.body_length_at, 1),
        (layout.length_at, 1),
        (layout.nodes_at, 2 * layout.nodes),
        (layout.buffers_at, 2 * layout.buffers),
    ):
        fixed[at : at + 8 * count] = False
    if (headers[:, fixed] != headers[0, fixed]).any():
        return None
    return _Messages(memory, lengths, headers, layout)


class _Columns:
    """The columns of record batch messages of one schema. Raises ValueError where headers make no sense."""

    def __init__(self, messages: _Messages) -> None:
        layout, headers, lengths = messages.layout, messages.headers, messages.lengths
        starts = np.cumsum(lengths) - lengths
        self._memory = messages.memory
        self._nodes: I64 = _pairs(headers, layout.nodes_at, layout.nodes)
        buffers = _pairs(headers, layout.buffers_at, layout.buffers)
        self._sizes: I64 = buffers[:, :, 1]
        self._places: I64 = buffers[:, :, 0] + (starts + layout.size)[:, None]
        ends = buffers[:, :, 0] + self._sizes
        # A buffer without bytes may be said to stand anywhere.
        outside = (buffers < 0).any(axis=2) | (ends > (lengths - layout.size)[:, None]) | (buffers[:, :, 0] % 8 != 0)
        if (outside & (self._sizes != 0)).any() or (self._nodes < 0).any():
            raise ValueError("a buffer lies outside its message")
        self._node = self._buffer = 0

    def next(self, type_: pa.DataType) -> pa.Array:
        """The next column, over all messages."""
        rows, nulls = self._nodes[:, self._node, 0], self._nodes[:, self._node, 1]
        self._node += 1
        validity = self._validity(rows, nulls)
        count = int(rows.sum())
        if pa.types.is_map(type_):
            offsets = self._lists(rows)
            return pa.Array.from_buffers(type_, count, [validity, offsets], children=[self.next(type_.field(0).type)])
        if pa.types.is_struct(type_):
            fields = [self.next(type_.field(index).type) for index in range(type_.num_fields)]
            return pa.Array.from_buffers(type_, count, [validity], children=fields)
        if pa.types.is_string(type_) or pa.types.is_binary(type_):
            offsets, data = self._texts(rows)
            return pa.Array.from_buffers(type_, count, [validity, offsets, data])
        width = type_.bit_width // 8
        values = self._numbers(rows, f"<i{width}")
        return pa.Array.from_buffers(type_, count, [validity, pa.py_buffer(values)])

    def _numbers(self, counts: I64, dtype: str) -> npt.NDArray[Any]:
        """The next buffer: `counts` numbers of each message."""
        width = np.dtype(dtype).itemsize
        places, sizes = self._next_buffer()
        if (sizes < counts * width).any():
            raise ValueError("a buffer is too short")
        memory = np.frombuffer(self._memory, dtype, len(self._memory) // width)
        owner, index = _spread(counts)
        numbers: npt.NDArray[Any] = memory[places[owner] // width + index]
        return numbers

    def _next_buffer(self) -> tuple[I64, I64]:
        index = self._buffer
        self._buffer += 1
        return self._places[:, index], self._sizes[:, index]

    def _validity(self, rows: I64, nulls: I64) -> pa.Buffer | None:
        places, sizes = self._next_buffer()
        if not nulls.any():
            return None
        if (sizes[nulls > 0] < (rows[nulls > 0] + 7) // 8).any():
            raise ValueError("a validity bitmap is too short")
        owner, index = _spread(rows)
        valid = nulls[owner] == 0
        some = np.flatnonzero(~valid)
        owner, index = owner[some], index[some]
        bits = np.frombuffer(self._memory, np.uint8)[places[owner] + (index >> 3)]
        valid[some] = bits >> (index & 7).astype(np.uint8) & 1
        return pa.py_buffer(np.packbits(valid, bitorder="little"))

    def _ranges(self, rows: I64) -> tuple[I64, I64]:
        """The next buffer, of offsets: where each value begins and ends in its message's own data."""
        counts = np.where(rows > 0, rows + 1, 0)  # without rows there may be no offset at all
        offsets = self._numbers(counts, "<i4").astype(np.int64)
        owner, index = _spread(rows)
        at = (np.cumsum(counts) - counts)[owner] + index
        begins, ends = offsets[at], offsets[at + 1]
        if (begins > ends).any() or (begins < 0).any():
            raise ValueError("offsets do not grow")
        return begins, ends

    def _lists(self, rows: I64) -> pa.Buffer:
        """The offsets of lists. The children of a message must be just those of its lists."""
        begins, ends = self._ranges(rows)
        offsets = np.zeros(len(begins) + 1, np.int32)
        np.cumsum(ends - begins, out=offsets[1:])
        children = self._nodes[:, self._node, 0]
        per_message = np.bincount(_spread(rows)[0], weights=ends - begins, minlength=len(rows)).astype(np.int64)
        if (per_message != children).any():
            raise ValueError("lists do not cover their values")
        return pa.py_buffer(offsets)

    def _texts(self, rows: I64) -> tuple[pa.Buffer, pa.Buffer]:
        """Offsets and data of texts."""
        begins, ends = self._ranges(rows)
        places, sizes = self._next_buffer()
        owner, _ = _spread(rows)
        if (ends > sizes[owner]).any():
            raise ValueError("a text lies outside its buffer")
        # All texts and what lies between them, as one column over the whole memory; every second value is a text.
        edges = np.stack([begins, ends], axis=1) + places[owner][:, None]
        edges[begins == ends] = 0  # an empty text may be said to stand anywhere
        offsets = np.maximum.accumulate(edges.ravel()).astype(np.int32)
        if not len(offsets):
            return pa.py_buffer(bytes(4)), pa.py_buffer(b"")
        memory = pa.py_buffer(self._memory)
        every = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), memory])
        texts = every.take(pa.array(np.arange(0, len(offsets), 2)))
        return texts.buffers()[1], texts.buffers()[2] or pa.py_buffer(b"")


def _pairs(headers: npt.NDArray[np.uint8], at: int, count: int) -> I64:
    """Per message: `count` pairs of 64-bit numbers."""
    numbers: I64 = headers[:, at : at + 16 * count].copy().view("<i8").reshape(len(headers), count, 2)
    return numbers


def _spread(counts: I64) -> tuple[I64, I64]:
    """For each of `counts` values of each message: the number of its message, and its number within that."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
