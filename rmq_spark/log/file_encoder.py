"""How files of a log are made: rows serialised and check-summed, metadata behind them. `file_format.py` reads them.

Sans-io, as that module is. A file is made piece by piece, and whoever writes it may begin before the last one is there.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_spark.log import ipc_file
from rmq_spark.log.checksum import crc32
from rmq_spark.log.file_format import CRC_MARK, CRC_ZEROS, SCHEMAS, U32, VERSION, pack
from rmq_spark.log.json_text import json_text
from rmq_spark.log.second_thread import MANY_ROWS, meanwhile
from rmq_spark.storage.base import Pieces

SMALL_BYTES: Final = 24 * 1024
"""Rows up to this size are one block without a table."""

_DOC_STEP: Final = 64
"""Documents are padded with spaces to a multiple of this."""
_DOC_LONG: Final = 4096
_DOC_LONG_STEP: Final = 512
"""Documents longer than `_DOC_LONG`, most of them key filter, to a multiple of this."""
_DOC_CACHED: Final = 64 * 1024
"""Up to this length of the document, the tail of a file with one block is copied from a template."""


# ---------------------------------------------------------------- blocks


class BlockTable(NamedTuple):
    """What the block table says of some blocks."""

    fixed: U32
    """Per block: rows, where its columns begin, its size, check-sum of its header."""
    sums: U32
    """Per block and column: its check-sum."""
    ends: U32
    """Per block and column: where it ends."""


class Part(NamedTuple):
    """Some of a file's blocks, serialised, one behind the other."""

    data: memoryview | bytes
    places: list[tuple[int, int]]
    """Per block: the lengths of its header and of its columns."""
    table: Callable[[], BlockTable] | None = None
    """None in a file that is small enough to be read as a whole. Ask late: check-sums are made while others work."""


class Blocks(NamedTuple):
    """Rows as they go into a file, part by part; whoever asks for a part waits until it is made."""

    kind: str
    parts: Sequence[Callable[[], Part]]
    rows: int
    about_bytes: int
    """They have about so many bytes together."""

    def table(self) -> str | None:
        """The packed block table; None for a file without one."""
        tables = [table() for part in self.parts if (table := part().table) is not None]
        if not tables:
            return None
        return pack(np.concatenate([column.ravel() for column in chain(*zip(*tables, strict=True))]))


def made(part: Part) -> Callable[[], Part]:
    """A part for which nobody has to wait."""
    return lambda: part


def one_block(kind: str, message: bytes, rows: int) -> Blocks:
    """The only block of a file, which is small: an encapsulated IPC message."""
    body = _body_at(message, 0)
    part = Part(message, [(body, len(message) - body)])
    return Blocks(kind, [made(part)], rows, len(message))


def make_blocks(kind: str, batches: Sequence[pa.RecordBatch]) -> Blocks:
    """Make all blocks of a file at once; of many rows a second thread makes the check-sums."""
    rows = sum(batch.num_rows for batch in batches)
    part = make_part(kind, batches, apart=rows >= MANY_ROWS)
    if len(batches) == 1 and len(part.data) <= SMALL_BYTES:
        part = Part(part.data, part.places)
    return Blocks(kind, [made(part)], rows, len(part.data))


def make_part(kind: str, batches: Sequence[pa.RecordBatch], *, apart: bool = False) -> Part:
    """Serialise each batch and note where its columns lie.

    All of them stand in one piece of memory: few long steps, during which other threads run, not many short ones.

    Args:
        kind: of file.
        batches: the rows of each block.
        apart: whether a second thread makes the check-sums; else, or if it is busy, it is whoever asks for them.
    """
    data, sizes = _serialised(kind, batches)
    starts = list(accumulate(sizes, initial=0))
    bodies = [_body_at(data, start) for start in starts[:-1]]
    rows = [batch.num_rows for batch in batches]
    table = meanwhile(lambda: _block_table(kind, data, starts, bodies, rows), many=apart)
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
    begin, size = len(schema_message(kind)), sum(sizes)
    memory = pa.allocate_buffer(begin + size + len(ipc_file.END_OF_STREAM))
    with pa.ipc.new_stream(pa.FixedSizeBufferWriter(memory), SCHEMAS[kind]) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return memoryview(memory)[begin : begin + size], sizes


def _body_at(data: memoryview | bytes, start: int) -> int:
    """The length of the header of the message that begins at `start`."""
    return 8 + int(struct.unpack_from("<i", data, start + 4)[0])


def _column_ends(kind: str, data: memoryview, starts: list[int], bodies: list[int]) -> U32:
    """Where each column's last buffer ends in each block's body; the last one takes the padding behind it, too."""
    # The headers of all blocks of a schema have the same shape: what is a place in one is a place in all.
    at, count = ipc_file.buffers_at(data[: starts[1]]) if bodies else (0, 0)
    places = [np.frombuffer(data, "<i8", 2 * count, start + at) for start in starts[:-1]]
    table = np.array(places, np.int64).reshape(len(bodies), -1, 2)
    # A buffer without bytes may be said to stand anywhere.
    ends = np.maximum.accumulate(np.where(table[:, :, 1], table.sum(axis=2), 0), axis=1)[:, _last_buffers(kind)]
    ends[:, -1] = np.diff(starts) - bodies
    return ends.astype(np.uint32)


@cache
def _last_buffers(kind: str) -> list[int]:
    """Per column of a kind of file: the index of its last buffer in a record batch message."""
    firsts = [buffer for _, buffer in ipc_file.column_places(SCHEMAS[kind])]
    return [*(first - 1 for first in firsts[1:]), -1]


@cache
def schema_message(kind: str) -> bytes:
    """The schema of a kind of file, as an encapsulated IPC message."""
    message: bytes = SCHEMAS[kind].serialize().to_pybytes()
    return message


# ---------------------------------------------------------------- files


class Tail(NamedTuple):
    """What stands behind a file's blocks."""

    data: bytes
    doc: dict[str, Any]
    """The metadata document."""
    digest: str
    file_size: int
    """Of the whole file."""


class Encoded(Pieces):
    """A file ready to be written, as its pieces in order; whoever asks for one waits until it is made.

    Args:
        blocks: the rows.
        doc: what the metadata document says beside them.
    """

    def __init__(self, blocks: Blocks, doc: Callable[[], dict[str, Any]]) -> None:
        self._blocks = blocks
        self._doc = doc
        self._tail: Tail | None = None
        self.about_bytes = blocks.about_bytes

    def __iter__(self) -> Iterator[memoryview | bytes]:
        """The pieces in order."""
        yield _head(self._blocks.kind)[0]
        for part in self._blocks.parts:
            yield part().data
        yield self.tail.data

    @property
    def made(self) -> bool:
        """Whether the last piece is there. Before it is, nobody can have created the file."""
        return self._tail is not None

    @property
    def tail(self) -> Tail:
        """The last piece, with what is known when it is."""
        # Not a `cached_property`: Python 3.11 makes all of a class wait for the one that is being worked out.
        if self._tail is None:
            self._tail = self._make_tail()
        return self._tail

    def _make_tail(self) -> Tail:
        blocks = self._blocks
        doc = {"v": VERSION, "kind": blocks.kind, "rows": blocks.rows, **self._doc()}
        table = blocks.table()
        if table is not None:
            doc["blocks"] = table
        text = _document_text(doc)
        digest = hashlib.blake2b(text, digest_size=16).hexdigest()
        head, crc = _head(blocks.kind)
        at = len(head)
        places = []
        for ask in blocks.parts:
            part = ask()
            for header, body in part.places:
                places.append((at, header, body))
                at += header + body
            if table is None:
                crc = crc32(part.data, crc)
        tail = _tail(blocks.kind, text, digest, places)
        digits_at = tail.rfind(CRC_MARK) + len(CRC_MARK)
        tail[digits_at : digits_at + 8] = b"%08x" % crc32(tail, crc)
        return Tail(bytes(tail), doc, digest, at + len(tail))


def encode(blocks: Blocks, doc: dict[str, Any]) -> Encoded:
    """Return the file of `blocks` with the metadata document `doc`."""
    return Encoded(blocks, lambda: doc)


def _document_text(doc: dict[str, Any]) -> bytes:
    """The document as it stands in the file, padded so that there are few lengths, and a footer to copy for each."""
    keys = doc.get("bloom", "")
    if len(keys) < _DOC_LONG:
        text = json_text(doc)
    else:  # base64 has nothing to escape, and looking for that would take as long as all the rest
        rest = {name: value for name, value in doc.items() if name != "bloom"}
        text = b'%b,"bloom":"%b"}' % (json_text(rest)[:-1], keys.encode())
    return text + b" " * (-len(text) % (_DOC_STEP if len(text) <= _DOC_LONG else _DOC_LONG_STEP))


@cache
def _head(kind: str) -> tuple[bytes, int]:
    """How every file of a kind begins, the magic and the bare schema, and the CRC-32 of that."""
    head = ipc_file.HEAD + schema_message(kind)
    return head, crc32(head)


def _tail(kind: str, text: bytes, digest: str, places: list[tuple[int, int, int]]) -> bytearray:
    """What follows the blocks: the end-of-stream mark and the footer, with zeros for the CRC's digits."""
    if len(places) > 1 or len(text) > _DOC_CACHED:
        return bytearray(_make_tail(kind, text, digest, places))
    template, text_at, digest_at, place_at = _tail_template(kind, len(text), len(places))
    tail = bytearray(template)
    tail[text_at : text_at + len(text)] = text
    tail[digest_at : digest_at + 32] = digest.encode()
    for place in places:
        ipc_file.BLOCK.pack_into(tail, place_at, *place)
    return tail


@lru_cache(128)
def _tail_template(kind: str, length: int, blocks: int) -> tuple[bytes, int, int, int]:
    """A tail with a document of `length` bytes, and where the document, its digest and the block's place go."""
    text, digest = b"\x03" * length, "\x04" * 32
    tail = _make_tail(kind, text, digest, [(0, 0, 0)] * blocks)
    place_at = len(ipc_file.END_OF_STREAM) + ipc_file.BLOCKS_START
    return tail, tail.index(text), tail.index(digest.encode()), place_at


def _make_tail(kind: str, text: bytes, digest: str, places: list[tuple[int, int, int]]) -> bytes:
    schema = SCHEMAS[kind].with_metadata({"rmq.doc": text, "rmq.digest": digest, "rmq.file": CRC_MARK + CRC_ZEROS})
    return ipc_file.END_OF_STREAM + ipc_file.frame(ipc_file.footer(schema.serialize(), places))
