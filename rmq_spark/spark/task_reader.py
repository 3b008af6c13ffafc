"""What a Spark task does: read its ranges from its files, filter, and hand over Arrow batches that Spark accepts.

A task opens no log. It gets the files by name; only when one has been rolled away meanwhile does it look at the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark import filter as filters
from rmq_spark.clock import SystemClock
from rmq_spark.log import scan
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.files import LogFiles
from rmq_spark.log.view import LogView
from rmq_spark.spark.options import ReadOptions
from rmq_spark.spark.read_plan import Task
from rmq_spark.spark.schema import Shape, join_small
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage
from rmq_spark.storage.open import open_storage

BATCH_ROWS: Final = 4_000
"""Batches for Spark have about so many rows: for each smaller one it pays, of larger ones it reads each column's values
after they have left the processor's cache."""
BATCH_BYTES: Final = 8 * 1024 * 1024

_log = logging.getLogger(__name__)
# Runs in Spark's workers, where nobody sets levels: with Spark's worker logging on, what was read can be looked up.
_log.setLevel(logging.INFO)


class TaskLog:
    """A log as a task knows it: where it is. Opened only when a file has moved."""

    def __init__(self, files: LogFiles, broker: str) -> None:
        self.files = files
        self.broker = broker

    @cached_property
    def _opened(self) -> CommitLog:
        return CommitLog(self.files.storage, self.files.root, self.broker, read_only=True)

    def refresh(self) -> LogView:
        return self._opened.refresh()


@cache
def _storage(uri: str, options: tuple[tuple[str, str], ...]) -> Storage:
    """Spark reuses its Python workers, so connections are kept."""
    return open_storage(uri, options=dict(options), clock=SystemClock())


@cache
def _files(uri: str, options: tuple[tuple[str, str], ...], broker: str) -> LogFiles:
    """Tasks of one worker look at the same files, each for its own queues."""
    return LogFiles(_storage(uri, options), paths.broker_root(broker))


def reads_little(options: ReadOptions, shape: Shape) -> bool:
    """Whether tasks read little of most messages."""
    return options.has_filter or "body" not in shape.columns


def read_task(
    options: ReadOptions, shape: Shape, task: Task, from_ms: int | None, to_ms: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the task's messages, shaped for Spark.

    Raises:
        DataExpiredError: retention deleted some of them meanwhile, and `failOnDataLoss` is true.
        CorruptDataError: a file is damaged.
    """
    log = TaskLog(_files(options.store, tuple(sorted(options.storage_options.items())), task.broker), task.broker)
    stats = scan.ScanStats()
    query = _query(options, shape, task, from_ms, to_ms)
    planned = scan.Plan(query, list(task.sources), scan.queue_bounds(query.ranges or {}), stats)
    rows = 0
    for batch in _joined(shape.to_spark_batch(batch) for batch in scan.run(log, planned) if batch.num_rows):
        rows += batch.num_rows
        yield batch
    _log.info(
        "read %d of %d rows and %d bytes in %d of %d files (%s, %d queues)",
        rows,
        stats.rows_read,
        stats.bytes_read,
        stats.files_read,
        len(task.sources),
        task.broker,
        len(task.ranges),
    )


def _query(options: ReadOptions, shape: Shape, task: Task, from_ms: int | None, to_ms: int | None) -> scan.Query:
    chosen: list[filters.Filter] = []
    codes = None
    if options.tags is not None:
        tags = filters.compile_tags(options.tags)
        codes = tags.codes
        chosen.append(tags)
    if options.sql is not None:
        chosen.append(filters.compile_sql(options.sql))

    def predicate(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        masks = [wanted.mask(batch).to_numpy(zero_copy_only=False) for wanted in chosen]
        both: npt.NDArray[np.bool_] = np.logical_and.reduce(masks)
        return both

    columns = tuple(sorted(set().union(*(wanted.columns for wanted in chosen)))) if chosen else ()
    return scan.Query(
        ranges=_ranges(task),
        from_ms=from_ms,
        to_ms=to_ms,
        tag_codes=codes,
        keys=frozenset(options.keys),
        msg_id=options.msg_id,
        # An expression such as `1 = 1` looks at no column; the scan needs one to know how many rows there are.
        predicate=predicate if chosen else None,
        predicate_columns=columns or ("queueId",) if chosen else (),
        columns=shape.columns,
        skip_expired=not options.fail_on_data_loss,
    )


def _ranges(task: Task) -> dict[tuple[str, int], tuple[int, int]]:
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for part in task.ranges:
        low, high = ranges.get((part.topic, part.queue), (part.low, part.high))
        ranges[part.topic, part.queue] = (min(low, part.low), max(high, part.high))
    return ranges


def _joined(batches: Iterator[pa.RecordBatch] | Any) -> Iterator[pa.RecordBatch]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and (rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > BATCH_BYTES):
            yield join_small(waiting)
            waiting, rows, size = [], 0, 0
        if batch.num_rows > BATCH_ROWS:
            yield from _split(batch)
        else:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
    if waiting:
        yield join_small(waiting)


def _split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    parts = -(-batch.num_rows // BATCH_ROWS)
    cuts = [batch.num_rows * part // parts for part in range(parts + 1)]
    return (batch.slice(low, high - low) for low, high in pairwise(cuts))
