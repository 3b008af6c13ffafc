"""Commits of large batches: written piece by piece, and a failed preparation leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from faulty import BROKER, ROOT, open_log

from rmq_spark.log import rows as prepared
from rmq_spark.log.group_commit import Request
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.verify import verify
from rmq_spark.storage import paths
from rmq_spark.storage.base import Bytes, Pieces
from rmq_spark.storage.local import TEMP_PREFIX, FileOps, LocalStorage
from rmq_spark.storage.local_write import ALLOCATE_BYTES, CALL_BYTES_MAX, write_all
from rmq_spark.testing.whole_file import check_whole

MANY_ROWS = 5_000


def many(rows: int = MANY_ROWS, queues: int = 3) -> MessageBatch:
    number = np.arange(rows)
    return MessageBatch.from_arrow(
        pa.table(
            {
                "topic": pa.repeat("orders", rows),
                "queueId": pa.array((number % queues).astype(np.int32)),
                "msgId": [f"{value:032X}" for value in number.tolist()],
                "keys": [f"order-{value}" for value in number.tolist()],
                "body": [b"x" * 100] * rows,
                "bornTimestamp": pa.array(number).cast(pa.timestamp("ms", "UTC")),
            }
        )
    )


class Late(Pieces):
    """Pieces; notes when each of them is asked for."""

    def __init__(self, pieces: list[bytes], about_bytes: int, seen: list[str]) -> None:
        self._pieces, self.about_bytes, self._seen = pieces, about_bytes, seen

    def __iter__(self) -> Iterator[Bytes]:
        for piece in self._pieces:
            self._seen.append("asked")
            yield piece


class Noting(FileOps):
    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
        self._seen.append("written")
        return super().writev(fd, pieces)


@pytest.mark.parametrize(
    ("size", "order"),
    [
        (0, ["asked", "asked", "written"]),
        (100, ["asked", "asked", "written"]),
        (ALLOCATE_BYTES, ["asked", "asked", "written"]),
        (CALL_BYTES_MAX, ["asked", "written", "asked", "written"]),
    ],
)
def test_a_piece_is_asked_for_when_those_before_are_written(tmp_path: Path, size: int, order: list[str]) -> None:
    seen: list[str] = []
    with (tmp_path / "file").open("wb") as file:
        write_all(Noting(seen), file.fileno(), Late([b"x" * size, b"tail"], size, seen), durable=False)
    assert (tmp_path / "file").read_bytes() == b"x" * size + b"tail"
    assert seen == order


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_large_commit_is_whole_and_found_by_its_keys(tmp_path: Path, flush: str) -> None:
    log = open_log(LocalStorage(tmp_path), flush=flush)
    log.append(many())
    result = log.append(many())
    assert result.commit_offsets is not None
    assert result.commit_offsets[0] == MANY_ROWS
    log.close()
    assert verify(log.storage, ROOT, BROKER).ok
    path = paths.commit(ROOT, 0)
    meta = check_whole(path, (tmp_path / path).read_bytes())
    assert meta.doc["ids"] == [f"{0:032X}", f"{MANY_ROWS - 1:032X}"]
    assert len(meta.bloom) > 0


def once(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the next document fail."""
    real, left = prepared._described, [error]

    def described(*args: Any) -> dict[str, Any]:
        if left:
            raise left.pop()
        return real(*args)

    monkeypatch.setattr(prepared, "_described", described)


@pytest.mark.parametrize("rows", [300, MANY_ROWS])
@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt()])
def test_a_document_that_could_not_be_made_leaves_nothing_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, error: BaseException
) -> None:
    log = open_log(LocalStorage(tmp_path))
    log.append(many(rows))
    batch = many(rows)
    once(monkeypatch, error)
    with pytest.raises(type(error)):  # not `OutcomeUnknownError`: nothing was written, and that is known
        log.append(batch)
    assert [path.name for path in tmp_path.rglob(f"{TEMP_PREFIX}*")] == []
    assert sum(found.num_rows for found in log.scan()) == rows
    monkeypatch.undo()
    log.append(batch)
    log.append(many(rows))
    log.close()
    assert verify(log.storage, ROOT, BROKER).ok
    assert sum(found.num_rows for found in open_log(LocalStorage(tmp_path)).scan()) == 3 * rows


def test_a_buffered_commit_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(flush="buffered", flush_interval_ms=60_000)
    once(monkeypatch, MemoryError("no room"))
    log.append(many(300))
    with pytest.raises(MemoryError):
        log.flush()
    log.append(many(300))
    log.flush()
    assert sum(found.num_rows for found in log.scan()) == 600
    log.close()


def test_one_bad_batch_does_not_fail_its_group() -> None:
    count = 300
    ends = pa.py_buffer((np.arange(count + 1) * 2).astype(np.int32).tobytes())
    not_text = pa.StringArray.from_buffers(count, ends, pa.py_buffer(b"\xff\xfe" * count))
    rows = pa.Table.from_batches([many(count).record_batch()])
    bad = Request(MessageBatch.from_arrow(rows.set_column(rows.column_names.index("msgId"), "msgId", not_text)))
    good = Request(many(count))
    log = open_log()
    log._commit_group([good, bad])
    assert good.settled
    assert isinstance(bad.error, UnicodeDecodeError)
    assert sum(found.num_rows for found in log.scan()) == count
