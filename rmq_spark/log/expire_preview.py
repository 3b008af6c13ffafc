"""What an expiry would drop, without changing anything: for a question before it, and for a dry run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.view import LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePreview:
    """What `expire` would drop now."""

    messages: int
    """At most so many: only whole segments go, and where the boundaries of those that are rolled first will be is not
    known. The newest segment always stays."""
    forced: bool
    """Whether the disk is so full that the oldest would go whatever their age."""


def preview_expire(log: CommitLog, *, before_ms: int | None = None) -> ExpirePreview:
    """Return what `expire` with the same `before_ms` would drop at most."""
    settings = log.settings
    limit = log.clock.now_ms() - settings.retention_ms if before_ms is None else before_ms
    usage = log.storage.disk_usage()
    excess = usage[0] - usage[1] * settings.disk_force_ratio if usage else 0.0
    forced = excess > 0
    return ExpirePreview(messages=log.look(lambda view: _messages(view, limit, excess)), forced=forced)


def _messages(view: LogView, limit_ms: int, excess: float) -> int:
    """How many messages are older than the limit, or have to go until the disk has `excess` bytes more."""
    commits, mark = view.state.commits, view.mark
    end = mark.log_start
    rolls = bool(commits.times) and (commits.times[0] < limit_ms or excess > 0)
    for segment in mark.segments if rolls else mark.segments[:-1]:
        if segment.max_ms >= limit_ms and excess <= 0:
            return end - mark.log_start
        excess -= segment.bytes
        end = segment.end
    if rolls:
        for first, store_ms, size in zip(commits.firsts, commits.times, commits.sizes, strict=True):
            if store_ms >= limit_ms and excess <= 0:
                return first - mark.log_start
            excess -= size
        end = view.state.offset
    return end - mark.log_start
