"""The metadata of a large commit is made by a second thread while its rows are being written."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from faulty import BROKER, ROOT, open_log

from rmq_spark.log import rows as prepared
from rmq_spark.log.file_encoder import Encoded, make_blocks
from rmq_spark.log.file_format import check_whole
from rmq_spark.log.group_commit import Request
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.second_thread import MANY_ROWS
from rmq_spark.log.verify import verify
from rmq_spark.storage import paths
from rmq_spark.storage.base import Bytes, Pieces
from rmq_spark.storage.local import TEMP_PREFIX, FileOps, LocalStorage
from rmq_spark.storage.local_write import ALLOCATE_BYTES, CALL_BYTES_MAX, write_all


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


def test_pieces_before_the_tail_do_not_wait_for_the_document() -> None:
    batch = many().record_batch()
    asked: list[int] = []

    def document() -> dict[str, Any]:
        asked.append(1)
        rows = prepared.prepare(many(), 1 << 18)
        return {**rows.doc(), "nonce": "n"}

    file = Encoded(make_blocks("rows", [batch]), document)
    early = list(islice(file, 2))
    assert asked == []
    data = b"".join(file)
    assert len(data) == file.tail.file_size == sum(len(piece) for piece in file)
    assert asked == [1]
    assert len(file) == 3 and file[:-1] == early
    assert check_whole("rows", data).digest == file.tail.digest


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


def once(monkeypatch: pytest.MonkeyPatch, error: BaseException, count: int = 1) -> None:
    """Let the next `count` documents fail."""
    real, left = prepared._described, [error] * count

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
    # Twice: the second thread's failure is nobody's, and who asks then meets the same.
    once(monkeypatch, error, 2 if rows == MANY_ROWS else 1)
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


class Slow:
    """A file whose document is being made by another thread, as long as the context lasts."""

    def __init__(self) -> None:
        self._begun, self._go_on = threading.Event(), threading.Event()
        file = Encoded(make_blocks("rows", [many(10).record_batch()]), self._document)
        self._thread = threading.Thread(target=lambda: file.tail)

    def _document(self) -> dict[str, Any]:
        self._begun.set()
        self._go_on.wait(60)
        return {"nonce": "slow"}

    def __enter__(self) -> None:
        self._thread.start()
        assert self._begun.wait(10)

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._thread.join()


def test_another_log_does_not_wait_for_a_slow_document() -> None:
    log = open_log()
    with Slow():
        other = threading.Thread(target=lambda: log.append(many(10)))
        other.start()
        other.join(10)
        assert not other.is_alive()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12: fork beside threads, on purpose
def test_a_child_forked_meanwhile_can_append() -> None:
    with Slow():
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # ends a child that hangs
            open_log().append(many(10))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
