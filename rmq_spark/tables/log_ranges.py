"""From a broker's log into tables, range by range: which range is next, and landing what was made of it.

Every engine that makes rows goes through here, so they agree on where a range begins and on what may be committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rmq_spark.client.store import Store
from rmq_spark.errors import ExistsError, NotFoundError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.view import LogView
from rmq_spark.storage import paths
from rmq_spark.tables import upkeep
from rmq_spark.tables.delta_actions import DELETED_FILES_KEPT_MS, DataFile, transaction
from rmq_spark.tables.delta_log import DeltaLog, check_mark
from rmq_spark.tables.schemas import TABLES


class OvertakenError(Exception):
    """A table's mark is not the one that rows were made for."""


def check_brokers(store: Store, brokers: Sequence[str] | None) -> None:
    """Check names that somebody gave: a mistyped one would look like an empty log.

    Raises:
        NotFoundError: a broker has no queues, never had any, and has no log.
        InvalidRequestError: no broker can have that name.
    """
    known = store.brokers() if brokers else []
    for broker in brokers or ():
        if broker not in known and not store.log(broker).look(lambda view: view.state.offset):
            raise NotFoundError("no such broker", broker=broker, known=known)


@dataclass(frozen=True, slots=True)
class LogRange:
    """Log offsets [start, end) on their way into tables."""

    start: int
    end: int
    marks: dict[str, int | None]
    """By table that the range enters: the mark that must be there."""


class LogRanges:
    """The tables' way along one broker's log. `following` may be asked while another thread lands a range."""

    def __init__(self, store: Store, broker: str, tables: Sequence[str]) -> None:
        self._store = store
        self.broker = broker
        self.log: CommitLog = store.log(broker)
        self.deltas = {name: DeltaLog(store.storage, TABLES[name]) for name in tables}

    def bounds(self) -> tuple[int, int]:
        """Log start and end, as they are now."""
        return self.log.look(lambda view: (view.mark.log_start, view.state.offset))

    def marks(self) -> dict[str, int | None]:
        """The tables' marks as they are now.

        Raises:
            CorruptDataError: a table is ahead of its log.
        """
        marks: dict[str, int | None] = {}
        for name, delta in self.deltas.items():
            snapshot = delta.refresh()
            marks[name] = snapshot.mark(delta.spec, self.broker) if snapshot else None
        _, end = self.bounds()
        for name, mark in marks.items():
            check_mark(name, self.broker, mark, end)
        return marks

    def behind(self, end: int) -> int:
        """Messages between the least mark and `end`."""
        start, _ = self.bounds()
        return max(0, end - max(start, min(mark or 0 for mark in self.marks().values())))

    def following(self, marks: dict[str, int | None], end: int, messages: int) -> LogRange | None:
        """The next range of at most so many messages, for the tables that are the furthest behind; None at `end`."""
        log_start, _ = self.bounds()
        starts = {name: max(mark or 0, log_start) for name, mark in marks.items()}
        start = min(starts.values())
        if start >= end:
            return None
        stops = [stop for stop in starts.values() if stop > start]
        stop = min([end, start + messages, *stops])
        return LogRange(start, stop, {name: marks[name] for name, at in starts.items() if at == start})

    def make_durable(self, end: int) -> None:
        """Make the log durable up to `end`: a table must never know more than the log after a power loss."""

        def open_commits(view: LogView) -> list[int]:
            firsts = view.state.commits.firsts
            return [first for first in firsts if view.state.durable <= first < end]

        try:
            self._sync(self.log.look(open_commits))
        except NotFoundError:
            # Commits that were rolled meanwhile are durable as segments.
            self._sync(self.log.look(open_commits))

    def _sync(self, firsts: Sequence[int]) -> None:
        self._store.storage.sync([paths.commit(self.log.root, first) for first in firsts])

    def check_mark(self, table: str, current: LogRange) -> None:
        """Raise if the table's mark is not the one that the range was made for.

        Raises:
            OvertakenError: it is not.
        """
        snapshot = self.deltas[table].refresh()
        mark = snapshot.mark(TABLES[table], self.broker) if snapshot else None
        if mark != current.marks[table]:
            raise OvertakenError(f"{table} is at {mark}, expected {current.marks[table]}")

    def land(self, table: str, current: LogRange, files: Sequence[DataFile]) -> None:
        """Make files part of a table and the range's end its mark, in one exclusive entry of Delta's log.

        Raises:
            OvertakenError: somebody else was faster; the files are deleted.
            OutcomeUnknownError, UnavailableError: as `Storage.create_if_absent`.
        """
        delta, clock = self.deltas[table], self._store.clock
        while True:
            now = clock.now_ms()
            try:
                self.check_mark(table, current)
                _refuse_old(files, now)
            except OvertakenError:
                upkeep.discard(self._store.storage, delta.spec, files)
                raise
            actions = [file.add(data_change=True) for file in files]
            actions.append(transaction(delta.spec.app_id(self.broker), current.end, now))
            try:
                delta.commit(actions, "WRITE", now, clock.token())
            except ExistsError:
                continue  # another broker's range, or a merge of files: look again
            return


def _refuse_old(files: Sequence[DataFile], now_ms: int) -> None:
    """Refuse files that upkeep may have taken for those of a dead writer: ours slept since it wrote them."""
    if any(now_ms - file.modified_ms > DELETED_FILES_KEPT_MS // 2 for file in files):
        raise OvertakenError("the range's files were written too long ago; they are made again")
