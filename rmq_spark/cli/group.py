"""`rmq group`: consumer groups, how far they are behind, and setting them elsewhere."""

from __future__ import annotations

import json as json_
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_spark.cli.options import INT64_MAX, ConfOption, JsonOption, StoreOption, common
from rmq_spark.cli.output import Table, moment
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.model.times import FORMS, format_ms, parse_time

if TYPE_CHECKING:
    from rmq_spark.client.offsets import Activity, OffsetChange, QueueLag, Target
    from rmq_spark.client.store import Store
    from rmq_spark.client.time_search import QueueKey

app = typer.Typer(help="List, show, reset and delete consumer groups.", rich_markup_mode=None)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The consumer group.")]
TopicOption = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only this topic.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Do it even while consumers of the group are at work.")]


@app.callback()
def group(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """List, show, reset and delete consumer groups."""
    common(ctx, store, json, conf)


@app.command("list")
def list_(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """List all consumer groups and how far they are behind."""
    from rmq_spark.client.offsets import GroupOffsets

    given = common(ctx, store, json, conf)
    document: list[dict[str, Any]] = []
    with given.open(read_only=True) as opened:
        offsets = GroupOffsets(opened)
        for name in offsets.groups():
            queues, activity = offsets.lag(name), offsets.activity(name)
            topics = sorted({queue.topic for queue in queues})
            document.append({"group": name, "topics": topics, **_totals(queues), **_activity(activity)})
    rows = [
        (
            found["group"],
            ", ".join(found["topics"]),
            found["lag"],
            _age(found["lagMs"]),
            _yes(found["active"]),
            moment(found["updatedAt"]),
        )
        for found in document
    ]
    given.out.result(document, Table(("GROUP", "TOPICS", "LAG", "AGE", "ACTIVE", "UPDATED"), rows))


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
    from rmq_spark.client.offsets import GroupOffsets

    given = common(ctx, store, json, conf)
    with given.open(read_only=True) as opened:
        if topic is not None:
            opened.topic(topic)
        offsets = GroupOffsets(opened)
        queues = [queue for queue in offsets.lag(name) if topic in (None, queue.topic)]
        activity = offsets.activity(name)
    totals = _totals(queues)
    document = {"group": name, **totals, **_activity(activity), "queues": [_lag_document(queue) for queue in queues]}
    rows = [
        (q.topic, q.broker, q.queue, q.committed, q.first, q.end, q.lag, _age(q.lag_ms), q.missed or None)
        for q in queues
    ]
    headers = ("TOPIC", "BROKER", "QUEUE", "COMMITTED", "MIN OFFSET", "MAX OFFSET", "LAG", "AGE", "MISSED")
    behind = f"{name} is {totals['lag']:,} messages behind"
    if totals["lag"]:
        behind += f", the oldest is {_age(totals['lagMs'])} old"
    given.out.result(document, f"{behind}; {_activity_text(activity)}", Table(headers, rows))


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
    from rmq_spark.client.offsets import GroupOffsets, OffsetsOf

    given = common(ctx, store, json, conf)
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
    with given.open(read_only=dry_run) as opened:
        target: Target = "earliest" if to_earliest else "latest"
        if to_time is not None:
            # A time before 1970 is before every message; below zero it would mean `latest`, as in RocketMQ's protocol.
            target = max(0, parse_time(to_time, "--to-time", opened.clock.now_ms()))
        elif to_offsets is not None:
            target = _parse_offsets(to_offsets, opened)
        elif clone is not None:
            target = OffsetsOf(clone)
        changes = GroupOffsets(opened).reset(name, topic, to=target, dry_run=dry_run, force=force)
    given.out.result(*_reset_result(name, changes, dry_run))


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
    from rmq_spark.client.offsets import GroupOffsets

    given = common(ctx, store, json, conf)
    with given.open(read_only=False) as opened:
        GroupOffsets(opened).delete(name, force=force)
    given.out.result({"group": name, "deleted": True}, f"deleted group {name}")


def _reset_result(name: str, changes: list[OffsetChange], dry_run: bool) -> tuple[dict[str, Any], str, Table]:
    queues: list[dict[str, Any]] = [
        {
            "topic": change.topic,
            "brokerName": change.broker,
            "queueId": change.queue,
            "before": change.before,
            "after": change.after,
            "redelivered": change.redelivered,
            "skipped": change.skipped,
        }
        for change in changes
    ]
    again, skipped = sum(change.redelivered for change in changes), sum(change.skipped for change in changes)
    document = {"group": name, "dryRun": dry_run, "redelivered": again, "skipped": skipped, "queues": queues}
    moved = sum(change.changed for change in changes)
    verb = "would set" if dry_run else "set"
    text = f"{verb} {name} on {moved} of {len(changes)} queues: {again:,} messages again, {skipped:,} skipped"
    headers = ("TOPIC", "BROKER", "QUEUE", "BEFORE", "AFTER", "AGAIN", "SKIPPED")
    return document, text, Table(headers, [tuple(queue.values()) for queue in queues])


def _parse_offsets(text: str, store: Store) -> dict[QueueKey, int]:
    """Offsets as RocketMQ's Spark connector writes them; a topic on one broker may leave the broker out."""
    problem = '--to-offsets takes {"TOPIC": {"BROKER": {"QUEUE": OFFSET}}}'
    try:
        topics = json_.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(problem, reason=str(error)) from error
    found: dict[QueueKey, int] = {}
    for topic, brokers in _object(topics, problem).items():
        places = _object(brokers, problem)
        if places and all(isinstance(value, int) for value in places.values()):
            known = sorted(store.topic(topic).queues)
            if len(known) != 1:
                raise InvalidRequestError("name the broker: the topic is on several", topic=topic, brokers=known)
            places = {known[0]: places}
        for broker, queues in places.items():
            for queue, offset in _object(queues, problem).items():
                if not (queue.isascii() and queue.isdigit() and len(queue) <= 5):
                    raise NotFoundError("no such queue", topic=topic, broker=broker, queue=queue)
                if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= INT64_MAX:
                    raise InvalidRequestError(problem, topic=topic, broker=broker, queue=queue, offset=offset)
                if (topic, broker, int(queue)) in found:
                    raise InvalidRequestError("a queue is named twice", topic=topic, broker=broker, queue=queue)
                found[topic, broker, int(queue)] = offset
    if not found:
        raise InvalidRequestError("--to-offsets names no queue", value=text)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; one that has a name twice is refused, for nobody can say which of its values was meant."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"a name stands twice: {sorted(name for name, _ in pairs)}")
    return dict(pairs)


def _object(value: Any, problem: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError(problem, value=value)
    return value


def _totals(queues: list[QueueLag]) -> dict[str, int]:
    return {
        "lag": sum(queue.lag for queue in queues),
        "lagMs": max((queue.lag_ms for queue in queues), default=0),
        "missed": sum(queue.missed for queue in queues),
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


def _age(ms: int) -> str | None:
    """A duration in its two largest units; None for none."""
    if not ms:
        return None
    seconds, rest = divmod(ms, 1000)
    if seconds < 60:
        return f"{seconds}.{rest:03d} s"
    for size, name, below, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size} {name} {seconds % size // below} {smaller}"
    raise AssertionError("unreachable: a minute or more")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
