"""A column can be added by raising the format version: readers of the new version read both, older ones refuse."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from rmq_spark.errors import CorruptDataError, UnsupportedVersionError
from rmq_spark.log import file_format, file_layout, schema
from rmq_spark.log.file_encoder import Encoded, make_blocks
from rmq_spark.log.file_format import parse
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.message_batch import to_record_batch
from rmq_spark.log.small_commits import decode_small, is_small
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.testing.whole_file import check_whole

REGION = pa.field("region", pa.string())
NEXT_ROWS = schema.ROWS.append(REGION)
NEXT_VERSION = {
    **file_layout.SCHEMAS[file_layout.VERSION],
    "commit": NEXT_ROWS,
    "rows": NEXT_ROWS,
    "segment": schema.SEGMENT.append(REGION),
}


CACHED = (file_layout.schema_message, file_layout.head, file_layout.column_places, file_layout._template)


@pytest.fixture
def next_version() -> Iterator[pytest.MonkeyPatch]:
    """A next version with one column more is known and written; undone by `undo`, or at the end."""
    for cached in CACHED:
        cached.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(file_layout.SCHEMAS, file_layout.VERSION + 1, NEXT_VERSION)
        patch.setattr(file_layout, "VERSION", file_layout.VERSION + 1)
        yield patch
    for cached in CACHED:
        cached.cache_clear()


def rows(count: int) -> pa.RecordBatch:
    values = [("t", 0, f"{number:032X}", None, None, b"x" * 50, 0, 0, 0, None, 0, []) for number in range(count)]
    return to_record_batch(values)


def file_of(batches: list[pa.RecordBatch]) -> bytes:
    return b"".join(Encoded(make_blocks("rows", batches), {}))


def old_file(count: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    with monkeypatch.context() as patch:
        patch.setattr(file_layout, "VERSION", 1)
        return file_of([rows(count), rows(count)] if count > 1 else [rows(1)])


def new_file(count: int) -> bytes:
    regions = pa.array(["eu"] * count)
    batch = pa.RecordBatch.from_arrays([*rows(count).columns, regions], schema=NEXT_ROWS)
    return file_of([batch, batch] if count > 1 else [batch])


def read(data: bytes, names: list[str]) -> list[dict[str, Any]]:
    storage = MemoryStorage()
    storage.create_if_absent("file", [data])
    meta = check_whole("file", data)
    reader = FileReader(storage, meta)
    batches = [batch for _, _, batch in reader.read(range(len(meta.places.rows)), names)]
    assert all(batch.schema.names == names for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("count", [1, 400], ids=["small", "with a block table"])
@pytest.mark.parametrize("names", [["msgId", "region"], ["region"], NEXT_ROWS.names], ids=len)
@pytest.mark.usefixtures("next_version")
def test_a_reader_of_the_new_version_reads_both(count: int, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = old_file(count, monkeypatch), new_file(count)
    assert (parse("old", old, len(old)).doc["v"], parse("new", new, len(new)).doc["v"]) == (1, file_layout.VERSION)
    from_old, from_new = read(old, names), read(new, names)
    assert len(from_old) == len(from_new) == (2 * count if count > 1 else 1)
    assert {row.pop("region") for row in from_old} == {None}
    assert {row.pop("region") for row in from_new} == {"eu"}
    assert from_old == from_new


@pytest.mark.usefixtures("next_version")
def test_small_files_are_decoded_together_only_if_they_have_the_newest_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (check_whole("file", data) for data in (old_file(1, monkeypatch), new_file(1)))
    assert not is_small(old)
    assert is_small(new)
    assert decode_small([new, new]).column("region").to_pylist() == ["eu", "eu"]


@pytest.mark.usefixtures("next_version")
def test_a_column_that_no_version_has_is_an_error() -> None:
    with pytest.raises(KeyError):
        read(new_file(1), ["msgId", "regoin"])


@pytest.mark.parametrize("count", [1, 400])
def test_a_reader_of_an_older_version_refuses_by_the_version(count: int, next_version: pytest.MonkeyPatch) -> None:
    data = new_file(count)
    next_version.undo()
    with pytest.raises(UnsupportedVersionError, match="upgrade rmq-spark"):
        parse("new", data, len(data))


def test_own_small_files_are_read_without_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing the footer as Arrow takes a third of the time of following a log."""
    data = file_of([rows(1)])
    expected = file_format._read_arrow_footer("f", data)
    monkeypatch.setattr(file_format, "_read_arrow_footer", lambda *_: pytest.fail("parsed as Arrow"))
    meta = parse("f", data, len(data))
    assert (meta.doc, meta.digest) == expected


def test_a_file_that_another_writer_laid_out_is_parsed_as_arrow() -> None:
    data = file_of([rows(1)])
    source = pa.ipc.open_file(pa.BufferReader(data))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, source.schema) as writer:  # puts the metadata into the schema at the head, too
        writer.write_batch(source.get_batch(0))
    other = sink.getvalue().to_pybytes()
    assert file_layout.find_document(other, len(other) - 18 - int.from_bytes(other[-10:-6], "little")) is None
    assert parse("f", other[-2000:], len(other)).doc == parse("f", data, len(data)).doc


@pytest.mark.parametrize("length", [10, 5_000], ids=["copied from a template", "built by Arrow"])
def test_each_byte_of_a_file_that_is_read_without_arrow_is_checked(length: int) -> None:
    data = b"".join(Encoded(make_blocks("rows", [rows(1)]), {"nonce": "n" * length}))
    assert parse("f", data, len(data)).doc["nonce"] == "n" * length
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(CorruptDataError):
            parse("f", changed, len(changed))


def test_the_document_is_that_of_the_digest() -> None:
    """Also where the file's check-sum is right."""
    data = file_of([rows(1)])
    at = data.rindex(b'"rows":1') + len(b'"rows":')
    changed = bytearray(data[:at] + b"2" + data[at + 1 :])
    digits = file_layout.crc_at(changed)
    changed[digits : digits + 8] = file_layout.CRC_ZEROS
    changed[digits : digits + 8] = b"%08x" % zlib.crc32(changed)
    with pytest.raises(CorruptDataError, match="metadata check-sum is wrong"):
        parse("f", bytes(changed), len(changed))


@pytest.mark.parametrize("kind", ["rows", "mark"])
def test_templates_are_what_arrow_writes(kind: str) -> None:
    text = file_layout.padded(b'{"v":2,"kind":"%s"}' % kind.encode())
    for places in ([], [(8, 16, 24)]):
        expected = file_layout._built_tail(2, kind, text, file_layout.digest_of(text).encode(), places)
        assert file_layout.make_tail(2, kind, text, places) == expected
