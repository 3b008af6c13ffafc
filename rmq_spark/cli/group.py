"""`rmq group`: consumer groups, how far they are behind, and setting them elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_spark.cli.group_reset import parse_offsets, reset_result
from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, common, yes_or_no
from rmq_spark.cli.output import Table, duration, moment, table_of
from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.times import FORMS, format_ms, parse_time

if TYPE_CHECKING:
    from rmq_spark.client.offsets import Activity, QueueLag, Target
    from rmq_spark.rules.group_config import GroupSettings

app = typer.Typer(help="List, show, configure, reset and delete consumer groups.", rich_markup_mode=None)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The consumer group.")]
TopicOption = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only this topic.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Do it even while consumers of the group are at work.")]


@app.callback()
def group(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """List, show, configure, reset and delete consumer groups."""
    common(ctx, store, json, conf)


@app.command("list")
def list_(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """List all consumer groups and how far they are behind."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    document: list[dict[str, Any]] = []
    with options.open(read_only=True) as opened:
        offsets = Admin(opened).offsets
        for name in offsets.groups():
            queues, activity = offsets.lag(name), offsets.activity(name)
            topics = sorted({queue.topic for queue in queues})
            document.append({"group": name, "topics": topics, **_totals(queues), **_activity(activity)})
    rows = [
        (
            entry["group"],
            ", ".join(entry["topics"]),
            entry["lag"],
            duration(entry["lagMs"]),
            yes_or_no(entry["active"]),
            moment(entry["updatedAt"]),
        )
        for entry in document
    ]
    options.out.result(document, Table(("GROUP", "TOPICS", "LAG", "AGE", "ACTIVE", "UPDATED"), rows))


@app.command("show")
def show(
    ctx: typer.Context,
    *,
    name: NameArgument,
    topic: TopicOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show how far a group is behind, queue by queue, in messages and in time."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        if topic is not None:
            opened.topic(topic)
        offsets = Admin(opened).offsets
        queues = [queue for queue in offsets.lag(name) if topic in (None, queue.topic)]
        activity = offsets.activity(name)
    totals = _totals(queues)
    document = {"group": name, **totals, **_activity(activity), "queues": [_lag_document(queue) for queue in queues]}
    rows = [
        (q.topic, q.broker, q.queue, q.committed, q.first, q.end, q.lag, duration(q.lag_ms), q.missed or None)
        for q in queues
    ]
    headers = ("TOPIC", "BROKER", "QUEUE", "COMMITTED", "MIN OFFSET", "MAX OFFSET", "LAG", "AGE", "MISSED")
    behind = f"{name} is {totals['lag']:,} messages behind"
    if totals["lag"]:
        behind += f", the oldest is {duration(totals['lagMs'])} old"
    options.out.result(document, f"{behind}; {_activity_text(activity)}", Table(headers, rows))


@app.command("members")
def members(
    ctx: typer.Context,
    *,
    name: NameArgument,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show a group's live consumers and what each subscribes to; they should subscribe alike."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        membership = Admin(opened).members(name)
    live = [
        {"member": member, "seenAt": one.at_ms, "goneAt": one.until_ms, "subscriptions": dict(one.subscriptions)}
        for member, one in membership.members.items()
    ]
    document = {"group": name, "differing": list(membership.differing), "members": live}
    rows = [
        (member, moment(one.at_ms), topic, expression)
        for member, one in membership.members.items()
        for topic, expression in one.subscriptions or [("", "")]
    ]
    lines = [f"{name} has {len(live)} live consumers"]
    if membership.differing:
        lines.append(
            f"warning: they subscribe differently to {', '.join(membership.differing)}, so messages go to consumers "
            "that do not want them; subscribe alike"
        )
    options.out.result(document, *lines, Table(("MEMBER", "SEEN", "TOPIC", "SUBSCRIPTION"), rows))


@app.command("update")
def update(
    ctx: typer.Context,
    *,
    name: NameArgument,
    retry_max: Annotated[
        int | None, typer.Option("--retry-max", metavar="N", min=0, help="How often a message is retried.")
    ] = None,
    consume: Annotated[
        bool | None, typer.Option("--consume/--no-consume", help="Whether its consumers get messages.")
    ] = None,
    orderly: Annotated[
        bool | None, typer.Option("--orderly/--no-orderly", help="Whether POP consumers receive in order (FIFO).")
    ] = None,
    retry_policy: Annotated[
        str | None, typer.Option("--retry-policy", metavar="NAME", help="CUSTOMIZED or EXPONENTIAL.")
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Create a group or change its settings, and show them."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        settings = Admin(opened).update_group(
            name, retry_max_times=retry_max, consume_enabled=consume, orderly=orderly, retry_policy=retry_policy
        )
    document = {"group": name, **_settings(settings)}
    columns = {
        "GROUP": "group",
        "RETRIES": "retryMaxTimes",
        "CONSUME": "consumeEnable",
        "ORDERLY": "consumeMessageOrderly",
        "RETRY POLICY": "groupRetryPolicy",
    }
    options.out.result(document, table_of([document], columns))


@app.command("reset")
def reset(
    ctx: typer.Context,
    *,
    name: NameArgument,
    topic: TopicOption = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first message that is held.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    skip: Annotated[bool, typer.Option("--skip", help="Skip what has piled up: the same as --to-latest.")] = False,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help=f"To the first message stored then or later: {FORMS}."),
    ] = None,
    to_offsets: Annotated[
        str | None,
        typer.Option("--to-offsets", metavar="JSON", help='To these: {"TOPIC": {"BROKER": {"QUEUE": OFFSET}}}.'),
    ] = None,
    clone: Annotated[
        str | None, typer.Option("--clone", metavar="GROUP", help="To where another group has come.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")] = False,
    force: ForceOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Set a group's offsets elsewhere; its consumers must have stopped."""
    from rmq_spark.client.admin import Admin
    from rmq_spark.client.offsets import OffsetsOf

    options = common(ctx, store, json, conf)
    wanted = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--skip": skip,
        "--to-time": to_time is not None,
        "--to-offsets": to_offsets is not None,
        "--clone": clone is not None,
    }
    if sum(wanted.values()) != 1:
        raise InvalidRequestError("say where to reset to, by exactly one of " + ", ".join(wanted))
    with options.open(read_only=dry_run) as opened:
        target: Target = "earliest" if to_earliest else "latest"
        if to_time is not None:
            # A time before 1970 is before every message; below zero it would mean `latest`, as in RocketMQ's protocol.
            target = max(0, parse_time(to_time, "--to-time", opened.clock.now_ms()))
        elif to_offsets is not None:
            target = parse_offsets(to_offsets, opened)
        elif clone is not None:
            target = OffsetsOf(clone)
        changes = Admin(opened).offsets.reset(name, topic, to=target, dry_run=dry_run, force=force)
    options.out.result(*reset_result(name, changes, dry_run))


@app.command("delete")
def delete(
    ctx: typer.Context,
    *,
    name: NameArgument,
    force: ForceOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Forget a group: its offsets and its settings; its consumers must have stopped."""
    from rmq_spark.client.admin import Admin

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        Admin(opened).offsets.delete(name, force=force)
    options.out.result({"group": name, "deleted": True}, f"deleted group {name}")


def _totals(queues: list[QueueLag]) -> dict[str, int]:
    return {
        "lag": sum(queue.lag for queue in queues),
        "lagMs": max((queue.lag_ms for queue in queues), default=0),
        "missed": sum(queue.missed for queue in queues),
    }


def _settings(settings: GroupSettings) -> dict[str, Any]:
    return {
        "retryMaxTimes": settings.retry_max_times,
        "consumeEnable": settings.consume_enabled,
        "consumeMessageOrderly": settings.orderly,
        "groupRetryPolicy": str(settings.retry_policy),
    }


def _activity(activity: Activity) -> dict[str, Any]:
    return {
        "active": activity.active,
        "member": activity.member,
        "memberAt": activity.member_ms,
        "updatedAt": activity.updated_ms,
    }


def _activity_text(activity: Activity) -> str:
    if activity.member_ms is None:
        return "no consumer has committed yet"
    who = f" by {activity.member}" if activity.member else ""
    word = "active" if activity.active else "idle"
    return f"{word}, last commit {format_ms(activity.member_ms)}{who}"


def _lag_document(queue: QueueLag) -> dict[str, Any]:
    return {
        "topic": queue.topic,
        "brokerName": queue.broker,
        "queueId": queue.queue,
        "committedOffset": queue.committed,
        "minOffset": queue.first,
        "maxOffset": queue.end,
        "lag": queue.lag,
        "lagMs": queue.lag_ms,
        "missed": queue.missed,
        "updatedAt": queue.updated_ms,
    }
