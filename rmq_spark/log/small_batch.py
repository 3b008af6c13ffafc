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
from functools import cache
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa

from rmq_spark.log import ipc_file, schema
from rmq_spark.log.schema import Row

_NUMBER: Final = struct.Struct("<q")
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
