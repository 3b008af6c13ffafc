"""Encodes a small batch of Python rows as an Arrow IPC message, without pyarrow.

Most commits hold one message, and converting that to Arrow arrays and serialising them costs more than all system
calls of the commit. A record batch message is a header (a flatbuffer that lists offsets and lengths of buffers) and
the buffers. The headers of all batches of a schema have the same shape: one that pyarrow wrote serves as the template,
and only the numbers in it are replaced. Tests read such messages with pyarrow and polars and compare them with
pyarrow's own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmq_spark.log import ipc_file, schema
from rmq_spark.log.schema import Row

_TWO_OFFSETS: Final = struct.Struct("<2i")
_NUMBER: Final = struct.Struct("<q")
_TEXTS: Final = frozenset({"text", "bytes"})
_NUMBERS: Final = frozenset({"i", "q"})
_PROPERTIES: Final = schema.ROWS.get_field_index("properties")
_PADDING: Final = [bytes(count) for count in range(8)]
"""By the number of bytes that are missing to the next multiple of eight."""


class _Header(NamedTuple):
    """The header of a one-row batch as a template, and how the numbers in it are packed."""

    template: bytearray
    layout: ipc_file.HeaderLayout
    nodes: struct.Struct
    places: struct.Struct


@cache
def _header() -> _Header:
    # Nulls, not values: `pa.array` of values imports pandas, if installed, which takes longer than many appends.
    columns = [pa.nulls(1, field.type) for field in schema.ROWS]
    message = pa.RecordBatch.from_arrays(columns, schema=schema.ROWS).serialize().to_pybytes()
    layout = ipc_file.header_layout(message)
    nodes, places = struct.Struct(f"<{2 * layout.nodes}q"), struct.Struct(f"<{2 * layout.buffers}q")
    return _Header(bytearray(message[: layout.size]), layout, nodes, places)


class _Body:
    """Buffers one after the other, each padded to eight bytes."""

    def __init__(self, count: int) -> None:
        self.parts: list[bytes] = []
        self.places: list[int] = []
        self.nodes: list[int] = []
        self.size = 0
        self.count = count

    def texts(self, values: Sequence[bytes | None]) -> None:
        """A string or binary column."""
        count = len(values)
        nulls = values.count(None)
        self.nodes += (count, nulls)
        at = self.size
        parts = self.parts
        if nulls:
            bits = _validity(values)
            parts += (bits, _PADDING[-len(bits) & 7])
            self.places += (at, len(bits))
            at += len(bits) + 7 & -8
        else:
            self.places += (at, 0)
        if count == 1:
            data = values[0] or b""
            offsets = _TWO_OFFSETS.pack(0, len(data))
        else:
            plain = [value or b"" for value in values]
            data = b"".join(plain)
            offsets = struct.pack(f"<{count + 1}i", 0, *accumulate(map(len, plain)))
        size, length = len(offsets), len(data)
        behind = at + (size + 7 & -8)
        self.places += (at, size, behind, length)
        parts += (offsets, _PADDING[-size & 7], data, _PADDING[-length & 7])
        self.size = behind + (length + 7 & -8)

    def numbers(self, values: Sequence[int], code: str) -> None:
        """An integer or timestamp column without nulls."""
        data = struct.pack(f"<{self.count}{code}", *values)
        at, size = self.size, len(data)
        self.nodes += (self.count, 0)
        self.places += (at, 0, at, size)
        self.parts += (data, _PADDING[-size & 7])
        self.size = at + (size + 7 & -8)

    def maps(self, values: Sequence[Sequence[tuple[str, str]]]) -> None:
        """The column of properties: offsets, then the entries as a struct of two string columns."""
        offsets = struct.pack(f"<{self.count + 1}i", 0, *accumulate(map(len, values)))
        at, size = self.size, len(offsets)
        behind = at + (size + 7 & -8)
        self.parts += (offsets, _PADDING[-size & 7])
        self.size = behind
        pairs = [pair for value in values for pair in value]
        self.nodes += (self.count, 0, len(pairs), 0)
        self.places += (at, 0, at, size, behind, 0)
        self.texts([key.encode() for key, _ in pairs])
        self.texts([value.encode() for _, value in pairs])


def to_message(rows: list[Row]) -> bytes:
    """The encapsulated record batch message of `rows`, whose values are in the order of `schema.ROWS`."""
    if len(rows) == 1 and not rows[0][_PROPERTIES]:
        return _one_row(rows[0])
    return _several_rows(rows)


def _one_row(row: Row) -> bytes:
    """The message of one row without properties: what `_several_rows` gives, in a tenth of the time."""
    values: list[Any] = []
    padded: list[int] = []
    sizes: list[int] = []
    for kind, value in zip(_KINDS, row, strict=True):
        if kind == "map":
            continue
        if kind not in _TEXTS:
            values.append(value)
        elif value is None:
            padded.append(-1)
        else:
            data = value.encode() if kind == "text" else value
            size = len(data)
            values += (size, data)
            sizes.append(size)
            padded.append(size + 7 & -8)
    layout = _layout(tuple(padded))
    head = bytearray(layout.head)
    for at, size in zip(layout.sizes_at, sizes, strict=True):
        _NUMBER.pack_into(head, at, size)
    return b"".join((head, layout.body.pack(*values)))


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a one-row message is laid out. Messages whose texts need the same room share it."""

    head: bytes
    """The header, without the texts' own lengths."""
    sizes_at: tuple[int, ...]
    """Where those lengths go in it, one for each text that is not null."""
    body: struct.Struct
    """Everything behind the header: the columns' values; of a text its length, then its bytes."""


@lru_cache(1024)
def _layout(padded: tuple[int, ...]) -> _Layout:
    """The layout of a row whose texts have these lengths, rounded up to multiples of eight; -1 is a null."""
    nodes: list[int] = []
    places: list[int] = []
    sizes: list[int] = []
    body = "<"
    at = 0
    rooms = iter(padded)
    for kind in _KINDS:
        if kind == "map":
            nodes += (1, 0, 0, 0, 0, 0, 0, 0)
            keys, values, end = at + 8, at + 16, at + 24
            places += (at, 0, at, 8, keys, 0, keys, 0, keys, 4, values, 0, values, 0, values, 4, end, 0)
            body += "24x"  # two offsets, then one for the keys and one for the values
            at = end
        elif kind in _NUMBERS:
            nodes += (1, 0)
            places += (at, 0, at, 4 if kind == "i" else 8)
            body += "i4x" if kind == "i" else "q"
            at += 8
        elif (room := next(rooms)) < 0:
            nodes += (1, 1)
            places += (at, 1, at + 8, 8, at + 16, 0)
            body += "16x"  # a validity bit and two offsets
            at += 16
        else:
            nodes += (1, 0)
            places += (at, 0, at, 8, at + 8, 0)
            sizes.append(len(places) - 1)
            body += f"4xi{room}s"  # two offsets, the first of them zero, and the text
            at += 8 + room
    header = _header()
    head = header.template.copy()  # of one row: its length is right already
    _NUMBER.pack_into(head, header.layout.body_length_at, at)
    header.nodes.pack_into(head, header.layout.nodes_at, *nodes)
    header.places.pack_into(head, header.layout.buffers_at, *places)
    return _Layout(bytes(head), tuple(header.layout.buffers_at + 8 * index for index in sizes), struct.Struct(body))


def _several_rows(rows: list[Row]) -> bytes:
    body = _Body(len(rows))
    for kind, values in zip(_KINDS, zip(*rows, strict=True), strict=True):
        if kind == "text":
            body.texts([None if value is None else value.encode() for value in values])
        elif kind == "bytes":
            body.texts(values)
        elif kind == "map":
            body.maps(values)
        else:
            body.numbers(values, kind)
    header = _header()
    head = header.template.copy()
    _NUMBER.pack_into(head, header.layout.body_length_at, body.size)
    _NUMBER.pack_into(head, header.layout.length_at, len(rows))
    header.nodes.pack_into(head, header.layout.nodes_at, *body.nodes)
    header.places.pack_into(head, header.layout.buffers_at, *body.places)
    return b"".join([head, *body.parts])


def _validity(values: Sequence[object]) -> bytes:
    bits = 0
    for index, value in enumerate(values):
        if value is not None:
            bits |= 1 << index
    return bits.to_bytes((len(values) + 7) // 8, "little")


def _kind(type_: pa.DataType) -> str:
    if pa.types.is_string(type_):
        return "text"
    if pa.types.is_binary(type_):
        return "bytes"
    if pa.types.is_map(type_):
        return "map"
    return "q" if pa.types.is_timestamp(type_) else "i"


_KINDS: Final = tuple(_kind(field.type) for field in schema.ROWS)
"""How each column is encoded: text, bytes, map, or the struct code of its integers."""
