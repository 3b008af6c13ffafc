"""`rmq broker`: the brokers (logs) of a store, taking one out of service, and settings of the whole store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_spark.cli import exits
from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, a_number, common, yes_or_no
from rmq_spark.cli.output import Table, complain, table_of
from rmq_spark.errors import InvalidRequestError

if TYPE_CHECKING:
    from rmq_spark.client.brokers import Drain

app = typer.Typer(help="List, add, drain brokers, and settings of the store.", rich_markup_mode=None)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The broker.")]


@app.callback()
def broker(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """List, add, drain brokers, and settings of the store."""
    common(ctx, store, json, conf)


@app.command("list")
def list_(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """List all brokers: whether producers use them, and what they hold."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        brokers = Admin(opened).brokers.all()
    document = [
        {
            "brokerName": one.name,
            "readOnly": one.read_only,
            "topics": one.topics,
            "messages": one.messages,
            "logEnd": one.end,
            "lastTimestamp": one.store_ms or None,
        }
        for one in brokers
    ]
    columns = {
        "BROKER": "brokerName",
        "READ-ONLY": "readOnly",
        "TOPICS": "topics",
        "MESSAGES": "messages",
        "LOG END": "logEnd",
        "LAST STORED": "lastTimestamp",
    }
    options.out.result(document, table_of(document, columns))


@app.command("add")
def add(
    ctx: typer.Context,
    *,
    name: NameArgument,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Add a broker; give topics queues on it by `rmq topic update --broker`."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        Admin(opened).brokers.add(name)
    options.out.result({"brokerName": name}, f"broker {name} is there")


@app.command("readonly")
def readonly(
    ctx: typer.Context,
    *,
    name: NameArgument,
    off: Annotated[bool, typer.Option("--off", help="Let producers use it again.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Let producers leave a broker alone, within 30 seconds; consumers go on."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        Admin(opened).brokers.set_read_only(name, not off)
    state = "written again" if off else "read-only"
    options.out.result({"brokerName": name, "readOnly": not off}, f"broker {name} is {state}")


@app.command("drain")
def drain(
    ctx: typer.Context,
    *,
    name: NameArgument,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0, callback=a_number, help="Wait no longer than this."),
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Only show how far it is; change nothing.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Make a broker read-only and wait until every group has consumed what is on it."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=status) as opened:
        brokers = Admin(opened).brokers
        if status:
            state = brokers.drained(name)
        else:
            with options.out.progress(f"draining {name}", "messages") as advance:
                state = brokers.drain(name, timeout=timeout, progress=advance)
    rows = [(group, count) for group, count in state.left.items()]
    options.out.result(_document(state), _text(state), *([Table(("GROUP", "LEFT"), rows)] if rows else []))
    if not state.is_drained and not status:
        complain(f"broker {name} is not drained yet; drain it again to wait on")
        raise typer.Exit(exits.FAILED)


@app.command("settings")
def settings(
    ctx: typer.Context,
    *,
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="autoCreateTopics=true|false, backlogMax=N.")
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show the settings that every client of the store follows, or change some."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    changed = _parse(values or [])
    with options.open(read_only=not changed) as opened:
        admin = Admin(opened)
        cluster_settings = admin.update_settings(**changed) if changed else admin.settings()
    document = {"autoCreateTopics": cluster_settings.auto_create_topics, "backlogMax": cluster_settings.backlog_max}
    rows = [(name, yes_or_no(value) if isinstance(value, bool) else value) for name, value in document.items()]
    options.out.result(document, Table(("SETTING", "VALUE"), rows))


def _parse(values: list[str]) -> dict[str, Any]:
    """The settings that the arguments name; RocketMQ's name of the first one is accepted, too."""
    changed: dict[str, Any] = {}
    for text in values:
        name, _, value = text.partition("=")
        if name in ("autoCreateTopics", "autoCreateTopicEnable") and value in ("true", "false"):
            changed["auto_create_topics"] = value == "true"
        elif name == "backlogMax" and value.isascii() and value.isdigit():
            changed["backlog_max"] = int(value)
        else:
            raise InvalidRequestError("give autoCreateTopics=true or false, or backlogMax=NUMBER", value=text)
    return changed


def _document(state: Drain) -> dict[str, Any]:
    return {
        "brokerName": state.broker,
        "drained": state.is_drained,
        "readOnly": state.read_only,
        "routed": state.routed,
        "groups": dict(state.left),
        "delayed": state.delayed,
        "transactions": state.transactions,
    }


def _text(state: Drain) -> str:
    if state.is_drained:
        return f"broker {state.broker} is drained"
    why = [f"{sum(state.left.values()):,} messages to consume"] if state.left else []
    why += [f"{state.delayed:,} delayed messages"] if state.delayed else []
    why += [f"{state.transactions:,} open transactions"] if state.transactions else []
    why += ["it is not read-only"] if not state.read_only else []
    why += ["producers may still know it as writable"] if state.read_only and state.routed else []
    return f"broker {state.broker} is not drained: {', '.join(why)}"
