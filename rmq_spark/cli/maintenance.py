"""`rmq roll` and `rmq expire`: keep logs short and disks free. Any process may run them at any time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_spark.cli import logs
from rmq_spark.cli.options import BrokersOption, Common, ConfOption, JsonOption, NameserverOption, StoreOption, common
from rmq_spark.cli.output import Table
from rmq_spark.model.times import parse_time

if TYPE_CHECKING:
    from rmq_spark.client.store import Store


def roll(
    ctx: typer.Context,
    *,
    min_commits: Annotated[
        int, typer.Option("--min-commits", min=1, help="Leave a log alone that has fewer commits to roll.")
    ] = 2,
    broker: BrokersOption = None,
    nameserver: NameserverOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Turn many small commits into few segments, and delete files that nothing needs any more."""
    from rmq_spark.log.collect import collect
    from rmq_spark.log.roll import roll as roll_log

    given = common(ctx, store, json, conf)
    document: list[dict[str, Any]] = []
    with given.open(read_only=False) as opened:
        _sweep(given, opened)  # it needs no room, and gives some
        for place in logs.chosen(opened, broker, nameserver):
            handle = place.open(opened)
            with given.out.progress(f"rolling {place.name}", "segments") as advance:
                done = roll_log(handle, min_commits=min_commits, progress=advance)
            document.append(
                {
                    "log": place.name,
                    "commits": done.commits,
                    "segments": len(done.segments),
                    "deletedFiles": done.deleted,
                    "deletedRowFiles": collect(handle),
                }
            )
    rows = [tuple(entry.values()) for entry in document]
    given.out.result(document, Table(("LOG", "COMMITS", "SEGMENTS", "FILES DELETED", "ROW FILES DELETED"), rows))


def expire(
    ctx: typer.Context,
    *,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Drop what is older, whatever the retention says.")
    ] = None,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", help="Act only at the hours of delete_when, or when the disk is filling.")
    ] = False,
    broker: BrokersOption = None,
    nameserver: NameserverOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Drop segments that are older than the retention, or the oldest while the disk is too full."""
    from rmq_spark.log.collect import collect
    from rmq_spark.log.expire import expire as expire_log
    from rmq_spark.storage.upkeep import with_reserve

    given = common(ctx, store, json, conf)
    document: list[dict[str, Any]] = []
    with given.open(read_only=False) as opened:
        _sweep(given, opened)  # it needs no room, and gives some
        limit = None if before is None else parse_time(before, "--before", opened.clock.now_ms())
        for place in logs.chosen(opened, broker, nameserver):
            handle = place.open(opened)
            work = partial(expire_log, handle, scheduled=scheduled, before_ms=limit)
            done = with_reserve(opened.storage, work)
            document.append(
                {
                    "log": place.name,
                    "segments": len(done.segments),
                    "messages": sum(segment.end - segment.first for segment in done.segments),
                    "logStart": done.log_start,
                    "forced": done.forced,
                    "deletedFiles": done.deleted,
                    "deletedRowFiles": collect(handle),
                }
            )
    rows = [
        (*(value for name, value in entry.items() if name != "forced"), "yes" if entry["forced"] else "no")
        for entry in document
    ]
    headers = ("LOG", "SEGMENTS", "MESSAGES", "LOG START", "FILES DELETED", "ROW FILES DELETED", "DISK TOO FULL")
    given.out.result(document, Table(headers, rows))


def _sweep(given: Common, store: Store) -> None:
    from rmq_spark.storage.upkeep import sweep_leftovers

    if removed := sweep_leftovers(store.storage, store.clock):
        given.out.note(f"{removed:,} temporary files of killed writers removed")
