"""The run index of a file: its rows sorted by topic and queue, and one entry for each queue's stretch of rows.

A run is the rows of one queue within a file. They are contiguous and keep the order in which they were appended.
Sorting works on whole columns; the only Python loop is over distinct topics. Batches of a few Python rows are sorted in
plain Python, which is faster there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import RowReorderer, integers_of
from rmq_spark.log.schema import Row
from rmq_spark.model.java_hash import java_hash, java_hashes

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

TAGS_PER_RUN_MAX: Final = 64
"""A run with more distinct tags than this lists none of them, and is never skipped by tag."""

_TAGS: Final = schema.ROWS.get_field_index("tags")


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


def queue_offsets(rows: I32, bases: I64) -> I64:
    """Queue offset of each row in file order, given how many rows each run has, and the offset of its first."""
    if len(rows) == 1:  # as in most commits; a tenth of an append of one message
        return np.arange(bases[0], bases[0] + rows[0])
    ends = np.cumsum(rows, dtype=np.int64)
    return np.repeat(bases - (ends - rows), rows) + np.arange(rows.sum())


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
    topics, topic = _sorted_dictionary(batch.column("topic"))
    queue = integers_of(batch.column("queueId"))
    group = topic.astype(np.int64) << 32 | queue
    order = None
    if np.any(group[1:] < group[:-1]):
        order = _stable_order(topic, queue)
        group = group[order]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    heads = group[starts]
    rows = np.diff(starts, append=len(group)).astype(np.int32)
    return RowOrder(topics, (heads >> 32).astype(np.int32), (heads & 0xFFFFFFFF).astype(np.int32), rows, order)


def _sorted_dictionary(column: pa.StringArray) -> tuple[list[str], I32]:
    """The distinct texts, sorted, and the place among them of each row's."""
    if len(column) and column[1:].equals(column[:-1]):  # as in most batches; else a sixth of their append goes here
        return [column[0].as_py()], np.zeros(len(column), np.int32)
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    order = sorted(range(len(values)), key=values.__getitem__)
    rank = np.empty(len(values), np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    return [values[index] for index in order], rank[integers_of(encoded.indices)]


def _stable_order(topic: I32, queue: I32) -> I64:
    # numpy sorts integers of 8 and 16 bits, as queue ids are, by radix: several times faster than longer ones.
    order: I64 = np.lexsort([values.astype(np.min_scalar_type(values.max())) for values in (queue, topic)])
    return order


def sort_rows(rows: list[Row]) -> tuple[list[Row], Runs, I64 | None]:
    """As `sort_into_runs`, for a few messages that are Python values."""
    if len(rows) == 1:
        return rows, _one_run(rows[0][0], rows[0][1], rows[0][_TAGS] or ""), None
    places = [(row[0], row[1]) for row in rows]
    original = sorted(range(len(rows)), key=places.__getitem__)
    order = None
    if original != list(range(len(rows))):
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
    """The run index of one message. Most share theirs with others, and working it out takes a tenth of an append."""
    one = np.ones(1, np.int32)
    return Runs([topic], one - 1, np.array([queue_id], np.int32), one, one, np.array([java_hash(tags)], np.int32))


def tag_codes(tags: pa.StringArray, order: I64 | None, rows: I32) -> tuple[I32, I32]:
    """Distinct tag codes per run, as (count per run, codes concatenated), sorted within a run.

    Args:
        tags: of each row, in the original order of rows.
        order: original number of each sorted row; None when the rows are sorted already.
        rows: number of rows of each run.
    """
    encoded = tags.dictionary_encode("encode")
    # No tag and an empty one have the same code; others may share theirs, too.
    codes, rank = np.unique(_hashes(encoded.dictionary), return_inverse=True)
    runs, distinct = len(rows), len(codes)
    code_of_row = rank[integers_of(encoded.indices)]
    in_order = code_of_row if order is None else code_of_row[order]
    cells = _distinct(np.repeat(np.arange(runs) * distinct, rows) + in_order, runs * distinct)
    run, code = np.divmod(cells, distinct)
    counts = np.bincount(run, minlength=runs).astype(np.int32)
    crowded = counts > TAGS_PER_RUN_MAX
    listed = codes[code[~crowded[run]]]
    counts[crowded] = -1
    return counts, listed


def _distinct(values: I64, end: int) -> I64:
    """The distinct ones of numbers below `end`, sorted."""
    if end > 16 * len(values):
        return np.unique(values)
    seen = np.zeros(end, np.bool_)  # several times faster than to sort them
    seen[values] = True
    return np.flatnonzero(seen)


def _hashes(tags: pa.StringArray) -> I32:
    """The code of each tag."""
    if len(tags) <= TAGS_PER_RUN_MAX:  # as most; for columns with nulls `java_hashes` imports pandas, if installed
        return np.array([java_hash(tag or "") for tag in tags.to_pylist()], np.int32)
    return java_hashes(tags)
