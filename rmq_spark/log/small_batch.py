"""Encodes a small batch of Python rows as an Arrow IPC message, without pyarrow.

Most commits hold one message, and converting that to Arrow arrays and serialising them costs more than all system
calls of the commit. A record batch message is a header (a flatbuffer that lists offsets and lengths of buffers) and
the buffers. The headers of all batches of a schema have the same shape: one that pyarrow wrote serves as the template,
and only the numbers in it are replaced. Tests read such messages with pyarrow and polars and compare them with
pyarrow's own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Sized
from functools import cache
from itertools import accumulate
from typing import Final

import pyarrow as pa

from rmq_spark.log import ipc_file, schema
from rmq_spark.log.schema import Row

_KINDS_BY_TYPE: Final = {
    pa.string(): "text",
    pa.binary(): "bytes",
    schema.PROPERTIES: "map",
    pa.int32(): "i",
    schema.TIMESTAMP: "q",
}
_KINDS: Final = tuple(_KINDS_BY_TYPE[field.type] for field in schema.ROWS)
"""How each column is encoded: text, bytes, map, or the struct code of its integers."""


@cache
def _template() -> tuple[bytes, ipc_file.HeaderLayout]:
    """The header of a batch, and where the numbers stand in it."""
    # Nulls, not values: `pa.array` of values imports pandas, if installed, which takes longer than many appends.
    columns = [pa.nulls(1, field.type) for field in schema.ROWS]
    message = pa.RecordBatch.from_arrays(columns, schema=schema.ROWS).serialize().to_pybytes()
    layout = ipc_file.header_layout(message)
    return message[: layout.size], layout


class _Columns:
    """What a record batch message says of its columns, and their buffers."""

    def __init__(self) -> None:
        self.nodes: list[int] = []
        """Per column: rows, and how many of them are null."""
        self.buffers: list[bytes] = []

    def texts(self, values: Sequence[bytes | None]) -> None:
        """A string or binary column."""
        nulls = values.count(None)
        plain = [value or b"" for value in values]
        self.nodes += (len(values), nulls)
        self.buffers += (_validity(values) if nulls else b"", _offsets(plain), b"".join(plain))

    def numbers(self, values: Sequence[int], code: str) -> None:
        """An integer or timestamp column without nulls."""
        self.nodes += (len(values), 0)
        self.buffers += (b"", struct.pack(f"<{len(values)}{code}", *values))

    def maps(self, values: Sequence[Sequence[tuple[str, str]]]) -> None:
        """The column of properties: offsets, then the entries as a struct of two string columns."""
        pairs = [pair for value in values for pair in value]
        self.nodes += (len(values), 0, len(pairs), 0)
        self.buffers += (b"", _offsets(values), b"")
        self.texts([key.encode() for key, _ in pairs])
        self.texts([value.encode() for _, value in pairs])


def to_message(rows: list[Row]) -> bytes:
    """The encapsulated record batch message of `rows`, whose values are in the order of `schema.ROWS`."""
    columns = _Columns()
    for kind, values in zip(_KINDS, zip(*rows, strict=True), strict=True):
        if kind == "text":
            columns.texts([None if value is None else value.encode() for value in values])
        elif kind == "bytes":
            columns.texts(values)
        elif kind == "map":
            columns.maps(values)
        else:
            columns.numbers(values, kind)
    template, layout = _template()
    head = bytearray(template)
    parts: list[bytes | bytearray] = [head]
    places: list[int] = []
    at = 0
    for data in columns.buffers:
        size = len(data)
        places += (at, size)
        parts += (data, bytes(-size & 7))
        at += size + 7 & -8
    struct.pack_into("<q", head, layout.body_length_at, at)
    struct.pack_into("<q", head, layout.length_at, len(rows))
    struct.pack_into(f"<{len(columns.nodes)}q", head, layout.nodes_at, *columns.nodes)
    struct.pack_into(f"<{len(places)}q", head, layout.buffers_at, *places)
    return b"".join(parts)


def _offsets(values: Sequence[Sized]) -> bytes:
    return struct.pack(f"<{len(values) + 1}i", 0, *accumulate(map(len, values)))


def _validity(values: Sequence[object]) -> bytes:
    bits = sum(1 << index for index, value in enumerate(values) if value is not None)
    return bits.to_bytes((len(values) + 7) // 8, "little")
