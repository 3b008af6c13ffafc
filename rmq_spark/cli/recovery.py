"""`rmq recover`: cut a log behind its last good commit, after a power loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_spark.cli import logs
from rmq_spark.cli.consent import require_consent
from rmq_spark.cli.options import BrokersOption, ConfOption, JsonOption, NameserverOption, StoreOption, common
from rmq_spark.cli.output import Table

if TYPE_CHECKING:
    from rmq_spark.client.store import Store

_QUESTION = "Recovery must run alone. Has every writer of this store stopped?"


def recover(
    ctx: typer.Context,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also give up durable commits behind the damage; they go to lost/.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether all writers have stopped.")] = False,
    broker: BrokersOption = None,
    nameserver: NameserverOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Move what stands behind the last good commit into lost/, so that the log can be written again."""
    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        require_consent(yes, _QUESTION, "recovery must run alone; stop every writer, then give --yes")
        document = []
        if broker and not nameserver:
            places = logs.named(opened, broker, nameserver)
        else:
            document.append(_recover(opened, logs.NAMESERVER, force))
            places = logs.named(opened, broker, nameserver=False) if nameserver else _all_brokers(opened)
        document += [_recover(opened, place, force) for place in places]
    rows = [(entry["log"], entry["logEnd"], len(entry["moved"])) for entry in document]
    options.out.result(document, Table(("LOG", "LOG END", "FILES MOVED"), rows))


def _all_brokers(store: Store) -> list[logs.LogPlace]:
    """Every broker, by the nameserver's log as it is after its own recovery."""
    return [logs.broker_place(broker) for broker in store.brokers()]


def _recover(store: Store, place: logs.LogPlace, force: bool) -> dict[str, Any]:
    from rmq_spark.log.recover import recover as recover_log

    done = recover_log(store.storage, place.root, place.name, store.clock, force=force)
    return {"log": place.name, "logEnd": done.log_end, "moved": list(done.moved)}
