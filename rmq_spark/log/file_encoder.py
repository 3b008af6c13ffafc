"""Encodes files of a log: rows serialised and check-summed, then the metadata. `file_format.py` reads them.

Sans-io. A file is encoded piece by piece, so that a writer can begin before the last piece exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_spark.log import file_layout, ipc_file
from rmq_spark.log.fast import crc32, json_text
from rmq_spark.log.file_format import pack
from rmq_spark.log.file_layout import Place
from rmq_spark.storage.base import Pieces

SMALL_BYTES: Final = 24 * 1024
"""Rows up to this size are one block without a table."""


# ---------------------------------------------------------------- blocks


class Block(NamedTuple):
    """Some rows of a file: a record batch as an encapsulated IPC message."""

    data: memoryview | bytes
    header: int
    """Length of its header, behind which the columns lie."""
    entry: tuple[list[int], list[int], list[int]] | None
    """What the block table says of it: sizes and header's check-sum, check-sums of columns, where these end.

    None in a file that is small enough to be read as a whole.
    """


class Blocks(NamedTuple):
    """The rows of a file, serialised, in parts. A part may still be in the making: calling for it waits."""

    kind: str
    parts: Sequence[Callable[[], list[Block]]]
    rows: int
    about_bytes: int
    """Approximate size of all parts."""

    def all(self) -> Iterator[Block]:
        """The blocks in order."""
        for make in self.parts:
            yield from make()

    def table(self) -> str | None:
        """The packed block table; None for a file without one."""
        entries = [block.entry for block in self.all() if block.entry is not None]
        if not entries:
            return None
        sizes, sums, ends = zip(*entries, strict=True)
        return pack(np.array([*chain(*sizes), *chain(*sums), *chain(*ends)], np.uint32))


def one_block(kind: str, message: memoryview | bytes, rows: int) -> Blocks:
    """The only block of a small file: an encapsulated IPC message."""
    block = Block(message, ipc_file.header_size(message), None)
    return Blocks(kind, [lambda: [block]], rows, len(message))


def make_blocks(kind: str, batches: Sequence[pa.RecordBatch]) -> Blocks:
    """Serialise all blocks of a file."""
    blocks = make_part(kind, batches)
    rows, size = sum(batch.num_rows for batch in batches), sum(len(block.data) for block in blocks)
    if len(blocks) == 1 and size <= SMALL_BYTES:
        return one_block(kind, blocks[0].data, rows)
    return Blocks(kind, [lambda: blocks], rows, size)


def make_part(kind: str, batches: Sequence[pa.RecordBatch]) -> list[Block]:
    """Serialise each batch as a block, and check-sum its columns."""
    return [_make_block(kind, memoryview(batch.serialize()), batch.num_rows) for batch in batches]


def _make_block(kind: str, data: memoryview, rows: int) -> Block:
    header = ipc_file.header_size(data)
    ends = _column_ends(kind, data, header)
    sums = [crc32(data[header + low : header + high]) for low, high in pairwise([0, *ends])]
    return Block(data, header, ([rows, header, len(data), crc32(data[:header])], sums, ends))


def _column_ends(kind: str, data: memoryview, header: int) -> list[int]:
    """Where each column's last buffer ends in a block's body; the last one takes the padding behind it, too."""
    buffers = ipc_file.nodes_and_buffers(data)[1]
    # A buffer without bytes may be said to stand anywhere.
    ends = np.maximum.accumulate(np.where(buffers[:, 1], buffers.sum(axis=1), 0))
    firsts = [buffer for _, buffer in file_layout.column_places(file_layout.VERSION, kind)]
    return [*(int(ends[first - 1]) for first in firsts[1:]), len(data) - header]


# ---------------------------------------------------------------- files


class Tail(NamedTuple):
    """The last piece of a file: what follows its blocks."""

    data: bytes
    doc: dict[str, Any]
    """The metadata document."""
    digest: str
    file_size: int
    """Of the whole file."""


class Encoded(Pieces):
    """A file ready to be written, as its pieces in order. Iterating waits for pieces that are still in the making.

    Args:
        blocks: the rows.
        doc: entries of the metadata document beside those of the format itself.
    """

    def __init__(self, blocks: Blocks, doc: dict[str, Any]) -> None:
        self._blocks = blocks
        self._doc = doc
        self._tail: Tail | None = None
        self.about_bytes = blocks.about_bytes

    def __iter__(self) -> Iterator[memoryview | bytes]:
        """The pieces in order."""
        yield file_layout.head(file_layout.VERSION, self._blocks.kind)
        for block in self._blocks.all():
            yield block.data
        yield self.tail.data

    @property
    def complete(self) -> bool:
        """Whether all pieces exist. Until they do, no storage can have created the file."""
        return self._tail is not None

    @property
    def tail(self) -> Tail:
        """The last piece; waits for all parts, whose check-sums it holds."""
        # Not a `cached_property`: that of Python 3.11 locks all objects of the class while one is computed.
        if self._tail is None:
            self._tail = self._make_tail()
        return self._tail

    def _make_tail(self) -> Tail:
        blocks, version = self._blocks, file_layout.VERSION
        doc = {"v": version, "kind": blocks.kind, "rows": blocks.rows, **self._doc}
        table = blocks.table()
        if table is not None:
            doc["blocks"] = table
        text = file_layout.padded(json_text(doc))
        head = file_layout.head(version, blocks.kind)
        at, crc = len(head), crc32(head)
        places: list[Place] = []
        for block in blocks.all():
            places.append((at, block.header, len(block.data) - block.header))
            at += len(block.data)
            if table is None:
                crc = crc32(block.data, crc)
        tail = file_layout.make_tail(version, blocks.kind, text, places)
        digits_at = file_layout.crc_at(tail)
        tail[digits_at : digits_at + 8] = b"%08x" % crc32(tail, crc)
        return Tail(bytes(tail), doc, file_layout.digest_of(text), at + len(tail))
