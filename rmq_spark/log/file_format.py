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
import json
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, UnsupportedVersionError
from rmq_spark.log import file_layout, ipc_file
from rmq_spark.log.fast import crc32
from rmq_spark.log.file_layout import CRC_ZEROS
from rmq_spark.log.run_index import Runs

TAIL_BYTES: Final = 64 * 1024
"""How much is read of a file to learn its metadata; smaller files are read as a whole by that."""

_EOS_BYTES: Final = len(ipc_file.END_OF_STREAM)

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
    """Return the array that `pack` encoded."""
    data = binascii.a2b_base64(text[1:])
    if text[0] == "z":
        data = zlib.decompress(data)
        data = np.frombuffer(data, np.uint8).reshape(np.dtype(dtype).itemsize, -1).T.tobytes()
    return np.frombuffer(data, "<" + dtype)


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
        """The file's bytes, when it was small enough to be read together with its tail."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the file, by its format version and kind."""
        return file_layout.SCHEMAS[self.doc["v"]][self.kind]

    @property
    def tail_bytes(self) -> int:
        """What stands behind the blocks, most of it the metadata; all of a file that was read as a whole."""
        return self.size - self.data_end if self.whole is None else self.size

    @cached_property
    def runs(self) -> Runs:
        """The run index."""
        doc = self.doc
        topic, queue, rows = unpack(doc["runs"], "i4").reshape(3, -1)
        return Runs(doc["topics"], topic, queue, rows, unpack(doc["tagn"], "i4"), unpack(doc["tags"], "i4"))

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
        width = len(self.schema)
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
    data_end = size - 10 - footer - _EOS_BYTES
    known = file_layout.find_document(tail, data_end) if len(tail) == size else None
    doc, digest = known or _read_arrow_footer(path, tail)
    meta = FileMeta(path, doc, digest, size, data_end)
    if len(tail) == size:
        _check_outside(meta, tail)
        meta.whole = tail
    return meta


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
        raise meta.corrupt("column check-sum is wrong", block=block, column=meta.schema.names[column])


def _check_outside(meta: FileMeta, data: bytes) -> None:
    """Check the file's CRC: all of a file without a block table, all around the blocks of one with."""
    view = memoryview(data)
    begin = end = meta.data_end
    if "blocks" in meta.doc:
        begin = int(meta.block_starts[0]) if len(meta.block_starts) else end
    if not 16 <= begin <= end <= len(data):
        raise meta.corrupt("block table does not fit the file")
    at = file_layout.crc_at(data)
    if at < end:
        raise meta.corrupt("the file check-sum's mark is missing")
    crc = crc32(CRC_ZEROS, crc32(view[end:at], crc32(view[:begin])))
    if data[at : at + 8] != b"%08x" % crc32(view[at + 8 :], crc):
        raise meta.corrupt("file check-sum is wrong", size=len(data))


def _read_arrow_footer(path: str, tail: bytes) -> tuple[dict[str, Any], str]:
    """The document and its digest in a footer that may have any layout that Arrow allows, both checked."""
    try:
        schema = pa.ipc.open_file(pa.BufferReader(tail)).schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDataError("footer cannot be parsed", file=path, reason=str(error)) from error
    metadata = schema.metadata or {}
    text, digest = metadata.get(b"rmq.doc"), metadata.get(b"rmq.digest")
    if text is None or digest is None:
        raise CorruptDataError("an Arrow file, but not one of a log", file=path)
    if digest != file_layout.digest_of(text).encode():
        raise CorruptDataError("metadata check-sum is wrong", file=path)
    doc = json.loads(text.decode())
    if doc.get("v") not in file_layout.SCHEMAS:
        raise UnsupportedVersionError(
            "file has another format version; upgrade rmq-spark",
            file=path,
            version=doc.get("v"),
            known=sorted(file_layout.SCHEMAS),
        )
    expected = file_layout.SCHEMAS[doc["v"]].get(doc["kind"])
    if expected is None or not schema.equals(expected):
        raise CorruptDataError("columns are not those of the format", file=path, kind=doc["kind"])
    return doc, digest.decode()
