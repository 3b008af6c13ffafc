"""The in-process engine: advances the tables along the log, each range exactly once, without a JVM.

Steps of `reput` for one range, each safe to die after:
1. read the marks (Delta's transaction versions) of the tables: the range begins at the least of them;
2. make the range durable in the log, if it is not: a table must never know more than the log after a power loss;
3. make the rows and write them as Parquet files under names of their own, which nothing refers to yet;
4. commit, table by table: rows and new mark in one entry of Delta's log, created exclusively. If the table's mark is
   not the one that the rows were made for, the files are thrown away: somebody else has been faster.

So exactly once does not rest on the lease: a process that slept through it loses the race for the entry, or finds the
mark moved. The lease keeps engines from doing the work twice, and keeps engines apart whose commits are not exclusive.
While one range is written, the next one is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from rmq_spark.client.store import Store
from rmq_spark.errors import CorruptDataError, DataExpiredError, InvalidRequestError, NotFoundError
from rmq_spark.rules.lease import Lease, TableLeases
from rmq_spark.tables import data_files, upkeep
from rmq_spark.tables.delta_actions import DataFile
from rmq_spark.tables.delta_log import DeltaLog
from rmq_spark.tables.lease import LEASE_MS, TableLease
from rmq_spark.tables.log_ranges import LogRange, LogRanges, OvertakenError, check_brokers
from rmq_spark.tables.range_rows import RangeRows
from rmq_spark.tables.schemas import TABLES, spec_of

RANGE_MESSAGES: Final = 1_000_000
"""Most messages of a range: it bounds memory (some 300 bytes a message) and is what one index file holds."""

_LOOKS: Final = 5

Progress = Callable[[int, int], None]
"""Called with how many messages have entered the tables, and how many there are to enter."""

_log = logging.getLogger(__name__)


def no_progress(done: int, total: int) -> None:
    """Ignore the progress."""


@dataclass(slots=True)
class ReputResult:
    """What a call did."""

    ranges: int = 0
    """Ranges that entered at least one table."""
    messages: int = 0
    """Log offsets that the tables went forward."""
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    """Rows that entered, by table."""


SHARED: Final = "*"
"""In the place of a broker: files in which another engine has put together the rows of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One table with respect to one broker."""

    table: str
    broker: str
    mark: int | None
    """Log offset up to which the table is complete; None when it has nothing of this broker."""
    log_start: int
    log_end: int
    rows: int
    files: int
    bytes: int
    version: int | None
    """Delta's version of the table; None when there is none."""
    lease: Lease | None
    """Who writes it, if somebody does."""

    @property
    def behind(self) -> int:
        """Log offsets that are not in the table yet."""
        return self.log_end - max(self.log_start, self.mark or 0)


def reput(
    store: Store,
    *,
    brokers: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    end: int | None = None,
    range_messages: int = RANGE_MESSAGES,
    wait_s: float = 0.0,
    lease_ms: int = LEASE_MS,
    progress: Progress = no_progress,
) -> ReputResult:
    """Advance the tables to the end of the logs (or to log offset `end`), trim what has expired, and tidy up.

    Returns when everything that was in the logs at the beginning is in the tables.

    Raises:
        NotFoundError: there is no such broker.
        PreconditionFailedError: another engine holds the lease, and still does after `wait_s` seconds.
        FencedError: the lease was lost on the way; what was committed stays, nothing is doubled.
        CorruptDataError: a log or a table is damaged, or a table is ahead of its log.
        ReadOnlyError, UnavailableError, OutcomeUnknownError: the storage failed; call again, nothing is doubled.
    """
    if range_messages < 1:
        raise InvalidRequestError("a range has at least one message", range_messages=range_messages)
    check_brokers(store, brokers)
    names = tuple(tables or TABLES)
    result = ReputResult()
    with TableLease.acquire(store, names, wait_s=wait_s, duration_ms=lease_ms) as lease:
        works = [_Broker(store, broker, names, lease) for broker in brokers or store.brokers()]
        total = sum(work.plan(end) for work in works)
        progress(0, total)
        for work in works:
            work.run(range_messages, result, lambda done: progress(min(done, total), total))
        tend(store, names, lease)
    return result


def tend(store: Store, names: Sequence[str], lease: TableLease) -> None:
    """Keep tables in shape: drop rows below the logs' starts, merge small files, write checkpoints, delete files."""
    starts = {broker: store.log(broker).look(lambda view: view.mark.log_start) for broker in store.brokers()}
    for name in names:
        lease.hold()
        upkeep.tend(DeltaLog(store.storage, TABLES[name]), starts, store.clock, lease.hold)


def rebuild(
    store: Store,
    *,
    brokers: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    range_messages: int = RANGE_MESSAGES,
    wait_s: float = 0.0,
    lease_ms: int = LEASE_MS,
    progress: Progress = no_progress,
) -> ReputResult:
    """Empty the tables and fill them from the logs; readers see the old rows, then none, then more and more.

    With brokers named, rows of other brokers' logs stay.

    Raises:
        as `reput`.
    """
    check_brokers(store, brokers)  # before anything is emptied
    empty(store, brokers=brokers, tables=tables, wait_s=wait_s, lease_ms=lease_ms)
    return reput(
        store,
        brokers=brokers,
        tables=tables,
        range_messages=range_messages,
        wait_s=wait_s,
        lease_ms=lease_ms,
        progress=progress,
    )


def empty(
    store: Store,
    *,
    brokers: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    wait_s: float = 0.0,
    lease_ms: int = LEASE_MS,
) -> None:
    """Take every row (of these brokers' logs, if they are named) out of the tables and set their marks back.

    Raises:
        PreconditionFailedError: another engine holds the lease.
    """
    names = tuple(tables or TABLES)
    with TableLease.acquire(store, names, wait_s=wait_s, duration_ms=lease_ms):
        for name in names:
            upkeep.empty(DeltaLog(store.storage, TABLES[name]), store.clock, brokers or None)


def drop(
    store: Store, *, tables: Sequence[str] | None = None, wait_s: float = 0.0, lease_ms: int = LEASE_MS
) -> list[str]:
    """Delete tables; nothing is lost, as they can be made again. Returns those that had anything in them.

    Raises:
        PreconditionFailedError: another engine holds the lease.
    """
    names = tuple(tables or TABLES)
    with TableLease.acquire(store, names, wait_s=wait_s, duration_ms=lease_ms) as lease:
        return [name for name in names if upkeep.drop(DeltaLog(store.storage, TABLES[name]), store.clock, lease.hold)]


def status(store: Store, *, tables: Sequence[str] | None = None) -> list[TableStatus]:
    """Where the tables are, for each table and broker; one more line for files that hold rows of several."""
    leases = store.nameserver.look(lambda view: dict(view.state.fold(TableLeases).leases))
    now = store.clock.now_ms()
    logs = {
        broker: store.log(broker).look(lambda view: (view.mark.log_start, view.state.offset))
        for broker in store.brokers()
    }
    statuses = []
    for name in tables or TABLES:
        spec = spec_of(name)
        snapshot = DeltaLog(store.storage, spec).refresh()
        files = list(snapshot.files.values()) if snapshot else []
        lease = leases.get(name)
        shared = {SHARED: (0, 0)} if any(file.broker is None for file in files) else {}
        for broker, (start, end) in {**logs, **shared}.items():
            mine = [file for file in files if (file.broker or SHARED) == broker]
            statuses.append(
                TableStatus(
                    table=name,
                    broker=broker,
                    mark=snapshot.mark(spec, broker) if snapshot else None,
                    log_start=start,
                    log_end=end,
                    rows=sum(file.rows or 0 for file in mine),
                    files=len(mine),
                    bytes=sum(file.size for file in mine),
                    version=snapshot.version if snapshot else None,
                    lease=lease if lease is not None and lease.until_ms > now else None,
                )
            )
    return statuses


def read_table(store: Store, table: str, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a table, in no order, or the named columns of them; no rows while there is no table.

    Raises:
        InvalidRequestError: there is no such table.
        CorruptDataError: a file of it is damaged or missing.
    """
    spec = spec_of(table)
    names = list(columns or spec.schema.names)
    empty = pa.schema([spec.schema.field(name) for name in names]).empty_table()
    delta = DeltaLog(store.storage, spec)
    for look in range(_LOOKS):
        snapshot = delta.reload()
        try:
            files = list(snapshot.files.values()) if snapshot else []
            return pa.concat_tables([empty, *(data_files.read(store.storage, spec, file, names) for file in files)])
        except NotFoundError as error:
            if look == _LOOKS - 1:
                raise CorruptDataError("a file of a table is missing", **error.context) from error
    raise AssertionError("unreachable")


class _Broker:
    """Advances tables along one broker's log."""

    def __init__(self, store: Store, broker: str, tables: Sequence[str], lease: TableLease) -> None:
        self._store = store
        self._ranges = LogRanges(store, broker, tables)
        self._lease = lease
        self._rows = RangeRows(self._ranges.log)
        self._end = 0

    def plan(self, end: int | None) -> int:
        """Fix where to stop; returns how many messages there are to enter."""
        _, last = self._ranges.bounds()
        self._end = last if end is None else min(end, last)
        return self._ranges.behind(self._end)

    def run(self, range_messages: int, result: ReputResult, progress: Callable[[int], None]) -> None:
        """Advance to where `plan` said."""
        with ThreadPoolExecutor(1, thread_name_prefix="rmq-reput") as writer:
            while not self._advance(writer, range_messages, result, progress):
                pass

    def _advance(
        self, writer: ThreadPoolExecutor, range_messages: int, result: ReputResult, progress: Callable[[int], None]
    ) -> bool:
        """Go on from the tables' marks; False if somebody, or retention, came between: then read the marks again."""
        marks = self._ranges.marks()
        under_way: Future[dict[str, int]] | None = None
        current: LogRange | None = None
        try:
            while True:
                self._lease.hold()
                following = self._ranges.following(marks, self._end, range_messages)
                if following is not None:
                    rows = self._rows.make(following.start, following.end, following.marks)
                if under_way is not None and current is not None:
                    landed = under_way.result()
                    under_way = None
                    self._count(result, current, landed)
                    progress(result.messages)
                if following is None:
                    return True
                current = following
                marks.update(dict.fromkeys(current.marks, current.end))
                under_way = writer.submit(self._write, current, rows)
        except (OvertakenError, DataExpiredError) as error:
            _log.info("the tables of %s go on from their newest marks: %s", self._ranges.broker, error)
            return False
        finally:
            if under_way is not None:
                under_way.exception()  # whatever ended us: the thread must not go on behind our back

    def _write(self, current: LogRange, rows: dict[str, pa.Table]) -> dict[str, int]:
        """Land one range; returns the rows that entered each table."""
        self._ranges.make_durable(current.end)
        landed = {}
        for name in current.marks:
            made = rows.pop(name)
            landed[name] = made.num_rows
            self._ranges.land(name, current, self._files(name, current, made))
        return landed

    def _files(self, table: str, current: LogRange, rows: pa.Table) -> list[DataFile]:
        """Step 3 for one table."""
        if not rows.num_rows:
            return []
        spec, clock = TABLES[table], self._store.clock
        name = data_files.file_name(self._ranges.broker, current.start, current.end, clock.token())
        return [data_files.write(self._store.storage, spec, data_files.in_order(rows, spec), name, clock)]

    def _count(self, result: ReputResult, current: LogRange, landed: dict[str, int]) -> None:
        result.ranges += 1
        result.messages += current.end - current.start
        for name, rows in landed.items():
            result.rows[name] += rows
