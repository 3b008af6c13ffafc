"""`rmq init` and `rmq topic`: what exists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_spark.cli.consent import require_consent
from rmq_spark.cli.options import ConfOption, DryRunOption, JsonOption, StoreOption, YesOption, common
from rmq_spark.cli.output import Table, table_of
from rmq_spark.errors import InvalidRequestError

if TYPE_CHECKING:
    from rmq_spark.client.store import Topic

app = typer.Typer(help="Create, list, show, update and delete topics.", rich_markup_mode=None)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]


def init(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Create an empty store; an existing one is left alone."""
    options = common(ctx, store, json, conf)
    with options.create() as made:
        document = {"uri": made.storage.uri, "format": made.info["format"], "createdAt": made.info["createdAt"]}
    options.out.result(document, f"created a store at {document['uri']}")


@app.callback()
def topic(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Create, list, show, update and delete topics."""
    common(ctx, store, json, conf)


QueuesOption = Annotated[int | None, typer.Option("--queues", metavar="N", help="Queues on each broker.")]
WriteQueuesOption = Annotated[
    int | None, typer.Option("--write-queues", metavar="N", help="Those of them that producers write.")
]
ReadQueuesOption = Annotated[
    int | None, typer.Option("--read-queues", metavar="N", help="Those that consumers read; never fewer.")
]
PermOption = Annotated[int | None, typer.Option("--perm", metavar="N", help="4: read, 2: write, 6: both.")]
TypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help="Only NORMAL, FIFO, DELAY, TRANSACTION or PRIORITY messages."),
]
BacklogOption = Annotated[
    int | None,
    typer.Option("--backlog-max", metavar="N", help="Refuse sends while a group is so far behind; 0: never."),
]
BrokerOption = Annotated[
    list[str] | None, typer.Option("--broker", metavar="NAME", help="A broker to put it on; may be repeated.")
]


@app.command("create")
def create(
    ctx: typer.Context,
    *,
    name: NameArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    message_type: TypeOption = None,
    backlog_max: BacklogOption = None,
    broker: BrokerOption = None,
    change: Annotated[bool, typer.Option("--update", help="If there is one, change it.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Create a topic with 8 queues, or as many as are asked for; the same again is no error."""
    from rmq_spark.client.admin import Admin
    from rmq_spark.client.store import DEFAULT_BROKER, DEFAULT_QUEUES

    options = common(ctx, store, json, conf)
    wanted: dict[str, Any] = {
        "permission": perm,
        "message_type": None if message_type is None else message_type.upper(),
        "backlog_max": backlog_max,
        "write_queues": write_queues,
    }
    with options.open(read_only=False) as opened:
        admin = Admin(opened)
        read = queues if read_queues is None else read_queues
        count = DEFAULT_QUEUES if read is None else read
        if change and opened.find_topic(name) is not None:
            wanted["write_queues"] = queues if write_queues is None else write_queues
            made = admin.update_topic(name, read_queues=read, brokers=broker or (), **wanted)
        elif any(value is not None for value in wanted.values()):
            wanted["message_type"] = wanted["message_type"] or "UNSPECIFIED"
            made = admin.create_topic(name, queues=count, brokers=broker or (DEFAULT_BROKER,), **wanted)
        else:
            made = opened.create_topic(name, queues=count, brokers=tuple(broker or (DEFAULT_BROKER,)))
    options.out.result(_document(made), f"topic {made.name} has {_queues_text(made)}")


@app.command("list")
def list_(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """List all topics: how many messages they hold, about how many bytes, and when the last was stored."""
    from rmq_spark.cli.sizes import topic_sizes

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        topics = opened.topics()
        sizes = topic_sizes(opened, topics)
    document: list[dict[str, Any]] = [
        {
            **_document(topic),
            "messages": sizes[topic.name].messages,
            "bytes": sizes[topic.name].bytes,
            "lastTimestamp": sizes[topic.name].last_ms,
        }
        for topic in topics
    ]
    shown = [{**each, "total": sum(each["queues"].values())} for each in document]
    columns = {
        "TOPIC": "topic",
        "QUEUES": "total",
        "MESSAGES": "messages",
        "BYTES": "bytes",
        "LAST STORED": "lastTimestamp",
        "TYPE": "messageType",
        "PERM": "perm",
        "BROKERS": "queues",
    }
    options.out.result(document, table_of(shown, columns))


@app.command("update")
def update(
    ctx: typer.Context,
    *,
    name: NameArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    message_type: TypeOption = None,
    backlog_max: BacklogOption = None,
    broker: BrokerOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Change a topic: its queues, permissions, type, limit, or put it on more brokers."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    if all(value is None for value in (queues, read_queues, write_queues, perm, message_type, backlog_max, broker)):
        raise InvalidRequestError("say what to change, by --queues or another option", topic=name)
    with options.open(read_only=False) as opened:
        changed = Admin(opened).update_topic(
            name,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=perm,
            message_type=None if message_type is None else message_type.upper(),
            backlog_max=backlog_max,
            brokers=broker or (),
        )
    options.out.result(_document(changed), f"topic {changed.name} has {_queues_text(changed)}")


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
    options = common(ctx, store, json, conf)
    queues: list[dict[str, Any]] = []
    with options.open(read_only=True) as opened:
        topic = opened.topic(name)
        states = {broker: opened.log(broker).refresh().state.queues for broker in topic.queues}
        for broker, queue in topic.message_queues():
            low, high = states[broker].bounds(name, queue)
            queues.append({"brokerName": broker, "queueId": queue, "minOffset": low, "maxOffset": high})
    document = {"topic": name, "messages": sum(q["maxOffset"] - q["minOffset"] for q in queues), "queues": queues}
    rows = [(q["brokerName"], q["queueId"], q["minOffset"], q["maxOffset"]) for q in queues]
    options.out.result(document, Table(("BROKER", "QUEUE", "MIN OFFSET", "MAX OFFSET"), rows))


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
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        queue_spans = Admin(opened).spans(name)
    queues = [
        {
            "brokerName": span.broker,
            "queueId": span.queue,
            "minOffset": span.first,
            "maxOffset": span.end,
            "firstTimestamp": span.first_ms,
            "lastTimestamp": span.last_ms,
        }
        for span in queue_spans
    ]
    columns = {
        "BROKER": "brokerName",
        "QUEUE": "queueId",
        "MIN OFFSET": "minOffset",
        "MAX OFFSET": "maxOffset",
        "FIRST STORED": "firstTimestamp",
        "LAST STORED": "lastTimestamp",
    }
    options.out.result({"topic": name, "queues": queues}, table_of(queues, columns))


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
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=dry_run) as opened:
        messages = messages_of(opened, opened.topic(name))
        if not dry_run:
            require_consent(yes, f"Delete topic {name} and its {messages:,} messages, for good?")
            Admin(opened).delete_topic(name)
    document = {"topic": name, "deleted": not dry_run, "messages": messages}
    verb = "would delete" if dry_run else "deleted"
    options.out.result(document, f"{verb} topic {name} with {messages:,} messages")


def _document(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "queues": dict(topic.queues),
        "writeQueues": dict(topic.write_queues),
        "perm": topic.permission,
        "messageType": str(topic.message_type),
        "backlogMax": topic.backlog_max,
    }


def _queues_text(topic: Topic) -> str:
    texts = []
    for broker, count in sorted(topic.queues.items()):
        written = topic.write_queues.get(broker, 0)
        texts.append(f"{count} queues on {broker}" + (f", {written} of them written" if written != count else ""))
    return ", ".join(texts)
