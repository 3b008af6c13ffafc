"""Where a moment is in a queue, and when a queue's message was stored, from metadata and a block or two.

storeTimestamp never goes back along a log, so a moment is a place in the log, and its offset in a queue is how many
messages the queue had before that place. One file tells: the segment that the place is in, or, among the commits behind
the segments, the nearest one on either side that holds the queue. Nothing is scanned.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader, read_meta
from rmq_spark.log.marks import Mark, SegmentRef
from rmq_spark.log.queues import Queues
from rmq_spark.log.snapshot import unpack_state
from rmq_spark.log.state import fingerprint
from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.view import LogView
    from rmq_spark.storage.base import Storage

I64 = npt.NDArray[np.int64]
Answer = TypeVar("Answer")
Queue = tuple[str, int]
"""Topic and queue id, within one log."""

SEGMENTS_KEPT: Final = 64
"""So many segments' metadata are kept between calls."""
RUNS_KEPT: Final = 1_000_000
"""So many runs of commits are kept between calls: some 40 MB."""
_FEW: Final = 16


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
class _Ground:
    """A log as it was at one look."""

    mark: Mark
    firsts: I64
    """First offsets of the commits behind the segments, and their times and fingerprints."""
    times: I64
    prints: I64
    bounds: dict[Queue, tuple[int, int]]
    """First held and next offset of the queues that were asked for."""


class _Segment:
    """What is needed of a segment's metadata."""

    def __init__(self, storage: Storage, meta: FileMeta) -> None:
        self.meta = meta
        self.first_rows = meta.runs.first_rows()
        self._state: str = meta.doc["state"]
        meta.doc.pop("bloom", None)  # the largest part, and nobody looks at keys here
        self._storage = storage

    @cached_property
    def ends(self) -> Queues:
        """The queues as they were at the segment's end."""
        return unpack_state(self._state).queues

    def find(self, topic: str, queues: I64) -> tuple[I64, I64, I64]:
        """Per queue: number of its run (-1: none), and its offsets at the segment's beginning and end."""
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
        if not has.all():
            begin[~has] = end[~has] = [self.ends.bounds(topic, queue)[1] for queue in queues[~has].tolist()]
        return run, begin, end

    def first_row(self, run: int, ms: int, blocks: dict[int, I64]) -> int:
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
            times = self.times(block, blocks)[first - int(starts[block]) : last - int(starts[block])]
            row = first + int(np.searchsorted(times, ms))
            if row < last:
                return row - low
        return high - low

    def time_of(self, row: int, blocks: dict[int, I64]) -> int:
        """When a row was stored."""
        starts, bounds = self.meta.block_rows, self.meta.block_bounds
        block = int(np.searchsorted(starts, row, "right")) - 1
        if bounds[block, 2] == bounds[block, 3]:
            return int(bounds[block, 2])
        return int(self.times(block, blocks)[row - int(starts[block])])

    def times(self, block: int, blocks: dict[int, I64]) -> I64:
        """The storeTimestamp column of a block; `blocks` keeps what this call has read."""
        found = blocks.get(block)
        if found is None:
            _, batch = next(FileReader(self._storage, self.meta).read_blocks([block], ["storeTimestamp"]))
            found = blocks[block] = batch.column(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        return found


@dataclass(frozen=True, slots=True)
class _Runs:
    """The run index of a commit."""

    topics: list[str]
    topic: I64
    queue: I64
    base: I64
    end: I64

    def of(self, wanted: Mapping[str, Iterable[int]]) -> Iterable[tuple[Queue, int, int]]:
        """Those of the wanted queues that have rows here, each with its range; one in several row files comes often."""
        for index, topic in enumerate(self.topics):
            open_ = wanted.get(topic)
            if not open_:
                continue
            mine = np.flatnonzero(self.topic == index)
            if len(mine) > _FEW:
                mine = mine[np.isin(self.queue[mine], np.fromiter(open_, np.int64))]
            rows = (self.queue[mine].tolist(), self.base[mine].tolist(), self.end[mine].tolist())
            yield from (((topic, queue), base, end) for queue, base, end in zip(*rows, strict=True) if queue in open_)


class TimeSearch:
    """Searches one log by time; remembers the metadata it has read. Safe to use from any thread."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._segments: OrderedDict[str, _Segment] = OrderedDict()
        self._commits: OrderedDict[tuple[int, int], _Runs] = OrderedDict()
        self._kept = 0

    def search(self, queues: Iterable[Queue], ms: int, boundary: Boundary = Boundary.LOWER) -> dict[Queue, int]:
        """The offset that the moment `ms` means in each queue; never one that is no longer held, except for 0.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """
        wanted = list(dict.fromkeys(queues))
        moment = ms if boundary is Boundary.LOWER else ms + 1
        ground, found = self._ask(wanted, lambda ground: self._lower(ground, wanted, moment))
        result = {}
        for queue, (start, end) in ground.bounds.items():
            at = min(max(found[queue], start), end)
            if boundary is Boundary.UPPER:
                at = at - 1 if at > start else 0
            result[queue] = at
        return result

    def spans(self, queues: Iterable[Queue]) -> dict[Queue, Span]:
        """What each queue holds, and from when to when.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """
        wanted = list(dict.fromkeys(queues))

        def times(ground: _Ground) -> tuple[dict[Queue, int], dict[Queue, int]]:
            first = {queue: ground.bounds[queue][0] for queue in wanted}
            last = {queue: ground.bounds[queue][1] - 1 for queue in wanted}
            return self._store_times(ground, first), self._store_times(ground, last)

        ground, (firsts, lasts) = self._ask(wanted, times)
        return {queue: Span(*ground.bounds[queue], firsts.get(queue), lasts.get(queue)) for queue in wanted}

    def backlogs(self, offsets: Mapping[Queue, int]) -> dict[Queue, Backlog]:
        """What each queue holds from an offset on, or from the first that it still holds.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """

        def times(ground: _Ground) -> dict[Queue, int]:
            first = {queue: max(offset, ground.bounds[queue][0]) for queue, offset in offsets.items()}
            return self._store_times(ground, first)

        ground, oldest = self._ask(list(offsets), times)
        return {queue: Backlog(*ground.bounds[queue], oldest.get(queue)) for queue in offsets}

    def stored_at(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """When the messages at these offsets were stored, of deleted topics, too; without those that have expired.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """

        def times(ground: _Ground) -> dict[Queue, int]:
            expired = Queues.load(ground.mark.starts)
            whole = {queue: (expired.bounds(*queue)[1], end) for queue, (_, end) in ground.bounds.items()}
            return self._store_times(replace(ground, bounds=whole), offsets)

        return self._ask(list(offsets), times)[1]

    # ------------------------------------------------------------ by time

    def _lower(self, ground: _Ground, wanted: list[Queue], ms: int) -> dict[Queue, int]:
        segment = next((segment for segment in ground.mark.segments if segment.max_ms >= ms), None)
        if segment is None:
            return self._lower_in_tail(ground, wanted, int(np.searchsorted(ground.times, ms)))
        file = self._segment(segment)
        blocks: dict[int, I64] = {}
        found = {}
        for topic, queues in _by_topic(wanted).items():
            run, begin, end = file.find(topic, queues)
            rows = zip(queues.tolist(), run.tolist(), begin.tolist(), end.tolist(), strict=True)
            for queue, number, first, last in rows:
                found[topic, queue] = last if number < 0 else first + file.first_row(number, ms, blocks)
        return found

    def _lower_in_tail(self, ground: _Ground, wanted: list[Queue], at: int) -> dict[Queue, int]:
        """What the queues' ends were before the commit number `at`: known from the nearest one that has the queue."""
        floor = self._ends_at_floor(ground, wanted)
        found = {queue: floor[queue] for queue in wanted if floor[queue] == ground.bounds[queue][1]}
        open_ = _Open(queue for queue in wanted if queue not in found)
        after, before = at, at - 1
        while open_.left:
            if after == len(ground.firsts):
                found.update({queue: ground.bounds[queue][1] for queue in open_.queues()})
                break
            if before < 0:
                found.update({queue: floor[queue] for queue in open_.queues()})
                break
            # Where both sides have a queue, they say the same. Of one in several files of a commit, the first one tells
            # where it began, the last one where it ended.
            here = {queue: end for queue, _, end in self._runs(ground, before).of(open_.by_topic)}
            runs = list(self._runs(ground, after).of(open_.by_topic))
            here.update({queue: base for queue, base, _ in reversed(runs)})
            found.update(here)
            for queue in here:
                open_.close(queue)
            after, before = after + 1, before - 1
        return found

    # ------------------------------------------------------------ by offset

    def _store_times(self, ground: _Ground, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        held = {q: offset for q, offset in offsets.items() if ground.bounds[q][0] <= offset < ground.bounds[q][1]}
        floor = self._ends_at_floor(ground, list(held))
        found = self._times_in_tail(ground, {q: offset for q, offset in held.items() if offset >= floor[q]})
        rolled = {q: offset for q, offset in held.items() if offset < floor[q]}
        for topic, queues in _by_topic(rolled).items():
            wanted = np.array([rolled[topic, queue] for queue in queues.tolist()], np.int64)
            self._times_in_segments(ground.mark.segments, topic, queues, wanted, found)
        return found

    def _times_in_tail(self, ground: _Ground, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        found: dict[Queue, int] = {}
        open_ = _Open(offsets)
        # From both ends: most who ask are near one of them.
        count = len(ground.firsts)
        for step in range(count):
            if not open_.left:
                break
            at = count - 1 - step // 2 if step % 2 == 0 else step // 2
            for queue, base, end in self._runs(ground, at).of(open_.by_topic):
                if base <= offsets[queue] < end and open_.close(queue):
                    found[queue] = int(ground.times[at])
        return found

    def _times_in_segments(
        self, segments: tuple[SegmentRef, ...], topic: str, queues: I64, offsets: I64, found: dict[Queue, int]
    ) -> None:
        """Halve the segments until each offset is found; every segment is looked at once at most."""
        if not len(queues) or not segments:
            return
        middle = len(segments) // 2
        file = self._segment(segments[middle])
        run, begin, end = file.find(topic, queues)
        here = (run >= 0) & (begin <= offsets) & (offsets < end)
        blocks: dict[int, I64] = {}
        rows = file.first_rows[run[here]] + offsets[here] - begin[here]
        for queue, row in zip(queues[here].tolist(), rows.tolist(), strict=True):
            found[topic, queue] = file.time_of(row, blocks)
        earlier = ~here & (offsets < begin)
        later = ~here & (offsets >= end)
        self._times_in_segments(segments[:middle], topic, queues[earlier], offsets[earlier], found)
        self._times_in_segments(segments[middle + 1 :], topic, queues[later], offsets[later], found)

    # ------------------------------------------------------------ files

    def _ask(self, wanted: list[Queue], answer: Callable[[_Ground], Answer]) -> tuple[_Ground, Answer]:
        """Look at the log and work out an answer; look again when files moved meanwhile."""

        def take(view: LogView) -> _Ground:
            commits = view.state.commits
            firsts, times, prints = (
                np.frombuffer(column, np.int64).copy() for column in (commits.firsts, commits.times, commits.prints)
            )
            return _Ground(view.mark, firsts, times, prints, {q: view.state.queues.bounds(*q) for q in wanted})

        epoch = -1
        with self._lock:
            while True:
                ground = self._log.look(take)
                try:
                    return ground, answer(ground)
                except NotFoundError as error:
                    if ground.mark.epoch == epoch:
                        raise CorruptDataError(
                            "a file of the log is missing or another one stands in its place", **error.context
                        ) from error
                    epoch = ground.mark.epoch

    def _ends_at_floor(self, ground: _Ground, wanted: list[Queue]) -> dict[Queue, int]:
        """Where the queues stood when the last segment ended."""
        found = dict.fromkeys(wanted, 0)
        if ground.mark.segments:
            file = self._segment(ground.mark.segments[-1])
            for topic, queues in _by_topic(wanted).items():
                _, _, end = file.find(topic, queues)
                found.update(zip(((topic, queue) for queue in queues.tolist()), end.tolist(), strict=True))
        return found

    def _segment(self, segment: SegmentRef) -> _Segment:
        found = self._segments.get(segment.name)
        if found is None:
            meta = read_meta(self._log.storage, f"{paths.segments(self._log.root)}/{segment.name}", "segment")
            if meta.digest != segment.digest:
                raise meta.corrupt("not the segment that the mark names", expected=segment.digest)
            found = self._segments[segment.name] = _Segment(self._log.storage, meta)
            if len(self._segments) > SEGMENTS_KEPT:
                self._segments.popitem(last=False)
        self._segments.move_to_end(segment.name)
        return found

    def _runs(self, ground: _Ground, at: int) -> _Runs:
        first, print_ = int(ground.firsts[at]), int(ground.prints[at])
        found = self._commits.get((first, print_))
        if found is None:
            path = paths.commit(self._log.root, first)
            meta = read_meta(self._log.storage, path, "commit")
            if fingerprint(meta.digest) != print_:
                raise NotFoundError("another file stands where the commit was", path=path)
            runs = meta.runs
            found = self._commits[first, print_] = _Runs(
                runs.topics,
                runs.topic.astype(np.int64),
                runs.queue.astype(np.int64),
                meta.bases,
                meta.bases + runs.rows,
            )
            self._kept += len(runs.rows)
            while self._kept > RUNS_KEPT and len(self._commits) > 1:
                self._kept -= len(self._commits.popitem(last=False)[1].queue)
        return found


class _Open:
    """Queues that have no answer yet, by topic."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.by_topic: dict[str, set[int]] = {}
        for topic, queue in queues:
            self.by_topic.setdefault(topic, set()).add(queue)
        self.left = sum(map(len, self.by_topic.values()))

    def close(self, queue: Queue) -> bool:
        """Take a queue out; False when it was out already."""
        mine = self.by_topic.get(queue[0], set())
        if queue[1] not in mine:
            return False
        mine.remove(queue[1])
        self.left -= 1
        return True

    def queues(self) -> list[Queue]:
        """What is left."""
        return [(topic, queue) for topic, queues in self.by_topic.items() for queue in queues]


def _by_topic(wanted: Iterable[Queue]) -> dict[str, I64]:
    found: dict[str, list[int]] = {}
    for topic, queue in wanted:
        found.setdefault(topic, []).append(queue)
    return {topic: np.array(queues, np.int64) for topic, queues in found.items()}
