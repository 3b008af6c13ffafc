"""What writers and readers of files share: the columns by format version, and the bytes around the rows.

A file is its head (magic and bare schema), its blocks of rows, and its tail (end-of-stream mark and footer). Head and
tail are the same in all files of a version and kind, except for a few fields in the tail: the metadata document, its
digest, the places of the blocks and the file's CRC-32. To have Arrow write or parse a tail takes longer than all else
that is done with the bytes of a small file: its tail is copied from a template, and a reader looks for the document.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache, lru_cache
from typing import Any, Final

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

_DOC_STEP: Final = 64
_TEMPLATE_DOC_MAX: Final = 4096
"""Tails with one block and a document up to this length are copied from a template."""
_NO_TEXT: Final = b"\x03"
_NO_DIGEST: Final = b"\x04" * 32
_DOC_START: Final = re.compile(rb'\{"v":([0-9]{1,4}),"kind":"([a-z]{1,16})"')
_PLACE_AT: Final = len(ipc_file.END_OF_STREAM) + ipc_file.BLOCKS_START

Place = tuple[int, int, int]
"""Of a block: where it starts in the file, length of its header, length of its columns."""


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


def digest_of(document: bytes) -> str:
    """The digest of a metadata document."""
    return hashlib.blake2b(document, digest_size=16).hexdigest()


def padded(document: bytes) -> bytes:
    """The document with spaces behind it, so that there are few lengths of documents and few templates."""
    return document + b" " * (-len(document) % _DOC_STEP)


def make_tail(version: int, kind: str, text: bytes, places: list[Place]) -> bytearray:
    """What follows the blocks, with zeros for the digits of the CRC.

    Args:
        version: of the format.
        kind: of file.
        text: the metadata document.
        places: of the blocks.
    """
    digest = digest_of(text).encode()
    if len(places) > 1 or len(text) > _TEMPLATE_DOC_MAX:
        return bytearray(_built_tail(version, kind, text, digest, places))
    template = _template(version, kind, len(text), len(places))
    tail = bytearray(template.replace(_NO_TEXT * len(text), text).replace(_NO_DIGEST, digest))
    for place in places:
        ipc_file.BLOCK.pack_into(tail, _PLACE_AT, *place)
    return tail


def find_document(data: bytes, data_end: int) -> tuple[dict[str, Any], str] | None:
    """The document and its digest in a whole file whose blocks end at `data_end`, found without parsing the footer.

    The columns are those of the format, by the file's head; that the footer says the same, the file's CRC must show.
    None for a file that begins in another way, as one that other programs wrote does, or whose document does not have
    the digest that the file names: let Arrow parse those.
    """
    document = _DOC_START.search(data, data_end)
    if document is None:
        return None
    version, kind, at = int(document[1]), document[2].decode(), document.start()
    if kind not in SCHEMAS.get(version, ()) or not data.startswith(head(version, kind)):
        return None
    text = data[at : at + int.from_bytes(data[at - 4 : at], "little")]
    digest = digest_of(text)
    return (json.loads(text.decode()), digest) if data.find(digest.encode(), data_end) >= 0 else None


def crc_at(data: bytes | bytearray) -> int:
    """Where the digits of the CRC stand in a file or its tail; below the mark's length if there is none."""
    return data.rfind(CRC_MARK) + len(CRC_MARK)


@lru_cache(128)
def _template(version: int, kind: str, length: int, blocks: int) -> bytes:
    """The tail of files with a document of `length` bytes and none or one block."""
    return _built_tail(version, kind, _NO_TEXT * length, _NO_DIGEST, [(0, 0, 0)] * blocks)


def _built_tail(version: int, kind: str, text: bytes, digest: bytes, places: list[Place]) -> bytes:
    metadata = {"rmq.doc": text, "rmq.digest": digest, "rmq.file": CRC_MARK + CRC_ZEROS}
    schema = SCHEMAS[version][kind].with_metadata(metadata)
    return ipc_file.tail(schema.serialize().to_pybytes(), places)
