"""Which runs a log range holds: the metadata of its files as arrays, for planning reads before any row is read.

A run is one queue's rows in one file. Of a commit all is known from its metadata. A segment holds the rows of many
commits sorted by queue; when a range ends inside one, the log offsets of the wanted queues are read, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rmq_spark.log import scan
from rmq_spark.log.arrow_columns import integers_of
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.files import read_planned
from rmq_spark.log.run_index import Runs

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

Select = Callable[[str, npt.NDArray[Any]], BOOL]
"""Given a topic and queue ids: which of them are wanted."""

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
class _Part:
    """The wanted runs of one source."""

    topics: list[str]
    topic: I32
    queue: I32
    base: I64
    rows: I64
    row_bytes: int


class RunIndex:
    """Reads run indexes of one log."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        """Whose runs these are."""

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
        meta = self._meta(source)
        wanted = _selected(meta.runs, select)
        if source.kind == "segment":
            offsets = np.concatenate(self._segment_offsets(meta, wanted))
            offsets = offsets[(offsets >= max(query.start, source.first)) & (offsets < min(end, source.end))]
            return int(np.partition(offsets, count - 1)[count - 1]) + 1
        first = meta.runs.first_rows()[wanted]
        low = np.maximum(first, query.start - source.first)
        high = np.minimum(first + meta.runs.rows[wanted], end - source.first)
        sizes = np.maximum(high - low, 0)
        ends = np.cumsum(sizes)
        at = int(np.searchsorted(ends, count))
        return int(source.first + low[at] + count - (ends[at] - sizes[at]))

    def _runs_of(self, planned: scan.Plan, number: int, select: Select) -> _Part:
        source, query = planned.sources[number], planned.query
        meta = self._meta(source)
        runs = meta.runs
        wanted = _selected(runs, select)
        base, rows = meta.bases[wanted], runs.rows[wanted].astype(np.int64)
        start, end = max(query.start, source.first), min(query.end if query.end is not None else _FAR, source.end)
        if source.kind != "segment":
            first = source.first + runs.first_rows()[wanted]
            low, high = np.clip(start - first, 0, rows), np.clip(end - first, 0, rows)
            base, rows = base + low, high - low
        elif start > source.first or end < source.end:
            cuts = [np.searchsorted(offsets, [start, end]) for offsets in self._segment_offsets(meta, wanted)]
            low, high = np.array(cuts, np.int64).reshape(-1, 2).T
            base, rows = base + low, high - low
        some = rows > 0
        wanted = wanted[some]
        size = sum(file[3] for file in meta.doc.get("files", ())) or meta.size
        row_bytes = size // max(1, meta.rows)
        return _Part(runs.topics, runs.topic[wanted], runs.queue[wanted], base[some], rows[some], row_bytes)

    def _segment_offsets(self, meta: FileMeta, wanted: I64) -> list[I64]:
        """The log offsets of each wanted run's rows; they rise within a run."""
        if not len(wanted):
            return []
        starts = meta.block_rows
        first = meta.runs.first_rows()[wanted]
        last = first + meta.runs.rows[wanted]
        touched = np.zeros(len(starts), np.bool_)
        for low, high in zip(first.tolist(), last.tolist(), strict=True):
            begin = int(np.searchsorted(starts, low, "right")) - 1
            touched[begin : int(np.searchsorted(starts, high, "left"))] = True
        values = np.empty(int(starts[-1]), np.int64)
        blocks = np.flatnonzero(touched[:-1]).tolist()
        for block, batch in FileReader(self.log.storage, meta).read_blocks(blocks, ["commitOffset"]):
            values[starts[block] : starts[block + 1]] = integers_of(batch.column(0))
        return [values[low:high] for low, high in zip(first.tolist(), last.tolist(), strict=True)]

    def _meta(self, source: scan.Source) -> FileMeta:
        return self.log.files.meta(source.path, source.kind, source.fingerprint)


def _selected(runs: Runs, select: Select) -> I64:
    """Numbers of the runs that are wanted, in row order."""
    keep = np.zeros(len(runs.rows), np.bool_)
    for index, topic in enumerate(runs.topics):
        mine = np.flatnonzero(runs.topic == index)
        keep[mine] = select(topic, runs.queue[mine])
    return np.flatnonzero(keep)


def _join(sources: list[scan.Source], parts: list[_Part]) -> RunTable:
    topics = sorted({runs.topics[index] for runs in parts for index in set(runs.topic.tolist())})
    rank = {topic: index for index, topic in enumerate(topics)}
    none = np.zeros(0, np.int64)

    def column(values: Callable[[int, _Part], npt.NDArray[Any]]) -> I64:
        return np.concatenate([none, *(values(number, runs) for number, runs in enumerate(parts))])

    return RunTable(
        sources,
        topics,
        column(lambda number, runs: np.full(len(runs.rows), number)),
        column(lambda _, runs: np.array([rank.get(name, -1) for name in runs.topics], np.int64)[runs.topic]),
        column(lambda _, runs: runs.queue),
        column(lambda _, runs: runs.base),
        column(lambda _, runs: runs.rows),
        column(lambda _, runs: np.full(len(runs.rows), runs.row_bytes)),
    )
