"""Reading one queue from an offset on, as a consumer does: the next messages, and where to go on.

A read touches only the files that hold the messages: the tail index tells which commit does, and a search over the
segments' run indexes where a backlog begins. Whoever reads on passes the log offset of its last message along, so the
search is done once.

A consumer that keeps up reads small commits, which are in memory since they were folded: those are decoded without a
scan. All else is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import DataExpiredError, NotFoundError
from rmq_spark.log import scan, schema
from rmq_spark.log.arrow_columns import booleans, integers_of
from rmq_spark.log.files import LogFiles, read_planned
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
    if (tail := _read_tail(log, topic, queue, (offset, offset + rows_max), wanted)) is not None:
        messages, next_offset, end = tail
        at = messages.column("commitOffset")
        return QueueRead(messages.select(list(names)), next_offset, at[-1].as_py() + 1 if len(at) else place, end)

    def plan(view: LogView) -> tuple[scan.Plan, int, int, tuple[SegmentRef, ...]]:
        first, end = view.state.queues.bounds(topic, queue)
        if offset < first:
            raise DataExpiredError(
                "the messages are no longer held", topic=topic, queue=queue, offset=offset, first=first
            )
        high = max(offset, min(end, offset + rows_max))
        query = scan.Query(
            start=place,
            ranges={(topic, queue): (offset, high)},
            tag_codes=wanted.tag_codes,
            predicate=wanted.predicate,
            predicate_columns=wanted.columns,
            columns=needed,
        )
        planned = scan.plan(view, query, scan.ScanStats())
        tail = view.state.commits.runs_of(topic, queue)[1]
        rolled = not view.state.commits.wide and len(tail) > 0 and offset >= int(tail[0])
        if rolled or high == offset:
            planned.sources = [source for source in planned.sources if source.kind == "commit"]
        return planned, high, end, view.mark.segments

    def read(seen: tuple[scan.Plan, int, int, tuple[SegmentRef, ...]]) -> QueueRead:
        planned, high, end, segments = seen
        if high == offset:
            return QueueRead(schema.no_messages(names), offset, place, end)
        if not place and any(source.kind == "segment" for source in planned.sources):
            _skip_segments(log.files, planned, segments, (topic, queue), (offset, high))
        batches = list(scan.read_plan(log.files, log.broker, planned))
        rows = pa.concat_batches(batches) if batches else schema.no_messages(needed)
        at = integers_of(rows.column("commitOffset"))
        return QueueRead(rows.select(list(names)), high, int(at[-1]) + 1 if len(at) else place, end)

    return read_planned(log, plan, read)


def _read_tail(
    log: CommitLog, topic: str, queue: int, bounds: tuple[int, int], wanted: QueueFilter
) -> tuple[pa.RecordBatch, int, int] | None:
    """What small commits hold of a queue within `bounds`, by the log as last looked at; None: it is not that simple.

    Returns the messages, the offset behind them, and the queue's end.
    """

    def plan(view: LogView) -> tuple[list[tuple[int, int]], int, int] | None:
        low, (first, end) = bounds[0], view.state.queues.bounds(topic, queue)
        high = min(end, bounds[1])
        commits = view.state.commits.small_in_range(topic, queue, low, high) if first <= low < high else None
        return None if commits is None else (commits, high, end)

    planned = log.peek(plan)
    if planned is None:
        return None
    commits, high, end = planned
    try:
        metas = log.files.commits(commits)
    except NotFoundError:
        return None  # rolled meanwhile
    if not all(is_small(meta) for meta in metas):
        return None
    rows = queue_rows(metas, log.broker, topic, queue)
    begin = rows.column("queueOffset")[0].as_py()
    rows = rows.slice(bounds[0] - begin, high - bounds[0])
    if wanted.predicate is not None:
        rows = rows.filter(booleans(wanted.predicate(rows.select(list(wanted.columns)))))
    return rows, high, end


def _skip_segments(
    files: LogFiles,
    planned: scan.Plan,
    segments: Sequence[SegmentRef],
    place: tuple[str, int],
    bounds: tuple[int, int],
) -> None:
    """Leave out of a plan the segments that hold none of the queue's offsets within `bounds`."""
    low = files.segment_of(segments, *place, bounds[0])
    last = files.segment_of(segments, *place, bounds[1] - 1)
    keep = {f"/{segment.name}" for segment in segments[low : last + 1]}
    planned.sources = [
        source
        for source in planned.sources
        if source.kind != "segment" or source.path[source.path.rindex("/") :] in keep
    ]
