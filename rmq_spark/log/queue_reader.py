"""Reading one queue from an offset on, as a consumer does: the next messages, and where to go on.

A read touches only the files that hold the messages: the tail index tells which commit does, and a search over the
segments' run indexes where a backlog begins. Whoever reads on passes the log offset of its last message along, so the
search is done once.

A consumer that keeps up reads small commits, which are in memory since they were folded: those are decoded without a
scan. All else is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import DataExpiredError, NotFoundError
from rmq_spark.log import scan, schema
from rmq_spark.log.arrow_columns import booleans
from rmq_spark.log.files import read_planned
from rmq_spark.log.marks import SegmentRef
from rmq_spark.log.small_commits import is_small, queue_rows

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.view import LogView

BOOL = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class QueueFilter:
    """Which messages of a queue are wanted."""

    tag_codes: frozenset[int] | None = None
    """Skip runs that hold none of these tag hash codes."""
    predicate: Callable[[pa.RecordBatch], BOOL] | None = None
    """A mask over rows."""
    columns: tuple[str, ...] = ()
    """What `predicate` looks at."""


ALL: Final = QueueFilter()


@dataclass(frozen=True, slots=True)
class QueueRead:
    """What a read of a queue gave."""

    messages: pa.RecordBatch
    """The messages that match, in order."""
    next_offset: int
    """Where to go on: behind the last message that was looked at, matching or not."""
    place: int
    """A log offset that no later message of the queue is before; pass it to the next read."""
    end: int
    """The queue's end when it was read."""


def read_queue(
    log: CommitLog,
    topic: str,
    queue: int,
    offset: int,
    *,
    rows_max: int,
    wanted: QueueFilter = ALL,
    columns: Sequence[str] | None = None,
    place: int = 0,
) -> QueueRead:
    """Read up to `rows_max` messages of a queue from `offset` on; only those that match are returned.

    Args:
        log: the broker's log.
        topic: the queue's topic.
        queue: the queue's id.
        offset: the first queue offset.
        rows_max: how many messages are looked at.
        wanted: which of them are returned.
        columns: of `schema.MESSAGE`; all by default.
        place: `QueueRead.place` of the read before, or 0.

    Raises:
        DataExpiredError: the messages at `offset` are no longer held; the context names `first`, the first that is.
        CorruptDataError: a file is damaged.
    """
    names = tuple(columns or schema.MESSAGE.names)
    needed = tuple(dict.fromkeys((*names, "commitOffset")))

    def result(rows: pa.RecordBatch, high: int, end: int) -> QueueRead:
        at = rows.column("commitOffset")
        return QueueRead(rows.select(list(names)), high, at[-1].as_py() + 1 if len(at) else place, end)

    if (tail := _read_tail(log, topic, queue, (offset, offset + rows_max), wanted)) is not None:
        return result(*tail)

    def plan(view: LogView) -> _Planned:
        first, end = view.state.queues.bounds(topic, queue)
        if offset < first:
            raise DataExpiredError(
                "the messages are no longer held", topic=topic, queue=queue, offset=offset, first=first
            )
        high = max(offset, min(end, offset + rows_max))
        if high == offset:
            return _Planned(None, high, end)
        start, segments = _where(view, topic, queue, offset, place)
        query = scan.Query(
            start=start,
            ranges={(topic, queue): (offset, high)},
            tag_codes=wanted.tag_codes,
            predicate=wanted.predicate,
            predicate_columns=wanted.columns,
            columns=needed,
        )
        return _Planned(scan.plan(view, query), high, end, segments)

    def read(seen: _Planned) -> QueueRead:
        if seen.plan is None:
            return QueueRead(schema.no_messages(names), offset, place, seen.end)
        if seen.segments:
            low, last = (log.files.segment_of(seen.segments, topic, queue, at) for at in (offset, seen.high - 1))
            holding = {segment.first for segment in seen.segments[low : last + 1]}
            seen.plan.sources = [each for each in seen.plan.sources if each.kind == "commit" or each.first in holding]
        batches = list(scan.read_plan(log.files, log.broker, seen.plan))
        rows = pa.concat_batches(batches) if batches else schema.no_messages(needed)
        return result(rows, seen.high, seen.end)

    return read_planned(log, plan, read)


class _Planned(NamedTuple):
    plan: scan.Plan | None
    """None: there is nothing to read."""
    high: int
    """Behind the last offset that is looked at."""
    end: int
    """The queue's end."""
    segments: tuple[SegmentRef, ...] = ()
    """To be searched for those that hold the offsets; empty: the plan names no other."""


def _where(view: LogView, topic: str, queue: int, offset: int, place: int) -> tuple[int, tuple[SegmentRef, ...]]:
    """Where the log has to be read from, and the segments to be searched, if it is not known better."""
    if place < view.mark.floor:
        tail = view.state.commits.runs_of(topic, queue)[1]
        if len(tail) and offset >= tail[0]:
            return view.mark.floor, ()
    return place, () if place else view.mark.segments


def _read_tail(
    log: CommitLog, topic: str, queue: int, bounds: tuple[int, int], wanted: QueueFilter
) -> tuple[pa.RecordBatch, int, int] | None:
    """What small commits hold of a queue within `bounds`, by the log as last looked at; None: it is not that simple.

    Returns the messages, the offset behind them, and the queue's end.
    """

    def plan(view: LogView) -> tuple[list[tuple[int, int]], int, int]:
        first, end = view.state.queues.bounds(topic, queue)
        high = min(end, bounds[1])
        is_held = first <= bounds[0] < high
        return view.state.commits.small_in_range(topic, queue, bounds[0], high) if is_held else [], high, end

    commits, high, end = log.peek(plan) or ([], 0, 0)
    with suppress(NotFoundError):  # rolled meanwhile
        metas = log.files.commits(commits)
        if metas and all(is_small(meta) for meta in metas):
            rows = queue_rows(metas, log.broker, topic, queue)
            rows = rows.slice(bounds[0] - rows.column("queueOffset")[0].as_py(), high - bounds[0])
            if wanted.predicate is not None:
                rows = rows.filter(booleans(wanted.predicate(rows.select(list(wanted.columns)))))
            return rows, high, end
    return None
