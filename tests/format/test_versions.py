"""A column can be added by raising the format version: readers of the new version read both, older ones refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from rmq_spark.errors import UnsupportedVersionError
from rmq_spark.log import file_format, file_layout, ipc_file, schema
from rmq_spark.log.file_encoder import Encoded, make_blocks
from rmq_spark.log.file_format import check_whole, parse
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.message_batch import to_record_batch
from rmq_spark.log.small_commits import decode_small, is_small
from rmq_spark.storage.memory import MemoryStorage

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


def test_own_files_are_recognised_without_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing the footer as Arrow takes most of the time of following a log."""
    data = file_of([rows(1)])
    expected = file_format._parse_arrow_footer("f", data, len(data), parse("f", data, len(data)).data_end)
    monkeypatch.setattr(file_format, "_parse_arrow_footer", lambda *_: pytest.fail("parsed as Arrow"))
    meta = parse("f", data, len(data))
    assert (meta.doc, meta.digest, meta.rows) == (expected.doc, expected.digest, expected.rows)


def test_a_tail_that_another_writer_laid_out_is_parsed_as_arrow() -> None:
    data = file_of([rows(1)])
    source = pa.ipc.open_file(pa.BufferReader(data))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, source.schema) as writer:  # puts the metadata into the schema at the head, too
        writer.write_batch(source.get_batch(0))
    other = sink.getvalue().to_pybytes()
    tail = other[-2000:]
    assert file_layout.match_tail(other, len(other) - 18 - int.from_bytes(other[-10:-6], "little")) is None
    assert parse("f", tail, len(other)).doc == parse("f", data, len(data)).doc


def test_each_byte_of_a_tail_outside_its_fields_is_compared() -> None:
    data = file_of([rows(1)])
    start = parse("f", data, len(data)).data_end
    matched = file_layout.match_tail(data, start)
    assert matched is not None
    text, digest = matched
    text_at, digest_at, crc_at = data.rindex(text), data.rindex(digest), file_layout.crc_at(data)
    block_at = len(file_layout.head(file_layout.VERSION, "rows"))
    header = ipc_file.header_size(data[block_at:])
    place_at = data.rindex(ipc_file.BLOCK.pack(block_at, header, start - block_at - header))
    free = {
        *range(text_at, text_at + len(text)),
        *range(digest_at, digest_at + file_layout.DIGEST_DIGITS),
        *range(crc_at, crc_at + 8),
        *range(place_at, place_at + ipc_file.BLOCK.size),
    }
    for at in set(range(start, len(data))) - free:
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert file_layout.match_tail(changed, start) is None, at
