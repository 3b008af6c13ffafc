"""The IPC message of a few messages that came as Python values, written without pyarrow.

A commit of one message is the most common commit there is, and converting it to Arrow arrays and serialising those
costs more than all of its system calls. A record batch message is a header (a flatbuffer that lists lengths and places
of buffers) and the buffers themselves. The header of every batch of a schema has the same shape, so it is taken from
one that pyarrow made, and the numbers in it are replaced. The tests read such messages back with pyarrow and polars
and compare them with what pyarrow would have written.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from rmq_spark.log import schema

Row = tuple[Any, ...]

_EMPTY_OFFSETS: Final = bytes(4)


class _Header:
    """The header of a one-row batch, and where in it the numbers are."""

    def __init__(self) -> None:
        sample = ("t", 0, "i", "t", "k", b"b", 0, 0, 0, "h", 0, [("k", "v")])
        arrays = pa.array([sample], pa.struct(list(schema.ROWS)))
        message = pa.RecordBatch.from_struct_array(arrays).serialize().to_pybytes()
        self.size = 8 + struct.unpack_from("<i", message, 4)[0]
        self.template = bytearray(message[: self.size])
        table = 8 + struct.unpack_from("<I", message, 8)[0]
        self.body_length_at = table + self._field(table, 3)
        header = table + self._field(table, 2)
        batch = header + struct.unpack_from("<I", message, header)[0]
        self.length_at = batch + self._field(batch, 0)
        nodes = batch + self._field(batch, 1)
        self.nodes_at = nodes + struct.unpack_from("<I", message, nodes)[0] + 4
        buffers = batch + self._field(batch, 2)
        self.buffers_at = buffers + struct.unpack_from("<I", message, buffers)[0] + 4

    def _field(self, table: int, index: int) -> int:
        vtable = table - struct.unpack_from("<i", self.template, table)[0]
        return int(struct.unpack_from("<H", self.template, vtable + 4 + 2 * index)[0])


@cache
def _header() -> _Header:
    return _Header()


class _Body:
    """Buffers one after the other, each padded to eight bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.places: list[int] = []
        self.nodes: list[int] = []
        self.size = 0

    def add(self, data: bytes) -> None:
        self.places += (self.size, len(data))
        if data:
            self.parts.append(data)
            spare = -len(data) % 8
            if spare:
                self.parts.append(bytes(spare))
            self.size += len(data) + spare

    def texts(self, values: Sequence[bytes | None]) -> None:
        """A string or binary column."""
        count = len(values)
        nulls = values.count(None)
        self.nodes += (count, nulls)
        self.add(_validity(values) if nulls else b"")
        plain = [value or b"" for value in values]
        self.add(struct.pack(f"<{count + 1}i", 0, *accumulate(map(len, plain))) if count else _EMPTY_OFFSETS)
        self.add(b"".join(plain))

    def numbers(self, values: Sequence[int], code: str) -> None:
        """An integer or timestamp column without nulls."""
        self.nodes += (len(values), 0)
        self.add(b"")
        self.add(struct.pack(f"<{len(values)}{code}", *values))

    def maps(self, values: Sequence[Sequence[tuple[str, str]]]) -> None:
        """The column of properties: offsets, then the entries as a struct of two string columns."""
        self.nodes += (len(values), 0)
        self.add(b"")
        self.add(struct.pack(f"<{len(values) + 1}i", 0, *accumulate(map(len, values))))
        pairs = [pair for value in values for pair in value]
        self.nodes += (len(pairs), 0)
        self.add(b"")
        self.texts([key.encode() for key, _ in pairs])
        self.texts([value.encode() for _, value in pairs])


def to_message(rows: list[Row]) -> bytes:
    """The encapsulated record batch message of `rows`, whose values are in the order of `schema.ROWS`."""
    body = _Body()
    for field, values in zip(_KINDS, zip(*rows, strict=True), strict=True):
        if field == "text":
            body.texts([None if value is None else value.encode() for value in values])
        elif field == "bytes":
            body.texts(values)
        elif field == "map":
            body.maps(values)
        else:
            body.numbers(values, field)
    header = _header()
    head = header.template.copy()
    struct.pack_into("<q", head, header.body_length_at, body.size)
    struct.pack_into("<q", head, header.length_at, len(rows))
    struct.pack_into(f"<{len(body.nodes)}q", head, header.nodes_at, *body.nodes)
    struct.pack_into(f"<{len(body.places)}q", head, header.buffers_at, *body.places)
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
"""How each column is written: text, bytes, map, or the struct code of its integers."""
