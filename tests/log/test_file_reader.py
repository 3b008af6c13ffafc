"""Reading blocks of a file: neighbours put together give the same rows, and metadata that is kept is never stale."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from rmq_spark.errors import CorruptDataError, NotFoundError
from rmq_spark.log import file_format, file_reader, files, schema
from rmq_spark.log.file_reader import FileReader, read_meta
from rmq_spark.log.files import LogFiles
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.rows import write_row_file
from rmq_spark.log.tail_index import fingerprint
from rmq_spark.storage import paths
from rmq_spark.storage.memory import MemoryStorage

ROOT = "brokers/b"
NAMES = schema.ROWS.names


def messages(count: int, body: int = 300, queue: int = 0) -> MessageBatch:
    rows = [
        MessageBatch.of(
            topic="t",
            queue_id=queue,
            msg_id=f"{queue:02X}{number:030X}",
            body=bytes([number % 256]) * body,
            born_timestamp_ms=number,
        )
        for number in range(count)
    ]
    return MessageBatch.merge(rows)


def written(storage: MemoryStorage, batch: MessageBatch, nonce: str = "n0", block_bytes: int = 1_000) -> str:
    """A row file with many blocks; returns its path."""
    return paths.data_file(ROOT, write_row_file(storage, ROOT, batch, nonce=nonce, block_bytes=block_bytes).name)


def rows_of(reader: FileReader, blocks: Sequence[int], names: Sequence[str]) -> pa.Table:
    return pa.Table.from_batches([batch for _, _, batch in reader.read(blocks, names)])


class Parses:
    """Counts how often metadata is parsed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(file_reader, "parse", self._parse)

    def _parse(self, path: str, tail: bytes, size: int) -> file_format.FileMeta:
        self.count += 1
        return file_format.parse(path, tail, size)


@pytest.mark.parametrize(("rows", "size"), [(16_384, 4 << 20), (40, 4 << 20), (16_384, 9_000), (1, 1)])
@pytest.mark.parametrize("names", [NAMES, ["tags"], ["queueId", "body"]])
def test_stretches_hold_the_same_rows_as_their_blocks(
    rows: int, size: int, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reader, "STRETCH_ROWS", rows)
    monkeypatch.setattr(file_reader, "FETCH_BYTES", size)
    storage = MemoryStorage()
    meta = read_meta(storage, written(storage, messages(300)), "rows")
    count = len(meta.places.rows)
    assert count > 10
    wanted = [number for number in range(count) if number not in (3, 7)]  # gaps: what is not wanted is not joined
    single = {block: rows_of(FileReader(storage, meta), [block], names) for block in wanted}
    seen: list[int] = []
    for low, high, batch in FileReader(storage, meta).read(wanted, names):
        members = list(range(low, high))
        assert pa.concat_tables([single[block] for block in members]).equals(pa.Table.from_batches([batch]))
        assert len(members) == 1 or batch.num_rows <= rows
        seen += members
    assert seen == wanted


def test_stretches_end_at_their_limits_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    meta = read_meta(storage, written(storage, messages(300)), "rows")
    blocks = list(range(len(meta.places.rows)))
    assert [(low, high) for low, high, _ in FileReader(storage, meta).read(blocks, NAMES)] == [(0, len(blocks))]
    largest = int(meta.places.rows.max())
    monkeypatch.setattr(file_reader, "STRETCH_ROWS", 2 * largest)
    found = [high - low for low, high, _ in FileReader(storage, meta).read(blocks, NAMES)]
    assert set(found[:-1]) == {2}


def test_blocks_far_apart_are_fetched_in_one_call_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    meta = read_meta(storage, written(storage, messages(300)), "rows")
    meta.whole = None  # as of a file that is larger than what is read with its tail
    calls = []
    read_ranges = storage.read_ranges
    monkeypatch.setattr(storage, "read_ranges", lambda path, ranges: calls.append(ranges) or read_ranges(path, ranges))
    monkeypatch.setattr(file_reader, "GAP_BYTES", 0)
    scattered = list(range(0, len(meta.places.rows), 3))
    assert len(list(FileReader(storage, meta).read(scattered, ["tags"]))) == len(scattered)
    assert len(calls) == 1, "each call is a round trip behind a network"
    monkeypatch.setattr(file_reader, "FETCH_BYTES", sum(size for _, size in calls.pop()) * 2 // 3)
    list(FileReader(storage, meta).read(scattered, ["tags"]))
    assert len(calls) == 2


def test_a_file_of_one_small_block_is_a_stretch() -> None:
    storage = MemoryStorage()
    meta = read_meta(storage, written(storage, messages(2, body=10), block_bytes=1 << 20), "rows")
    assert "blocks" not in meta.doc
    ((low, high, batch),) = FileReader(storage, meta).read([0], ["body"])
    assert (low, high, batch.num_rows) == (0, 1, 2)


def test_metadata_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    path = written(storage, messages(300))
    wanted = fingerprint(read_meta(storage, path, "rows").digest)
    parses = Parses(monkeypatch)
    kept = LogFiles(storage, ROOT)
    first = kept.meta(path, "rows", wanted)
    assert kept.meta(path, "rows", wanted) is first
    assert parses.count == 1


def test_another_file_under_the_same_name_is_not_taken_for_the_wanted_one() -> None:
    storage = MemoryStorage()
    path = written(storage, messages(300))
    before = read_meta(storage, path, "rows")
    storage.delete(path)
    assert written(storage, messages(300, queue=1)) == path
    after = read_meta(storage, path, "rows")
    assert after.digest != before.digest
    assert after.size == before.size, "the size alone does not tell them apart"
    kept = LogFiles(storage, ROOT)
    with pytest.raises(NotFoundError, match="another file stands"):
        kept.meta(path, "rows", fingerprint(before.digest))
    assert kept.meta(path, "rows", fingerprint(after.digest)).digest == after.digest


def test_a_file_of_another_kind_is_refused() -> None:
    storage = MemoryStorage()
    path = written(storage, messages(300))
    with pytest.raises(CorruptDataError, match="another kind"):
        LogFiles(storage, ROOT).meta(path, "segment", 0)


def test_what_was_not_asked_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    listed = [written(storage, messages(300), nonce=f"n{number}") for number in range(3)]
    metas = [read_meta(storage, path, "rows") for path in listed]
    monkeypatch.setattr(files, "CACHED_BYTES", 2 * metas[0].tail_bytes)
    parses = Parses(monkeypatch)
    kept = LogFiles(storage, ROOT)

    def ask(number: int) -> None:
        kept.meta(listed[number], "rows", fingerprint(metas[number].digest))

    for number in (0, 1, 0, 2):
        ask(number)
    assert parses.count == 3
    ask(0)
    assert parses.count == 3
    ask(1)
    assert parses.count == 4


@pytest.mark.parametrize("gap", [0, 200, 16 * 1024])
@pytest.mark.parametrize("start", [0, 3])
def test_some_columns_are_the_same_as_of_whole_rows(start: int, gap: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are put together from their buffers if their block is not there as a whole: nulls, maps, empty texts."""
    monkeypatch.setattr(file_reader, "GAP_BYTES", gap)
    count = 500
    number = range(count)
    table = pa.table(
        {
            "topic": ["t"] * count,
            "queueId": pa.array([index % 3 for index in number], pa.int32()),
            "msgId": [f"{index:032X}" for index in number],
            "tags": [None if index % 7 == 0 else "" if index % 5 == 0 else f"tag-{index % 4}" for index in number],
            "keys": pa.nulls(count, pa.string()),
            "body": [b"b" * (index % 50) for index in number],
            "bornTimestamp": pa.array(number, pa.int64()).cast(schema.TIMESTAMP),
            "properties": pa.array(
                [[(f"k{n}", f"v{index}") for n in range(index % 3)] for index in number], schema.PROPERTIES
            ),
        }
    )
    storage = MemoryStorage()
    path = written(storage, MessageBatch.from_arrow(table.slice(start)), block_bytes=2_000)
    meta = read_meta(storage, path, "rows")
    blocks = range(len(meta.places.rows))
    assert len(blocks) > 5
    whole = rows_of(FileReader(storage, meta), blocks, NAMES)
    assert whole.num_rows == count - start and whole["tags"].null_count and any(whole["properties"].to_pylist())
    for names in [[name] for name in NAMES] + [["properties", "tags"], ["body", "topic", "bornTimestamp"], NAMES[:6]]:
        reader = FileReader(storage, meta)
        found = rows_of(reader, blocks, names)
        found.validate(full=True)
        assert found.equals(whole.select(names)), names
        assert reader.bytes_read < meta.size


def test_a_damaged_column_is_not_returned_and_others_are() -> None:
    storage = MemoryStorage()
    path = written(storage, messages(300))
    meta = read_meta(storage, path, "rows")
    column = NAMES.index("body")
    data = bytearray(storage.read(path))
    at = int(meta.block_starts[4] + meta.places.body[4] + meta.places.ends[4][column]) - 9
    data[at] ^= 1
    damaged = MemoryStorage()
    damaged.create_if_absent(path, [bytes(data)])
    reader = FileReader(damaged, read_meta(damaged, path, "rows"))
    assert rows_of(reader, range(6), ["tags", "queueId"]).num_rows > 0
    with pytest.raises(CorruptDataError, match="body"):
        rows_of(reader, range(6), ["body"])
