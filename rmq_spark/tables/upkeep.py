"""Keeping tables in shape: trimming, merging, checkpoints, deleting files. All of it under the lease.

A table gets one file for each range. Files of few rows are merged, eight of a size into one, until a file is as large
as a full range's; so a row is rewritten a few times at most, and the number of files grows with the log by one for
each full range. A merge moves rows between files and changes none, and leaves the marks alone.

Rows below the log's start go as soon as retention has moved it: whole files where it passed them, and the files that
it stands in are rewritten. So a table always holds exactly what building it from the log would give.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.clock import Clock
from rmq_spark.errors import CorruptDataError, ExistsError, UnsupportedVersionError
from rmq_spark.storage.base import Storage
from rmq_spark.tables import data_files
from rmq_spark.tables.delta_actions import DELETED_FILES_KEPT_MS, LOG_KEPT_MS, DataFile, transaction
from rmq_spark.tables.delta_log import VERSIONS_END, DeltaLog, Snapshot
from rmq_spark.tables.schemas import POSITION, TableSpec

MERGE_FILES: Final = 8
"""So many neighbouring files of a size become one."""
FULL_ROWS: Final = 1_000_000
"""A file with so many rows is merged no more."""
SMALL_ROWS: Final = 1024
"""Up to eight times this counts as one size, then sizes are eight times apart."""
CHECKPOINT_EVERY: Final = 10
"""Versions between two checkpoints."""

_log = logging.getLogger(__name__)

Hold = Callable[[], None]
"""Called between steps: renews the lease, or raises when it is lost."""


@dataclass(frozen=True, slots=True)
class Run:
    """Files whose rows come from one stretch of one broker's log."""

    broker: str
    first: int
    end: int
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Rows of all of them."""
        return sum(file.rows or 0 for file in self.files)


def tend(delta: DeltaLog, starts: Mapping[str, int], clock: Clock, hold: Hold) -> None:
    """Trim, merge, write a checkpoint and delete files, as far as each is due.

    Args:
        delta: the table's log.
        starts: the log start of each broker.
        clock: time and tokens.
        hold: called before each step.
    """
    if delta.refresh() is None:
        return
    trim(delta, starts, clock, hold)
    merge(delta, clock, hold)
    hold()
    snapshot = delta.refresh()
    if snapshot is not None and snapshot.version - snapshot.checkpoint >= CHECKPOINT_EVERY:
        delete_old_files(delta, snapshot, clock.now_ms())
        hold()
        delta.write_checkpoint()


def trim(delta: DeltaLog, starts: Mapping[str, int], clock: Clock, hold: Hold) -> None:
    """Take out rows below the logs' starts."""
    snapshot = delta.refresh()
    for file in list(snapshot.files.values()) if snapshot else ():
        if file.broker is None:
            _split(delta, file, starts, clock, hold)
            continue
        start = starts.get(file.broker, 0)
        first, end = file.span
        if first >= start:
            continue
        hold()
        kept: list[DataFile] = []
        if end > start:
            rows = data_files.read(delta.storage, delta.spec, file)
            rows = rows.filter(pc.greater_equal(rows[POSITION], start))
            if rows.num_rows:
                kept = [_write(delta, file.broker, rows, (start, end), clock)]
        _replace(delta, [file], kept, clock, "DELETE", data_change=True)


def _split(delta: DeltaLog, file: DataFile, starts: Mapping[str, int], clock: Clock, hold: Hold) -> None:
    """Trim a file of several brokers into one for each, if any of their starts lies behind its first row.

    Also if no row has to go: it would be read again each time otherwise.
    """
    first, end = file.span
    if first >= max(starts.values(), default=0):
        return
    hold()
    rows = data_files.read(delta.storage, delta.spec, file)
    kept: list[DataFile] = []
    for broker in sorted(rows["brokerName"].unique().drop_null().to_pylist()):
        start = starts.get(broker, 0)
        mine = rows.filter(pc.and_(pc.equal(rows["brokerName"], broker), pc.greater_equal(rows[POSITION], start)))
        if mine.num_rows:
            kept.append(_write(delta, broker, mine, (max(first, start), end), clock))
    changed = sum(one.rows or 0 for one in kept) != rows.num_rows
    _replace(delta, [file], kept, clock, "DELETE" if changed else "OPTIMIZE", data_change=changed)


def merge(delta: DeltaLog, clock: Clock, hold: Hold) -> None:
    """Merge small files until there is nothing left to merge."""
    while True:
        snapshot = delta.refresh()
        due = next(filter(None, map(merge_due, _by_broker(snapshot))), None) if snapshot else None
        if not due:
            return
        hold()
        files = [file for run in due for file in run.files]
        tables = [data_files.read(delta.storage, delta.spec, file) for file in files]
        merged = _write(delta, due[0].broker, pa.concat_tables(tables), (due[0].first, due[-1].end), clock)
        if not _replace(delta, files, [merged], clock, "OPTIMIZE", data_change=False):
            return


def runs_of(files: Iterable[DataFile], broker: str) -> list[Run]:
    """A broker's files as runs, in the order of the log; files whose stretches overlap are one run."""
    runs: list[Run] = []
    for file in sorted((file for file in files if file.broker == broker), key=lambda file: file.span):
        first, end = file.span
        if runs and first < runs[-1].end:
            last = runs[-1]
            runs[-1] = Run(broker, last.first, max(last.end, end), (*last.files, file))
        else:
            runs.append(Run(broker, first, end, (file,)))
    return runs


def merge_due(runs: Sequence[Run]) -> list[Run] | None:
    """Neighbouring runs that should become one, the smallest first; None when none should."""
    size = SMALL_ROWS * MERGE_FILES
    while True:
        chosen: list[Run] = []
        for run in runs:
            if run.rows >= min(size, FULL_ROWS) or sum(other.rows for other in chosen) + run.rows > 2 * FULL_ROWS:
                if len(chosen) >= MERGE_FILES:
                    return chosen
                chosen = [] if run.rows >= min(size, FULL_ROWS) else [run]
            else:
                chosen.append(run)
        if len(chosen) >= MERGE_FILES:
            return chosen
        if size >= FULL_ROWS:
            return None
        size *= MERGE_FILES


def empty(delta: DeltaLog, clock: Clock, brokers: Sequence[str] | None = None) -> None:
    """Take out every row (of these brokers' logs, if they are named) and set the marks back, in one step."""
    while True:
        snapshot = delta.refresh()
        if snapshot is None:
            return
        files = [file for file in snapshot.files.values() if brokers is None or file.broker in (None, *brokers)]
        marks = list(snapshot.transactions) if brokers is None else [delta.spec.app_id(broker) for broker in brokers]
        kept = [] if brokers is None else [made for file in files if (made := _without(delta, file, brokers, clock))]
        now = clock.now_ms()
        actions = [file.remove(data_change=True, now_ms=now) for file in files]
        actions += [file.add(data_change=True) for file in kept]
        actions += [transaction(app_id, 0, now) for app_id in marks if app_id in snapshot.transactions]
        try:
            delta.commit(actions, "DELETE", now, clock.token())
        except ExistsError:
            discard(delta.storage, delta.spec, kept)
            continue
        return


def _without(delta: DeltaLog, file: DataFile, brokers: Sequence[str], clock: Clock) -> DataFile | None:
    """A new file with the rows of other brokers, of one that holds rows of several; None if there are none."""
    if file.broker is not None:
        return None
    rows = data_files.read(delta.storage, delta.spec, file)
    rows = rows.filter(pc.invert(pc.is_in(rows["brokerName"], pa.array(brokers, pa.string()))))
    return _write(delta, "several", rows, file.span, clock) if rows.num_rows else None


def drop(delta: DeltaLog, clock: Clock, hold: Hold) -> bool:
    """Delete the table, damaged or not; whether there was anything in it.

    What stays is one small checkpoint that says: no rows, and so many versions. The next table goes on counting from
    there, so no name is ever used twice, and an engine that slept through this cannot write, or delete, a file of the
    table that was made since.
    """
    storage, spec = delta.storage, delta.spec
    names = sorted(info.name for info in storage.list(delta.directory))
    was_there = bool(names)
    if names:
        try:
            snapshot = delta.refresh()
            was_there = snapshot is not None and bool(snapshot.files or snapshot.transactions)
            if was_there:
                empty(delta, clock)
        except (CorruptDataError, UnsupportedVersionError) as error:
            _log.info("table %s is dropped although it cannot be read: %s", spec.name, error)
            delta.snapshot = None
        kept = delta.write_blank(clock.now_ms(), clock.token())
        for name in sorted(info.name for info in storage.list(delta.directory)):
            digits = name.partition(".")[0]
            if name[:1].isdigit() and (name < kept or (digits.isdecimal() and int(digits) >= VERSIONS_END)):
                hold()
                storage.delete(f"{delta.directory}/{name}")
    for info in list(storage.list(spec.root)):
        hold()
        storage.delete(f"{spec.root}/{info.name}")
    return was_there


def delete_old_files(delta: DeltaLog, snapshot: Snapshot, now_ms: int) -> int:
    """Delete what no reader can need any more; returns how many files that was.

    Removed files go after `DELETED_FILES_KEPT_MS`, and so do files that no version names: their writer died, or lost
    the lease and with it the right to name them. Entries of Delta's log go a day after a checkpoint has covered them.
    """
    storage, spec = delta.storage, delta.spec
    latest = now_ms - DELETED_FILES_KEPT_MS
    gone = [path for path, (when_ms, _) in snapshot.removed.items() if when_ms <= latest]
    for path in gone:
        storage.delete(f"{spec.root}/{path}")
        del snapshot.removed[path]
    orphans = [
        info.name
        for info in storage.list(spec.root)
        if info.name.endswith(".parquet")
        and info.modified_ms <= latest
        and info.name not in snapshot.files
        and info.name not in snapshot.removed
    ]
    for name in orphans:
        storage.delete(f"{spec.root}/{name}")
    covered = f"{snapshot.checkpoint:020d}."
    old = [
        info.name
        for info in storage.list(delta.directory)
        if info.name[:1].isdigit() and info.name < covered and info.modified_ms <= now_ms - LOG_KEPT_MS
    ]
    for name in sorted(old):
        storage.delete(f"{delta.directory}/{name}")
    return len(gone) + len(orphans) + len(old)


def discard(storage: Storage, spec: TableSpec, files: Iterable[DataFile]) -> None:
    """Delete files that were written and will not be named by any version."""
    for file in files:
        storage.delete(f"{spec.root}/{file.path}")


def _by_broker(snapshot: Snapshot) -> list[list[Run]]:
    brokers = sorted({file.broker for file in snapshot.files.values() if file.broker is not None})
    return [runs_of(snapshot.files.values(), broker) for broker in brokers]


def _write(delta: DeltaLog, broker: str, rows: pa.Table, span: tuple[int, int], clock: Clock) -> DataFile:
    """Write rows in the table's order, which files of other engines need not have."""
    rows = data_files.in_order(rows.combine_chunks(), delta.spec)
    name = data_files.file_name(broker, *span, clock.token())
    return data_files.write(delta.storage, delta.spec, rows, name, clock)


def _replace(
    delta: DeltaLog,
    old: Sequence[DataFile],
    new: Sequence[DataFile],
    clock: Clock,
    operation: str,
    *,
    data_change: bool,
) -> bool:
    """Put files in the place of others in one step; False if somebody else has changed the old ones."""
    while True:
        snapshot = delta.refresh()
        if snapshot is None or any(file.path not in snapshot.files for file in old):
            discard(delta.storage, delta.spec, new)
            return False
        now = clock.now_ms()
        actions: list[dict[str, Any]] = [file.remove(data_change=data_change, now_ms=now) for file in old]
        actions += [file.add(data_change=data_change) for file in new]
        try:
            delta.commit(actions, operation, now, clock.token())
        except ExistsError:
            continue
        return True
