"""Checking a whole log: every check-sum, the chain, the density of offsets, every reference.

It never stops at the first damage: it says what is wrong with which file, what that costs (the offsets that can no
longer be read), and goes on behind it. Warnings are things that cost nothing: leftovers, jumps of the clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError, RmqError, UnsupportedVersionError
from rmq_spark.log import file_format
from rmq_spark.log.file_format import FileMeta, check_whole
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.marks import Mark, read_mark
from rmq_spark.log.roll import Progress, no_progress
from rmq_spark.log.rows import queue_offsets
from rmq_spark.log.snapshot import load_snapshot, unpack_state
from rmq_spark.log.state import LogState, parts_of
from rmq_spark.log.view import check_link, read_records
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

CLOCK_JUMP_MS = 24 * 3_600_000
"""A gap between two commits that is worth a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    path: str
    problem: str
    first: int | None = None
    """First log offset that is lost by it, if any is."""
    end: int | None = None
    """Exclusive end of what is lost; None with `first` set: unknown, up to the log's end."""
    damage: bool = True
    """False for a warning: nothing is lost."""


@dataclass(slots=True)
class Report:
    """What `verify` found."""

    findings: list[Finding] = field(default_factory=list)
    commits: int = 0
    segments: int = 0
    row_files: int = 0
    marks: int = 0
    snapshots: int = 0
    messages: int = 0
    bytes: int = 0
    log_start: int = 0
    log_end: int = 0

    @property
    def ok(self) -> bool:
        """True when nothing is damaged (warnings do not count)."""
        return not any(finding.damage for finding in self.findings)


def verify(storage: Storage, root: str, broker: str, progress: Progress = no_progress) -> Report:
    """Check one log from its start to its end; `progress` is called with (files checked, files in all)."""
    return _Verifier(storage, root, broker, progress).run()


class _Verifier:
    def __init__(self, storage: Storage, root: str, broker: str, progress: Progress) -> None:
        self._storage = storage
        self._root = root
        self._broker = broker
        self._progress = progress
        self._report = Report()
        self._done = 0
        self._total = 0
        self._referenced: set[str] = set()

    def run(self) -> Report:
        names = {place: self._names(place) for place in (paths.commitlog, paths.segments, paths.data)}
        self._total = sum(map(len, names.values()))
        mark = self._check_marks()
        if mark is not None:
            state = self._check_segments(mark)
            self._check_chain(mark, state, sorted(names[paths.commitlog]))
            self._check_leftovers(mark, names[paths.segments], names[paths.data])
            self._check_snapshots(mark)
        self._progress(self._total, self._total)
        return self._report

    # -------------------------------------------------------- parts of a log

    def _check_marks(self) -> Mark | None:
        """Every mark is readable, follows its predecessor, and moves nothing backwards."""
        listed = [paths.number_of(name) or 0 for name in self._names(paths.marks)]
        last: Mark | None = Mark()
        epoch = 0
        while self._storage.exists(paths.mark(self._root, epoch + 1)) or epoch < max(listed, default=0):
            epoch += 1
            self._report.marks += 1
            path = paths.mark(self._root, epoch)
            try:
                meta = self._whole(path)
                mark = read_mark(self._storage, self._root, epoch)
            except RmqError as error:
                newest = epoch >= max(listed, default=0)
                self._damage(path, str(error), first=0 if newest else None)
                last = None
                continue
            if last is not None and (meta.doc["prev"] != last.digest or mark.floor < last.floor):
                self._damage(path, "mark does not follow its predecessor")
            last = mark
        return last

    def _check_segments(self, mark: Mark) -> LogState:
        """Segments follow each other without gap, hold every offset once, and carry the state that follows."""
        self._report.log_start = mark.log_start
        at = mark.log_start
        before: FileMeta | None = None
        state = LogState()
        for segment in mark.segments:
            path = f"{paths.segments(self._root)}/{segment.name}"
            if segment.first != at:
                self._damage(path, "segments do not follow each other", first=at, end=segment.first)
            at = segment.end
            self._report.segments += 1
            try:
                meta = self._whole(path)
                if meta.kind != "segment" or meta.digest != segment.digest:
                    raise meta.corrupt("not the segment that the mark names", expected=segment.digest)
                self._segment_rows(meta)
                if before is not None and meta.doc["prev"] != before.doc["last"]:
                    raise meta.corrupt("chain is broken between segments")
                before = meta
                state = unpack_state(meta.doc["state"])
            except RmqError as error:
                self._damage(path, str(error), first=segment.first, end=segment.end)
                before = None
                state = LogState()
                state.offset = segment.end
        if mark.floor != at or (before is not None and before.doc["last"] != mark.floor_digest):
            self._damage(paths.mark(self._root, mark.epoch), "floor does not stand on the last segment")
        state.offset, state.digest = mark.floor, mark.floor_digest
        return state

    def _segment_rows(self, meta: FileMeta) -> None:
        columns = ["commitOffset", "queueOffset", "storeTimestamp", "topic", "queueId"]
        offsets, times = [], []
        at = 0
        expected = queue_offsets(meta.runs, meta.bases)
        for batch in self._rows(meta, columns):
            offsets.append(batch.column(0).to_numpy())
            times.append(batch.column(2).cast(pa.int64()).to_numpy())
            self._run_columns(meta, batch.select([3, 4]), at)
            if not np.array_equal(batch.column(1).to_numpy(), expected[at : at + batch.num_rows]):
                raise meta.corrupt("queue offsets are not dense")
            at += batch.num_rows
        every = np.concatenate(offsets) if offsets else np.empty(0, np.int64)
        order = np.argsort(every)
        if not np.array_equal(every[order], np.arange(meta.doc["first"], meta.doc["end"])):
            raise meta.corrupt("log offsets are not each there once")
        if np.any(np.diff(np.concatenate(times)[order]) < 0):
            raise meta.corrupt("storeTimestamp goes backwards")
        self._report.messages += at

    def _check_chain(self, mark: Mark, state: LogState, names: list[str]) -> None:
        """Walk the commits from the floor; behind damage, go on at the next file there is."""
        numbers = sorted(number for name in names if (number := paths.number_of(name)) is not None)
        intact = True
        while True:
            path = paths.commit(self._root, state.offset)
            index = bisect_right(numbers, state.offset)
            later = numbers[index : index + 1]
            try:
                meta = self._whole(path)
                if not intact:
                    state.digest, intact = meta.doc.get("prev", ""), True
                self._commit(meta, state)
            except NotFoundError:
                if not later:
                    break
                self._damage(path, "commit is missing", first=state.offset, end=later[0])
                state.offset, intact = later[0], False
            except (CorruptDataError, UnsupportedVersionError, KeyError, ValueError) as error:
                # How many rows it had is lost with it: the next file's name tells.
                self._damage(path, str(error), first=state.offset, end=later[0] if later else None)
                if not later:
                    break
                state.offset, intact = later[0], False
        self._report.log_end = state.offset
        self._check_strays(mark, state, numbers)

    def _check_strays(self, mark: Mark, state: LogState, numbers: list[int]) -> None:
        chain = set(state.commits.firsts)
        damaged = {finding.path for finding in self._report.findings}
        for number in numbers:
            path = paths.commit(self._root, number)
            if number in chain or path in damaged:
                continue
            if number < mark.floor:
                self._warn(path, "leftover below the floor; roll deletes it")
            else:
                self._damage(path, "file stands where no commit can be: not part of the chain")

    def _commit(self, meta: FileMeta, state: LogState) -> None:
        check_link(meta, state, self._broker)
        if meta.doc["ts"] - state.store_ms > CLOCK_JUMP_MS and state.store_ms:
            self._warn(meta.path, f"store time jumps by {meta.doc['ts'] - state.store_ms} ms")
        files = meta.doc.get("files")
        bases = state.queues.number(meta.runs, parts_of(meta.doc))
        if not self._report.ok and np.all(meta.bases >= bases):
            # Behind damage a queue may go on at any later offset: one loss is one finding, not one for each commit.
            state.queues.resume(meta.runs, meta.bases)
            bases = state.queues.number(meta.runs, parts_of(meta.doc))
        if not np.array_equal(bases, meta.bases):
            raise meta.corrupt("queue offsets do not continue where the log left them")
        if int(meta.runs.rows.sum()) != meta.rows:
            raise meta.corrupt("run index does not cover the rows")
        for file in files or ():
            self._row_file(meta, file)
        if not files:
            at = 0
            for batch in self._rows(meta, ["topic", "queueId"]):
                self._run_columns(meta, batch, at)
                at += batch.num_rows
        state.apply(meta, read_records(self._storage, self._root, meta))
        self._report.commits += 1
        self._report.messages += meta.rows

    def _row_file(self, commit: FileMeta, file: list[object]) -> None:
        name, digest = str(file[0]), file[1]
        path = paths.data_file(self._root, name)
        self._referenced.add(name)
        self._report.row_files += 1
        try:
            meta = self._whole(path)
            if meta.kind != "rows" or meta.digest != digest:
                raise meta.corrupt("not the row file that its commit names", expected=digest)
            at = 0
            for batch in self._rows(meta, ["topic", "queueId"]):
                self._run_columns(meta, batch, at)
                at += batch.num_rows
        except RmqError as error:
            first = commit.doc["first"]
            self._damage(path, str(error), first=first, end=first + commit.rows)

    def _check_leftovers(self, mark: Mark, segments: list[str], data: list[str]) -> None:
        live = {segment.name for segment in mark.segments}
        for name in sorted(set(segments) - live):
            self._warn(f"{paths.segments(self._root)}/{name}", "segment that no mark names; roll deletes it")
        for name in sorted(set(data) - self._referenced):
            self._warn(paths.data_file(self._root, name), "row file that no commit refers to")

    def _check_snapshots(self, mark: Mark) -> None:
        for name in self._names(paths.snapshots):
            self._report.snapshots += 1
            path = f"{paths.snapshots(self._root)}/{name}"
            try:
                self._whole(path)
            except RmqError as error:
                self._warn(path, f"damaged snapshot, readers skip it: {error}")
                continue
            if (paths.number_of(name) or 0) >= mark.floor and not load_snapshot(
                self._storage, self._root, path, mark.floor, mark.floor_digest
            ):
                self._warn(path, "snapshot that the chain does not vouch for, readers skip it")

    # -------------------------------------------------------- files and rows

    def _whole(self, path: str) -> FileMeta:
        """Read a whole file and check every bit of it."""
        data = self._storage.read(path)
        self._done += 1
        self._progress(self._done, max(self._total, self._done))
        self._report.bytes += len(data)
        meta = check_whole(path, data)
        meta.whole = data
        return meta

    def _rows(self, meta: FileMeta, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Every block with its check-sums, then only the columns that are asked for."""
        names = file_format.SCHEMAS[meta.kind].names
        total = 0
        for _, batch in FileReader(self._storage, meta).read_blocks(range(len(meta.places.rows)), names):
            total += batch.num_rows
            yield batch.select(columns)
        if total != meta.rows:
            raise meta.corrupt("file has another number of rows than its metadata says", rows=total)

    def _run_columns(self, meta: FileMeta, batch: pa.RecordBatch, at: int) -> None:
        """The columns `topic` and `queueId` say the same as the run index."""
        runs = meta.runs
        rows = np.arange(at, at + batch.num_rows)
        run = np.searchsorted(runs.first_rows(), rows, "right") - 1
        topics = pa.array(runs.topics, pa.string()).take(pa.array(runs.topic[run]))
        if not batch.column(0).equals(topics) or not np.array_equal(batch.column(1).to_numpy(), runs.queue[run]):
            raise meta.corrupt("run index does not describe the rows", row=at)

    def _names(self, place: object) -> list[str]:
        return [info.name for info in self._storage.list(place(self._root))]  # type: ignore[operator]

    def _damage(self, path: str, problem: str, *, first: int | None = None, end: int | None = None) -> None:
        self._report.findings.append(Finding(path=path, problem=problem, first=first, end=end))

    def _warn(self, path: str, problem: str) -> None:
        self._report.findings.append(Finding(path=path, problem=problem, damage=False))
