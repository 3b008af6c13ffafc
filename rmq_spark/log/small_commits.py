"""Rows of many small commits at once: their record batches are one Arrow stream behind a common schema."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import integers, repeated
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.run_index import find_order
from rmq_spark.log.small_files import decode_small_files

I64 = npt.NDArray[np.int64]


def is_small(meta: FileMeta) -> bool:
    """Whether a commit came whole with its metadata, and carries its rows itself."""
    return meta.whole is not None and "blocks" not in meta.doc and "files" not in meta.doc


def decode_commits(metas: Sequence[FileMeta]) -> pa.RecordBatch:
    """The stored columns of small commits, in the order of the log.

    Raises:
        CorruptDataError: a commit's rows cannot be parsed, or are not as many as it says.
    """
    return decode_small_files([meta.whole or b"" for meta in metas], rows=[meta.rows for meta in metas])


def queue_offsets_of(metas: Sequence[FileMeta]) -> I64:
    """Queue offset of each row of these commits."""
    bases = np.concatenate([meta.bases for meta in metas])
    rows = np.concatenate([meta.runs.rows for meta in metas])
    ends = np.cumsum(rows, dtype=np.int64)
    return np.repeat(bases - (ends - rows), rows) + np.arange(int(ends[-1]))


def join_rows(metas: Sequence[FileMeta], broker: str) -> pa.RecordBatch:
    """The messages of neighbouring small commits as one batch of `schema.MESSAGE`, in the order of a segment.

    Raises:
        CorruptDataError: a commit's rows cannot be parsed, or are not as many as it says.
    """
    whole = decode_commits(metas)
    return _messages(metas, broker, whole, find_order(whole).order)


def queue_rows(metas: Sequence[FileMeta], broker: str, topic: str, queue: int) -> pa.RecordBatch:
    """The messages of one queue in small commits, each of which has some, as a batch of `schema.MESSAGE`.

    Raises:
        CorruptDataError: a commit's rows cannot be parsed, or are not as many as it says.
    """
    whole = decode_commits(metas)
    parts, before = [], 0
    for meta in metas:
        [run] = meta.runs.of_queue(topic, queue)
        first = before + int(meta.runs.rows[:run].sum())
        parts.append(np.arange(first, first + int(meta.runs.rows[run])))
        before += meta.rows
    rows = np.concatenate(parts)
    return _messages(metas, broker, whole, rows if len(rows) < len(whole) else None)


def _messages(metas: Sequence[FileMeta], broker: str, whole: pa.RecordBatch, rows: I64 | None) -> pa.RecordBatch:
    """Rows of these commits, all by default, with the columns that follow from where they are."""
    firsts = np.array([meta.doc["first"] for meta in metas], np.int64)
    counts = np.array([meta.rows for meta in metas], np.int64)
    commit = np.arange(len(whole)) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    times = np.repeat(np.array([meta.doc["ts"] for meta in metas], np.int64), counts)
    queue = queue_offsets_of(metas)
    if rows is not None:
        whole = whole.take(integers(rows))
        commit, times, queue = commit[rows], times[rows], queue[rows]
    derived = {
        "brokerName": repeated(broker, len(whole)),
        "commitOffset": integers(commit),
        "queueOffset": integers(queue),
        "storeTimestamp": integers(times).view(schema.TIMESTAMP),
    }
    columns = [derived[name] if name in derived else whole.column(name) for name in schema.MESSAGE.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema.MESSAGE)
