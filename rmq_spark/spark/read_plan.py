"""From the runs of a log range to Spark's tasks: each queue in one task and in order, unless splitting is asked for."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from rmq_spark.log.run_table import RunTable
from rmq_spark.log.scan import Source

I64 = npt.NDArray[np.int64]

TASK_ROWS: Final = 500_000
TASK_BYTES: Final = 128 * 1024 * 1024
"""Queues are put together into tasks of about so many messages and bytes: a small batch is one task, and quick."""
LIGHT_TASK_ROWS: Final = 2_000_000
"""The same where little is read of most messages: a task has its price, and each of its files too."""
EVEN_ENOUGH: Final = 1.1
"""Neighbouring queues, which lie side by side in a file, stay together if no task gets so many times its share."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets [low, high) of one queue."""

    topic: str
    queue: int
    low: int
    high: int

    @property
    def rows(self) -> int:
        """How many messages."""
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Task:
    """What one Spark task reads of one broker: ranges of queues, and the files that hold them."""

    broker: str
    ranges: tuple[QueueRange, ...]
    sources: tuple[Source, ...]


def queue_ranges(
    table: RunTable, bounds: Mapping[tuple[str, int], tuple[int, int]] | None, firsts: Mapping[str, I64]
) -> list[QueueRange]:
    """The offsets of each queue in the table, narrowed by `bounds` (queues not named there are kept whole).

    Offsets of a queue are dense, so the runs of a log range are one range of offsets. `firsts` are the first readable
    offsets by topic and queue: what is below was deleted.
    """
    if not len(table.rows):
        return []
    place = table.topic << 20 | table.queue
    distinct, group = np.unique(place, return_inverse=True)
    low = np.full(len(distinct), np.iinfo(np.int64).max)
    high = np.zeros(len(distinct), np.int64)
    np.minimum.at(low, group, table.base)
    np.maximum.at(high, group, table.base + table.rows)
    ranges = []
    for index, code in enumerate(distinct.tolist()):
        topic, queue = table.topics[code >> 20], code & 0xFFFFF
        begin, end = int(low[index]), int(high[index])
        first = firsts.get(topic)
        if first is not None and queue < len(first):
            begin = max(begin, int(first[queue]))
        if bounds is not None and (wanted := bounds.get((topic, queue))) is not None:
            begin, end = max(begin, wanted[0]), min(end, wanted[1])
        if begin < end:
            ranges.append(QueueRange(topic, queue, begin, end))
    return ranges


def make_tasks(
    broker: str,
    table: RunTable,
    ranges: list[QueueRange],
    *,
    tasks_min: int | None,
    rows_max: int | None,
    light: bool = False,
) -> list[Task]:
    """Share the ranges out. With `tasks_min` or `rows_max` large ranges are split, else a queue is never split.

    `light` says that little is read of most messages, so that a task may have more of them.
    """
    total = sum(part.rows for part in ranges)
    if not total:
        return []
    if rows_max is None and (tasks_min is None or tasks_min <= len(ranges)):
        count = (
            _ceil(total, LIGHT_TASK_ROWS)
            if light
            else max(_ceil(total, TASK_ROWS), round(_weight(table, total) / TASK_BYTES))
        )
        bins = _share_out(ranges, min(len(ranges), max(tasks_min or 1, count)))
    else:
        pieces = [
            piece
            for part in ranges
            for piece in _pieces(part, max(_parts(part.rows, rows_max), _share(part.rows, total, tasks_min)))
        ]
        # Pieces of one queue may share a task only side by side: a task reads one range of each queue.
        bins = _fill(pieces, rows_max) if rows_max is not None else []
        if len(bins) < (tasks_min or 1):
            bins = [[piece] for piece in pieces]
    return [Task(broker, tuple(part), _sources(table, part)) for part in bins]


def _weight(table: RunTable, rows: int) -> float:
    """What `rows` of the table's messages weigh, by the averages of their files."""
    return float((table.rows * table.row_bytes).sum()) * rows / table.total


def _ceil(amount: int, each: int) -> int:
    return -(-amount // each)


def _parts(rows: int, rows_max: int | None) -> int:
    return 1 if rows_max is None else _ceil(rows, rows_max)


def _share(rows: int, total: int, tasks_min: int | None) -> int:
    # Rounded up: a hint that is met, as long as there are so many messages.
    return 1 if tasks_min is None else _ceil(rows * tasks_min, total)


def _pieces(part: QueueRange, count: int) -> list[QueueRange]:
    edges = [part.low + part.rows * step // count for step in range(count + 1)]
    return [QueueRange(part.topic, part.queue, low, high) for low, high in pairwise(edges) if low < high]


def _share_out(ranges: list[QueueRange], count: int) -> list[list[QueueRange]]:
    """Into `count` bins of about equal rows, of neighbours if that is even enough."""
    ends = np.cumsum([part.rows for part in ranges])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) / count) + 1
    edges = [0, *np.minimum(cuts, len(ranges)).tolist(), len(ranges)]
    bins = [ranges[low:high] for low, high in pairwise(edges)]
    if max(sum(part.rows for part in members) for members in bins) * count <= EVEN_ENOUGH * ends[-1]:
        return [members for members in bins if members]
    return _balance(ranges, count)


def _balance(ranges: list[QueueRange], count: int) -> list[list[QueueRange]]:
    """Into `count` bins of about equal rows: the largest first, each to the emptiest bin."""
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for index in sorted(range(len(ranges)), key=lambda index: -ranges[index].rows):
        load, number = heapq.heappop(loads)
        bins[number].append(index)
        heapq.heappush(loads, (load + ranges[index].rows, number))
    return [[ranges[index] for index in sorted(members)] for members in bins if members]


def _fill(ranges: list[QueueRange], rows_max: int) -> list[list[QueueRange]]:
    """Neighbours together as long as they fit."""
    bins: list[list[QueueRange]] = []
    load = 0
    for part in ranges:
        if not bins or load + part.rows > rows_max:
            bins.append([])
            load = 0
        bins[-1].append(part)
        load += part.rows
    return bins


def _sources(table: RunTable, part: list[QueueRange]) -> tuple[Source, ...]:
    """The files that hold rows of these ranges, in the order of the log."""
    if len(table.sources) == 1:
        return tuple(table.sources)
    rank = {topic: index for index, topic in enumerate(table.topics)}
    places, member = np.unique([rank[one.topic] << 20 | one.queue for one in part], return_inverse=True)
    low = np.full(len(places), np.iinfo(np.int64).max)
    high = np.zeros(len(places), np.int64)
    np.minimum.at(low, member, [one.low for one in part])
    np.maximum.at(high, member, [one.high for one in part])
    run = table.topic << 20 | table.queue
    at = np.minimum(np.searchsorted(places, run), len(places) - 1)
    touched = (places[at] == run) & (table.base < high[at]) & (table.base + table.rows > low[at])
    return tuple(table.sources[number] for number in np.unique(table.source[touched]).tolist())
