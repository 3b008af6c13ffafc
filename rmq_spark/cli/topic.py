"""`rmq init` and `rmq topic`: what exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from rmq_spark.cli.consent import require_consent
from rmq_spark.cli.options import ConfOption, DryRunOption, JsonOption, StoreOption, YesOption, common
from rmq_spark.cli.output import Table, moment

app = typer.Typer(help="Create, list, show, update and delete topics.", rich_markup_mode=None)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]


def init(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Create an empty store; an existing one is left alone."""
    given = common(ctx, store, json, conf)
    with given.create() as made:
        document = {"uri": made.storage.uri, "format": made.info["format"], "createdAt": made.info["createdAt"]}
    given.out.result(document, f"created a store at {document['uri']}")


@app.callback()
def topic(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Create, list, show, update and delete topics."""
    common(ctx, store, json, conf)


@app.command("create")
def create(
    ctx: typer.Context,
    *,
    name: NameArgument,
    queues: Annotated[int, typer.Option("--queues", metavar="N", help="Queues on each broker.")] = 8,
    broker: Annotated[
        list[str] | None, typer.Option("--broker", metavar="NAME", help="A broker to put it on; may be repeated.")
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Create a topic; the same again is no error."""
    from rmq_spark.client.store import DEFAULT_BROKER

    given = common(ctx, store, json, conf)
    with given.open(read_only=False) as opened:
        made = opened.create_topic(name, queues=queues, brokers=tuple(broker or (DEFAULT_BROKER,)))
    document = {"topic": made.name, "queues": dict(made.queues)}
    given.out.result(document, f"topic {made.name} has {_queues_text(made.queues)}")


@app.command("list")
def list_(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """List all topics: how many messages they hold, and when the last one was stored."""
    from rmq_spark.cli.sizes import topic_sizes

    given = common(ctx, store, json, conf)
    with given.open(read_only=True) as opened:
        topics = opened.topics()
        sizes = topic_sizes(opened, topics)
    document: list[dict[str, Any]] = [
        {
            "topic": topic.name,
            "queues": dict(topic.queues),
            "messages": sizes[topic.name].messages,
            "lastTimestamp": sizes[topic.name].last_ms,
        }
        for topic in topics
    ]
    rows = [
        (
            entry["topic"],
            sum(entry["queues"].values()),
            entry["messages"],
            moment(entry["lastTimestamp"]),
            ", ".join(sorted(entry["queues"])),
        )
        for entry in document
    ]
    given.out.result(document, Table(("TOPIC", "QUEUES", "MESSAGES", "LAST STORED", "BROKERS"), rows))


@app.command("update")
def update(
    ctx: typer.Context,
    *,
    name: NameArgument,
    queues: Annotated[int, typer.Option("--queues", metavar="N", help="Queues on each of its brokers; not fewer.")],
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Give a topic more queues; sharding keys map to other queues from then on."""
    given = common(ctx, store, json, conf)
    with given.open(read_only=False) as opened:
        changed = opened.update_topic(name, queues=queues)
    document = {"topic": changed.name, "queues": dict(changed.queues)}
    given.out.result(document, f"topic {changed.name} has {_queues_text(changed.queues)}")


@app.command("show")
def show(
    ctx: typer.Context,
    *,
    name: NameArgument,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show a topic's queues and the offsets in them; the greatest is exclusive."""
    given = common(ctx, store, json, conf)
    queues: list[dict[str, Any]] = []
    with given.open(read_only=True) as opened:
        found = opened.topic(name)
        states = {broker: opened.log(broker).refresh().state.queues for broker in found.queues}
        for broker, queue in found.message_queues():
            low, high = states[broker].bounds(name, queue)
            queues.append({"brokerName": broker, "queueId": queue, "minOffset": low, "maxOffset": high})
    document = {"topic": name, "messages": sum(q["maxOffset"] - q["minOffset"] for q in queues), "queues": queues}
    rows = [(q["brokerName"], q["queueId"], q["minOffset"], q["maxOffset"]) for q in queues]
    given.out.result(document, Table(("BROKER", "QUEUE", "MIN OFFSET", "MAX OFFSET"), rows))


@app.command("spans")
def spans(
    ctx: typer.Context,
    *,
    name: NameArgument,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show which time span each queue of a topic still holds."""
    from rmq_spark.client.time_search import QueueTimes

    given = common(ctx, store, json, conf)
    with given.open(read_only=True) as opened:
        found = QueueTimes(opened).spans(name)
    queues = [
        {
            "brokerName": span.broker,
            "queueId": span.queue,
            "minOffset": span.first,
            "maxOffset": span.end,
            "firstTimestamp": span.first_ms,
            "lastTimestamp": span.last_ms,
        }
        for span in found
    ]
    rows = [
        (
            span.broker,
            span.queue,
            span.first,
            span.end,
            moment(span.first_ms),
            moment(span.last_ms),
        )
        for span in found
    ]
    headers = ("BROKER", "QUEUE", "MIN OFFSET", "MAX OFFSET", "FIRST STORED", "LAST STORED")
    given.out.result({"topic": name, "queues": queues}, Table(headers, rows))


@app.command("delete")
def delete(
    ctx: typer.Context,
    *,
    name: NameArgument,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Delete a topic and hide its messages for good; retention frees their room."""
    from rmq_spark.cli.sizes import messages_of

    given = common(ctx, store, json, conf)
    with given.open(read_only=dry_run) as opened:
        messages = messages_of(opened, opened.topic(name))
        if not dry_run:
            require_consent(yes, f"Delete topic {name} and its {messages:,} messages, for good?")
            opened.delete_topic(name)
    document = {"topic": name, "deleted": not dry_run, "messages": messages}
    verb = "would delete" if dry_run else "deleted"
    given.out.result(document, f"{verb} topic {name} with {messages:,} messages")


def _queues_text(queues: Mapping[str, int]) -> str:
    return ", ".join(f"{count} queues on {broker}" for broker, count in sorted(queues.items()))
