"""Encodes files of a log: rows serialised and check-summed, then the metadata. `file_format.py` reads them.

Sans-io. A file is encoded piece by piece, so that a writer can begin before the last piece exists.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.log import file_layout, ipc_file
from rmq_spark.log.checksum import crc32
from rmq_spark.log.file_format import pack
from rmq_spark.log.file_layout import CRC_MARK, Place, newest_schema
from rmq_spark.log.json_text import json_text
from rmq_spark.storage.base import Pieces

SMALL_BYTES: Final = 24 * 1024
"""Rows up to this size are one block without a table."""

_BLOOM_LONG: Final = 4096
"""A key filter from this length on is put into the document without the JSON encoder's search for escapes."""

U32 = npt.NDArray[np.uint32]


# ---------------------------------------------------------------- blocks


class BlockTable(NamedTuple):
    """Entries of the block table for some blocks."""

    fixed: U32
    """Per block: rows, length of its header, its size, check-sum of its header."""
    sums: U32
    """Per block and column: its check-sum."""
    ends: U32
    """Per block and column: where it ends."""


class Part(NamedTuple):
    """Consecutive blocks of a file, serialised."""

    data: memoryview | bytes
    places: list[tuple[int, int]]
    """Per block: the lengths of its header and of its columns."""
    table: BlockTable | None
    """None in a file that is small enough to be read as a whole."""


class Blocks(NamedTuple):
    """The rows of a file, serialised, in parts. A part may still be in the making: calling for it waits."""

    kind: str
    parts: Sequence[Callable[[], Part]]
    rows: int
    about_bytes: int
    """Approximate size of all parts."""

    def table(self) -> str | None:
        """The packed block table; None for a file without one."""
        tables = [table for part in self.parts if (table := part().table) is not None]
        if not tables:
            return None
        return pack(np.concatenate([column.ravel() for column in chain(*zip(*tables, strict=True))]))


def single_part(kind: str, part: Part, rows: int) -> Blocks:
    """Blocks that are one part, which exists already."""
    return Blocks(kind, [lambda: part], rows, len(part.data))


def one_block(kind: str, message: bytes, rows: int) -> Blocks:
    """The only block of a small file: an encapsulated IPC message."""
    body = _body_at(message, 0)
    return single_part(kind, Part(message, [(body, len(message) - body)], None), rows)


def make_blocks(kind: str, batches: Sequence[pa.RecordBatch]) -> Blocks:
    """Serialise all blocks of a file."""
    rows = sum(batch.num_rows for batch in batches)
    if len(batches) == 1:
        message = memoryview(batches[0].serialize())
        if len(message) <= SMALL_BYTES:
            return one_block(kind, bytes(message), rows)
    return single_part(kind, make_part(kind, batches), rows)


def make_part(kind: str, batches: Sequence[pa.RecordBatch]) -> Part:
    """Serialise each batch as a block, and check-sum its columns.

    The blocks share one piece of memory: a few long steps, during which other threads run, instead of many short ones.
    """
    data, sizes = _serialised(kind, batches)
    starts = list(accumulate(sizes, initial=0))
    bodies = [_body_at(data, start) for start in starts[:-1]]
    table = _block_table(kind, data, starts, bodies, [batch.num_rows for batch in batches])
    return Part(data, [(body, size - body) for body, size in zip(bodies, sizes, strict=True)], table)


def _block_table(kind: str, data: memoryview, starts: list[int], bodies: list[int], rows: list[int]) -> BlockTable:
    """Check-sum the columns of the blocks in `data` and note where they end."""
    ends = _column_ends(kind, data, starts, bodies)
    fixed: list[int] = []
    sums: list[int] = []
    for (start, end), body, count, mine in zip(pairwise(starts), bodies, rows, ends.tolist(), strict=True):
        at = start + body
        fixed += (count, body, end - start, crc32(data[start:at]))
        sums += [crc32(data[at + low : at + high]) for low, high in pairwise([0, *mine])]
    return BlockTable(np.array(fixed, np.uint32), np.array(sums, np.uint32), ends)


def _serialised(kind: str, batches: Sequence[pa.RecordBatch]) -> tuple[memoryview, list[int]]:
    """The messages of the batches, one behind the other, and their sizes."""
    if len(batches) == 1:
        message = memoryview(batches[0].serialize())
        return message, [len(message)]
    sizes = [pa.ipc.get_record_batch_size(batch) for batch in batches]
    begin, size = len(file_layout.schema_message(file_layout.VERSION, kind)), sum(sizes)
    memory = pa.allocate_buffer(begin + size + len(ipc_file.END_OF_STREAM))
    with pa.ipc.new_stream(pa.FixedSizeBufferWriter(memory), newest_schema(kind)) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return memoryview(memory)[begin : begin + size], sizes


def _body_at(data: memoryview | bytes, start: int) -> int:
    """The length of the header of the message that begins at `start`."""
    return 8 + int(struct.unpack_from("<i", data, start + 4)[0])


def _column_ends(kind: str, data: memoryview, starts: list[int], bodies: list[int]) -> U32:
    """Where each column's last buffer ends in each block's body; the last one takes the padding behind it, too."""
    # The headers of all blocks of a schema have the same shape: what is a place in one is a place in all.
    layout = ipc_file.header_layout(data)
    places = [np.frombuffer(data, "<i8", 2 * layout.buffers, start + layout.buffers_at) for start in starts[:-1]]
    table = np.array(places, np.int64).reshape(len(bodies), -1, 2)
    # A buffer without bytes may be said to stand anywhere.
    ends = np.maximum.accumulate(np.where(table[:, :, 1], table.sum(axis=2), 0), axis=1)[:, _last_buffers(kind)]
    ends[:, -1] = np.diff(starts) - bodies
    return ends.astype(np.uint32)


def _last_buffers(kind: str) -> list[int]:
    """Per column of a kind of file: the index of its last buffer in a record batch message."""
    firsts = [buffer for _, buffer in file_layout.column_places(file_layout.VERSION, kind)]
    return [*(first - 1 for first in firsts[1:]), -1]


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
        yield file_layout.head(file_layout.VERSION, self._blocks.kind)[0]
        for part in self._blocks.parts:
            yield part().data
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
        text = _document_text(doc)
        digest = hashlib.blake2b(text, digest_size=16).hexdigest()
        head, crc = file_layout.head(version, blocks.kind)
        at = len(head)
        places: list[Place] = []
        for make in blocks.parts:
            part = make()
            for header, body in part.places:
                places.append((at, header, body))
                at += header + body
            if table is None:
                crc = crc32(part.data, crc)
        tail = file_layout.make_tail(version, blocks.kind, text, digest, places)
        digits_at = tail.rfind(CRC_MARK) + len(CRC_MARK)
        tail[digits_at : digits_at + 8] = b"%08x" % crc32(tail, crc)
        return Tail(bytes(tail), doc, digest, at + len(tail))


def _document_text(doc: dict[str, Any]) -> bytes:
    """The document as it stands in the file."""
    bloom = doc.get("bloom", "")
    if len(bloom) < _BLOOM_LONG:
        return file_layout.padded(json_text(doc))
    # base64 has nothing to escape, and searching it for that would take as long as all the rest.
    rest = {name: value for name, value in doc.items() if name != "bloom"}
    return file_layout.padded(b'%b,"bloom":"%b"}' % (json_text(rest)[:-1], bloom.encode()))
