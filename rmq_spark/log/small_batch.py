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

_PADDING: Final = [bytes(-size & 7) for size in range(8)]
"""What follows a buffer, by its size modulo eight."""


@cache
def _template() -> tuple[bytes, ipc_file.HeaderLayout]:
    """The header of a batch, and where the numbers stand in it."""
    # Nulls, not values: `pa.array` of values imports pandas, if installed, which takes longer than many appends.
    columns = [pa.nulls(1, field.type) for field in schema.ROWS]
    message = pa.RecordBatch.from_arrays(columns, schema=schema.ROWS).serialize().to_pybytes()
    layout = ipc_file.header_layout(message)
    return message[: layout.size], layout


class _Body:
    """Buffers one after the other, each padded to eight bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.places: list[int] = []
        self.nodes: list[int] = []
        self.size = 0

    def texts(self, values: Sequence[bytes | None]) -> None:
        """A string or binary column."""
        nulls = values.count(None)
        plain = [value or b"" for value in values]
        self._add(len(values), nulls, _validity(values) if nulls else b"", _offsets(plain), b"".join(plain))

    def numbers(self, values: Sequence[int], code: str) -> None:
        """An integer or timestamp column without nulls."""
        self._add(len(values), 0, b"", struct.pack(f"<{len(values)}{code}", *values))

    def maps(self, values: Sequence[Sequence[tuple[str, str]]]) -> None:
        """The column of properties: offsets, then the entries as a struct of two string columns."""
        pairs = [pair for value in values for pair in value]
        self._add(len(values), 0, b"", _offsets(values))
        self._add(len(pairs), 0, b"")
        self.texts([key.encode() for key, _ in pairs])
        self.texts([value.encode() for _, value in pairs])

    def _add(self, length: int, nulls: int, *buffers: bytes) -> None:
        self.nodes += (length, nulls)
        for data in buffers:
            size = len(data)
            self.places += (self.size, size)
            self.parts += (data, _PADDING[size & 7])
            self.size += size + 7 & -8


def to_message(rows: list[Row]) -> bytes:
    """The encapsulated record batch message of `rows`, whose values are in the order of `schema.ROWS`."""
    body = _Body()
    for kind, values in zip(_KINDS, zip(*rows, strict=True), strict=True):
        if kind == "text":
            body.texts([None if value is None else value.encode() for value in values])
        elif kind == "bytes":
            body.texts(values)
        elif kind == "map":
            body.maps(values)
        else:
            body.numbers(values, kind)
    template, layout = _template()
    head = bytearray(template)
    struct.pack_into("<q", head, layout.body_length_at, body.size)
    struct.pack_into("<q", head, layout.length_at, len(rows))
    struct.pack_into(f"<{len(body.nodes)}q", head, layout.nodes_at, *body.nodes)
    struct.pack_into(f"<{len(body.places)}q", head, layout.buffers_at, *body.places)
    return b"".join([head, *body.parts])


def _offsets(values: Sequence[Sized]) -> bytes:
    return struct.pack(f"<{len(values) + 1}i", 0, *accumulate(map(len, values)))


def _validity(values: Sequence[object]) -> bytes:
    bits = sum(1 << index for index, value in enumerate(values) if value is not None)
    return bits.to_bytes((len(values) + 7) // 8, "little")
