"""Checking a whole log: every check-sum, the chain, the density of offsets, every reference.

It never stops at the first damage: it says what is wrong with which file, what that costs (the offsets that can no
longer be read), and goes on behind it. Warnings are things that cost nothing: leftovers, jumps of the clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError, RmqError, UnsupportedVersionError
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.fold import Fold
from rmq_spark.log.marks import Mark, SegmentRef, genesis, read_mark
from rmq_spark.log.queues import Queues
from rmq_spark.log.records import read_records
from rmq_spark.log.roll import Progress, block_bounds, no_progress
from rmq_spark.log.rows import queue_offsets
from rmq_spark.log.snapshot import comparable, floor_state, load_snapshot, read_payloads
from rmq_spark.log.state import LogState
from rmq_spark.log.verify_files import DESCRIBED, UNREADABLE, CheckedFiles, check_counts, check_references
from rmq_spark.log.view import check_link
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

CLOCK_JUMP_MS = 24 * 3_600_000
"""A gap between two commits that is worth a warning."""

TRIES: Final = 5
"""How often a log is checked in all if it is maintained meanwhile each time."""


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


def verify(
    storage: Storage,
    root: str,
    broker: str,
    progress: Progress = no_progress,
    *,
    folds: Sequence[type[Fold]] = (),
) -> Report:
    """Check one log from its start to its end; `progress` is called with (files checked, files in all).

    The state of `folds` is compared with what snapshots say of it, beside the log's own.

    A roll or expiry that runs meanwhile takes away files that were to be read, which looks like damage. A mark tells
    of it; then the log is checked again.
    """
    for _ in range(TRIES):
        epoch = _newest_epoch(storage, root)
        report = _Verifier(storage, root, broker, progress, folds).run()
        if report.ok or not storage.exists(paths.mark(root, epoch + 1)):
            break
    return report


def _newest_epoch(storage: Storage, root: str) -> int:
    # By name only: the mark itself may be damaged.
    epoch = max((paths.file_number(info.name) or 0 for info in storage.list(paths.marks(root))), default=0)
    while storage.exists(paths.mark(root, epoch + 1)):
        epoch += 1
    return epoch


class _Verifier:
    def __init__(
        self, storage: Storage, root: str, broker: str, progress: Progress, folds: Sequence[type[Fold]]
    ) -> None:
        self._storage = storage
        self._folds = folds
        self._root = root
        self._broker = broker
        self._progress = progress
        self._report = Report()
        self._files = CheckedFiles(storage, self._count_file)
        self._damaged = False
        self._done = 0
        self._total = 0
        self._referenced: set[str] = set()
        self._numbers: list[int] = []
        """Commit names as listed last."""
        self._snapshots: dict[int, list[str]] = {}
        """Offset -> names of the snapshots of the state there."""
        self._last_commit: tuple[int, int] | None = None
        """First offset and fingerprint of the log's last commit above the floor."""
        self._folded: dict[int, dict[str, bytes]] = {}
        """Offset of a snapshot -> the state that the log itself gives there."""

    def run(self) -> Report:
        # Snapshots are listed before the walk, which so comes past all of them.
        for name in self._names(paths.snapshots):
            offset = paths.snapshot_offset(name)
            if offset is None:
                self._foreign(paths.snapshots, name)
            else:
                self._snapshots.setdefault(offset, []).append(name)
        segments, data = self._names(paths.segments), self._names(paths.data)
        for name in self._list_commits():
            self._foreign(paths.commitlog, name)
        self._total = len(segments) + len(data) + len(self._numbers)
        mark = self._check_marks()
        if mark is not None:
            state = self._check_segments(mark)
            self._check_chain(mark, state)
            self._check_leftovers(mark, segments, data)
            self._check_snapshots(mark)
        self._progress(self._total, self._total)
        return self._report

    # -------------------------------------------------------- parts of a log

    def _check_marks(self) -> Mark | None:
        """Every mark is readable, follows its predecessor, and moves nothing backwards."""
        listed = []
        for name in self._names(paths.marks):
            number = paths.file_number(name)
            if number is None:
                self._foreign(paths.marks, name)
            else:
                listed.append(number)
        last: Mark | None = Mark(floor_digest=genesis(self._storage, self._root))
        epoch = 0
        while self._storage.exists(paths.mark(self._root, epoch + 1)) or epoch < max(listed, default=0):
            epoch += 1
            self._report.marks += 1
            path = paths.mark(self._root, epoch)
            try:
                meta = self._files.read(path)
                mark = read_mark(self._storage, self._root, epoch)
            except (RmqError, *UNREADABLE) as error:
                newest = epoch >= max(listed, default=0)
                self._damage(path, _text(error), first=0 if newest else None)
                last = None
                continue
            if last is not None and (meta.doc["prev"] != last.digest or mark.floor < last.floor):
                self._damage(path, "mark does not follow its predecessor")
            last = mark
        return last

    def _check_segments(self, mark: Mark) -> LogState:
        """Segments follow each other without gap and hold every offset once; a snapshot stands at their end."""
        self._report.log_start = mark.log_start
        at = mark.log_start
        before: FileMeta | None = None
        queues: Queues | None = Queues.load(mark.starts)
        for segment in mark.segments:
            path = f"{paths.segments(self._root)}/{segment.name}"
            if segment.first != at:
                self._damage(path, "segments do not follow each other", first=at, end=segment.first)
            at = segment.end
            self._report.segments += 1
            try:
                meta = self._files.read(path)
                if meta.kind != "segment" or meta.digest != segment.digest:
                    raise meta.corrupt("not the segment that the mark names", expected=segment.digest)
                self._segment_rows(meta, segment)
                if before is not None and meta.doc["prev"] != before.doc["last"]:
                    raise meta.corrupt("chain is broken between segments")
                if not segment.first and meta.doc["prev"] != genesis(self._storage, self._root):
                    raise meta.corrupt("the log of another store begins here")
                check_counts(meta, queues)
                before = meta
            except (RmqError, *UNREADABLE) as error:
                self._damage(path, _text(error), first=segment.first, end=segment.end)
                before = queues = None
        if mark.floor != at or (before is not None and before.doc["last"] != mark.floor_digest):
            self._damage(paths.mark(self._root, mark.epoch), "floor does not stand on the last segment")
        return self._floor_state(mark, queues)

    def _floor_state(self, mark: Mark, queues: Queues | None) -> LogState:
        """The state at the floor, which must count what the segments hold."""
        state = LogState()
        try:
            state, _ = floor_state(self._storage, self._root, mark, self._folds)
            if (state.offset, state.digest) != (mark.floor, mark.floor_digest):
                raise CorruptDataError("state is of another offset than the floor", offset=state.offset)
            if queues is not None and not queues.same_ends(state.queues):
                raise CorruptDataError("state at the floor does not count the segments' rows")
        except (RmqError, *UNREADABLE) as error:
            named = next((each.name for each in mark.snapshots if each.offset == mark.floor), None)
            path = paths.mark(self._root, mark.epoch) if named is None else f"{paths.floors(self._root)}/{named}"
            self._damage(path, _text(error))
        state.offset, state.digest = mark.floor, mark.floor_digest
        return state

    def _segment_rows(self, meta: FileMeta, segment: SegmentRef) -> None:
        columns = ["commitOffset", "queueOffset", "storeTimestamp", *DESCRIBED]
        offsets, times, bounds = [], [], []
        at = 0
        expected = queue_offsets(meta.runs, meta.bases)
        for batch in self._files.described_rows(meta, columns):
            offsets.append(batch.column(0).to_numpy())
            times.append(batch.column(2).cast(pa.int64()).to_numpy())
            bounds.append(block_bounds(batch))
            if not np.array_equal(batch.column(1).to_numpy(), expected[at : at + batch.num_rows]):
                raise meta.corrupt("queue offsets are not dense")
            at += batch.num_rows
        every = np.concatenate(offsets) if offsets else np.empty(0, np.int64)
        order = np.argsort(every)
        if not np.array_equal(every[order], np.arange(meta.doc["first"], meta.doc["end"])):
            raise meta.corrupt("log offsets are not each there once")
        when = np.concatenate(times)[order]
        if np.any(np.diff(when) < 0):
            raise meta.corrupt("storeTimestamp goes backwards")
        if not np.array_equal(np.array(bounds), meta.block_bounds):
            raise meta.corrupt("bounds of the blocks are not those of their rows")
        named = (segment.first, segment.end, segment.bytes, segment.min_ms, segment.max_ms)
        if named != (meta.doc["first"], meta.doc["end"], meta.size, int(when[0]), int(when[-1])):
            raise meta.corrupt("mark describes the segment wrongly")
        self._report.messages += at

    def _check_chain(self, mark: Mark, state: LogState) -> None:
        """Walk the commits from the floor; behind damage, go on at the next file there is."""
        starts = Queues.load(mark.starts)
        intact = True
        while True:
            if state.offset in self._snapshots and not self._damaged:
                self._folded[state.offset] = comparable(state, mark.floor, starts)
            path = paths.commit(self._root, state.offset)
            try:
                meta = self._files.read(path)
                if not intact:
                    state.digest, intact = meta.doc.get("prev", ""), True
                self._commit(meta, state)
            except NotFoundError:
                later = self._next_commit(state.offset)
                if self._storage.exists(path):
                    continue  # appended since it was looked for, and others behind it
                if later is None:
                    break
                self._damage(path, "commit is missing", first=state.offset, end=later)
                state.offset, intact = later, False
            except (CorruptDataError, UnsupportedVersionError, *UNREADABLE) as error:
                # How many rows it had is lost with it: the next file's name tells.
                later = self._next_commit(state.offset)
                self._damage(path, _text(error), first=state.offset, end=later)
                if later is None:
                    break
                state.offset, intact = later, False
        self._report.log_end = state.offset
        if commits := state.commits.firsts:
            self._last_commit = commits[-1], state.commits.fingerprints[-1]
        self._check_strays(mark, state)

    def _next_commit(self, offset: int) -> int | None:
        """The first name behind `offset`; looks anew if the last listing has none, for the log may have grown."""
        at = bisect_right(self._numbers, offset)
        if at == len(self._numbers):
            self._list_commits()
            at = bisect_right(self._numbers, offset)
        return self._numbers[at] if at < len(self._numbers) else None

    def _list_commits(self) -> list[str]:
        """Note the commits that there are now; return names that are none of a commit."""
        sizes: dict[int, int] = {}
        others = []
        for info in self._storage.list(paths.commitlog(self._root)):
            number = paths.file_number(info.name)
            if number is None:
                others.append(info.name)
            else:
                sizes[number] = info.size
        self._numbers = sorted(sizes)
        self._files.expect([(paths.commit(self._root, number), sizes[number]) for number in self._numbers])
        return others

    def _check_strays(self, mark: Mark, state: LogState) -> None:
        chain = set(state.commits.firsts)
        damaged = {finding.path for finding in self._report.findings}
        for number in self._numbers:
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
        bases = state.queues.number(meta.runs)
        if self._damaged and np.all(meta.bases >= bases):
            # Behind damage a queue may go on at any later offset: one loss is one finding, not one for each commit.
            state.queues.resume(meta.runs, meta.bases)
            bases = state.queues.number(meta.runs)
        if bases.tolist() != meta.bases.tolist():
            raise meta.corrupt("queue offsets do not continue where the log left them")
        if files:
            checked = [self._row_file(meta, file) for file in files]
            check_references(meta, [file for file in checked if file is not None])
        else:
            self._files.check_rows(meta)
        state.apply([meta], read_records(self._storage, meta, state))
        self._report.commits += 1
        self._report.messages += meta.rows

    def _row_file(self, commit: FileMeta, file: list[object]) -> FileMeta | None:
        name, digest = str(file[0]), file[1]
        path = paths.data_file(self._root, name)
        self._referenced.add(name)
        self._report.row_files += 1
        try:
            meta = self._files.read(path)
            if meta.kind != "rows" or meta.digest != digest:
                raise meta.corrupt("not the row file that its commit names", expected=digest)
            self._files.check_rows(meta)
        except (RmqError, *UNREADABLE) as error:
            first = commit.doc["first"]
            self._damage(path, _text(error), first=first, end=first + commit.rows)
            return None
        return meta

    def _check_leftovers(self, mark: Mark, segments: list[str], data: list[str]) -> None:
        live = {segment.name for segment in mark.segments}
        for name in sorted(set(segments) - live):
            if paths.segment_range(name) is None:
                self._foreign(paths.segments, name)
                continue
            self._warn(f"{paths.segments(self._root)}/{name}", "segment that no mark names; roll deletes it")
        for name in sorted(set(data) - self._referenced):
            self._warn(paths.data_file(self._root, name), "row file that no commit refers to")

    def _check_snapshots(self, mark: Mark) -> None:
        starts = Queues.load(mark.starts)
        for named in mark.snapshots:
            path = f"{paths.floors(self._root)}/{named.name}"
            self._report.snapshots += 1
            try:
                if (meta := self._files.read(path)).digest != named.digest:
                    raise meta.corrupt("not the snapshot that the mark names", expected=named.digest)
            except RmqError as error:
                self._damage(path, _text(error))
        for offset, name in sorted((offset, name) for offset, names in self._snapshots.items() for name in names):
            path = f"{paths.snapshots(self._root)}/{name}"
            try:
                meta = self._files.read(path)
            except NotFoundError:
                continue  # a newer one has taken its place
            except RmqError as error:
                self._report.snapshots += 1
                self._warn(path, f"damaged snapshot, readers skip it: {error}")
                continue
            self._report.snapshots += 1
            if offset < mark.floor:
                continue
            if offset > self._report.log_end and self._is_of_this_log(meta):
                self._missing_end(name, offset)
                continue
            loaded = load_snapshot(self._storage, self._root, path, mark, self._folds)
            if loaded is None:
                self._warn(path, "snapshot that the chain does not vouch for, readers skip it")
            elif offset in self._folded:
                self._compare(path, comparable(loaded[0], mark.floor, starts), self._folded[offset])

    def _is_of_this_log(self, snapshot: FileMeta) -> bool:
        """Whether the log's last commit stands in the snapshot too: it is of this log, and of no past given up."""
        try:
            known = LogState.load(read_payloads(self._storage, snapshot))[0].commits
        except (RmqError, *UNREADABLE):
            return False
        if self._last_commit is None:
            return True
        return self._last_commit in zip(known.firsts, known.fingerprints, strict=True)

    def _missing_end(self, snapshot: str, offset: int) -> None:
        """A snapshot of this log's state behind its end: commits that were there are not there any more."""
        end = self._report.log_end
        path = paths.commit(self._root, end)
        if self._storage.exists(path) or any(each.path == path and each.damage for each in self._report.findings):
            return  # appended since, or told already
        self._damage(path, f"commit is missing although snapshot {snapshot} knows it", first=end, end=offset)

    def _compare(self, path: str, stored: dict[str, bytes], folded: dict[str, bytes]) -> None:
        # No message is lost by it, but who starts from it numbers messages wrongly and writes that down.
        if other := sorted(name for name in stored.keys() & folded.keys() if stored[name] != folded[name]):
            self._damage(path, f"snapshot says other than the log ({', '.join(other)}); delete this snapshot")

    # -------------------------------------------------------- what is told

    def _count_file(self, size: int) -> None:
        self._done += 1
        self._progress(self._done, max(self._total, self._done))
        self._report.bytes += size

    def _names(self, place: Callable[[str], str]) -> list[str]:
        return [info.name for info in self._storage.list(place(self._root))]

    def _foreign(self, place: Callable[[str], str], name: str) -> None:
        self._warn(f"{place(self._root)}/{name}", "foreign file, not part of the log; nobody reads or deletes it")

    def _damage(self, path: str, problem: str, *, first: int | None = None, end: int | None = None) -> None:
        self._damaged = True
        self._report.findings.append(Finding(path=path, problem=problem, first=first, end=end))

    def _warn(self, path: str, problem: str) -> None:
        self._report.findings.append(Finding(path=path, problem=problem, damage=False))


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, RmqError) else f"metadata cannot be read: {type(error).__name__}: {error}"
