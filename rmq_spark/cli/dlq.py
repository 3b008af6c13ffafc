"""`rmq dlq`: the messages that groups gave up, and sending them again."""

from __future__ import annotations

from typing import Annotated

import typer

from rmq_spark.cli.message_fields import message_document, message_text
from rmq_spark.cli.options import INT64_MAX, ConfOption, JsonOption, StoreOption, common
from rmq_spark.cli.output import table_of

app = typer.Typer(help="List, show and replay dead letters.", rich_markup_mode=None)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]


@app.callback()
def dlq(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """List, show and replay dead letters."""
    common(ctx, store, json, conf)


@app.command("list")
def list_(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """List the groups that have dead letters, and how many were not replayed yet."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        groups = Admin(opened).dead_letters.groups()
    document = [
        {
            "group": one.group,
            "topic": one.topic,
            "messages": one.messages,
            "notReplayed": one.left,
            "lastTimestamp": one.last_ms,
        }
        for one in groups
    ]
    columns = {
        "GROUP": "group",
        "TOPIC": "topic",
        "MESSAGES": "messages",
        "NOT REPLAYED": "notReplayed",
        "LAST STORED": "lastTimestamp",
    }
    options.out.result(document, table_of(document, columns))


@app.command("show")
def show(
    ctx: typer.Context,
    *,
    group: GroupArgument,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=INT64_MAX, help="At most so many messages, the newest.")
    ] = 64,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show a group's dead letters, one a line, oldest first: where they were first sent, and what they hold."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        messages = Admin(opened).dead_letters.read(group, limit=limit)
    for message in messages:
        if options.json:
            options.out.record(message_document(message))
        else:
            options.out.lines([message_text(message)])


@app.command("replay")
def replay(
    ctx: typer.Context,
    *,
    group: GroupArgument,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="At most so many messages a second.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, max=INT64_MAX, help="At most so many messages.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also those that were replayed before.")] = False,
    to_group: Annotated[
        bool, typer.Option("--to-group", help="To the group's retry topic, so that no other group gets them.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Send a group's dead letters again, to the topics that they were first sent to; each once."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened, options.out.progress("replaying", "messages") as advance:
        sent = Admin(opened).dead_letters.replay(
            group, rate=rate, limit=limit, again=again, to_group=to_group, progress=advance
        )
    options.out.result({"group": group, "replayed": sent}, f"replayed {sent:,} dead letters of {group}")
