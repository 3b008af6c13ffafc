"""The records in commits: rows of the topics that folds read, with the columns that each fold names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_spark.log.arrow_columns import integers
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader, blocks_with
from rmq_spark.log.fold import Records
from rmq_spark.log.small_commits import decode_small, queue_offsets_of
from rmq_spark.log.state import LogState
from rmq_spark.storage.base import Storage


def read_records(storage: Storage, meta: FileMeta, state: LogState) -> Iterator[Records]:
    """The state messages of a commit: rows of those topics that a fold of `state` reads."""
    wanted = state.fold_topics(meta.doc["topics"])
    if not wanted:
        return
    if meta.doc.get("files"):
        raise meta.corrupt("state messages must be inline", topics=wanted)
    runs, firsts = meta.runs, meta.runs.first_rows()
    for topic in wanted:
        fold = state.fold_of(topic)
        mine = np.flatnonzero(runs.topic == runs.topics.index(topic))
        low, high = int(firsts[mine[0]]), int(firsts[mine[-1]] + runs.rows[mine[-1]])
        rows = _read_rows(storage, meta, low, high, [name for name in fold.columns if name != "queueOffset"])
        if "queueOffset" in fold.columns:
            steps = [np.arange(count) + base for base, count in zip(meta.bases[mine], runs.rows[mine], strict=True)]
            rows = rows.append_column("queueOffset", integers(np.concatenate(steps)))
        yield to_records(topic, rows, fold.columns, [meta.doc["ts"]] * (high - low))


def join_records(metas: Sequence[FileMeta], state: LogState) -> Iterator[Records]:
    """As `read_records`, of neighbouring small commits at once; each fold gets its records in the order of the log.

    Raises:
        CorruptDataError: a commit's rows cannot be parsed, or are not as many as it says.
    """
    metas = [meta for meta in metas if state.fold_topics(meta.doc["topics"])]
    if not metas:
        return
    rows = decode_small(metas).append_column("queueOffset", integers(queue_offsets_of(metas)))
    topics = sorted({topic for meta in metas for topic in state.fold_topics(meta.doc["topics"])})
    times = np.repeat([meta.doc["ts"] for meta in metas], [meta.rows for meta in metas])
    topic_of = [name for meta in metas for name in _topics_of(meta)]
    for fold in {state.fold_of(topic).name: state.fold_of(topic) for topic in topics}.values():
        at = np.array([row for row, topic in enumerate(topic_of) if topic in fold.topics], np.int64)
        mine = rows.select(list(fold.columns))
        if len(at) < len(rows):
            mine = mine.take(integers(at))
        when, names = times[at].tolist(), [topic_of[row] for row in at.tolist()]
        edges = [row for row in range(1, len(at)) if names[row] != names[row - 1]]
        for low, high in zip([0, *edges], [*edges, len(at)], strict=True):
            yield to_records(names[low], mine.slice(low, high - low), fold.columns, when[low:high])


def _topics_of(meta: FileMeta) -> list[str]:
    """The topic of each row of a commit."""
    names: list[str] = meta.doc["topics"]
    if len(names) == 1:
        return names * meta.rows
    runs = meta.runs
    return [names[topic] for topic in np.repeat(runs.topic, runs.rows).tolist()]


def to_records(topic: str, rows: pa.RecordBatch, names: Sequence[str], store_ms: list[int]) -> Records:
    """Rows of one topic, as a fold that names these columns gets them."""

    def values(name: str) -> list[Any]:
        column = rows.column(name)
        listed: list[Any] = (column.cast(pa.int64()) if name == "bornTimestamp" else column).to_pylist()
        return listed

    return Records.of_columns(topic, store_ms, names, values)


def _read_rows(storage: Storage, meta: FileMeta, low: int, high: int, names: list[str]) -> pa.RecordBatch:
    blocks = np.flatnonzero(blocks_with(meta, np.array([low]), np.array([high]))).tolist()
    whole = pa.concat_batches(batch for _, _, batch in FileReader(storage, meta).read(blocks, names or ["queueId"]))
    return whole.slice(low - int(meta.block_rows[blocks[0]]), high - low)
