"""Where a moment is in a queue, and when a queue's message was stored, from metadata and a block or two.

storeTimestamp never goes back along a log, so a moment is a place in the log, and its offset in a queue is where the
queue's first run at or behind that place begins. The tail index tells it of commits, a segment's run index of segments;
where a segment has no message of the queue, the next one that has some tells. Nothing is scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from rmq_spark.log.arrow_columns import integers_of
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader, blocks_with
from rmq_spark.log.files import read_planned
from rmq_spark.log.marks import Mark
from rmq_spark.log.queues import Queues

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.view import LogView

I64 = npt.NDArray[np.int64]
Answer = TypeVar("Answer")
Queue = tuple[str, int]
"""Topic and queue id, within one log."""


class Boundary(StrEnum):
    """Which offset a moment means (RocketMQ 5.1.1 and later)."""

    LOWER = "lower"
    """The first message stored at the moment or later; the queue's end when there is none."""
    UPPER = "upper"
    """The last message stored at the moment or before; 0 when there is none."""


@dataclass(frozen=True, slots=True)
class Span:
    """What a queue holds."""

    first: int
    """First offset that is still held."""
    end: int
    """Exclusive end."""
    first_ms: int | None
    """storeTimestamp of the first message; None when there is none."""
    last_ms: int | None
    """storeTimestamp of the last message; None when there is none."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a queue holds for somebody who has come to an offset."""

    first: int
    """First offset that is still held."""
    end: int
    """Exclusive end."""
    oldest_ms: int | None
    """storeTimestamp of the next message for them; None when there is none."""


@dataclass(frozen=True, slots=True)
class _LogSnapshot:
    """A log as of one refresh."""

    mark: Mark
    bounds: dict[Queue, tuple[int, int]]
    """First held and next offset of the queues that were asked for."""
    tails: dict[Queue, tuple[I64, I64]]
    """Of their runs in the commits behind the segments: the queue offset at which each begins, and its time."""
    blocks: dict[tuple[str, int], I64] = field(default_factory=dict)
    """Store times of the rows of blocks that were read, by file and number."""


class TimeSearch:
    """Searches one log by time. Safe to use from any thread."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def search(self, queues: Iterable[Queue], ms: int, boundary: Boundary = Boundary.LOWER) -> dict[Queue, int]:
        """The offset that the moment `ms` means in each queue; never one that is no longer held, except for 0.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """
        moment = ms if boundary is Boundary.LOWER else ms + 1

        def offset(seen: _LogSnapshot, queue: Queue) -> int:
            start, end = seen.bounds[queue]
            at = min(max(self._first_since(seen, queue, moment), start), end)
            if boundary is Boundary.UPPER:
                at = at - 1 if at > start else 0
            return at

        return self._ask(queues, offset)

    def spans(self, queues: Iterable[Queue]) -> dict[Queue, Span]:
        """What each queue holds, and from when to when.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """

        def span(seen: _LogSnapshot, queue: Queue) -> Span:
            first, end = held = seen.bounds[queue]
            return Span(*held, *(self._store_time(seen, queue, offset, held) for offset in (first, end - 1)))

        return self._ask(queues, span)

    def backlogs(self, offsets: Mapping[Queue, int]) -> dict[Queue, Backlog]:
        """What each queue holds from an offset on, or from the first that it still holds.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """

        def backlog(seen: _LogSnapshot, queue: Queue) -> Backlog:
            held = seen.bounds[queue]
            return Backlog(*held, self._store_time(seen, queue, max(offsets[queue], held[0]), held))

        return self._ask(offsets, backlog)

    def stored_at(self, queue: Queue, offset: int) -> int | None:
        """When the message at an offset was stored, of a deleted topic, too; None if it is not held.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """

        def time(seen: _LogSnapshot, queue: Queue) -> int | None:
            held = Queues.load(seen.mark.starts).bounds(*queue)[1], seen.bounds[queue][1]
            return self._store_time(seen, queue, offset, held)

        return self._ask([queue], time)[queue]

    def _ask(self, wanted: Iterable[Queue], answer: Callable[[_LogSnapshot, Queue], Answer]) -> dict[Queue, Answer]:
        """The answer for each queue, all by one look at the log."""
        queues = list(dict.fromkeys(wanted))

        def take(view: LogView) -> _LogSnapshot:
            commits = view.state.commits
            firsts, times = np.array(commits.firsts), np.array(commits.times)
            bounds, tails = {}, {}
            for queue in queues:
                bounds[queue] = view.state.queues.bounds(*queue)
                holding, bases = commits.runs_of(*queue)
                tails[queue] = bases, times[np.searchsorted(firsts, holding)]
            return _LogSnapshot(view.mark, bounds, tails)

        return read_planned(self._log, take, lambda seen: {queue: answer(seen, queue) for queue in queues})

    # ------------------------------------------------------------ one queue

    def _first_since(self, seen: _LogSnapshot, queue: Queue, ms: int) -> int:
        """The queue's first offset that was stored at `ms` or later; its end when there is none."""
        for segment in seen.mark.segments:
            if segment.max_ms < ms:
                continue
            meta = self._log.files.segment(segment)
            for run in meta.runs.of_queue(*queue):
                return int(meta.bases[run]) + self._first_row(seen, meta, run, ms)
        bases, times = seen.tails[queue]
        late = int(np.searchsorted(times, ms))
        return int(bases[late]) if late < len(bases) else seen.bounds[queue][1]

    def _store_time(self, seen: _LogSnapshot, queue: Queue, offset: int, held: tuple[int, int]) -> int | None:
        """When the message at an offset was stored; None if that is not within `held`."""
        if not held[0] <= offset < held[1]:
            return None
        bases, times = seen.tails[queue]
        run = int(np.searchsorted(bases, offset, "right")) - 1  # the last that begins at or before the offset holds it
        if run >= 0:
            return int(times[run])
        files, segments = self._log.files, seen.mark.segments
        meta = files.segment(segments[files.segment_of(segments, *queue, offset)])
        [run] = meta.runs.of_queue(*queue)
        row = int(meta.runs.first_rows()[run] + offset - meta.bases[run])
        block = int(np.searchsorted(meta.block_rows, row, "right")) - 1
        if meta.block_bounds[block, 2] == meta.block_bounds[block, 3]:
            return int(meta.block_bounds[block, 2])
        return int(self._block_times(seen, meta, block)[row - int(meta.block_rows[block])])

    # ------------------------------------------------------------ one segment

    def _first_row(self, seen: _LogSnapshot, meta: FileMeta, run: int, ms: int) -> int:
        """Which of the run's rows is the first stored at `ms` or later; their number when none is."""
        starts, bounds = meta.block_rows, meta.block_bounds
        low = int(meta.runs.first_rows()[run])
        high = low + int(meta.runs.rows[run])
        blocks = blocks_with(meta, np.array([low]), np.array([high]))
        # Only the run's first and last block are shared with other runs: of those between, the first that may hold
        # such a row does.
        for block in np.flatnonzero(blocks & (bounds[:, 3] >= ms)).tolist():
            first, last = max(low, int(starts[block])), min(high, int(starts[block + 1]))
            if int(bounds[block, 2]) >= ms:
                return first - low
            times = self._block_times(seen, meta, block)[first - int(starts[block]) : last - int(starts[block])]
            row = first + int(np.searchsorted(times, ms))
            if row < last:
                return row - low
        return high - low

    def _block_times(self, seen: _LogSnapshot, meta: FileMeta, block: int) -> I64:
        times = seen.blocks.get((meta.path, block))
        if times is None:
            _, _, batch = next(FileReader(self._log.storage, meta).read([block], ["storeTimestamp"]))
            times = integers_of(batch.column(0))
            seen.blocks[meta.path, block] = times
        return times
