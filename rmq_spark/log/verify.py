"""Checking a whole log: every check-sum, the chain, the density of offsets, every reference.

It never stops at the first damage: it says what is wrong with which file, what that costs (the offsets that can no
longer be read), and goes on behind it. Warnings are things that cost nothing: leftovers, jumps of the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError, RmqError, UnsupportedVersionError
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import read_meta
from rmq_spark.log.files import LogFiles
from rmq_spark.log.fold import UNREADABLE, Fold
from rmq_spark.log.marks import Mark, SegmentRef, genesis, newest_epoch, read_mark
from rmq_spark.log.queues import Queues
from rmq_spark.log.roll import Progress, block_bounds, no_progress
from rmq_spark.log.rows import join_described
from rmq_spark.log.run_index import Runs, queue_offsets
from rmq_spark.log.small_commits import decode_small, is_small
from rmq_spark.log.snapshot import comparable, is_vouched, read_payloads
from rmq_spark.log.state import LogState
from rmq_spark.log.verify_files import check_blocks, check_references, check_rows, read_whole
from rmq_spark.log.view import LogView
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

I64 = npt.NDArray[np.int64]
Parsed = TypeVar("Parsed")

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
        epoch = newest_epoch(storage, root)
        report = _Verifier(storage, root, broker, progress, folds).run(epoch)
        if report.ok or not storage.exists(paths.mark(root, epoch + 1)):
            break
    return report


class _Verifier(LogView):
    """A view that checks each commit as a whole before it folds it, and everything else that the log consists of."""

    def __init__(
        self, storage: Storage, root: str, broker: str, progress: Progress, folds: Sequence[type[Fold]]
    ) -> None:
        super().__init__(LogFiles(storage, root), broker, folds)
        self._progress = progress
        self._report = Report()
        self._damaged = False
        self._done = 0
        self._total = 0
        self._referenced: set[str] = set()
        self._numbers: list[int] = []
        """First offsets of the commits that there were at the beginning."""
        self._queues = Queues()
        """Counted from the rows of segments and commits."""
        self._folded: dict[int, dict[str, Any]] = {}
        """Offset of a snapshot -> the state that the log itself gives there."""

    def run(self, newest: int) -> Report:
        """Check everything; `newest` is the number of the newest mark."""
        # Snapshots are listed before the walk, which so comes past all of them.
        snapshots = self._list(paths.snapshots(self.root), paths.snapshot_offset)
        segments = self._list(paths.segments(self.root), paths.segment_range)
        data = self._list(paths.data(self.root), len)
        self._list(paths.marks(self.root), paths.file_number)
        commits = self._list(paths.commitlog(self.root), paths.file_number)
        self._numbers = sorted(commits.values())
        self._total = len(segments) + len(data) + len(commits)
        mark = self._check_marks(newest)
        self._damaged = False  # no rows are lost with an older mark
        if mark is not None:
            self._check_segments(mark)
            self._check_floor(mark)
            self._check_chain(mark, sorted(snapshots.values()))
            self._check_strays(mark)
            for name in sorted(set(segments) - {segment.name for segment in mark.segments}):
                self._warn(f"{paths.segments(self.root)}/{name}", "segment that no mark names; roll deletes it")
            for name in sorted(set(data) - self._referenced):
                self._warn(paths.data_file(self.root, name), "row file that no commit refers to")
            self._report.snapshots = len(mark.snapshots) + len(snapshots)
            self._check_named_snapshots(mark)
            for name in sorted(snapshots):
                self._check_snapshot(mark, name, snapshots[name])
        self._progress(self._total, self._total)
        return self._report

    # -------------------------------------------------------- marks and segments

    def _check_marks(self, newest: int) -> Mark | None:
        """Every mark is readable, follows its predecessor, and moves nothing backwards."""
        last: Mark | None = Mark(floor_digest=genesis(self.storage, self.root))
        self._report.marks = newest
        for epoch in range(1, newest + 1):
            path = paths.mark(self.root, epoch)
            before, last = last, None
            with self._telling(path, first=0 if epoch == newest else None):
                meta = self._read(path, "mark")
                last = read_mark(self.storage, self.root, epoch)
                if before is not None and (meta.doc["prev"] != before.digest or last.floor < before.floor):
                    self._damage(path, "mark does not follow its predecessor")
        return last

    def _check_segments(self, mark: Mark) -> None:
        """Segments follow each other without gap and hold every offset once."""
        self._report.segments = len(mark.segments)
        self._report.log_start = at = mark.log_start
        self._queues = Queues.load(mark.starts)
        last: FileMeta | None = None
        for segment in mark.segments:
            path = f"{paths.segments(self.root)}/{segment.name}"
            if segment.first != at:
                self._damage(path, "segments do not follow each other", first=at, end=segment.first)
            at = segment.end
            before, last = last, None
            with self._telling(path, first=segment.first, end=segment.end):
                meta = self._read(path, "segment", segment.digest)
                self._check_segment_rows(meta, segment)
                if before is not None and meta.doc["prev"] != before.doc["last"]:
                    raise meta.corrupt("chain is broken between segments")
                if not segment.first and meta.doc["prev"] != genesis(self.storage, self.root):
                    raise meta.corrupt("the log of another store begins here")
                self._check_counts(meta, meta.runs, meta.bases)
                self._queues.advance(meta.runs)
                last = meta
        if mark.floor != at or (last is not None and last.doc["last"] != mark.floor_digest):
            self._damage(paths.mark(self.root, mark.epoch), "floor does not stand on the last segment")

    def _check_segment_rows(self, meta: FileMeta, segment: SegmentRef) -> None:
        blocks = check_blocks(self.storage, meta, ["commitOffset", "queueOffset", "storeTimestamp"])
        columns = [column.cast(pa.int64()) for column in pa.concat_batches(blocks).columns]
        offsets, numbers, times = (column.to_numpy() for column in columns)  # refuses nulls
        if not np.array_equal(numbers, queue_offsets(meta.runs.rows, meta.bases)):
            raise meta.corrupt("queue offsets are not dense")
        order = np.argsort(offsets)
        if not np.array_equal(offsets[order], np.arange(meta.doc["first"], meta.doc["end"])):
            raise meta.corrupt("log offsets are not each there once")
        times = times[order]
        if np.any(np.diff(times) < 0):
            raise meta.corrupt("storeTimestamp goes backwards")
        if not np.array_equal([block_bounds(block) for block in blocks], meta.block_bounds):
            raise meta.corrupt("bounds of the blocks are not those of their rows")
        named = (segment.first, segment.end, segment.bytes, segment.min_ms, segment.max_ms)
        if named != (meta.doc["first"], meta.doc["end"], meta.size, int(times[0]), int(times[-1])):
            raise meta.corrupt("mark describes the segment wrongly")
        self._report.messages += meta.rows

    def _check_floor(self, mark: Mark) -> None:
        """The state at the floor is there, and counts what the segments hold."""
        named = next((each.name for each in mark.snapshots if each.offset == mark.floor), None)
        path = paths.mark(self.root, mark.epoch) if named is None else f"{paths.floors(self.root)}/{named}"
        with self._telling(path):
            self.load_floor()
            if (self.state.offset, self.state.digest) != (mark.floor, mark.floor_digest):
                raise CorruptDataError("state is of another offset than the floor", offset=self.state.offset)
            if not self._damaged and not self._queues.same_ends(self.state.queues):
                raise CorruptDataError("state at the floor does not count the segments' rows")
        self.state.offset, self.state.digest = mark.floor, mark.floor_digest

    # -------------------------------------------------------- commits

    def _check_chain(self, mark: Mark, snapshots: Sequence[int]) -> None:
        """Walk the commits from the floor; behind damage, go on at the next file there is."""
        while True:
            if self.state.offset in snapshots and not self._damaged:
                self._folded[self.state.offset] = comparable(self.state, mark.floor, Queues.load(mark.starts))
            stop = next((offset for offset in snapshots if offset > self.state.offset), None)
            problem = None
            try:
                self.walk(stop)
            except NotFoundError:
                pass
            except (CorruptDataError, UnsupportedVersionError, *UNREADABLE) as error:
                problem = _text(error)
            path = paths.commit(self.root, self.state.offset)
            if problem is None and ((stop is not None and self.state.offset >= stop) or self.storage.exists(path)):
                continue  # on from there; or from a commit that was appended since it was looked for
            # How many rows a damaged one had is lost with it: the next file's name tells.
            later = next((number for number in self._numbers if number > self.state.offset), None)
            if later is not None or problem is not None:
                self._damage(path, problem or "commit is missing", first=self.state.offset, end=later)
            if later is None:
                break
            self.state.offset = later
            with suppress(RmqError, *UNREADABLE):  # the walk tells
                self.state.digest = read_meta(self.storage, paths.commit(self.root, later), "commit").doc["prev"]
        self._report.log_end = self.state.offset

    def fold(self, metas: Sequence[FileMeta]) -> None:
        """Check all of these commits, then fold them.

        Raises:
            CorruptDataError: one of them is damaged; nothing is folded then.
        """
        runs = metas[0].runs if len(metas) == 1 else join_described(metas)[0]
        self._check_counts(metas[0], runs, np.concatenate([meta.bases for meta in metas]))
        if is_small(metas[0]):
            check_rows(metas, runs, decode_small(metas))
        else:
            self._check_large(metas[0])
        times = [self.state.store_ms, *(meta.doc["ts"] for meta in metas)]
        super().fold(metas)
        self._queues.advance(runs)
        for meta, before in zip(metas, times, strict=False):
            if before and meta.doc["ts"] - before > CLOCK_JUMP_MS:
                self._warn(meta.path, f"store time jumps by {meta.doc['ts'] - before} ms")
            self._count_file(meta.size)
            self._report.commits += 1
            self._report.messages += meta.rows

    def _check_counts(self, meta: FileMeta, runs: Runs, bases: I64) -> None:
        """The runs of a segment or of commits (`meta` is the first one's) go on where the log before them ended."""
        expected = self._queues.number(runs)
        if self._damaged and np.all(bases >= expected):
            # Behind damage a queue may go on at any later offset: one loss is one finding, not one for each commit.
            self._queues.resume(runs, bases)
            expected = self._queues.number(runs)
        if not np.array_equal(bases, expected):
            raise meta.corrupt("queue offsets do not continue where the log left them")

    def _check_large(self, commit: FileMeta) -> None:
        """Check the rows of a commit that is not small: its own, or those of the row files that it refers to."""
        whole = commit if commit.whole is not None else read_whole(self.storage, commit.path)
        named = commit.doc.get("files", ())
        if not named:
            check_blocks(self.storage, whole)
        first = commit.doc["first"]
        files = []
        for name, digest, *_ in named:
            self._referenced.add(name)
            self._report.row_files += 1
            path = paths.data_file(self.root, name)
            with self._telling(path, first=first, end=first + commit.rows):
                file = self._read(path, "rows", digest)
                check_blocks(self.storage, file)
                files.append(file)
        if named and len(files) == len(named):
            check_references(commit, files)

    def _check_strays(self, mark: Mark) -> None:
        known = {finding.path for finding in self._report.findings}
        known.update(paths.commit(self.root, first) for first in self.state.commits.firsts)
        for number in self._numbers:
            path = paths.commit(self.root, number)
            if path in known:
                continue
            if number < mark.floor:
                self._warn(path, "leftover below the floor; roll deletes it")
            else:
                self._damage(path, "file stands where no commit can be: not part of the chain")

    # -------------------------------------------------------- snapshots

    def _check_named_snapshots(self, mark: Mark) -> None:
        for named in mark.snapshots:
            path = f"{paths.floors(self.root)}/{named.name}"
            with self._telling(path):
                read_payloads(self.storage, self._read(path, "snapshot", named.digest))

    def _check_snapshot(self, mark: Mark, name: str, offset: int) -> None:
        path = f"{paths.snapshots(self.root)}/{name}"
        vouched = False
        try:
            meta = self._read(path, "snapshot")
            state, _ = LogState.load(read_payloads(self.storage, meta), self.declared)
            with suppress(NotFoundError):
                vouched = is_vouched(self.storage, self.root, meta, mark)
        except NotFoundError:
            return  # a newer one has taken its place
        except (RmqError, *UNREADABLE) as error:
            self._warn(path, f"damaged snapshot, readers skip it: {error}")
            return
        if state.offset != offset:
            self._damage(path, f"snapshot is of offset {state.offset}, its name tells another; delete this snapshot")
            return
        if offset < mark.floor:
            return
        if state.offset > self._report.log_end and self._is_of_this_log(state):
            self._tell_missing_end(name, state.offset)
        elif not vouched:
            self._warn(path, "snapshot that the chain does not vouch for, readers skip it")
        elif folded := self._folded.get(state.offset):
            stored = comparable(state, mark.floor, Queues.load(mark.starts))
            # No message is lost by it, but who starts from it numbers messages wrongly and writes that down.
            if other := sorted(fold for fold in stored.keys() & folded.keys() if stored[fold] != folded[fold]):
                self._damage(path, f"snapshot says other than the log ({', '.join(other)}); delete this snapshot")

    def _is_of_this_log(self, snapshot: LogState) -> bool:
        """Whether the log's last commit stands in the snapshot too: it is of this log, and of no past given up."""
        mine, theirs = self.state.commits, snapshot.commits
        last = [*zip(mine.firsts, mine.fingerprints, strict=True)][-1:]
        return not last or last[0] in zip(theirs.firsts, theirs.fingerprints, strict=True)

    def _tell_missing_end(self, snapshot: str, offset: int) -> None:
        """A snapshot of this log's state behind its end: commits that were there are not there any more."""
        end = self._report.log_end
        path = paths.commit(self.root, end)
        if self.storage.exists(path) or any(each.path == path and each.damage for each in self._report.findings):
            return  # appended since, or told already
        self._damage(path, f"commit is missing although snapshot {snapshot} knows it", first=end, end=offset)

    # -------------------------------------------------------- what is told

    def _read(self, path: str, kind: str, digest: str | None = None) -> FileMeta:
        """The metadata of a file, which must be of this kind, and the one of this digest, if one is named."""
        meta = read_whole(self.storage, path)
        self._count_file(meta.size)
        if meta.kind != kind or meta.digest != (digest or meta.digest):
            raise meta.corrupt(f"not the {kind} file that is named", expected=digest)
        return meta

    def _count_file(self, size: int) -> None:
        self._done += 1
        self._progress(self._done, max(self._total, self._done))
        self._report.bytes += size

    def _list(self, place: str, parse_name: Callable[[str], Parsed | None]) -> dict[str, Parsed]:
        """Names of the log's files in a directory, and what they say; others are told of."""
        ours = {}
        for info in self.storage.list(place):
            parsed = parse_name(info.name)
            if parsed is not None:
                ours[info.name] = parsed
            else:
                self._warn(f"{place}/{info.name}", "foreign file, not part of the log; nobody reads or deletes it")
        return ours

    @contextmanager
    def _telling(self, path: str, *, first: int | None = None, end: int | None = None) -> Iterator[None]:
        """What goes wrong meanwhile is damage of the file at `path`; the offsets [first, end) are lost by it."""
        try:
            yield
        except (RmqError, *UNREADABLE) as error:
            self._damage(path, _text(error), first=first, end=end)

    def _damage(self, path: str, problem: str, *, first: int | None = None, end: int | None = None) -> None:
        self._damaged = True
        self._report.findings.append(Finding(path=path, problem=problem, first=first, end=end))

    def _warn(self, path: str, problem: str) -> None:
        self._report.findings.append(Finding(path=path, problem=problem, damage=False))


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, RmqError) else f"metadata cannot be read: {type(error).__name__}: {error}"
