"""The run index of a file: its rows sorted by topic and queue, and one entry for each queue's stretch of rows.

A run is the rows of one queue within a file. They are contiguous and keep the order in which they were appended.
Sorting works on whole columns; the only Python loops are over distinct topics and tags. Batches of a few Python rows
are sorted in plain Python, which is faster there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import RowReorderer, integers_of, is_constant
from rmq_spark.log.schema import Row
from rmq_spark.log.tag_codes import TAGS_PER_RUN_MAX, tag_codes
from rmq_spark.model.java_hash import java_hash

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

_TAGS: Final = schema.ROWS.get_field_index("tags")
_ZERO: Final = np.frombuffer(bytes(4), np.int32)
_ONE: Final = np.frombuffer((1).to_bytes(4, sys.byteorder), np.int32)


@dataclass(frozen=True, slots=True)
class Runs:
    """The run index: one entry for each queue's rows in a file, in row order."""

    topics: list[str]
    """Distinct topics of the file, sorted."""
    topic: I32
    """Per run: index into `topics`."""
    queue: I32
    """Per run: queue id."""
    rows: I32
    """Per run: number of rows."""
    tag_counts: I32
    """Per run: how many codes of `tag_codes` are its own; -1 when it has too many to list."""
    tag_codes: I32
    """Distinct tag hash codes of the runs, concatenated; 0 stands for messages without a tag."""

    def first_rows(self) -> I64:
        """Per run: index of its first row in the file."""
        ends: I64 = np.cumsum(self.rows, dtype=np.int64)
        return ends - self.rows

    def is_of_queue(self, topic: str, queue: int) -> BOOL:
        """Per run: whether it is one of this queue."""
        number = self.topics.index(topic) if topic in self.topics else -1
        mine: BOOL = (self.topic == number) & (self.queue == queue)
        return mine

    def of_queue(self, topic: str, queue: int) -> list[int]:
        """Numbers of a queue's runs: one at most, unless the file is a commit that refers to several row files."""
        runs: list[int] = np.flatnonzero(self.is_of_queue(topic, queue)).tolist()
        return runs


class RowOrder(NamedTuple):
    """How rows are sorted by (topic, queueId), and the runs that result. Tags have not been read yet."""

    topics: list[str]
    topic: I32
    queue: I32
    rows: I32
    order: I64 | None
    """Original row number of each sorted row; None when the rows are sorted already."""

    def runs(self, tags: pa.StringArray) -> Runs:
        """The run index, with the tags of the rows in their original order."""
        counts, codes = tag_codes(tags, self.order, self.rows)
        return Runs(self.topics, self.topic, self.queue, self.rows, counts, codes)


def sort_into_runs(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Runs, I64 | None]:
    """Return the rows stably sorted by (topic, queueId), their run index, and the original number of each row."""
    row_order = find_order(batch)
    ordered = batch if row_order.order is None else RowReorderer(batch).take(row_order.order)
    return ordered, row_order.runs(batch.column("tags")), row_order.order


def find_order(batch: pa.RecordBatch) -> RowOrder:
    """Compute the stable sort by (topic, queueId) and the resulting runs, without moving any row."""
    count = batch.num_rows
    if count == 0:
        none = np.empty(0, np.int32)
        return RowOrder([], none, none, none, None)
    topics, topic = _sorted_dictionary(batch.column("topic"))
    queue = integers_of(batch.column("queueId"))
    if len(topics) == 1 and queue[0] == queue[-1] and (queue == queue[0]).all():
        return RowOrder(topics, _ZERO, queue[:1].copy(), np.array([count], np.int32), None)
    # With one topic, which most batches have, the queue alone tells rows apart.
    group = queue if len(topics) == 1 else topic.astype(np.int64) << 32 | queue
    order = None
    if np.any(group[1:] < group[:-1]):
        order = _stable_order(topic, queue, len(topics), group)
        group = group[order]
    steps = np.flatnonzero(group[1:] != group[:-1])
    starts = np.concatenate(([0], steps + 1))
    rows = np.diff(starts, append=count).astype(np.int32)
    heads = group[starts].astype(np.int64)
    return RowOrder(topics, (heads >> 32).astype(np.int32), (heads & 0xFFFFFFFF).astype(np.int32), rows, order)


def sort_rows(rows: list[Row]) -> tuple[list[Row], Runs, I64 | None]:
    """As `sort_into_runs`, for a few messages that are Python values."""
    if len(rows) == 1:
        topic, queue_id, tags = rows[0][0], rows[0][1], rows[0][_TAGS]
        return rows, _one_run(topic, queue_id, tags or ""), None
    order = None
    places = [(row[0], row[1]) for row in rows]
    if any(place > after for place, after in pairwise(places)):
        original = sorted(range(len(rows)), key=places.__getitem__)
        rows = [rows[index] for index in original]
        order = np.array(original, np.int64)
    topics = sorted({place[0] for place in places})
    topic, queue, count, tag_counts, codes = [], [], [], [], []
    for place, group in groupby(rows, key=lambda row: (row[0], row[1])):
        members = list(group)
        topic.append(topics.index(place[0]))
        queue.append(place[1])
        count.append(len(members))
        distinct = {java_hash(row[_TAGS] or "") for row in members}
        tag_counts.append(len(distinct) if len(distinct) <= TAGS_PER_RUN_MAX else -1)
        codes += sorted(distinct) if len(distinct) <= TAGS_PER_RUN_MAX else []
    numbers = [np.array(values, np.int32) for values in (topic, queue, count, tag_counts, codes)]
    return rows, Runs(topics, *numbers), order


@lru_cache(4096)
def _one_run(topic: str, queue_id: int, tags: str) -> Runs:
    """The run index of one message; most messages share theirs with many others."""
    code = java_hash(tags)
    return Runs([topic], _ZERO, np.array([queue_id], np.int32), _ONE, _ONE, np.array([code], np.int32))


def _stable_order(topic: I32, queue: I32, topics: int, group: I64) -> I64:
    # numpy sorts 16-bit integers by radix: several times faster than its merge sort of 64-bit ones.
    width = int(queue.max()) + 1
    key: npt.NDArray[Any]
    if topics * width <= 65_536:
        key = (topic * width + queue).astype(np.uint16)
    else:
        distinct, code = np.unique(group, return_inverse=True)
        key = code.astype(np.uint16) if len(distinct) <= 65_536 else code
    order: I64 = np.argsort(key, kind="stable")
    return order


def _sorted_dictionary(column: pa.StringArray) -> tuple[list[str], I32]:
    if is_constant(column):
        return [column[0].as_py()], _ZERO  # broadcasts to arrays of any length
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = integers_of(encoded.indices)
    order = sorted(range(len(values)), key=values.__getitem__)
    rank = np.empty(len(values), np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    return [values[index] for index in order], rank[codes]
