"""Retention: drop the oldest segments by age and by use of the disk, as RocketMQ's cleaner does.

Only whole segments go, always the oldest first, never the last one and never leaving a hole. The mark that moves the
log's start comes first, the deletion after it, so a reader finds either the data or the error that it expired.
Old commits are rolled into segments first. Where a full disk has no room for that, whole commits go instead, never the
last one.
Consumers hold nothing back: RocketMQ's retention looks at age and disk only, and so does this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rmq_spark.errors import CorruptDataError, ExistsError, InvalidRequestError, NotFoundError, StorageFullError
from rmq_spark.log.marks import Mark, SegmentRef, SnapshotRef, write_mark
from rmq_spark.log.queues import Queues
from rmq_spark.log.roll import collect_garbage, floor_snapshot, named_snapshots, roll
from rmq_spark.log.view import LogView

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult:
    """What an expiry did."""

    segments: tuple[SegmentRef, ...]
    """Segments that were dropped."""
    messages: int
    """Messages that were dropped, in segments, or in commits that there was no room to roll."""
    log_start: int
    """First offset that is left."""
    forced: bool
    """Whether the disk was so full that age did not count."""
    deleted: int
    """Files that were deleted."""


Hold = Callable[[int], int]
"""Asked with the log's new start before messages go: returns up to where they may go, that or less. Whoever needs
messages below it (timers that are not due yet) appends them again first."""


def expire(
    log: CommitLog, *, scheduled: bool = False, before_ms: int | None = None, hold: Hold | None = None
) -> ExpireResult:
    """Drop segments that are older than the retention, or any while the disk is over `disk_force_ratio`.

    Called by hand it acts at once; `scheduled` acts only at the hours of `delete_when` or above
    `disk_reclaim_ratio`, as RocketMQ's cleaner. `before_ms` overrides the retention's age. `hold` may keep segments.

    Raises:
        InvalidRequestError: the log holds state of folds that this handle does not know; no message was dropped.
        StorageFullError: nothing could go without room for a few small files, and there is none.
        ReadOnlyError, ClosedError: this handle may not change the log.
    """
    log.check_writable()
    settings, now = log.settings, log.clock.now_ms()
    limit = now - settings.retention_ms if before_ms is None else before_ms
    # On a full disk there is no room for a segment: first goes what can go without one.
    deleted = collect_garbage(log, log.refresh().mark)
    used, total = log.storage.disk_usage() or (0, 1)
    excess = used - total * settings.disk_force_ratio
    forced = excess > 0
    due = not scheduled or used > total * settings.disk_reclaim_ratio
    due = due or log.clock.local_hour() in settings.deletion_hours
    by_age = limit if due else None
    unrolled = 0
    dropped = _drop(log, by_age, excess, hold)
    excess -= sum(segment.bytes for segment in dropped)
    commits = log.refresh().state.commits
    if (due or excess > 0) and commits.times and (commits.times[0] < limit or excess > 0):
        try:
            deleted += roll(log, min_commits=1).deleted  # only segments are dropped: old commits go into some first
            dropped += _drop(log, by_age, excess, hold)
        except StorageFullError as error:
            unrolled = _drop_commits(log, by_age, excess, hold)
            if not deleted and not dropped and not unrolled:
                raise
            _log.warning("there was no room to roll old commits; %d messages were dropped: %s", unrolled, error)
    mark = log.refresh().mark
    deleted += collect_garbage(log, mark)
    messages = unrolled + sum(segment.end - segment.first for segment in dropped)
    return ExpireResult(segments=dropped, messages=messages, log_start=mark.log_start, forced=forced, deleted=deleted)


def _drop(log: CommitLog, limit_ms: int | None, excess: float, hold: Hold | None) -> tuple[SegmentRef, ...]:
    """Make a mark without the segments that are older than the limit, or in the way on a full disk; return them."""
    while True:
        mark = log.refresh().mark
        count = _expired(mark, limit_ms, excess)
        if count and hold is not None:
            allowed = hold(mark.segments[count - 1].end)
            count = sum(segment.end <= allowed for segment in mark.segments[:count])
        if not count:
            return ()
        segments = mark.segments[:count]
        used = log.look(_folds_in_use)
        try:
            starts = _starts_behind(log, mark, segments)
            snapshots = _covering_snapshots(log, mark, segments[-1].end, used)
        except NotFoundError:
            if log.refresh().mark.epoch == mark.epoch:
                raise
            continue  # somebody else dropped it meanwhile: look again
        new = replace(
            mark,
            epoch=mark.epoch + 1,
            log_start=segments[-1].end,
            segments=mark.segments[count:],
            starts=starts,
            snapshots=snapshots,
            reason="expire",
        )
        try:
            write_mark(log.storage, log.root, new, mark, log.clock.token())
        except ExistsError:
            continue  # somebody maintained the log meanwhile: look again
        return segments


def _drop_commits(log: CommitLog, limit_ms: int | None, excess: float, hold: Hold | None) -> int:
    """Drop old commits without rolling them, and every segment before them; return how many messages those held.

    It needs room for a snapshot and a mark only. The last commit always stays.
    """
    view = log.refresh()
    mark, commits = view.mark, view.state.commits
    end = mark.floor
    for first, store_ms, size in zip(commits.firsts[1:], commits.times, commits.sizes, strict=False):
        if (limit_ms is None or store_ms >= limit_ms) and excess <= 0:
            break
        end = first
        excess -= size
    if end > mark.floor and hold is not None:
        allowed = hold(end)
        end = max((first for first in commits.firsts if first <= allowed), default=mark.floor)
    if end <= mark.floor:
        return 0
    log.look(_folds_in_use)
    before = LogView(log.files, log.broker, log.view.declared)
    try:
        before.load_until(end)
        starts = before.state.queues.dump()
        new = replace(
            mark,
            epoch=mark.epoch + 1,
            floor=end,
            floor_digest=before.state.digest,
            log_start=end,
            segments=(),
            starts=starts,
            snapshots=(floor_snapshot(log, before),),
            reason="expire",
        )
        write_mark(log.storage, log.root, new, mark, log.clock.token())
    except (ExistsError, NotFoundError, CorruptDataError) as error:
        if not isinstance(error, ExistsError) and log.refresh().mark.epoch == mark.epoch:
            raise
        return 0  # somebody else maintained the log meanwhile
    return end - mark.log_start


def _folds_in_use(view: LogView) -> set[str]:
    """Whoever deletes records must keep what they say: the state of every fold that has some."""
    used = set(view.state.folds_in_use())
    if unknown := sorted(used - view.state.folds.keys()):
        raise InvalidRequestError(
            "this process does not fold all state of the log, so it must not delete old messages; declare the folds, "
            "or use a version of rmq-spark that knows them",
            folds=unknown,
        )
    return used


def _covering_snapshots(log: CommitLog, mark: Mark, log_start: int, used: set[str]) -> tuple[SnapshotRef, ...]:
    """Snapshots at or behind the new start that hold every fold in use; a new one is written if there is none."""
    kept = tuple(named for named in mark.snapshots if named.offset >= log_start)
    told = {fold for named in kept for fold in named.folds}
    if any(named.offset == mark.floor for named in kept) and used <= told:
        return kept
    at_floor = LogView(log.files, log.broker, log.view.declared)
    at_floor.load_floor()
    return named_snapshots(kept, floor_snapshot(log, at_floor))


def _starts_behind(log: CommitLog, mark: Mark, dropped: Sequence[SegmentRef]) -> dict[str, object]:
    """Where each queue begins when these segments are gone: behind its last message in them."""
    starts = Queues.load(mark.starts)
    for segment in dropped:
        meta = log.files.segment(segment)
        starts.resume(meta.runs, meta.bases + meta.runs.rows)
    return starts.dump()


def _expired(mark: Mark, limit_ms: int | None, excess: float) -> int:
    """How many of the oldest segments go: by age, and until the disk has `excess` bytes more."""
    count = 0
    for segment in mark.segments[:-1]:  # the last one always stays
        if (limit_ms is None or segment.max_ms >= limit_ms) and excess <= 0:
            break
        count += 1
        excess -= segment.bytes
    return count
