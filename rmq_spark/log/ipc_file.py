"""An Arrow IPC file put together from messages that were serialised before, without copying them again.

pyarrow's file writer serialises every batch. An append serialises once, to check-sum the bytes; after a
lost race only the schema's metadata changes. So the file is assembled here: the magic, the schema message (by
pyarrow), the record batch messages as they are, the end-of-stream mark, and a footer.

The footer is a flatbuffer: a `Footer` table with the list of blocks and a `Schema` table. That schema is the one in
the schema message, and flatbuffers refer to their parts by relative offsets, so the message's bytes are embedded as
they are and the footer points at the `Schema` inside them. Readers (pyarrow, polars, DuckDB) see an ordinary footer;
the tests open such files with all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MAGIC: Final = b"ARROW1"
HEAD: Final = MAGIC + b"\0\0"
END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
_METADATA_V5: Final = 4
BLOCK: Final = struct.Struct("<qi4xq")  # org.apache.arrow.flatbuf.Block: offset, metaDataLength, padding, bodyLength

_EMPTY: Final = pa.py_buffer(b"")

# The footer's fixed part, offsets from its start: root offset, table's vtable (five fields), the table itself
# (its vtable's distance, version, schema, record batches), then the blocks' vector and the embedded schema message.
_ROOT_AT: Final = 20
_FIXED: Final = struct.Struct("<I HHHHHHH xx i hxx I I")
_VERSION_AT, _SCHEMA_AT, _BLOCKS_AT = 4, 8, 12
_VECTOR_AT: Final = _FIXED.size  # the vector's length; the structs behind it must be 8-aligned, so this is 4 mod 8
BLOCKS_START: Final = _VECTOR_AT + 4
"""Where the first block's place stands in a footer."""


def header_size(message: memoryview | bytes) -> int:
    """The length of an encapsulated message's header; the body begins there."""
    return 8 + int(struct.unpack_from("<i", message, 4)[0])


def nodes_and_buffers(message: pa.Buffer | memoryview) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """What an encapsulated record batch message says of its columns.

    Per column, children after their parents: rows, and how many of them are null. Per buffer: where it begins in the
    message's body, and its length.
    """
    layout = header_layout(message)
    nodes = np.frombuffer(message, "<i8", 2 * layout.nodes, layout.nodes_at).reshape(-1, 2)
    return nodes, np.frombuffer(message, "<i8", 2 * layout.buffers, layout.buffers_at).reshape(-1, 2)


def column_places(schema: pa.Schema) -> list[tuple[int, int]]:
    """Per column of a record batch message: its first node, and its first buffer."""
    counts = [(0, 0), *(_count(field.type) for field in schema)]
    nodes, buffers = np.cumsum(counts, axis=0)[:-1].T.tolist()
    return list(zip(nodes, buffers, strict=True))


def _count(type_: pa.DataType) -> tuple[int, int]:
    """How many nodes and buffers a column of this type has."""
    inner = [_count(type_.field(index).type) for index in range(type_.num_fields)]
    return 1 + sum(nodes for nodes, _ in inner), type_.num_buffers + sum(buffers for _, buffers in inner)


def column_array(
    type_: pa.DataType, nodes: Iterator[list[int]], buffers: Iterator[list[int]], data: pa.Buffer, shift: int
) -> pa.Array:
    """A column of a message of which only a part is in memory.

    Args:
        type_: the column's type.
        nodes: rows and nulls, from the column's first node on.
        buffers: where its buffers lie in the message's body, and their lengths.
        data: the part that is in memory.
        shift: where the body begins in `data`; below zero if that begins behind it.
    """
    length, nulls = next(nodes)
    mine = []
    for index in range(type_.num_buffers):
        at, size = next(buffers)
        # Without nulls there is no bitmap. A buffer without bytes may be said to stand behind the part's end.
        mine.append(data.slice(shift + at, size) if size else _EMPTY if index else None)
    children = [column_array(type_.field(index).type, nodes, buffers, data, shift) for index in range(type_.num_fields)]
    return pa.Array.from_buffers(type_, length, mine, nulls, 0, children or None)


class HeaderLayout(NamedTuple):
    """Where the numbers stand in the header of a record batch message. Messages of one schema share it."""

    size: int
    """Length of the header; the body begins there."""
    body_length_at: int
    length_at: int
    """Where the number of rows stands."""
    nodes_at: int
    nodes: int
    """How many nodes there are: pairs of rows and nulls."""
    buffers_at: int
    buffers: int
    """How many buffers there are: pairs of place and length."""


def header_layout(message: pa.Buffer | memoryview | bytes) -> HeaderLayout:
    """The layout of an encapsulated record batch message's header."""
    view = memoryview(message)[8:]
    table = struct.unpack_from("<I", view, 0)[0]
    batch = _header(view)
    nodes_at, nodes = _vector(view, _field(view, batch, 1))
    buffers_at, buffers = _vector(view, _field(view, batch, 2))
    return HeaderLayout(
        size=header_size(message),
        body_length_at=8 + _field(view, table, 3),
        length_at=8 + _field(view, batch, 0),
        nodes_at=8 + nodes_at + 4,
        nodes=nodes,
        buffers_at=8 + buffers_at + 4,
        buffers=buffers,
    )


def _field(view: memoryview, table: int, index: int) -> int:
    """Where a field of a flatbuffer table stands."""
    vtable = table - struct.unpack_from("<i", view, table)[0]
    return int(table + struct.unpack_from("<H", view, vtable + 4 + 2 * index)[0])


def _vector(view: memoryview, place: int) -> tuple[int, int]:
    """Where the vector stands that the offset at `place` leads to, and how many items it has."""
    vector = place + struct.unpack_from("<I", view, place)[0]
    return vector, struct.unpack_from("<I", view, vector)[0]


def _header(view: memoryview) -> int:
    """Where the header table (`Schema`, `RecordBatch`) of a `Message` flatbuffer stands."""
    table = struct.unpack_from("<I", view, 0)[0]
    header = _field(view, table, 2)  # field 2 of Message is `header`
    return int(header + struct.unpack_from("<I", view, header)[0])


def tail(schema_message: bytes, blocks: Sequence[tuple[int, int, int]]) -> bytes:
    """What follows the record batches, which are at `blocks`: (offset, metadata length, body length)."""
    embedded_at = BLOCKS_START + BLOCK.size * len(blocks)
    schema_at = embedded_at + _header(memoryview(schema_message)[8:])
    table = _ROOT_AT
    fixed = _FIXED.pack(
        table,
        14,  # vtable: its own size, the table's size, then where each field is in the table (0: absent)
        16,
        _VERSION_AT,
        _SCHEMA_AT,
        0,  # dictionaries
        _BLOCKS_AT,
        0,  # custom metadata
        table - 4,  # from the table back to its vtable, which starts at byte 4
        _METADATA_V5,
        schema_at - (table + _SCHEMA_AT),
        _VECTOR_AT - (table + _BLOCKS_AT),
    )
    places = [BLOCK.pack(*block) for block in blocks]
    footer = b"".join([fixed, struct.pack("<I", len(blocks)), *places, schema_message[8:]])
    return END_OF_STREAM + footer + struct.pack("<i", len(footer)) + MAGIC
