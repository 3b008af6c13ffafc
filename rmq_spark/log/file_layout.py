"""What writers and readers of files share: the columns by format version, and the bytes around the rows.

A file is its head (magic and bare schema), its blocks of rows, and its tail (end-of-stream mark and footer). Head and
tail are the same in all files of a version and kind, except for a few fields in the tail: the metadata document, its
digest, the places of the blocks and the file's CRC-32. Therefore small tails are copied from templates, and a reader
recognises a tail by comparing it with the template instead of parsing it.
"""

from __future__ import annotations

import re
import struct
from functools import cache, lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from rmq_spark.log import ipc_file
from rmq_spark.log import schema as columns

VERSION: Final = 2
"""Format version of the files that are written."""

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

_FIRST_SCHEMAS: Final = {
    "commit": columns.ROWS,
    "rows": columns.ROWS,
    "segment": columns.SEGMENT,
    "mark": MARK_SCHEMA,
    "snapshot": SNAPSHOT_SCHEMA,
}
SCHEMAS: Final[dict[int, dict[str, pa.Schema]]] = {1: _FIRST_SCHEMAS, 2: _FIRST_SCHEMAS}
"""Columns by format version and kind of file. A file with any other columns is foreign or damaged.

A new version is a new entry with columns added at the end; all of them are nullable. Readers know all versions and
return nulls for columns that a file's version does not have.
"""

CRC_MARK: Final = b"\x02crc32:"  # a control character: JSON escapes it, so the document cannot hold it
CRC_ZEROS: Final = b"00000000"
DIGEST_DIGITS: Final = 32

_DOC_STEP: Final = 64
_DOC_LONG: Final = 4096
_DOC_LONG_STEP: Final = 512
_TEMPLATE_DOC_MAX: Final = 64 * 1024
"""Tails with one block and a document up to this length are copied from a template."""
_DOC_START: Final = re.compile(rb'\{"v":([0-9]{1,4}),"kind":"([a-z]{1,16})"')
_LENGTH: Final = struct.Struct("<I")
_PLACE_AT: Final = len(ipc_file.END_OF_STREAM) + ipc_file.BLOCKS_START

Place = tuple[int, int, int]
"""Of a block: where it starts in the file, length of its header, length of its columns."""


def newest_schema(kind: str) -> pa.Schema:
    """Columns of the files of a kind that are written."""
    return SCHEMAS[VERSION][kind]


@cache
def column_places(version: int, kind: str) -> list[tuple[int, int]]:
    """Per column of a record batch message: the indices of its first node and its first buffer."""
    return ipc_file.column_places(SCHEMAS[version][kind])


@cache
def schema_message(version: int, kind: str) -> bytes:
    """The bare schema as an encapsulated IPC message."""
    message: bytes = SCHEMAS[version][kind].serialize().to_pybytes()
    return message


@cache
def head(version: int, kind: str) -> bytes:
    """How every file of a version and kind begins."""
    return ipc_file.HEAD + schema_message(version, kind)


def padded(document: bytes) -> bytes:
    """The document with spaces behind it, so that there are few lengths of documents and few templates."""
    step = _DOC_STEP if len(document) <= _DOC_LONG else _DOC_LONG_STEP
    return document + b" " * (-len(document) % step)


def make_tail(version: int, kind: str, text: bytes, digest: bytes, places: list[Place]) -> bytearray:
    """What follows the blocks, with zeros for the digits of the CRC.

    Args:
        version: of the format.
        kind: of file.
        text: the metadata document.
        digest: of that text.
        places: of the blocks.
    """
    if len(places) > 1 or len(text) > _TEMPLATE_DOC_MAX:
        return bytearray(_built_tail(version, kind, text, digest, places))
    template = _template(version, kind, len(text), len(places))
    tail = bytearray(template.tail)
    tail[template.text_at : template.text_at + len(text)] = text
    tail[template.digest_at : template.digest_at + DIGEST_DIGITS] = digest
    for place in places:
        ipc_file.BLOCK.pack_into(tail, _PLACE_AT, *place)
    return tail


def match_tail(data: bytes, start: int) -> tuple[bytes, bytes] | None:
    """Return the document and the digest in the tail that starts at `start` of `data` and goes to its end.

    Returns None unless every byte outside the fields is what `make_tail` writes: a tail with several blocks or a long
    document, one that another version of pyarrow laid out, a damaged or a foreign one. Parse those as Arrow.
    """
    document = _DOC_START.search(data, max(start, 0))
    if start < 0 or document is None or len(data) < start + _PLACE_AT:
        return None
    version, kind, text_at = int(document[1]), document[2].decode(), document.start()
    length = _LENGTH.unpack_from(data, text_at - 4)[0]
    blocks = _LENGTH.unpack_from(data, start + _PLACE_AT - 4)[0]
    if kind not in SCHEMAS.get(version, ()) or blocks > 1 or length > _TEMPLATE_DOC_MAX or length % _DOC_STEP:
        return None
    template = _template(version, kind, length, blocks)
    if len(data) != start + len(template.tail):
        return None
    text, digest_at = data[text_at : text_at + length], start + template.digest_at
    digest = data[digest_at : digest_at + DIGEST_DIGITS]
    places: list[Place] = [ipc_file.BLOCK.unpack_from(data, start + _PLACE_AT)] if blocks else []
    digits_at = crc_at(data)
    without_crc = data[start:digits_at] + CRC_ZEROS + data[digits_at + len(CRC_ZEROS) :]
    return (text, digest) if without_crc == make_tail(version, kind, text, digest, places) else None


def crc_at(data: bytes | bytearray) -> int:
    """Where the digits of the CRC stand in a file or its tail; below the mark's length if there is none."""
    return data.rfind(CRC_MARK) + len(CRC_MARK)


class _Template(NamedTuple):
    tail: bytes
    text_at: int
    digest_at: int


@lru_cache(128)
def _template(version: int, kind: str, length: int, blocks: int) -> _Template:
    """The tail of files with a document of `length` bytes and none or one block."""
    text, digest = b"\x03" * length, b"\x04" * DIGEST_DIGITS
    tail = _built_tail(version, kind, text, digest, [(0, 0, 0)] * blocks)
    return _Template(tail, tail.index(text), tail.index(digest))


def _built_tail(version: int, kind: str, text: bytes, digest: bytes, places: list[Place]) -> bytes:
    metadata = {"rmq.doc": text, "rmq.digest": digest, "rmq.file": CRC_MARK + CRC_ZEROS}
    schema = SCHEMAS[version][kind].with_metadata(metadata)
    return ipc_file.tail(schema.serialize().to_pybytes(), places)
