"""Bytes of every file of a log: an Arrow IPC file whose schema metadata carries what the log needs to know.

Sans-io: values to bytes and back, no storage and no clock. docs/format.md is the normative text.

Three metadata entries:
- `rmq.doc`: a JSON document (kind, offsets, run index, block table, writer …); arrays are packed, not JSON;
- `rmq.digest`: blake2b-128 of that text; the next commit names it, which makes the chain;
- `rmq.file`: CRC-32 of the file with this number's eight digits taken as zeros.
An IPC file has its schema twice. The one at the head is bare and the same in every file of a kind; the metadata stands
in the footer's only, so what depends on a commit's place in the log is the last thing in its file.

Rows lie in blocks (IPC record batches). A file whose rows are a few kilobytes is one block, always read and
check-summed as a whole. A larger one has a block table: where each column lies in each block, so that a reader of two
columns fetches two columns, and a CRC-32 of each such range, so that what it fetched is checked. The file's CRC then
leaves the blocks out: every byte is covered once.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, UnsupportedVersionError
from rmq_spark.log import ipc_file
from rmq_spark.log import schema as columns
from rmq_spark.log.checksum import crc32
from rmq_spark.log.message_batch import Runs

VERSION: Final = 1
TAIL_BYTES: Final = 64 * 1024
"""What is read of a file to learn its metadata; smaller files come whole with it."""

SMALL_BYTES: Final = 24 * 1024
"""Rows up to this size are one block without a table."""

MARK_SCHEMA: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("first", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("minTimestamp", columns.TIMESTAMP),
        pa.field("maxTimestamp", columns.TIMESTAMP),
        pa.field("digest", pa.string()),
    ]
)
SNAPSHOT_SCHEMA: Final = pa.schema([pa.field("name", pa.string()), pa.field("payload", pa.binary())])

SCHEMAS: Final = {
    "commit": columns.ROWS,
    "rows": columns.ROWS,
    "segment": columns.SEGMENT,
    "mark": MARK_SCHEMA,
    "snapshot": SNAPSHOT_SCHEMA,
}
"""Columns by kind of file; a file with any other columns is foreign or damaged."""

_DOC_STEP: Final = 64
"""Documents are padded with spaces to a multiple of this."""
_DOC_LONG: Final = 4096
_DOC_LONG_STEP: Final = 512
"""Documents longer than `_DOC_LONG`, most of them key filter, to a multiple of this."""
_DOC_CACHED: Final = 64 * 1024
"""Up to this length of the document, the tail of a file with one block is copied from a template."""

_JSON: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_CRC_MARK: Final = b"\x02crc32:"  # a control character: JSON escapes it, so the document cannot hold it
_CRC_ZEROS: Final = b"00000000"
_EOS_BYTES: Final = 8

U32 = npt.NDArray[np.uint32]


# ---------------------------------------------------------------- packed arrays


def pack(values: npt.NDArray[Any]) -> str:
    """Return an integer array as text: base64 of its little-endian bytes, shuffled and deflated if large."""
    if sys.byteorder != "little" or values.dtype.byteorder == ">":
        values = values.astype(values.dtype.newbyteorder("<"))
    data = values.tobytes()
    if len(data) <= 256:
        return "r" + binascii.b2a_base64(data, newline=False).decode()
    # Byte-shuffling puts the mostly-zero high bytes together: 10,000 runs shrink tenfold.
    shuffled = np.frombuffer(data, np.uint8).reshape(-1, values.dtype.itemsize).T.tobytes()
    return "z" + binascii.b2a_base64(zlib.compress(shuffled, 1), newline=False).decode()


def unpack(text: str, dtype: str) -> npt.NDArray[Any]:
    """Return the array that `pack` was given."""
    data = binascii.a2b_base64(text[1:])
    if text[0] == "z":
        data = zlib.decompress(data)
        data = np.frombuffer(data, np.uint8).reshape(np.dtype(dtype).itemsize, -1).T.tobytes()
    return np.frombuffer(data, "<" + dtype)


# ---------------------------------------------------------------- encoding


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows as they go into a file: serialised once, with the table that describes them."""

    kind: str
    messages: list[pa.Buffer | bytes]
    """Encapsulated IPC messages, one a block."""
    table: str | None
    """The packed block table; None for a file that is small enough to be read as a whole."""
    rows: int


def make_blocks(kind: str, batches: Sequence[pa.RecordBatch]) -> Blocks:
    """Serialise each batch, check-sum its columns and note where they lie."""
    rows = sum(batch.num_rows for batch in batches)
    messages = [batch.serialize() for batch in batches]
    if len(messages) == 1 and messages[0].size <= SMALL_BYTES:
        return Blocks(kind, messages, None, rows)
    fixed: list[int] = []
    sums: list[int] = []
    ends: list[int] = []
    for batch, message in zip(batches, messages, strict=True):
        view = memoryview(message)
        body = _body_at(view)
        mine = _column_ends(kind, message, body)
        fixed += (batch.num_rows, body, len(view), crc32(view[:body]))
        sums += [crc32(view[body + low : body + high]) for low, high in pairwise([0, *mine])]
        ends += mine
    return Blocks(kind, messages, pack(np.array(fixed + sums + ends, np.uint32)), rows)


class Tail(NamedTuple):
    """What stands behind a file's blocks."""

    data: bytes
    doc: dict[str, Any]
    """The metadata document."""
    digest: str
    file_size: int
    """Of the whole file."""


class Encoded(Sequence[memoryview | bytes]):
    """A file ready to be written, as its pieces in order. The last of them is made when it is first asked for.

    Args:
        blocks: the rows.
        doc: what the metadata document says beside them.
    """

    def __init__(self, blocks: Blocks, doc: Callable[[], dict[str, Any]]) -> None:
        self._blocks = blocks
        self._doc = doc
        messages: list[memoryview | bytes] = [memoryview(message) for message in blocks.messages]
        self._early = [_head(blocks.kind)[0], *messages]
        self._tail: Tail | None = None

    def __len__(self) -> int:
        """How many pieces there are."""
        return len(self._early) + 1

    @overload
    def __getitem__(self, index: int) -> memoryview | bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[memoryview | bytes]: ...
    def __getitem__(self, index: int | slice) -> memoryview | bytes | Sequence[memoryview | bytes]:
        """Pieces; those before the last are there without delay."""
        if index == _EARLY:
            return self._early
        return [*self._early, self.tail.data][index]

    def __iter__(self) -> Iterator[memoryview | bytes]:
        """The pieces in order."""
        yield from self._early
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
        if blocks.table is not None:
            doc["blocks"] = blocks.table
        text = _document_text(doc)
        digest = hashlib.blake2b(text, digest_size=16).hexdigest()
        head, crc = _head(blocks.kind)
        at = len(head)
        places = []
        for message in self._early[1:]:
            body = _body_at(message)
            places.append((at, body, len(message) - body))
            at += len(message)
            if blocks.table is None:
                crc = crc32(message, crc)
        tail = _tail(blocks.kind, text, digest, places)
        digits_at = tail.rfind(_CRC_MARK) + len(_CRC_MARK)
        tail[digits_at : digits_at + 8] = b"%08x" % crc32(tail, crc)
        return Tail(bytes(tail), doc, digest, at + len(tail))


_EARLY: Final = slice(None, -1)


def encode(blocks: Blocks, doc: dict[str, Any]) -> Encoded:
    """Return the file of `blocks` with the metadata document `doc`."""
    return Encoded(blocks, lambda: doc)


def _document_text(doc: dict[str, Any]) -> bytes:
    """The document as it stands in the file, padded so that there are few lengths, and a footer to copy for each."""
    keys = doc.get("bloom", "")
    if len(keys) < _DOC_LONG:
        text = _JSON.encode(doc).encode()
    else:  # base64 has nothing to escape, and looking for that would take as long as all the rest
        rest = {name: value for name, value in doc.items() if name != "bloom"}
        text = b'%b,"bloom":"%b"}' % (_JSON.encode(rest).encode()[:-1], keys.encode())
    return text + b" " * (-len(text) % (_DOC_STEP if len(text) <= _DOC_LONG else _DOC_LONG_STEP))


@cache
def _head(kind: str) -> tuple[bytes, int]:
    """How every file of a kind begins, the magic and the bare schema, and the CRC-32 of that."""
    head = ipc_file.HEAD + SCHEMAS[kind].serialize().to_pybytes()
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
    schema = SCHEMAS[kind].with_metadata({"rmq.doc": text, "rmq.digest": digest, "rmq.file": _CRC_MARK + _CRC_ZEROS})
    return ipc_file.END_OF_STREAM + ipc_file.frame(ipc_file.footer(schema.serialize(), places))


def _body_at(message: memoryview | bytes) -> int:
    return 8 + int(struct.unpack_from("<i", message, 4)[0])


def _column_ends(kind: str, message: pa.Buffer, body: int) -> list[int]:
    """Where each column's last buffer ends in the block's body; the last one takes the padding behind it, too."""
    places = ipc_file.buffer_places(message).tolist()
    ends = list(accumulate((at + size if size else 0 for at, size in places), max))
    return [*(ends[buffer] for buffer in _last_buffers(kind)[:-1]), message.size - body]


@cache
def _last_buffers(kind: str) -> list[int]:
    """Per column of a kind of file: the index of its last buffer in a record batch message."""
    return list(accumulate((len(pa.array([], field.type).buffers()) for field in SCHEMAS[kind]), initial=-1))[1:]


# ---------------------------------------------------------------- decoding


@dataclass(slots=True)
class _Places:
    """Decoded block table."""

    rows: U32
    body: U32
    """Length of the message's header, behind which the columns lie."""
    size: U32
    header_sums: U32
    sums: U32
    ends: U32


class FileMeta:
    """Metadata of one file, checked; packed parts are decoded when first asked for."""

    def __init__(self, path: str, doc: dict[str, Any], digest: str, size: int, data_end: int) -> None:
        self.path = path
        self.doc = doc
        self.digest = digest
        self.size = size
        self.data_end = data_end
        """Where the last block ends."""
        self.kind: str = doc["kind"]
        self.rows: int = doc["rows"]
        self.whole: bytes | None = None
        """The file's bytes when it was small enough to come with its tail."""

    @property
    def tail_bytes(self) -> int:
        """What stands behind the blocks, most of it the metadata; all of a file that was read as a whole."""
        return self.size - self.data_end if self.whole is None else self.size

    @cached_property
    def runs(self) -> Runs:
        """The run index."""
        doc = self.doc
        flat = unpack(doc["runs"], "i4").reshape(3, -1)
        return Runs(doc["topics"], flat[0], flat[1], flat[2], unpack(doc["tagn"], "i4"), unpack(doc["tags"], "i4"))

    @cached_property
    def bases(self) -> npt.NDArray[np.int64]:
        """Per run: queue offset of its first row."""
        return unpack(self.doc["base"], "i8")

    @cached_property
    def bloom(self) -> bytes:
        """The filter over keys; empty when no message has one."""
        return binascii.a2b_base64(self.doc["bloom"])

    @cached_property
    def places(self) -> _Places:
        """The block table; for a file without one, the whole file is its only block."""
        if "blocks" not in self.doc:
            rows = [] if self.doc.get("files") else [self.rows]
            none = np.empty((len(rows), 0), np.uint32)
            numbers = np.array(rows, np.uint32)
            return _Places(numbers, numbers * 0, numbers * 0 + self.size, numbers * 0, none, none)
        width = len(SCHEMAS[self.kind])
        flat = unpack(self.doc["blocks"], "u4")
        count = len(flat) // (4 + 2 * width)
        fixed = flat[: 4 * count].reshape(count, 4)
        sums, ends = flat[4 * count :].reshape(2, count, width)
        return _Places(fixed[:, 0], fixed[:, 1], fixed[:, 2], fixed[:, 3], sums, ends)

    @cached_property
    def block_starts(self) -> npt.NDArray[np.int64]:
        """Per block: where its message starts in the file (meaningless without a block table)."""
        sizes = self.places.size.astype(np.int64)
        return self.data_end - np.cumsum(sizes[::-1])[::-1]

    @cached_property
    def block_rows(self) -> npt.NDArray[np.int64]:
        """First row of each block, and behind them the number of rows."""
        return np.concatenate(([0], np.cumsum(self.places.rows, dtype=np.int64)))

    @cached_property
    def block_bounds(self) -> npt.NDArray[np.int64]:
        """Per block of a segment: least and greatest commitOffset, least and greatest storeTimestamp."""
        return unpack(self.doc["bounds"], "i8").reshape(-1, 4)

    def corrupt(self, problem: str, **context: object) -> CorruptDataError:
        """The error that says this file is damaged."""
        return CorruptDataError(problem, file=self.path, **context)


class NeedMoreError(Exception):
    """The tail that was read does not hold the whole footer; `length` bytes would."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length


def parse(path: str, tail: bytes, size: int) -> FileMeta:
    """Return the checked metadata of a file from its last bytes (or all of them).

    Raises:
        NeedMoreError: the footer is longer than `tail`.
        CorruptDataError: damaged, truncated, empty or not one of this project's files.
        UnsupportedVersionError: written by a newer version.
    """
    if len(tail) < 20 or tail[-6:] != ipc_file.MAGIC:
        raise CorruptDataError("file is empty, truncated or not an Arrow file", file=path, size=size)
    footer = struct.unpack_from("<i", tail, len(tail) - 10)[0]
    if not 0 < footer <= size - 20:
        raise CorruptDataError("footer length is out of bounds", file=path, footer=footer, size=size)
    if footer + 16 > len(tail):  # Arrow's reader wants the opening magic's six bytes in front of the footer
        raise NeedMoreError(footer + 16)
    try:
        schema = pa.ipc.open_file(pa.BufferReader(tail)).schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDataError("footer cannot be parsed", file=path, reason=str(error)) from error
    meta = _document(path, schema, size, size - 10 - footer - _EOS_BYTES)
    if len(tail) == size:
        _check_outside(meta, tail)
        meta.whole = tail
    return meta


def check_whole(path: str, data: bytes) -> FileMeta:
    """Check every byte of a whole file and return its metadata.

    Raises:
        CorruptDataError: some bit is not what was written, or it is no file of this project's.
        UnsupportedVersionError: written by a newer version.
    """
    meta = parse(path, data, len(data))
    if "blocks" in meta.doc:
        view, places = memoryview(data), meta.places
        for block, start in enumerate(meta.block_starts.tolist()):
            check_block(meta, block, view[start : start + int(places.size[block])], range(places.sums.shape[1]))
    return meta


def check_block(meta: FileMeta, block: int, data: memoryview, wanted: Sequence[int]) -> None:
    """Check the header and the wanted columns of one block of a file with a block table.

    Raises:
        CorruptDataError: a check-sum is wrong.
    """
    body, ends = int(meta.places.body[block]), meta.places.ends[block].tolist()
    check_header(meta, block, data[:body])
    for column in wanted:
        check_column(meta, block, column, data[body + (ends[column - 1] if column else 0) : body + ends[column]])


def check_header(meta: FileMeta, block: int, header: memoryview) -> None:
    """Check the header of one block of a file with a block table.

    Raises:
        CorruptDataError: it is too short, or its check-sum is wrong.
    """
    if len(header) != meta.places.body[block] or crc32(header) != meta.places.header_sums[block]:
        raise meta.corrupt("block header's check-sum is wrong", block=block)


def check_column(meta: FileMeta, block: int, column: int, data: memoryview) -> None:
    """Check the bytes of one column of one block.

    Raises:
        CorruptDataError: their check-sum is wrong.
    """
    if crc32(data) != meta.places.sums[block, column]:
        raise meta.corrupt("column check-sum is wrong", block=block, column=SCHEMAS[meta.kind].names[column])


def _check_outside(meta: FileMeta, data: bytes) -> None:
    """Check the file's CRC: all of a file without a block table, all around the blocks of one with."""
    view = memoryview(data)
    begin = end = meta.data_end
    if "blocks" in meta.doc:
        begin = int(meta.block_starts[0]) if len(meta.block_starts) else end
    if not 16 <= begin <= end <= len(data):
        raise meta.corrupt("block table does not fit the file")
    at = data.rfind(_CRC_MARK) + len(_CRC_MARK)
    if at < end:
        raise meta.corrupt("the file check-sum's mark is missing")
    crc = crc32(_CRC_ZEROS, crc32(view[end:at], crc32(view[:begin])))
    if data[at : at + 8] != b"%08x" % crc32(view[at + 8 :], crc):
        raise meta.corrupt("file check-sum is wrong", size=len(data))


def _document(path: str, schema: pa.Schema, size: int, data_end: int) -> FileMeta:
    metadata = schema.metadata or {}
    text = metadata.get(b"rmq.doc")
    digest = metadata.get(b"rmq.digest")
    if text is None or digest is None:
        raise CorruptDataError("an Arrow file, but not one of a log", file=path)
    actual = hashlib.blake2b(text, digest_size=16).hexdigest()
    if digest.decode("latin-1") != actual:
        raise CorruptDataError("metadata check-sum is wrong", file=path)
    doc = json.loads(text)
    if doc.get("v") != VERSION:
        raise UnsupportedVersionError(
            "file has another format version; upgrade rmq-spark", file=path, version=doc.get("v"), known=VERSION
        )
    expected = SCHEMAS.get(doc["kind"])
    if expected is None or not schema.equals(expected):
        raise CorruptDataError("columns are not those of the format", file=path, kind=doc["kind"])
    return FileMeta(path, doc, actual, size, data_end)
