"""Retention: drop the oldest segments by age and by use of the disk, as RocketMQ's cleaner does.

Whole segments go, and whole commits that are not rolled yet: always the oldest first, never leaving a hole, and never
the last one; the last segment goes only together with a commit behind it. The mark that moves the log's start comes
first, the deletion after it, so a reader finds either the data or the error that it expired. It needs room for a mark
and a snapshot only, which a full disk has in its reserve.
Consumers hold nothing back: RocketMQ's retention looks at age and disk only, and so does this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rmq_spark.errors import CorruptDataError, ExistsError, InvalidRequestError, NotFoundError
from rmq_spark.log.marks import Mark, SegmentRef, is_overtaken, write_mark
from rmq_spark.log.queues import Queues
from rmq_spark.log.roll import Piece, collect_garbage, floor_snapshots, pieces_of
from rmq_spark.log.view import LogView

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult:
    """What an expiry did."""

    segments: tuple[SegmentRef, ...]
    """Segments that were dropped."""
    messages: int
    """Messages that were dropped, in segments and in commits."""
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
    """At most so many: messages that are pending may hold some back."""
    forced: bool
    """Whether the disk is so full that the oldest would go whatever their age."""


Hold = Callable[[int], int]
"""Asked with the log's new start before messages go: returns up to where they may go, that or less. Whoever needs
messages below it (timers that are not due yet) appends them again first."""


def expire(
    log: CommitLog, *, scheduled: bool = False, before_ms: int | None = None, hold: Hold | None = None
) -> ExpireResult:
    """Drop what is older than the retention, or the oldest while the disk is over `disk_force_ratio`.

    Called by hand it acts at once; `scheduled` acts only at the hours of `delete_when` or above
    `disk_reclaim_ratio`, as RocketMQ's cleaner. `before_ms` overrides the retention's age. `hold` may keep some.

    Raises:
        InvalidRequestError: the log holds state of folds that this handle does not know; no message was dropped.
        StorageFullError: there is no room for the mark, or for the state where the log starts then.
        ReadOnlyError, ClosedError: this handle may not change the log.
    """
    log.check_writable()
    settings = log.settings
    # On a full disk first goes what nobody needs any more: that takes no room.
    deleted = collect_garbage(log, log.refresh().mark)
    used, total = log.storage.disk_usage() or (0, 1)
    excess = used - total * settings.disk_force_ratio
    due = not scheduled or used > total * settings.disk_reclaim_ratio
    due = due or log.clock.local_hour() in settings.deletion_hours
    before, end = _drop(log, _limit_ms(log, before_ms) if due else None, excess, hold)
    deleted += collect_garbage(log, log.refresh().mark)
    return ExpireResult(
        segments=tuple(segment for segment in before.segments if segment.end <= end),
        messages=end - before.log_start,
        log_start=end,
        forced=excess > 0,
        deleted=deleted,
    )


def preview_expire(log: CommitLog, *, before_ms: int | None = None) -> ExpirePreview:
    """Return what `expire` with the same `before_ms` would drop at most."""
    used, total = log.storage.disk_usage() or (0, 1)
    excess = used - total * log.settings.disk_force_ratio
    limit = _limit_ms(log, before_ms)

    def messages(view: LogView) -> int:
        start = view.mark.log_start
        return _expired_end(start, _droppable(view), limit, excess) - start

    return ExpirePreview(messages=log.look(messages), forced=excess > 0)


def _limit_ms(log: CommitLog, before_ms: int | None) -> int:
    return log.clock.now_ms() - log.settings.retention_ms if before_ms is None else before_ms


def _droppable(view: LogView) -> list[Piece]:
    """What may go: never the last piece, and the last segment only together with the first commit behind it.

    So the last messages of a log stay while nobody sends more, whatever records are written beside them.
    """
    pieces, rolled = pieces_of(view), len(view.mark.segments)
    if 0 < rolled < len(pieces):
        last, behind = pieces[rolled - 1 : rolled + 1]
        both = last._replace(end=behind.end, bytes=last.bytes + behind.bytes, max_ms=behind.max_ms)
        pieces[rolled - 1 : rolled + 1] = [both]
    return pieces[:-1]


def _expired_end(start: int, pieces: Sequence[Piece], limit_ms: int | None, excess: float) -> int:
    """Where the log starts when the oldest pieces go: by age, and until the disk has `excess` bytes more."""
    for piece in pieces:
        if (limit_ms is None or piece.max_ms >= limit_ms) and excess <= 0:
            break
        start = piece.end
        excess -= piece.bytes
    return start


def _drop(log: CommitLog, limit_ms: int | None, excess: float, hold: Hold | None) -> tuple[Mark, int]:
    """Make a mark without what is older than the limit, or in the way on a full disk.

    Returns:
        the mark before, and where the log starts now; it may be where it started.
    """
    while True:
        view = log.refresh()
        mark = view.mark
        pieces = _droppable(view)
        end = _expired_end(mark.log_start, pieces, limit_ms, excess)
        if end > mark.log_start and hold is not None:
            allowed = min(end, hold(end))
            end = max((piece.end for piece in pieces if piece.end <= allowed), default=mark.log_start)
        if end == mark.log_start:
            return mark, end
        used = log.look(_folds_in_use)
        try:
            write_mark(log.storage, log.root, _mark_from(log, mark, end, used), mark, log.clock.token())
        except (ExistsError, NotFoundError, CorruptDataError):
            if not is_overtaken(log.storage, log.root, mark):
                raise
            continue  # somebody else maintained the log meanwhile: look again
        return mark, end


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
    return replace(new, snapshots=floor_snapshots(log, at_floor, kept))


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
