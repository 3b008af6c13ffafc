"""`rmq roll` and `rmq expire`: keep logs short and disks free. Any process may run them at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmq_spark.cli import logs, upkeep
from rmq_spark.cli.consent import require_consent
from rmq_spark.cli.options import (
    BrokersOption,
    Common,
    ConfOption,
    DryRunOption,
    JsonOption,
    NameserverOption,
    StoreOption,
    YesOption,
    common,
)
from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.times import FORMS, parse_time

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
    given = common(ctx, store, json, conf)
    document = []
    with given.open(read_only=False) as opened:
        _sweep(given, opened)  # it needs no room, and gives some
        for place in logs.chosen(opened, broker, nameserver):
            with given.out.progress(f"rolling {place.name}", "segments") as advance:
                document.append(upkeep.roll_log(place.open(opened), min_commits, advance))
    given.out.result(document, upkeep.rolled_table(document))


def expire(
    ctx: typer.Context,
    *,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help=f"Drop what is older, whatever the retention says ({FORMS})."),
    ] = None,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", help="Act only at the hours of delete_when, or when the disk is filling.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    broker: BrokersOption = None,
    nameserver: NameserverOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Drop segments that are older than the retention, or the oldest while the disk is too full."""
    given = common(ctx, store, json, conf)
    if dry_run and scheduled:
        raise InvalidRequestError("--dry-run shows what would go now; leave --scheduled out")
    with given.open(read_only=dry_run) as opened:
        limit = None if before is None else parse_time(before, "--before", opened.clock.now_ms())
        handles = [place.open(opened) for place in logs.chosen(opened, broker, nameserver)]
        if dry_run:
            previews = [upkeep.preview_log(handle, before_ms=limit) for handle in handles]
            given.out.result(previews, upkeep.preview_table(previews))
            return
        if limit is not None and not yes:
            previews = [upkeep.preview_log(handle, before_ms=limit) for handle in handles]
            require_consent(yes, upkeep.expire_question(previews, limit))
        _sweep(given, opened)  # it needs no room, and gives some
        document = [upkeep.expire_log(handle, scheduled=scheduled, before_ms=limit) for handle in handles]
    given.out.result(document, upkeep.expired_table(document))


def _sweep(given: Common, store: Store) -> None:
    from rmq_spark.storage.upkeep import sweep_leftovers

    if removed := sweep_leftovers(store.storage, store.clock):
        given.out.note(f"{removed:,} temporary files of killed writers removed")
