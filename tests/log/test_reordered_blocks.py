"""Rows that have to be reordered are copied part by part by a worker; the result is what Arrow would have written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from faulty import BROKER, ROOT, open_log
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.log import rows as prepared
from rmq_spark.log import schema
from rmq_spark.log.file_encoder import Encoded
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.rows import PreparedRows, block_edges, prepare
from rmq_spark.log.run_index import sort_into_runs
from rmq_spark.log.verify import verify
from rmq_spark.storage import paths
from rmq_spark.storage.local import FileOps, LocalStorage
from rmq_spark.testing.whole_file import check_whole

BLOCK_BYTES = 1 << 14
COUNT = 3_000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "PART_BYTES", 1 << 16)


def table(rows: int = COUNT, *, wide: bool = False, first: int = 0, nulls: bool = True) -> pa.Table:
    """Messages in two topics and fifty queues, none of them where it belongs."""
    number = np.arange(first, first + rows)
    return pa.table(
        {
            "topic": pa.array(["a", "b"]).take(pa.array(number % 2)),
            "queueId": pa.array((number * 7 % 50).astype(np.int32)),
            "msgId": [f"{value:032d}" for value in number.tolist()],
            "tags": pa.array(["x", None if nulls else "z", "y"]).take(pa.array(number % 3)),
            "keys": [f"k{value}" for value in number.tolist()],
            "body": [b"%08d" % value if wide else b"%d" % value * (value % 5) for value in number.tolist()],
            "bornTimestamp": pa.array(number).cast(pa.timestamp("ms", "UTC")),
            "properties": pa.array([[("n", str(value))] * (value % 3) for value in number.tolist()], schema.PROPERTIES),
        }
    )


def blocks_of_arrow(batch: pa.RecordBatch, block_bytes: int = BLOCK_BYTES) -> list[pa.RecordBatch]:
    """The blocks as they would be if all rows were moved at once."""
    ordered, runs, order = sort_into_runs(batch)
    edges = block_edges(batch, runs.rows, block_bytes, order=order)
    assert all(low < high for low, high in pairwise(edges)) and edges[-1] == batch.num_rows
    return [ordered.slice(low, high - low) for low, high in pairwise(edges)]


def blocks_of(rows: PreparedRows) -> list[pa.RecordBatch]:
    """The blocks as pyarrow reads them."""
    found = []
    for block in rows.blocks.all():
        found.append(pa.ipc.read_record_batch(pa.py_buffer(block.data), schema.ROWS))
        found[-1].validate(full=True)
    return found


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 13])
def test_blocks_are_those_of_arrow(wide: bool, cut: int) -> None:
    batch = MessageBatch.from_arrow(table(wide=wide).slice(cut))
    rows = prepare(batch, BLOCK_BYTES)
    assert len(rows.blocks.parts) > 3
    assert blocks_of(rows) == blocks_of_arrow(batch.record_batch())


def test_the_file_is_whole_and_its_metadata_that_of_sorted_rows() -> None:
    moved = prepare(MessageBatch.from_arrow(table()), BLOCK_BYTES)
    ordered, _, _ = sort_into_runs(MessageBatch.from_arrow(table()).record_batch())
    in_place = prepare(MessageBatch(table=pa.Table.from_batches([ordered])), BLOCK_BYTES)
    metas = [
        check_whole("rows", b"".join(Encoded(rows.blocks, {**rows.doc, "nonce": "n"})))  # type: ignore[misc]
        for rows in (moved, in_place)
    ]
    for name in ("kind", "rows", "topics", "runs", "tagn", "bloom", "ids"):
        assert metas[0].doc[name] == metas[1].doc[name]
    ends = np.cumsum(metas[0].runs.tag_counts)[:-1]
    for mine, other in zip(*(np.split(meta.runs.tag_codes, ends) for meta in metas), strict=True):
        assert set(mine.tolist()) == set(other.tolist())


@given(
    values=st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=9), st.none() | st.text(max_size=3)), min_size=1)
)
def test_any_rows_are_moved_as_arrow_would(values: list[tuple[int, bytes, str | None]]) -> None:
    given_rows = pa.table(
        {
            "topic": ["a"] * len(values) * 20,
            "queueId": pa.array([queue for queue, _, _ in values] * 20, pa.int32()),
            "msgId": [f"{number}" for number in range(20 * len(values))],
            "keys": pa.array([key for _, _, key in values] * 20, pa.string()),
            "body": pa.array([body for _, body, _ in values] * 20, pa.binary()),
            "bornTimestamp": pa.array(range(20 * len(values)), pa.timestamp("ms", "UTC")),
        }
    )
    batch = MessageBatch.from_arrow(given_rows)
    rows = prepare(batch, 512)
    assert blocks_of(rows) == blocks_of_arrow(batch.record_batch(), 512)


def test_bitmaps_that_say_nothing_do_not_make_the_file_longer(tmp_path: Path) -> None:
    """Room is set aside by what the rows have in memory: some of it is not written."""
    count = 30_000
    given_rows = table(count, wide=True, nulls=False).drop_columns(["keys"])  # whose filter would outweigh it
    valid = pa.py_buffer(b"\xff" * (count // 8))
    columns = []
    for column in given_rows.columns:
        array = column.combine_chunks()
        if not pa.types.is_map(array.type):
            array = pa.Array.from_buffers(array.type, count, [valid, *array.buffers()[1:]])
        columns.append(array)
    batch = MessageBatch.from_arrow(pa.table(columns, given_rows.schema.names))
    rows = prepare(batch, 1 << 18)
    assert sum(len(block.data) for block in rows.blocks.all()) < rows.blocks.about_bytes
    log = open_log(LocalStorage(tmp_path))
    log.append(batch)
    log.close()
    assert verify(log.storage, ROOT, BROKER).ok
    path = paths.commit(ROOT, 0)
    assert check_whole(path, (tmp_path / path).read_bytes()).rows == count


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_rows_stay_together_and_in_the_order_of_their_queue(tmp_path: Path, flush: str) -> None:
    log = open_log(LocalStorage(tmp_path), flush=flush)
    done = log.append(MessageBatch.from_arrow(table()))
    log.append(MessageBatch.from_arrow(table(first=COUNT)))
    found: dict[tuple[str, int], list[int]] = {}
    for batch in log.scan():
        for row in batch.to_pylist():
            assert row["keys"] == f"k{int(row['msgId'])}"
            found.setdefault((row["topic"], row["queueId"]), []).append(int(row["msgId"]))
    log.close()
    assert verify(log.storage, ROOT, BROKER).ok
    assert sum(map(len, found.values())) == 2 * COUNT
    assert all(numbers == sorted(numbers) for numbers in found.values())
    assert done.commit_offsets is not None and sorted(done.commit_offsets.tolist()) == list(range(COUNT))


def test_what_stands_beneath_nulls_counts_for_nothing(tmp_path: Path) -> None:
    """Neither for the room that is set aside nor for where blocks are cut: it is not written."""
    found = []

    class Noting(FileOps):
        def allocate(self, fd: int, size: int) -> None:
            found.append(size)
            super().allocate(fd, size)

    count = 20_000
    given_rows = table(count)
    texts = pa.array(["h" * 1000] * count)
    one = pa.py_buffer(b"\1" + bytes(count // 8 - 1))  # all but the first are null
    hosts = pa.Array.from_buffers(pa.string(), count, [one, *texts.buffers()[1:]])
    batch = MessageBatch.from_arrow(given_rows.append_column("bornHost", hosts))
    plain = MessageBatch.from_arrow(given_rows.append_column("bornHost", pa.array(["h"] + [None] * (count - 1))))
    blocks = [len(list(prepare(rows, BLOCK_BYTES).blocks.all())) for rows in (batch, plain)]
    assert abs(blocks[0] - blocks[1]) < 3
    log = open_log(LocalStorage(tmp_path, ops=Noting()))
    log.append(batch)
    log.close()
    size = (tmp_path / paths.commit(ROOT, 0)).stat().st_size
    assert 0.8 * size < max(found) < size


@pytest.mark.parametrize("queues", [[0, 1], [1, 0]])
def test_a_small_file_of_moved_rows_has_no_block_table(queues: list[int]) -> None:
    two = table(3).take(pa.array([0, 2])).set_column(1, "queueId", pa.array(queues, pa.int32()))  # of one topic
    rows = prepare(MessageBatch.from_arrow(two), 1 << 18)
    assert (rows.order is None) == (queues == [0, 1])
    made = b"".join(Encoded(rows.blocks, {**rows.doc, "nonce": "n"}))
    assert "blocks" not in check_whole("commit", made).doc


def failing(monkeypatch: pytest.MonkeyPatch, where: Callable[[], bool]) -> list[str]:
    """Let parts fail that are made `where` this holds; returns the names of the threads where some did."""
    real, failed = prepared.make_part, list[str]()

    def make_part(*args: Any) -> Any:
        if where():
            failed.append(threading.current_thread().name)
            raise MemoryError("no room")
        return real(*args)

    monkeypatch.setattr(prepared, "make_part", make_part)
    return failed


@pytest.mark.parametrize("first", [True, False])
def test_a_part_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    log = open_log(LocalStorage(tmp_path))
    batch = MessageBatch.from_arrow(table())
    made = iter([first])
    failing(monkeypatch, lambda: next(made, True))
    with pytest.raises(MemoryError):
        log.append(batch)
    monkeypatch.undo()
    assert list((tmp_path / "brokers").rglob("*.arrow")) == [] and list(tmp_path.rglob(".rmq-tmp*")) == []
    assert log.append(batch).commit_offsets is not None  # not an unclear outcome: nothing stands in its way
    log.close()
    report = verify(log.storage, ROOT, BROKER)
    assert report.ok and report.messages == COUNT


def test_a_worker_makes_the_parts_in_order_and_ends_with_the_last() -> None:
    made: list[tuple[int, threading.Thread]] = []

    def make(number: int) -> int:
        made.append((number, threading.current_thread()))
        return number

    results = prepared._in_background(make, range(4))
    assert [result() for result in results] == [0, 1, 2, 3]
    [worker] = {thread for _, thread in made}
    assert [number for number, _ in made] == [0, 1, 2, 3] and worker is not threading.current_thread()
    worker.join(10)
    assert not worker.is_alive()


def test_the_caller_makes_the_parts_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(prepared.ThreadPoolExecutor, "submit", refuse)
    batch = MessageBatch.from_arrow(table())
    rows = prepare(batch, BLOCK_BYTES)
    assert blocks_of(rows) == blocks_of_arrow(batch.record_batch())
    assert rows.blocks.parts[1]() is rows.blocks.parts[1](), "each part is made once"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12: fork beside threads, on purpose
def test_a_forked_child_moves_rows_too() -> None:
    batch = MessageBatch.from_arrow(table())
    rows = prepare(batch, BLOCK_BYTES)  # the parent's threads are running
    child = os.fork()
    if child == 0:
        mine = prepare(batch, BLOCK_BYTES)
        os._exit(0 if len(list(mine.blocks.all())) > 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(rows.blocks.all())) > 3
