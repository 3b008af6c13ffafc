"""A small log that has every kind of file: what the tests of damage and of the format work on."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rmq_spark.clock import ManualClock
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import read_meta
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import write_row_file
from rmq_spark.log.scan import Query
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage
from rmq_spark.storage.memory import MemoryStorage

BROKER = "broker-0"
ROOT = paths.broker_root(BROKER)
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
SETTINGS = LogSettings(
    block_bytes=8 * 1024,
    segment_bytes=40_000,
    delete_grace_ms=0,
    retention_ms=2 * HOUR_MS,
    snapshot_every_commits=10**9,
)
KINDS = {
    "commitlog": "commit",
    "data": "rows",
    "marks": "mark",
    "segments": "segment",
    "snapshots": "snapshot",
    "floors": "snapshot",
}
DIRECTORIES = tuple(KINDS)


def meta_of(storage: Storage, path: str) -> FileMeta:
    """The metadata of any file of a log; its directory tells the kind."""
    return read_meta(storage, path, KINDS[path.split("/")[-2]])


def small(clock: ManualClock, number: int) -> MessageBatch:
    """Three messages of two topics as Python values."""
    return MessageBatch.merge(
        [
            MessageBatch.of(
                topic="orders" if part else "payments",
                queue_id=(number + part) % 3,
                msg_id=f"{number:024X}{part:08X}",
                body=f"small {number}/{part} é中🙂".encode(),
                born_timestamp_ms=clock.now_ms(),
                tags=("A", "B", None)[part],
                keys=(f"k{number}", f"k{number} shared", None)[part],
                born_host="10.0.0.7",
                properties=[("region", "eu"), ("n", str(number))][: part + 1],
            )
            for part in (2, 0, 1)
        ]
    )


def large(clock: ManualClock, number: int, rows: int = 160) -> MessageBatch:
    """Rows over several queues, too many bytes for one block."""
    draw = random.Random(number)
    return MessageBatch.from_arrow(
        pa.table(
            {
                "topic": ["orders" if row % 2 else "refunds" for row in range(rows)],
                "queueId": pa.array([row % 5 for row in range(rows)], pa.int32()),
                "msgId": [f"{number:024X}{row:08X}" for row in range(rows)],
                "tags": [("A", "C", None)[row % 3] for row in range(rows)],
                "keys": [f"big{number}-{row}" if row % 4 else None for row in range(rows)],
                "body": pa.array([draw.randbytes(draw.randrange(0, 700)) for _ in range(rows)], pa.binary()),
                "bornTimestamp": pa.array([clock.now_ms()] * rows, pa.timestamp("ms", tz="UTC")),
                "properties": pa.array(
                    [[("row", str(row))] * (row % 2) for row in range(rows)], pa.map_(pa.string(), pa.string())
                ),
            }
        )
    )


@dataclass(frozen=True)
class Sample:
    """The log's storage, its clock, and every message it holds."""

    storage: Storage
    clock: ManualClock
    messages: pa.Table

    def files(self) -> list[str]:
        """Paths of all files of the log, sorted."""
        return sorted(
            f"{ROOT}/{name}/{info.name}" for name in DIRECTORIES for info in self.storage.list(f"{ROOT}/{name}")
        )


def open_log(storage: Storage, clock: ManualClock, **options: Any) -> CommitLog:
    """A handle on the sample's log."""
    return CommitLog(storage, ROOT, BROKER, settings=SETTINGS, clock=clock, **options)


def read_all(storage: Storage, clock: ManualClock, columns: tuple[str, ...] | None = None) -> pa.Table:
    """Every message, by log offset, through a handle of its own."""
    log = open_log(storage, clock, read_only=True)
    return pa.Table.from_batches(list(log.scan(Query(columns=columns))))


def build(storage: Storage | None = None, clock: ManualClock | None = None, large_rows: int = 160) -> Sample:
    """Commits small and large, a commit of two row files, segments, an expired one, marks, a snapshot."""
    clock = clock or ManualClock(START_MS)
    storage = storage or MemoryStorage(clock=clock)
    log = open_log(storage, clock)

    def append(batch: MessageBatch) -> None:
        log.append(batch)
        clock.advance(1)

    for number in range(4):
        append(small(clock, number))
    append(large(clock, 10, large_rows))
    roll(log)
    clock.advance(3 * 3600)
    log = open_log(storage, clock)
    for number in range(4, 8):
        append(small(clock, number))
    append(large(clock, 11, large_rows))
    for number in range(20, 22):
        append(small(clock, number))
    roll(log)
    expire(log)
    for number in range(30, 33):
        append(small(clock, number))
    append(large(clock, 12, large_rows))
    parts = [small(clock, 40), large(clock, 41, large_rows)]
    files = [
        write_row_file(storage, ROOT, part, nonce=clock.token(), block_bytes=SETTINGS.block_bytes) for part in parts
    ]
    log.append_files(files, app=("job-1", 7))
    clock.advance(1)
    append(small(clock, 50))
    log.snapshot()
    append(small(clock, 51))
    log.close()
    return Sample(storage, clock, read_all(storage, clock))
