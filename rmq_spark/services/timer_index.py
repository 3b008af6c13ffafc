"""The deliverer's index of pending messages by due time. Nobody else has it, and it can be rebuilt from the log.

It is a list of runs. A run covers a range of the log: the parked messages in it, sorted by due time and log offset,
and a cursor from which on they are pending. What is due is found at the cursors, so a look costs the same however much
is pending. New messages make a small run; neighbours are merged until one has `RUN_ROWS` messages. Such a run is also
written to a file, so that the next process reads it instead of the log. The files say nothing that the log does not
say: whoever finds them missing or wrong reads the log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import RmqError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.scan import Query
from rmq_spark.rules.timer import Progress
from rmq_spark.services.parked_messages import DUE_COLUMNS, UNKNOWN, WAITING_TOPICS, Levels, due_times
from rmq_spark.storage import paths

I64 = npt.NDArray[np.int64]

RUN_ROWS: Final = 262_144
"""A run of so many messages is not merged any more, and is kept in a file: 40 runs for ten million messages."""

_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})-[0-9a-f]+\.arrow")
_SCHEMA: Final = pa.schema([pa.field("due", pa.int64()), pa.field("commitOffset", pa.int64())])

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Run:
    """The parked messages of a range of the log, sorted by due time and log offset; those from `at` on are pending."""

    first: int
    end: int
    due: I64
    commit: I64
    at: int = 0
    file: str | None = None
    """Where it is kept."""

    @property
    def next_due(self) -> int | None:
        """When the next pending message is due; None if there is none."""
        return int(self.due[self.at]) if self.at < len(self.due) else None

    def settle(self, mark: Progress) -> None:
        """Take out what the mark says is settled."""
        if self.first >= mark.floor and self.end <= mark.position:
            self.at = max(self.at, self.below(mark.key))
            return
        pending = ~mark.settled(self.due[self.at :], self.commit[self.at :])
        if not pending.all():
            self.due, self.commit = self.due[self.at :][pending], self.commit[self.at :][pending]
            self.at = 0

    def below(self, key: tuple[int, int]) -> int:
        """How many messages have a smaller key."""
        low, high = np.searchsorted(self.due, key[0], "left"), np.searchsorted(self.due, key[0], "right")
        return int(low + np.searchsorted(self.commit[low:high], key[1]))

    def pending(self) -> tuple[I64, I64]:
        """Due times and log offsets of what is pending."""
        return self.due[self.at :], self.commit[self.at :]


@dataclass(frozen=True, slots=True)
class Step:
    """What to deliver next."""

    due: I64
    commit: I64
    after: Progress
    """The mark that settles exactly these."""


class TimerIndex:
    """Pending messages of one log. Not safe for use by two threads at once.

    Args:
        log: whose.
        keep: write and delete files; else only read what there is.
    """

    def __init__(self, log: CommitLog, *, keep: bool = True) -> None:
        self._log = log
        self._keep = keep
        self._runs: list[Run] = []
        self._mark: Progress | None = None
        self._parked: int | None = None
        self._may_save = keep
        self.frontier = 0
        """Everything below this log offset is indexed."""
        self.unreadable = 0
        """Parked messages that do not say when they are due or where they go; they are never delivered."""

    # ------------------------------------------------------------ following the log

    def refresh(
        self,
        mark: Progress,
        end: int,
        levels: Levels,
        log_start: int,
        parked: int | None = None,
        *,
        durable: int | None = None,
    ) -> None:
        """Take in what was parked below `end`, and what the mark settles.

        Args:
            mark: what is settled.
            end: the log's end.
            levels: what delay levels mean.
            log_start: the log's start.
            parked: how many messages were ever parked below `end`. While it stays the same, the log is not read.
            durable: up to where the log survives a power loss; None: up to `end`. A file must not say what the log may
                forget: messages would be missing in it.

        Raises:
            RmqError: the log could not be read; call again.
        """
        if self._mark is None:
            self._load_files(max(mark.floor, log_start))
        self._may_save = self._keep and (durable is None or durable >= end)
        if end > self.frontier:
            if parked is None or parked != self._parked:
                self._take_in(self.frontier, end, levels)
            self.frontier, self._parked = end, parked
        gone = Progress(mark.number, mark.due_ms, mark.offset, mark.position, max(mark.floor, log_start))
        if gone != self._mark:
            for run in self._runs:
                run.settle(gone)
            self._drop_settled_runs()
        self._mark = gone

    def _take_in(self, start: int, end: int, levels: Levels) -> None:
        query = Query(topics=WAITING_TOPICS, start=start, end=end, columns=DUE_COLUMNS, skip_expired=True)
        dues, commits = [], []
        for batch in self._log.scan(query):
            due = due_times(batch, levels)
            commit = batch.column("commitOffset").to_numpy(zero_copy_only=False)
            known = due != UNKNOWN
            if not known.all():
                self.unreadable += int((~known).sum())
                offset = int(commit[~known][0])
                _log.error("a parked message does not say when it is due or where it goes: log offset %d", offset)
                due, commit = due[known], commit[known]
            dues.append(due)
            commits.append(commit)
        if sum(map(len, dues)):
            first = self._runs[-1].end if self._runs else start
            self._runs.append(_sorted(first, end, np.concatenate(dues), np.concatenate(commits)))
            self._merge()

    def _merge(self) -> None:
        runs = self._runs
        while len(runs) > 1 and runs[-2].file is None and len(runs[-2].due) <= 2 * len(runs[-1].due):
            newer, older = runs.pop(), runs.pop()
            columns = [np.concatenate(pair) for pair in zip(older.pending(), newer.pending(), strict=True)]
            runs.append(_sorted(older.first, newer.end, columns[0], columns[1]))
        if self._may_save and runs and runs[-1].file is None and len(runs[-1].due) >= RUN_ROWS:
            self._save(runs[-1])

    def _drop_settled_runs(self) -> None:
        for run in [run for run in self._runs if run.next_due is None]:
            self._runs.remove(run)
            if run.file and self._keep:
                self._delete(run.file)

    # ------------------------------------------------------------ what is due

    def next_due(self) -> int | None:
        """When the next pending message is due."""
        return min((run.next_due for run in self._runs if run.next_due is not None), default=None)

    @property
    def count(self) -> int:
        """How many messages are pending."""
        return sum(len(run.due) - run.at for run in self._runs)

    def due(self, horizon_ms: int, limit: int) -> Step | None:
        """Up to `limit` pending messages that are due by `horizon_ms`, first come those due first; None if none is.

        None, too, for a time before the mark's: the mark would pass by messages that are due in between.
        """
        mark = self._mark
        assert mark is not None  # noqa: S101 - refreshed before
        if horizon_ms < mark.due_ms:
            return None
        parts = []
        late = []
        for run in self._runs:
            if run.next_due is not None and run.next_due <= horizon_ms:
                stop = int(np.searchsorted(run.due, horizon_ms, "right"))
                parts.append((run.due[run.at : stop][: limit + 1], run.commit[run.at : stop][: limit + 1]))
                if run.end > mark.position:  # what is due before the mark's key lies behind its position
                    late.append(run.commit[run.at : min(stop, run.below(mark.key))])
        if not parts:
            return None
        behind = np.sort(np.concatenate(late)) if late else np.empty(0, np.int64)
        number = mark.number + 1
        if len(behind) > limit:
            position = int(behind[limit])
            after = Progress(number, mark.due_ms, mark.offset, position, mark.floor)
            return self._select(behind[:limit], after)
        due, commit = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((commit, due))
        due, commit = due[order], commit[order]
        key = (int(due[-1]), int(commit[-1]) + 1) if len(due) <= limit else (int(due[limit]), int(commit[limit]))
        key = max(key, mark.key)
        chosen = slice(0, limit)
        return Step(due[chosen], commit[chosen], Progress(number, *key, self.frontier, self._floor(mark)))

    def soon(self, horizon_ms: int, limit: int) -> tuple[I64, I64]:
        """Due times and log offsets of the first pending messages that are due by `horizon_ms`."""
        parts = [
            (run.due[run.at : stop][:limit], run.commit[run.at : stop][:limit])
            for run in self._runs
            if (stop := int(np.searchsorted(run.due, horizon_ms, "right"))) > run.at
        ]
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        due, commit = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((commit, due))[:limit]
        return due[order], commit[order]

    def below(self, offset: int, limit: int) -> tuple[I64, I64, int]:
        """Pending messages below a log offset: due times, log offsets, and up to where these are all of them."""
        dues, commits = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for run in self._runs:
            if run.first < offset:
                due, commit = run.pending()
                dues.append(due[commit < offset])
                commits.append(commit[commit < offset])
        due, commit = np.concatenate(dues), np.concatenate(commits)
        order = np.argsort(commit)
        reach = offset if len(order) <= limit else int(commit[order[limit]])
        return due[order[:limit]], commit[order[:limit]], reach

    def _select(self, commits: I64, after: Progress) -> Step:
        """The pending messages at these log offsets, by due time."""
        columns = [np.concatenate(column) for column in zip(*(run.pending() for run in self._runs), strict=True)]
        rows = np.flatnonzero(np.isin(columns[1], commits))
        due, commit = columns[0][rows], columns[1][rows]
        order = np.lexsort((commit, due))
        return Step(due[order], commit[order], after)

    def _floor(self, mark: Progress) -> int:
        """A log offset below which nothing is pending, near the first that is."""
        first = next((run.first for run in self._runs if run.next_due is not None), self.frontier)
        return max(mark.floor, first)

    # ------------------------------------------------------------ files

    def forget(self) -> None:
        """Drop everything, files included: the next refresh reads the log."""
        for info in list(self._log.storage.list(_directory(self._log.root))):
            self._delete(info.name)
        self._runs, self._mark, self._parked, self.frontier, self.unreadable = [], None, None, 0, 0

    def _save(self, run: Run) -> None:
        name = f"{run.first:020d}-{run.end:020d}-{self._log.clock.token()}.arrow"
        sink = pa.BufferOutputStream()
        due, commit = run.pending()
        batch = pa.RecordBatch.from_arrays([pa.array(due), pa.array(commit)], schema=_SCHEMA)
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            writer.write_batch(batch)
        try:
            self._log.storage.create_if_absent(
                f"{_directory(self._log.root)}/{name}", [memoryview(sink.getvalue())], durable=False
            )
        except RmqError as error:
            _log.warning("a part of the timer index was not written: %s", error)
        run.file = name  # not merged any more in any case; a missing file is read from the log again

    def _load_files(self, start: int) -> None:
        """Take over the files that cover the log from `start` on without a gap."""
        self._runs, self.frontier = [], start
        try:
            names = [info.name for info in self._log.storage.list(_directory(self._log.root))]
        except RmqError as error:
            _log.warning("the timer index could not be listed, the log is read instead: %s", error)
            return
        for end, name in _chain(names, start):
            run = self._read(self.frontier, end, name)
            if run is None:
                return
            self._runs.append(run)
            self.frontier = end

    def _read(self, first: int, end: int, name: str) -> Run | None:
        """What a file says of the log from `first` on."""
        try:
            data = self._log.storage.read(f"{_directory(self._log.root)}/{name}")
            [batch] = pa.ipc.open_file(pa.py_buffer(data)).read_all().cast(_SCHEMA).combine_chunks().to_batches()
        except (RmqError, pa.ArrowException, ValueError) as error:
            _log.warning("a part of the timer index cannot be read, the log is read instead: %s: %s", name, error)
            return None
        due, commit = (batch.column(at).to_numpy(zero_copy_only=False) for at in range(2))
        mine = commit >= first
        return _sorted(first, end, due[mine], commit[mine], name)

    def _delete(self, name: str) -> None:
        try:
            self._log.storage.delete(f"{_directory(self._log.root)}/{name}")
        except RmqError as error:
            _log.warning("a part of the timer index was not deleted: %s: %s", name, error)


def _sorted(first: int, end: int, due: I64, commit: I64, file: str | None = None) -> Run:
    order = np.lexsort((commit, due))
    return Run(first, end, due[order], commit[order], file=file)


def _directory(root: str) -> str:
    return paths.timers(root)


def _chain(names: list[str], start: int) -> Iterator[tuple[int, str]]:
    """End and name of the files that cover the log from `start` on; of several the one that reaches farthest."""
    ranges: list[tuple[int, int, str]] = []
    for name in names:
        match: Any = _NAME.fullmatch(name)
        if match:
            ranges.append((int(match[1]), int(match[2]), name))
    while fitting := [each for each in ranges if each[0] <= start < each[1]]:
        best = max(fitting, key=lambda each: each[1])
        yield best[1:]
        start = best[1]
