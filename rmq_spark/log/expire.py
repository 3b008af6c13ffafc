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
from rmq_spark.log.marks import Mark, SegmentRef, is_overtaken, write_mark
from rmq_spark.log.queues import Queues
from rmq_spark.log.roll import Piece, collect_garbage, floor_snapshots, pieces_of, roll
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePreview:
    """What `expire` would drop now."""

    messages: int
    """At most so many: only whole segments go, and where the boundaries of those that are rolled first will be is not
    known. The newest segment always stays."""
    forced: bool
    """Whether the disk is so full that the oldest would go whatever their age."""


Hold = Callable[[int], int]
"""Asked with the log's new start before messages go: returns up to where they may go, that or less. Whoever needs
messages below it (timers that are not due yet) appends them again first."""


@dataclass(slots=True)
class _Dropped:
    """What a new mark leaves out."""

    segments: tuple[SegmentRef, ...] = ()
    messages: int = 0


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
    settings = log.settings
    limit = _limit_ms(log, before_ms)
    # On a full disk there is no room for a segment: first goes what can go without one.
    deleted = collect_garbage(log, log.refresh().mark)
    used, total = log.storage.disk_usage() or (0, 1)
    excess = used - total * settings.disk_force_ratio
    forced = excess > 0
    due = not scheduled or used > total * settings.disk_reclaim_ratio
    due = due or log.clock.local_hour() in settings.deletion_hours
    by_age = limit if due else None
    dropped = [_drop(log, by_age, excess, hold)]
    excess -= sum(segment.bytes for segment in dropped[0].segments)
    if (due or excess > 0) and _is_rolled_first(log.refresh(), limit, excess):
        try:
            deleted += roll(log, min_commits=1).deleted
            dropped.append(_drop(log, by_age, excess, hold))
        except StorageFullError as error:
            dropped.append(_drop(log, by_age, excess, hold, unrolled=True))
            if not deleted and not any(each.messages for each in dropped):
                raise
            lost = dropped[-1].messages
            _log.warning("there was no room to roll old commits; %d messages were dropped: %s", lost, error)
    mark = log.refresh().mark
    deleted += collect_garbage(log, mark)
    return ExpireResult(
        segments=tuple(segment for each in dropped for segment in each.segments),
        messages=sum(each.messages for each in dropped),
        log_start=mark.log_start,
        forced=forced,
        deleted=deleted,
    )


def preview_expire(log: CommitLog, *, before_ms: int | None = None) -> ExpirePreview:
    """Return what `expire` with the same `before_ms` would drop at most."""
    limit = _limit_ms(log, before_ms)
    used, total = log.storage.disk_usage() or (0, 1)
    excess = used - total * log.settings.disk_force_ratio

    def messages(view: LogView) -> int:
        rolled = _is_rolled_first(view, limit, excess)
        pieces = _pieces(view, unrolled=True) if rolled else _pieces(view, unrolled=False)[:-1]
        return _expired_end(view.mark.log_start, pieces, limit, excess) - view.mark.log_start

    return ExpirePreview(messages=log.look(messages), forced=excess > 0)


def _limit_ms(log: CommitLog, before_ms: int | None) -> int:
    return log.clock.now_ms() - log.settings.retention_ms if before_ms is None else before_ms


def _is_rolled_first(view: LogView, limit_ms: int, excess: float) -> bool:
    """Whether commits have to go, too: only segments are dropped, so they go into some first."""
    times = view.state.commits.times
    return bool(times) and (times[0] < limit_ms or excess > 0)


def _pieces(view: LogView, *, unrolled: bool) -> list[Piece]:
    """The log's segments, and its commits behind them if they are dropped as they are."""
    return [piece for piece in pieces_of(view) if unrolled or piece.end <= view.mark.floor]


def _expired_end(start: int, pieces: Sequence[Piece], limit_ms: int | None, excess: float) -> int:
    """Where the log starts when the oldest pieces go: by age, and until the disk has `excess` bytes more."""
    for piece in pieces:
        if (limit_ms is None or piece.max_ms >= limit_ms) and excess <= 0:
            break
        start = piece.end
        excess -= piece.bytes
    return start


def _drop(
    log: CommitLog, limit_ms: int | None, excess: float, hold: Hold | None, *, unrolled: bool = False
) -> _Dropped:
    """Make a mark without the segments that are older than the limit, or in the way on a full disk; return them.

    With `unrolled` commits go, too, as they are: it needs room for a snapshot and a mark only. The last segment always
    stays, or then the last commit.
    """
    while True:
        view = log.refresh()
        mark = view.mark
        pieces = _pieces(view, unrolled=unrolled)[:-1]
        end = _expired_end(mark.log_start, pieces, limit_ms, excess)
        if end > mark.log_start and hold is not None:
            allowed = min(end, hold(end))
            end = max((piece.end for piece in pieces if piece.end <= allowed), default=mark.log_start)
        if end <= mark.log_start:
            return _Dropped()
        used = log.look(_folds_in_use)
        try:
            write_mark(log.storage, log.root, _mark_from(log, mark, end, used), mark, log.clock.token())
        except (ExistsError, NotFoundError, CorruptDataError):
            if not is_overtaken(log.storage, log.root, mark):
                raise
            continue  # somebody else maintained the log meanwhile: look again
        return _Dropped(tuple(segment for segment in mark.segments if segment.end <= end), end - mark.log_start)


def _mark_from(log: CommitLog, mark: Mark, end: int, used: set[str]) -> Mark:
    """The mark that follows `mark` when everything below `end` is gone; a snapshot of the state is there or written."""
    starts = Queues.load(mark.starts)
    for segment in mark.segments:
        if segment.end <= end:
            starts.advance(log.files.segment(segment).runs)
    kept = tuple(named for named in mark.snapshots if named.offset >= end)
    new = replace(
        mark,
        log_start=end,
        segments=tuple(segment for segment in mark.segments if segment.first >= end),
        starts=starts.dump(),
        snapshots=kept,
        reason="expire",
    )
    if any(named.offset == mark.floor for named in kept) and used <= {fold for named in kept for fold in named.folds}:
        return new
    at_floor = LogView(log.files, log.broker, log.view.declared)
    at_floor.load_until(max(mark.floor, end))
    state = at_floor.state
    if end > mark.floor:
        new = replace(new, floor=end, floor_digest=state.digest, starts=state.queues.dump())
    return replace(new, snapshots=floor_snapshots(log, at_floor, kept, log.clock.token()))


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
