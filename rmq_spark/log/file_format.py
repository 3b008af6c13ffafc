"""Bytes of every file of a log: an Arrow IPC file whose schema metadata carries what the log needs to know.

Sans-io: values to bytes and back, no storage and no clock. docs/format.md is the normative text.

Three metadata entries:
- `rmq.doc`: a JSON document (kind, offsets, run index, block table, writer …); arrays are packed, not JSON;
- `rmq.digest`: blake2b-128 of that text; the next commit names it, which makes the chain;
- `rmq.file`: CRC-32 of the whole file with this number's eight digits taken as zeros. An IPC file has its
  schema twice (head and footer), so the digits stand twice.

Rows lie in blocks (IPC record batches). A file whose rows are a few kilobytes is one block, always read and
check-summed as a whole. A larger one has a block table: it has a CRC-32 of each column of each block, so that a
partial read is checked as well as a whole one, and the byte range of each column, so that a reader of two
columns fetches two columns.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, UnsupportedVersionError
from rmq_spark.log import schema as columns
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

_JSON: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_MAGIC: Final = b"ARROW1"
_CRC_MARK: Final = b"\x02crc32:"  # a control character: JSON escapes it, so the document cannot hold it
_CRC_ZEROS: Final = b"00000000"
_EOS_BYTES: Final = 8

U32 = npt.NDArray[np.uint32]


# ---------------------------------------------------------------- packed arrays


def pack(values: npt.NDArray[Any]) -> str:
    """Return an integer array as text: base64 of its little-endian bytes, shuffled and deflated if large."""
    data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
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
    """Rows as they go into a file: cut into blocks, with the table that describes them."""

    kind: str
    batches: list[pa.RecordBatch]
    table: str | None
    """The packed block table; None for a file that is small enough to be read as a whole."""
    rows: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file ready to be written."""

    pieces: list[memoryview | bytes]
    digest: str
    size: int


def make_blocks(kind: str, batches: Sequence[pa.RecordBatch]) -> Blocks:
    """Serialise each batch once, check-sum its columns and note where they lie."""
    if len(batches) == 1 and batches[0].nbytes <= SMALL_BYTES:
        return Blocks(kind, list(batches), None, batches[0].num_rows)
    schema = SCHEMAS[kind]
    width = len(schema)
    fixed = np.empty((len(batches), 3), np.uint32)
    sums = np.empty((len(batches), width), np.uint32)
    ends = np.empty((len(batches), width), np.uint32)
    settled = []
    for index, batch in enumerate(batches):
        message = batch.serialize()
        plain = pa.ipc.read_record_batch(message, schema)  # zero-copy, and free of slices' offsets
        body = 8 + struct.unpack_from("<i", message, 4)[0]
        fixed[index] = plain.num_rows, body, message.size
        sums[index] = [column_crc(column) for column in plain.columns]
        ends[index] = _column_ends(plain, message.address + body)
        settled.append(plain)
    flat = np.concatenate([fixed.ravel(), sums.ravel(), ends.ravel()])
    return Blocks(kind, settled, pack(flat), sum(batch.num_rows for batch in settled))


def encode(blocks: Blocks, doc: dict[str, Any]) -> Encoded:
    """Return the file of `blocks` with the metadata document `doc`."""
    full = {"v": VERSION, "kind": blocks.kind, "rows": blocks.rows, **doc}
    if blocks.table is not None:
        full["blocks"] = blocks.table
    text = _JSON.encode(full).encode()
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    schema = SCHEMAS[blocks.kind].with_metadata(
        {"rmq.doc": text, "rmq.digest": digest, "rmq.file": _CRC_MARK + _CRC_ZEROS}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in blocks.batches:
            writer.write_batch(batch)
    buffer = sink.getvalue()
    view = memoryview(buffer)
    crc = b"%08x" % zlib.crc32(view)
    first, second = _crc_places(view, len(view))
    pieces: list[memoryview | bytes] = [view[:first], crc, view[first + 8 : second], crc, view[second + 8 :]]
    return Encoded(pieces, digest, len(view))


def column_crc(column: pa.Array) -> int:
    """CRC-32 of a column's shape and buffers as they lie in the file (uncompressed, without padding)."""
    crc = 0
    for node in (column, column.keys, column.items) if isinstance(column, pa.MapArray) else (column,):
        crc = zlib.crc32(struct.pack("<qq", len(node), node.null_count), crc)
    for buffer in column.buffers():
        if buffer is not None:
            crc = zlib.crc32(buffer, crc)
    return crc


def _column_ends(batch: pa.RecordBatch, start: int) -> list[int]:
    ends = []
    end = 0
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.size:
                end = max(end, buffer.address + buffer.size - start)
        ends.append(end)
    return ends


def _crc_places(view: memoryview | bytes, size: int) -> tuple[int, int]:
    """Where the CRC's digits stand in a whole file: in the head's schema and in the footer's."""
    footer = struct.unpack_from("<i", view, size - 10)[0]
    head = struct.unpack_from("<i", view, 12)[0]
    if not 0 < footer <= size - 20 or not 0 < head <= size - 20:
        raise ValueError("lengths of the schema or the footer are out of bounds")
    first = bytes(view[: 16 + head]).find(_CRC_MARK)
    second = bytes(view[size - 10 - footer :]).rfind(_CRC_MARK)
    if first < 0 or second < 0:
        raise ValueError("the file check-sum's mark is missing")
    return first + len(_CRC_MARK), size - 10 - footer + second + len(_CRC_MARK)


# ---------------------------------------------------------------- decoding


@dataclass(slots=True, weakref_slot=True)
class _Places:
    """Decoded block table."""

    rows: U32
    body: U32
    size: U32
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
            return _Places(numbers, numbers * 0, numbers * 0 + self.size, none, none)
        width = len(SCHEMAS[self.kind])
        flat = unpack(self.doc["blocks"], "u4")
        count = len(flat) // (3 + 2 * width)
        fixed = flat[: 3 * count].reshape(count, 3)
        sums, ends = flat[3 * count :].reshape(2, count, width)
        return _Places(fixed[:, 0], fixed[:, 1], fixed[:, 2], sums, ends)

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
    if len(tail) < 20 or tail[-6:] != _MAGIC:
        raise CorruptDataError("file is empty, truncated or not an Arrow file", file=path, size=size)
    footer = struct.unpack_from("<i", tail, len(tail) - 10)[0]
    if not 0 < footer <= size - 20:
        raise CorruptDataError("footer length is out of bounds", file=path, footer=footer, size=size)
    if footer + 10 > len(tail):
        raise NeedMoreError(footer + 10)
    if len(tail) == size:
        _check_whole(path, tail)
    try:
        schema = pa.ipc.open_file(pa.BufferReader(tail)).schema
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise CorruptDataError("footer cannot be parsed", file=path, reason=str(error)) from error
    meta = _document(path, schema, size, size - 10 - footer - _EOS_BYTES)
    if len(tail) == size:
        meta.whole = tail
    return meta


def check_whole(path: str, data: bytes) -> None:
    """Check the CRC-32 over a whole file.

    Raises:
        CorruptDataError: some bit is not what was written.
    """
    if len(data) < 20 or data[:6] != _MAGIC or data[-6:] != _MAGIC:
        raise CorruptDataError("file is empty, truncated or not an Arrow file", file=path, size=len(data))
    _check_whole(path, data)


def _check_whole(path: str, data: bytes) -> None:
    try:
        first, second = _crc_places(data, len(data))
    except (ValueError, struct.error) as error:
        raise CorruptDataError("file is damaged or foreign", file=path, reason=str(error)) from error
    view = memoryview(data)
    crc = zlib.crc32(_CRC_ZEROS, zlib.crc32(view[:first]))
    crc = zlib.crc32(_CRC_ZEROS, zlib.crc32(view[first + 8 : second], crc))
    crc = zlib.crc32(view[second + 8 :], crc)
    expected = b"%08x" % crc
    if data[first : first + 8] != expected or data[second : second + 8] != expected:
        raise CorruptDataError("file check-sum is wrong", file=path, size=len(data))


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
