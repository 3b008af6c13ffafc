"""Which runs a log range holds: the metadata of its files as arrays, for planning reads before any row is read.

A run is one queue's rows in one file. Of a commit all is known from its metadata. A segment holds the rows of many
commits sorted by queue; when a range ends inside one, the log offsets of the wanted queues are read, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rmq_spark.log import scan
from rmq_spark.log.arrow_columns import integers_of
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader, blocks_with
from rmq_spark.log.files import read_planned
from rmq_spark.log.run_index import Runs

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

Select = Callable[[str, npt.NDArray[Any]], BOOL]
"""Given a topic and queue ids: which of them are wanted."""


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


class RunIndex:
    """Reads run indexes of one log."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        """Whose runs these are."""

    def list_runs(self, query: scan.Query, select: Select) -> RunTable:
        """The runs in the log range [query.start, query.end) that `select` wants; times prune whole files only.

        Raises:
            CorruptDataError: a file is damaged, or missing though nothing has moved.
        """

        def runs(planned: scan.Plan) -> RunTable:
            numbers: dict[str, int] = {}
            parts = [self._runs_of(planned, number, select, numbers) for number in range(len(planned.sources))]
            source, topic, *others = np.concatenate([np.empty((6, 0), np.int64), *parts], axis=1)
            known = list(numbers)
            topics = sorted(known[number] for number in set(topic.tolist()))
            rank = np.zeros(len(known), np.int64)
            rank[[numbers[name] for name in topics]] = np.arange(len(topics))
            return RunTable(planned.sources, topics, source, rank[topic], *others)

        return read_planned(self.log, lambda view: scan.plan(view, query), runs)

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
                    return max(source.first, query.start), taken
                room = max(1, room)
                return self._offset_of(source, query, select, room), taken + room
            taken += here
            weight += here * each
        return end, taken

    def _offset_of(self, source: scan.Source, query: scan.Query, select: Select, count: int) -> int:
        """The log offset before which the source holds exactly `count` wanted rows at or after the query's start."""
        meta = self._meta(source)
        offsets = np.concatenate(self._log_offsets(source, meta, _selected(meta.runs, select)))
        offsets = offsets[offsets >= query.start]
        return int(np.partition(offsets, count - 1)[count - 1]) + 1

    def _runs_of(self, planned: scan.Plan, number: int, select: Select, topics: dict[str, int]) -> I64:
        """The columns of `RunTable` for one source; topics are numbered in the order in which they come."""
        source, query = planned.sources[number], planned.query
        meta = self._meta(source)
        runs = meta.runs
        wanted = _selected(runs, select)
        base, rows = meta.bases[wanted], runs.rows[wanted].astype(np.int64)
        start, end = query.start, source.end if query.end is None else query.end
        if start > source.first or end < source.end:
            offsets = self._log_offsets(source, meta, wanted)
            low, high = np.array([np.searchsorted(each, [start, end]) for each in offsets], np.int64).reshape(-1, 2).T
            base, rows = base + low, high - low
        size = sum(file[3] for file in meta.doc.get("files", ())) or meta.size
        named = np.array([topics.setdefault(name, len(topics)) for name in runs.topics], np.int64)
        each = [number, named[runs.topic[wanted]], runs.queue[wanted], base, rows, size // max(1, meta.rows)]
        columns: I64 = np.stack(np.broadcast_arrays(*each))
        return columns[:, rows > 0]

    def _log_offsets(self, source: scan.Source, meta: FileMeta, wanted: I64) -> list[I64]:
        """The log offsets of each wanted run's rows; they rise within a run."""
        first = meta.runs.first_rows()[wanted]
        last = first + meta.runs.rows[wanted]
        if source.kind == "segment":
            starts = meta.block_rows
            values = np.empty(int(starts[-1]), np.int64)
            blocks = np.flatnonzero(blocks_with(meta, first, last)).tolist()
            for low, high, batch in FileReader(self.log.storage, meta).read(blocks, ["commitOffset"]):
                values[starts[low] : starts[high]] = integers_of(batch.column(0))
        else:
            values = source.first + np.arange(meta.rows)
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
