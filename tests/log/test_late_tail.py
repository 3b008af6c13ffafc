"""The metadata of a large commit is made by a second thread while its rows are being written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from faulty import BROKER, ROOT, open_log

from rmq_spark.errors import OutcomeUnknownError
from rmq_spark.log import rows as prepared
from rmq_spark.log.file_format import Encoded, check_whole, make_blocks
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.second_thread import MANY_ROWS
from rmq_spark.log.verify import verify
from rmq_spark.storage import paths
from rmq_spark.storage.base import Bytes
from rmq_spark.storage.local import TEMP_PREFIX, FileOps, LocalStorage
from rmq_spark.storage.local_ops import ALLOCATE_BYTES, write_all


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


class Pieces(Sequence[Any]):
    """Two pieces; notes when more than the first is asked for."""

    def __init__(self, early: bytes, seen: list[str]) -> None:
        self._early, self._seen = early, seen

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        if index == slice(None, -1):
            return [self._early]
        self._seen.append("asked")
        return [self._early, b"tail"][index]


class Noting(FileOps):
    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
        self._seen.append("written")
        return super().writev(fd, pieces)


@pytest.mark.parametrize(
    ("size", "order"),
    [(0, ["asked", "written"]), (100, ["asked", "written"]), (ALLOCATE_BYTES, ["written", "asked", "written"])],
)
def test_the_last_piece_is_asked_for_when_the_others_are_written(tmp_path: Path, size: int, order: list[str]) -> None:
    seen: list[str] = []
    with (tmp_path / "file").open("wb") as file:
        write_all(Noting(seen), file.fileno(), Pieces(b"x" * size, seen))
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
    assert len(file) == 3
    assert len(file[:-1]) == 2
    assert asked == []
    data = b"".join(file)
    assert len(data) == file.tail.file_size == sum(len(piece) for piece in file)
    assert asked == [1]
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


def test_a_document_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room for the filter")

    log = open_log(LocalStorage(tmp_path))
    log.append(many())
    batch = many()
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "_described", broken)
        with pytest.raises((MemoryError, OutcomeUnknownError)):
            log.append(batch)
    assert [path.name for path in tmp_path.rglob(f"{TEMP_PREFIX}*")] == []
    assert sum(found.num_rows for found in log.scan()) == MANY_ROWS
    log.append(many())
    log.append(batch)
    log.close()
    assert verify(log.storage, ROOT, BROKER).ok
    assert sum(found.num_rows for found in open_log(LocalStorage(tmp_path)).scan()) == 3 * MANY_ROWS
