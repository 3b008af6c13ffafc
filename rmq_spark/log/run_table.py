"""Which runs a log range holds: the metadata of its files as arrays, for planning reads before any row is read.

A run is one queue's rows in one file. Of a commit all is known from its metadata. A segment holds the rows of many
commits sorted by queue; when a range ends inside one, the log offsets of the wanted queues are read, nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rmq_spark.log import scan
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.files import read_planned

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

Select = Callable[[str, I64], BOOL]
"""Given a topic and queue ids: which of them are wanted."""

CACHED_RUNS: Final = 500_000
"""Run indexes are kept up to so many runs in all (some 40 bytes each): a stream looks at each commit a few times."""
_FAR: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class RunTable:
    """The wanted runs of a log range, in the order of the log; one array entry for each."""

    sources: list[scan.Source]
    topics: list[str]
    """Distinct topics, sorted."""
    source: I64
    """Index into `sources`."""
    topic: I64
    """Index into `topics`."""
    queue: I64
    base: I64
    """Queue offset of the first row."""
    rows: I64
    row_bytes: I64
    """Average bytes of a row in the run's file."""

    @property
    def total(self) -> int:
        """All rows."""
        return int(self.rows.sum())


@dataclass(frozen=True, slots=True)
class _FileRuns:
    """One file's run index, cut to what planning needs."""

    topics: list[str]
    topic: I64
    queue: I64
    base: I64
    rows: I64
    first_row: I64
    row_bytes: int


class RunIndex:
    """Reads run indexes of one log; remembers those it has seen. Not for use by two threads at once."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        """Whose runs these are."""
        self._seen: OrderedDict[tuple[str, int], _FileRuns] = OrderedDict()
        self._runs_seen = 0

    def list_runs(self, query: scan.Query, select: Select, stats: scan.ScanStats | None = None) -> RunTable:
        """The runs in the log range [query.start, query.end) that `select` wants; times prune whole files only.

        Raises:
            CorruptDataError: a file is damaged, or missing though nothing has moved.
        """

        def runs(planned: scan.Plan) -> RunTable:
            parts = [self._runs_of(planned, number, select) for number in range(len(planned.sources))]
            return _join(planned.sources, parts)

        return read_planned(self.log, lambda view: scan.plan(view, query, stats or scan.ScanStats()), runs)

    def cut_after(self, query: scan.Query, select: Select, rows_max: int, bytes_max: int) -> tuple[int, int]:
        """Where to end so that [query.start, end) holds about that much, and how many wanted rows that is.

        At least one row if there is any. Exact in rows; in bytes by the average of each file.
        """
        end = query.end if query.end is not None else self.log.refresh().state.offset
        table = self.list_runs(query, select)
        taken, weight = 0, 0
        for number, source in enumerate(table.sources):
            mine = table.source == number
            here = int(table.rows[mine].sum())
            if not here:
                continue
            each = max(1, int(table.row_bytes[mine][0]))
            room = min(rows_max - taken, max(0, -(-(bytes_max - weight) // each)))
            if here > room:
                if room <= 0 and taken:
                    return source.first if source.first > query.start else query.start, taken
                room = max(1, room)
                return self._offset_of(source, query, select, room), taken + room
            taken += here
            weight += here * each
        return end, taken

    def _offset_of(self, source: scan.Source, query: scan.Query, select: Select, count: int) -> int:
        """The log offset before which the source holds exactly `count` wanted rows at or after the query's start."""
        end = query.end if query.end is not None else _FAR
        if source.kind == "segment":
            runs = self._file_runs(source)
            wanted = _selected(runs, select)
            offsets = np.concatenate(self._segment_offsets(source, runs, wanted))
            offsets = offsets[(offsets >= max(query.start, source.first)) & (offsets < min(end, source.end))]
            return int(np.partition(offsets, count - 1)[count - 1]) + 1
        runs = self._file_runs(source)
        wanted = _selected(runs, select)
        low = np.maximum(runs.first_row[wanted], query.start - source.first)
        high = np.minimum(runs.first_row[wanted] + runs.rows[wanted], end - source.first)
        sizes = np.maximum(high - low, 0)
        ends = np.cumsum(sizes)
        at = int(np.searchsorted(ends, count))
        return int(source.first + low[at] + count - (ends[at] - sizes[at]))

    def _runs_of(self, planned: scan.Plan, number: int, select: Select) -> _FileRuns:
        source, query = planned.sources[number], planned.query
        runs = self._file_runs(source)
        wanted = _selected(runs, select)
        base, rows = runs.base[wanted], runs.rows[wanted]
        start, end = max(query.start, source.first), min(query.end if query.end is not None else _FAR, source.end)
        if source.kind == "segment":
            if start > source.first or end < source.end:
                base, rows = self._cut_segment(source, runs, wanted, start, end)
        else:
            first = source.first + runs.first_row[wanted]
            low = np.clip(start - first, 0, rows)
            high = np.clip(end - first, 0, rows)
            base, rows = base + low, high - low
        some = rows > 0
        wanted = wanted[some]
        return _FileRuns(
            runs.topics,
            runs.topic[wanted],
            runs.queue[wanted],
            base[some],
            rows[some],
            runs.first_row[wanted],
            runs.row_bytes,
        )

    def _cut_segment(self, source: scan.Source, runs: _FileRuns, wanted: I64, start: int, end: int) -> tuple[I64, I64]:
        base, rows = runs.base[wanted].copy(), runs.rows[wanted].copy()
        for at, offsets in enumerate(self._segment_offsets(source, runs, wanted)):
            low, high = np.searchsorted(offsets, [start, end])
            base[at] += low
            rows[at] = high - low
        return base, rows

    def _segment_offsets(self, source: scan.Source, runs: _FileRuns, wanted: I64) -> list[I64]:
        """The log offsets of each wanted run's rows; they rise within a run."""
        if not len(wanted):
            return []
        meta = self._meta(source)
        starts = meta.block_rows
        first, last = runs.first_row[wanted], runs.first_row[wanted] + runs.rows[wanted]
        touched = np.zeros(len(starts), np.bool_)
        for low, high in zip(first.tolist(), last.tolist(), strict=True):
            begin = int(np.searchsorted(starts, low, "right")) - 1
            touched[begin : int(np.searchsorted(starts, high, "left"))] = True
        values = np.empty(int(starts[-1]), np.int64)
        blocks = np.flatnonzero(touched[:-1]).tolist()
        for block, batch in FileReader(self.log.storage, meta).read_blocks(blocks, ["commitOffset"]):
            values[starts[block] : starts[block + 1]] = batch.column(0).to_numpy(zero_copy_only=False)
        return [values[low:high] for low, high in zip(first.tolist(), last.tolist(), strict=True)]

    def _meta(self, source: scan.Source) -> FileMeta:
        return self.log.files.meta(source.path, source.kind, source.fingerprint)

    def _file_runs(self, source: scan.Source) -> _FileRuns:
        key = (source.path, source.fingerprint)
        runs = self._seen.get(key)
        if runs is None:
            meta = self._meta(source)
            size = sum(file[3] for file in meta.doc.get("files", ())) or meta.size
            runs = self._seen[key] = _FileRuns(
                meta.runs.topics,
                meta.runs.topic.astype(np.int64),
                meta.runs.queue.astype(np.int64),
                meta.bases.astype(np.int64),
                meta.runs.rows.astype(np.int64),
                meta.runs.first_rows(),
                size // max(1, meta.rows),
            )
            self._runs_seen += len(runs.rows)
            while self._runs_seen > CACHED_RUNS and len(self._seen) > 1:
                self._runs_seen -= len(self._seen.popitem(last=False)[1].rows)
        return runs


def _selected(runs: _FileRuns, select: Select) -> I64:
    """Numbers of the runs that are wanted, in row order."""
    keep = np.zeros(len(runs.rows), np.bool_)
    for index, topic in enumerate(runs.topics):
        mine = np.flatnonzero(runs.topic == index)
        keep[mine] = select(topic, runs.queue[mine])
    return np.flatnonzero(keep)


def _join(sources: list[scan.Source], parts: list[_FileRuns]) -> RunTable:
    topics = sorted({runs.topics[index] for runs in parts for index in set(runs.topic.tolist())})
    rank = {topic: index for index, topic in enumerate(topics)}
    none = np.zeros(0, np.int64)
    return RunTable(
        sources,
        topics,
        np.concatenate([none, *(np.full(len(runs.rows), number) for number, runs in enumerate(parts))]),
        np.concatenate(
            [none, *(np.array([rank.get(name, -1) for name in runs.topics], np.int64)[runs.topic] for runs in parts)]
        ),
        np.concatenate([none, *(runs.queue for runs in parts)]),
        np.concatenate([none, *(runs.base for runs in parts)]),
        np.concatenate([none, *(runs.rows for runs in parts)]),
        np.concatenate([none, *(np.full(len(runs.rows), runs.row_bytes) for runs in parts)]),
    )
