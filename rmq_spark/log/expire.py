"""Retention: drop the oldest segments by age and by use of the disk, as RocketMQ's cleaner does.

Only whole segments go, always the oldest first, never the last one and never leaving a hole. The mark that moves the
log's start comes first, the deletion after it, so a reader finds either the data or the error that it expired.
Consumers hold nothing back: RocketMQ's retention looks at age and disk only, and so does this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rmq_spark.errors import ExistsError, InvalidRequestError, NotFoundError
from rmq_spark.log.marks import Mark, SegmentRef, SnapshotRef, write_mark
from rmq_spark.log.queues import Queues
from rmq_spark.log.roll import collect_garbage, floor_snapshot, named_snapshots, roll
from rmq_spark.log.view import LogView

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult:
    """What an expiry did."""

    segments: tuple[SegmentRef, ...]
    """Segments that were dropped."""
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
        InvalidRequestError: the log holds state of folds that this handle does not know; nothing was changed.
        ReadOnlyError, ClosedError: this handle may not change the log.
    """
    log.check_writable()
    settings, now = log.settings, log.clock.now_ms()
    limit = now - settings.retention_ms if before_ms is None else before_ms
    usage = log.storage.disk_usage()
    used = usage[0] / usage[1] if usage and usage[1] else 0.0
    forced = used > settings.disk_force_ratio
    hours = {int(hour) for hour in settings.delete_when.split(";")}
    due = not scheduled or used > settings.disk_reclaim_ratio
    due = due or datetime.fromtimestamp(now / 1000, UTC).hour in hours
    commits = log.refresh().state.commits
    if (due or forced) and commits.times and (commits.times[0] < limit or forced):
        roll(log, min_commits=1)  # retention drops segments, so old commits have to be in some first
    while True:
        view = log.refresh()
        mark = view.mark
        count = _expired(mark, limit if due else None, used, usage[1] if usage else 0, log)
        if count and hold is not None:
            allowed = hold(mark.segments[count - 1].end)
            count = sum(segment.end <= allowed for segment in mark.segments[:count])
        if not count:
            return ExpireResult(
                segments=(), log_start=mark.log_start, forced=forced, deleted=collect_garbage(log, mark)
            )
        dropped = mark.segments[:count]
        _refuse_unknown_folds(view)
        try:
            starts = _starts_behind(log, mark, dropped)
            snapshots = _covering_snapshots(log, mark, dropped[-1].end)
        except NotFoundError:
            if log.refresh().mark.epoch == mark.epoch:
                raise
            continue  # somebody else dropped it meanwhile: look again
        new = replace(
            mark,
            epoch=mark.epoch + 1,
            log_start=dropped[-1].end,
            segments=mark.segments[count:],
            starts=starts,
            snapshots=snapshots,
            reason="expire",
        )
        try:
            write_mark(log.storage, log.root, new, mark, log.clock.token())
        except ExistsError:
            continue  # somebody maintained the log meanwhile: look again
        log.refresh()
        return ExpireResult(
            segments=dropped,
            log_start=new.log_start,
            forced=forced,
            deleted=collect_garbage(log, new),
        )


def _refuse_unknown_folds(view: LogView) -> None:
    """Whoever deletes records must keep what they say: the state of every fold that has some."""
    if unknown := sorted(view.state.folds_in_use().keys() - view.state.folds.keys()):
        raise InvalidRequestError(
            "this process does not fold all state of the log, so it must not delete old messages; declare the folds, "
            "or use a version of rmq-spark that knows them",
            folds=unknown,
        )


def _covering_snapshots(log: CommitLog, mark: Mark, log_start: int) -> tuple[SnapshotRef, ...]:
    """Snapshots at or behind the new start that hold every fold in use; a new one is written if there is none."""
    used = set(log.view.state.folds_in_use())
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


def _expired(mark: Mark, limit_ms: int | None, used: float, total: int, log: CommitLog) -> int:
    """How many of the oldest segments go."""
    count = 0
    for segment in mark.segments[:-1]:  # the last one carries the state at the floor
        by_age = limit_ms is not None and segment.max_ms < limit_ms
        by_disk = used > log.settings.disk_force_ratio
        if not (by_age or by_disk):
            break
        count += 1
        used -= segment.bytes / total if total else 0.0
    return count
