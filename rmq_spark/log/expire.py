"""Retention: drop the oldest segments by age and by use of the disk, as RocketMQ's cleaner does.

Only whole segments go, always the oldest first, never the last one and never leaving a hole. The mark that moves the
log's start comes first, the deletion after it, so a reader finds either the data or the error that it expired.
Consumers hold nothing back: RocketMQ's retention looks at age and disk only, and so does this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rmq_spark.errors import ExistsError, NotFoundError
from rmq_spark.log.file_reader import read_meta
from rmq_spark.log.marks import Mark, SegmentRef, write_mark
from rmq_spark.log.roll import collect_garbage, roll
from rmq_spark.log.snapshot import unpack_state
from rmq_spark.storage import paths

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


def expire(log: CommitLog, *, scheduled: bool = False, before_ms: int | None = None) -> ExpireResult:
    """Drop segments that are older than the retention, or any while the disk is over `disk_force_ratio`.

    Called by hand it acts at once; `scheduled` acts only at the hours of `delete_when` or above
    `disk_reclaim_ratio`, as RocketMQ's cleaner. `before_ms` overrides the retention's age.

    Raises:
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
        mark = log.refresh().mark
        count = _expired(mark, limit if due else None, used, usage[1] if usage else 0, log)
        if not count:
            return ExpireResult(
                segments=(), log_start=mark.log_start, forced=forced, deleted=collect_garbage(log, mark)
            )
        try:
            last = read_meta(log.storage, f"{paths.segments(log.root)}/{mark.segments[count - 1].name}", "segment")
        except NotFoundError:
            if log.refresh().mark.epoch == mark.epoch:
                raise
            continue  # somebody else dropped it meanwhile: look again
        new = replace(
            mark,
            epoch=mark.epoch + 1,
            log_start=mark.segments[count - 1].end,
            segments=mark.segments[count:],
            starts=unpack_state(last.doc["state"]).queues.dump(),
            reason="expire",
        )
        try:
            write_mark(log.storage, log.root, new, mark, log.clock.token())
        except ExistsError:
            continue  # somebody maintained the log meanwhile: look again
        log.refresh()
        return ExpireResult(
            segments=mark.segments[:count],
            log_start=new.log_start,
            forced=forced,
            deleted=collect_garbage(log, new),
        )


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
