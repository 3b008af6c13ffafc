"""`rmq tables`: build the tables that make queries quick, see how far they are, drop them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_spark.cli.options import BrokersOption, ConfOption, JsonOption, StoreOption, a_number, common
from rmq_spark.cli.output import Table, table_of

if TYPE_CHECKING:
    from rmq_spark.tables.engine import TableStatus

app = typer.Typer(help="ConsumeQueue, index and consumer offsets as Delta tables.", rich_markup_mode=None)

TablesOption = Annotated[
    list[str] | None, typer.Option("--table", metavar="NAME", help="Only this table; may be repeated.")
]


@app.callback()
def tables(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """ConsumeQueue, index and consumer offsets as Delta tables."""
    common(ctx, store, json, conf)


@app.command("build")
def build(
    ctx: typer.Context,
    *,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Empty the tables first and fill them again.")] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, callback=a_number, help="Wait so long for another engine to finish."
        ),
    ] = 0.0,
    table: TablesOption = None,
    broker: BrokersOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Bring the tables to the end of the logs, and trim what retention has deleted."""
    from rmq_spark.cli import logs
    from rmq_spark.tables import engine

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        brokers = [place.name for place in logs.named(opened, broker, nameserver=False)] if broker else None
        start = opened.clock.elapsed_ns()
        build_or_rebuild = engine.rebuild if rebuild else engine.reput
        with options.out.progress("building tables", "messages") as advance:
            done = build_or_rebuild(opened, brokers=brokers, tables=table, wait_s=wait, progress=advance)
        seconds = (opened.clock.elapsed_ns() - start) / 1_000_000_000
    document = {"messages": done.messages, "ranges": done.ranges, "rows": done.rows, "seconds": round(seconds, 3)}
    rows = [(name, count) for name, count in done.rows.items()]
    options.out.result(document, f"{done.messages:,} messages in {seconds:.1f} s", Table(("TABLE", "ROWS ADDED"), rows))


@app.command("status")
def status(
    ctx: typer.Context,
    *,
    table: TablesOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show how far each table has come, and what it holds."""
    from rmq_spark.tables import engine

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        statuses = engine.status(opened, tables=table)
    document = [_document(one) for one in statuses]
    columns = {
        "TABLE": "table",
        "LOG": "log",
        "MARK": "mark",
        "LOG END": "logEnd",
        "BEHIND": "behind",
        "ROWS": "rows",
        "FILES": "files",
        "BYTES": "bytes",
        "VERSION": "version",
        "WRITTEN BY": "holder",
        "UNTIL": "heldUntil",
    }
    options.out.result(document, table_of(document, columns))


@app.command("drop")
def drop(
    ctx: typer.Context,
    *,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, callback=a_number, help="Wait so long for another engine to finish."
        ),
    ] = 0.0,
    table: TablesOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Delete the tables. Nothing is lost: queries get slower, and `rmq tables build` makes them again."""
    from rmq_spark.tables import engine

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        dropped = engine.drop(opened, tables=table, wait_s=wait)
    options.out.result({"dropped": dropped}, f"dropped: {', '.join(dropped) or 'nothing, there were none'}")


def _document(one: TableStatus) -> dict[str, Any]:
    return {
        "table": one.table,
        "log": one.broker,
        "mark": one.mark,
        "logStart": one.log_start,
        "logEnd": one.log_end,
        "behind": one.behind,
        "rows": one.rows,
        "files": one.files,
        "bytes": one.bytes,
        "version": one.version,
        "holder": None if one.lease is None else one.lease.holder,
        "heldUntil": None if one.lease is None else one.lease.until_ms,
    }
