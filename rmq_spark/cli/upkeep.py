"""Rolling and expiring one log, and how the result is shown: the same for `rmq` and for the jobs. Knows no typer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmq_spark.cli.output import Advance, Cell, Table
from rmq_spark.model.times import format_ms

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog

Document = dict[str, Any]


def _silent(done: int, total: int | None) -> None:
    """Show no progress."""


def roll_log(log: CommitLog, min_commits: int, progress: Advance = _silent) -> Document:
    """Turn a log's commits into segments, and delete what nothing needs any more."""
    from rmq_spark.log.collect import collect
    from rmq_spark.log.roll import roll
    from rmq_spark.rules.all_folds import ALL_FOLDS

    log.use(*ALL_FOLDS)
    done = roll(log, min_commits=min_commits, progress=progress)
    return {
        "log": log.broker,
        "commits": done.commits,
        "segments": len(done.segments),
        "deletedFiles": done.deleted,
        "deletedRowFiles": collect(log),
    }


def rolled_table(documents: Sequence[Document]) -> Table:
    """What `roll_log` did to each log."""
    headers = ("LOG", "COMMITS", "SEGMENTS", "FILES DELETED", "ROW FILES DELETED")
    return Table(headers, [tuple(document.values()) for document in documents])


def expire_log(log: CommitLog, *, scheduled: bool, before_ms: int | None) -> Document:
    """Drop a log's segments that are too old, or the oldest while the disk is too full."""
    from rmq_spark.log.collect import collect
    from rmq_spark.services.retention import expire_safely

    done = expire_safely(log, scheduled=scheduled, before_ms=before_ms)
    return {
        "log": log.broker,
        "segments": len(done.segments),
        "messages": done.messages,
        "logStart": done.log_start,
        "forced": done.forced,
        "deletedFiles": done.deleted,
        "deletedRowFiles": collect(log),
    }


def expired_table(documents: Sequence[Document]) -> Table:
    """What `expire_log` did to each log."""
    rows: list[tuple[Cell, ...]] = [
        (*(value for name, value in document.items() if name != "forced"), "yes" if document["forced"] else "no")
        for document in documents
    ]
    headers = ("LOG", "SEGMENTS", "MESSAGES", "LOG START", "FILES DELETED", "ROW FILES DELETED", "DISK TOO FULL")
    return Table(headers, rows)


def preview_log(log: CommitLog, *, before_ms: int | None) -> Document:
    """What `expire_log` would drop of a log at most."""
    from rmq_spark.log.expire import preview_expire

    preview = preview_expire(log, before_ms=before_ms)
    return {"log": log.broker, "dryRun": True, "messages": preview.messages, "forced": preview.forced}


def preview_table(documents: Sequence[Document]) -> Table:
    """What `preview_log` says of each log."""
    rows = [(entry["log"], entry["messages"], "yes" if entry["forced"] else "no") for entry in documents]
    return Table(("LOG", "MESSAGES AT MOST", "DISK TOO FULL"), rows)


def expire_question(documents: Sequence[Document], before_ms: int) -> str:
    """What somebody is asked before `--before` is carried out."""
    messages = sum(document["messages"] for document in documents)
    logs = ", ".join(document["log"] for document in documents)
    return f"Drop up to {messages:,} messages stored before {format_ms(before_ms)} ({logs}), for good?"
