"""Where a moment is in a queue, and when a queue's message was stored, from metadata and a block or two.

storeTimestamp never goes back along a log, so a moment is a place in the log, and its offset in a queue is where the
queue's first run at or behind that place begins. The tail index tells it of commits, a segment's run index of segments;
where a segment has no message of the queue, the next one that has some tells. Nothing is scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.files import LogFiles, read_planned
from rmq_spark.log.marks import Mark, SegmentRef
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
class _Tail:
    """The runs of one queue in the commits that are not rolled."""

    commits: I64
    """First offset of each commit that holds the queue, ascending."""
    bases: I64
    """Queue offset at which its run there begins."""


@dataclass(frozen=True, slots=True)
class _LogSnapshot:
    """A log as of one refresh."""

    mark: Mark
    firsts: I64
    """First offsets of the commits behind the segments, their times and fingerprints."""
    times: I64
    fingerprints: I64
    wide: list[int]
    """First offsets of commits whose runs only their metadata tells."""
    bounds: dict[Queue, tuple[int, int]]
    """First held and next offset of the queues that were asked for."""
    tails: dict[Queue, _Tail]


class _Segment:
    """A segment's run index, as far as times and offsets are concerned."""

    def __init__(self, files: LogFiles, meta: FileMeta) -> None:
        self.meta = meta
        self.first_rows = meta.runs.first_rows()
        self._files = files
        self._times: dict[int, I64] = {}

    def find(self, topic: str, queues: I64) -> tuple[I64, I64, I64]:
        """Per queue: number of its run (-1: none), and where that run begins and ends."""
        runs = self.meta.runs
        index = runs.topics.index(topic) if topic in runs.topics else -1
        low, high = np.searchsorted(runs.topic, [index, index + 1]) if index >= 0 else (0, 0)
        mine = runs.queue[low:high]
        at = np.searchsorted(mine, queues)
        has = at < len(mine)
        has[has] = mine[at[has]] == queues[has]
        run = np.where(has, low + at, -1)
        begin = np.zeros(len(queues), np.int64)
        begin[has] = self.meta.bases[run[has]]
        end = begin.copy()
        end[has] += runs.rows[run[has]]
        return run, begin, end

    def first_row(self, run: int, ms: int) -> int:
        """Which of the run's rows is the first stored at `ms` or later; their number when none is."""
        starts, bounds = self.meta.block_rows, self.meta.block_bounds
        low = int(self.first_rows[run])
        high = low + int(self.meta.runs.rows[run])
        begin = int(np.searchsorted(starts, low, "right")) - 1
        end = int(np.searchsorted(starts, high, "left"))
        # Only the run's first and last block are shared with other runs: of those between, the first that may hold
        # such a row does.
        for block in (begin + np.flatnonzero(bounds[begin:end, 3] >= ms)).tolist():
            first, last = max(low, int(starts[block])), min(high, int(starts[block + 1]))
            if int(bounds[block, 2]) >= ms:
                return first - low
            times = self._times_of(block)[first - int(starts[block]) : last - int(starts[block])]
            row = first + int(np.searchsorted(times, ms))
            if row < last:
                return row - low
        return high - low

    def time_of(self, row: int) -> int:
        """When a row was stored."""
        starts, bounds = self.meta.block_rows, self.meta.block_bounds
        block = int(np.searchsorted(starts, row, "right")) - 1
        if bounds[block, 2] == bounds[block, 3]:
            return int(bounds[block, 2])
        return int(self._times_of(block)[row - int(starts[block])])

    def _times_of(self, block: int) -> I64:
        times = self._times.get(block)
        if times is None:
            _, batch = next(FileReader(self._files.storage, self.meta).read_blocks([block], ["storeTimestamp"]))
            times = self._times[block] = batch.column(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        return times


class TimeSearch:
    """Searches one log by time. Safe to use from any thread."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def search(self, queues: Iterable[Queue], ms: int, boundary: Boundary = Boundary.LOWER) -> dict[Queue, int]:
        """The offset that the moment `ms` means in each queue; never one that is no longer held, except for 0.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """
        wanted = list(dict.fromkeys(queues))
        moment = ms if boundary is Boundary.LOWER else ms + 1

        def offsets(seen: _LogSnapshot) -> dict[Queue, int]:
            lower = self._lower(seen, wanted, moment)
            result = {}
            for queue, (start, end) in seen.bounds.items():
                at = min(max(lower[queue], start), end)
                if boundary is Boundary.UPPER:
                    at = at - 1 if at > start else 0
                result[queue] = at
            return result

        return self._ask(wanted, offsets)

    def spans(self, queues: Iterable[Queue]) -> dict[Queue, Span]:
        """What each queue holds, and from when to when.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """
        wanted = list(dict.fromkeys(queues))

        def spans(seen: _LogSnapshot) -> dict[Queue, Span]:
            first = {queue: seen.bounds[queue][0] for queue in wanted}
            last = {queue: seen.bounds[queue][1] - 1 for queue in wanted}
            firsts, lasts = self._store_times(seen, first), self._store_times(seen, last)
            return {queue: Span(*seen.bounds[queue], firsts.get(queue), lasts.get(queue)) for queue in wanted}

        return self._ask(wanted, spans)

    def backlogs(self, offsets: Mapping[Queue, int]) -> dict[Queue, Backlog]:
        """What each queue holds from an offset on, or from the first that it still holds.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """

        def backlogs(seen: _LogSnapshot) -> dict[Queue, Backlog]:
            first = {queue: max(offset, seen.bounds[queue][0]) for queue, offset in offsets.items()}
            oldest = self._store_times(seen, first)
            return {queue: Backlog(*seen.bounds[queue], oldest.get(queue)) for queue in offsets}

        return self._ask(list(offsets), backlogs)

    def stored_at(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """When the messages at these offsets were stored, of deleted topics, too; without those that have expired.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """

        def times(seen: _LogSnapshot) -> dict[Queue, int]:
            expired = Queues.load(seen.mark.starts)
            whole = {queue: (expired.bounds(*queue)[1], end) for queue, (_, end) in seen.bounds.items()}
            return self._store_times(replace(seen, bounds=whole), offsets)

        return self._ask(list(offsets), times)

    # ------------------------------------------------------------ by time

    def _lower(self, seen: _LogSnapshot, wanted: list[Queue], ms: int) -> dict[Queue, int]:
        segments = seen.mark.segments
        number = next((number for number, segment in enumerate(segments) if segment.max_ms >= ms), len(segments))
        if number == len(segments):
            return self._tail_bases(seen, wanted, int(np.searchsorted(seen.times, ms)))
        result: dict[Queue, int] = {}
        left = wanted
        moment: int | None = ms
        for segment in segments[number:]:
            if not left:
                return result
            file = self._segment(segment)
            for topic, queues in _by_topic(left).items():
                run, begin, _ = file.find(topic, queues)
                for queue, row, first in zip(queues.tolist(), run.tolist(), begin.tolist(), strict=True):
                    if row >= 0:
                        result[topic, queue] = first if moment is None else first + file.first_row(row, moment)
            left = [queue for queue in left if queue not in result]
            moment = None  # all messages of the segments behind are late enough
        return {**result, **self._tail_bases(seen, left, 0)}

    def _tail_bases(self, seen: _LogSnapshot, wanted: Sequence[Queue], at: int) -> dict[Queue, int]:
        """Where each queue's first run at or behind the commit number `at` begins; its end where there is none."""
        from_first = int(seen.firsts[at]) if at < len(seen.firsts) else 1 << 62
        result: dict[Queue, int] = {}
        near: dict[Queue, int] = {}
        for queue in wanted:
            tail = seen.tails[queue]
            place = int(np.searchsorted(tail.commits, from_first))
            inside = place < len(tail.commits)
            result[queue] = int(tail.bases[place]) if inside else seen.bounds[queue][1]
            near[queue] = int(tail.commits[place]) if inside else 1 << 62
        for first in seen.wide:
            if first < from_first:
                continue
            for queue, base, _ in self._wide_runs(seen, first, [q for q in wanted if near[q] > first]):
                if near[queue] > first:
                    result[queue], near[queue] = base, first
        return result

    # ------------------------------------------------------------ by offset

    def _store_times(self, seen: _LogSnapshot, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        held = {q: offset for q, offset in offsets.items() if seen.bounds[q][0] <= offset < seen.bounds[q][1]}
        floor = self._tail_bases(seen, list(held), 0)
        times = self._times_in_tail(seen, {q: offset for q, offset in held.items() if offset >= floor[q]})
        rolled = {q: offset for q, offset in held.items() if offset < floor[q]}
        for topic, queues in _by_topic(rolled).items():
            wanted = np.array([rolled[topic, queue] for queue in queues.tolist()], np.int64)
            self._times_in_segments(seen.mark.segments, topic, queues, wanted, times)
        return times

    def _times_in_tail(self, seen: _LogSnapshot, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        commits: dict[Queue, int] = {}
        for queue, offset in offsets.items():
            tail = seen.tails[queue]
            place = int(np.searchsorted(tail.bases, offset, "right")) - 1
            if place >= 0:
                commits[queue] = int(tail.commits[place])
        for first in seen.wide:
            # A queue may be in wide and in narrow commits: the last run that begins at or before the offset holds it.
            for queue, base, _ in self._wide_runs(seen, first, list(offsets)):
                if base <= offsets[queue] and first > commits.get(queue, -1):
                    commits[queue] = first
        return {queue: int(seen.times[np.searchsorted(seen.firsts, first)]) for queue, first in commits.items()}

    def _times_in_segments(
        self, segments: Sequence[SegmentRef], topic: str, queues: I64, offsets: I64, times: dict[Queue, int]
    ) -> None:
        """Halve the segments until each offset is found; one without messages of a queue tells no direction."""
        if not len(queues) or not segments:
            return
        middle = len(segments) // 2
        file = self._segment(segments[middle])
        run, begin, end = file.find(topic, queues)
        here = (run >= 0) & (begin <= offsets) & (offsets < end)
        rows = file.first_rows[run[here]] + offsets[here] - begin[here]
        for queue, row in zip(queues[here].tolist(), rows.tolist(), strict=True):
            times[topic, queue] = file.time_of(row)
        later = ~here & ((run < 0) | (offsets >= end))
        self._times_in_segments(segments[middle + 1 :], topic, queues[later], offsets[later], times)
        open_ = np.array([(topic, queue) not in times for queue in queues.tolist()])
        earlier = open_ & ((run < 0) | (offsets < begin))
        self._times_in_segments(segments[:middle], topic, queues[earlier], offsets[earlier], times)

    # ------------------------------------------------------------ files

    def _ask(self, wanted: list[Queue], answer: Callable[[_LogSnapshot], Answer]) -> Answer:
        def take(view: LogView) -> _LogSnapshot:
            commits = view.state.commits
            firsts, times, fingerprints = (
                np.frombuffer(column, np.int64).copy() if column else np.empty(0, np.int64)
                for column in (commits.firsts, commits.times, commits.fingerprints)
            )
            bounds = {q: view.state.queues.bounds(*q) for q in wanted}
            tails = {q: _Tail(*commits.runs_of(*q)) for q in wanted}
            return _LogSnapshot(view.mark, firsts, times, fingerprints, list(commits.wide), bounds, tails)

        return read_planned(self._log, take, answer)

    def _segment(self, segment: SegmentRef) -> _Segment:
        return _Segment(self._log.files, self._log.files.segment(segment))

    def _wide_runs(self, seen: _LogSnapshot, first: int, wanted: Sequence[Queue]) -> list[tuple[Queue, int, int]]:
        """The runs of the wanted queues in a commit that the tail index does not list: queue, begin and end."""
        if not wanted:
            return []
        number = int(np.searchsorted(seen.firsts, first))
        [meta] = self._log.files.commits([(first, int(seen.fingerprints[number]))])
        runs = meta.runs
        runs_of: list[tuple[Queue, int, int]] = []
        for topic, queues in _by_topic(wanted).items():
            if topic not in runs.topics:
                continue
            mine = np.flatnonzero((runs.topic == runs.topics.index(topic)) & np.isin(runs.queue, queues))
            for run in mine.tolist():
                base = int(meta.bases[run])
                runs_of.append(((topic, int(runs.queue[run])), base, base + int(runs.rows[run])))
        return runs_of


def _by_topic(wanted: Iterable[Queue]) -> dict[str, I64]:
    queues_of: dict[str, list[int]] = {}
    for topic, queue in wanted:
        queues_of.setdefault(topic, []).append(queue)
    return {topic: np.array(queues, np.int64) for topic, queues in queues_of.items()}
