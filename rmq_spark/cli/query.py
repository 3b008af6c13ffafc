"""`rmq query`: find messages by key, id, queue or time, newest first; quick where tables are built."""

from __future__ import annotations

from typing import Annotated

import typer

from rmq_spark.cli import logs
from rmq_spark.cli.options import INT64_MAX, ConfOption, FromOption, JsonOption, StoreOption, ToOption, common
from rmq_spark.cli.read import check_offsets, check_queues, columns_of, show, time_range
from rmq_spark.errors import InvalidRequestError


def query(
    ctx: typer.Context,
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    key: Annotated[str | None, typer.Option("--key", help="With this key.")] = None,
    msg_id: Annotated[
        str | None, typer.Option("--id", metavar="MSGID", help="With this message id, or this offset id.")
    ] = None,
    from_time: FromOption = None,
    to_time: ToOption = None,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="In this queue.")] = None,
    from_offset: Annotated[
        int | None, typer.Option("--from-offset", min=0, max=INT64_MAX, help="With --queue: first queue offset.")
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, max=INT64_MAX, help="With --queue: offset to stop before.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=INT64_MAX, help="At most so many messages, the newest.")
    ] = 64,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAMES", help="What to show, with commas between.")
    ] = None,
    broker: Annotated[str | None, typer.Option("--broker", metavar="NAME", help="Only on this broker.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Find messages of a topic, newest first: by --key, --id, --queue, or --from and --to."""
    from rmq_spark.query.messages import MessageQuery

    options = common(ctx, store, json, conf)
    _check(key, msg_id, queue, from_time is not None or to_time is not None)
    if queue is None and (from_offset is not None or to_offset is not None):
        raise InvalidRequestError("--from-offset and --to-offset belong to a queue; name it by --queue")
    check_offsets(from_offset, to_offset)
    names = columns_of(columns, options.json)
    with options.open(read_only=True) as opened:
        from_ms, to_ms = time_range(from_time, to_time, opened.clock.now_ms())
        asked = MessageQuery(opened)
        if key is not None:
            answer = asked.by_key(topic, key, limit=limit, from_ms=from_ms, to_ms=to_ms, broker=broker)
        elif msg_id is not None:
            answer = asked.by_id(msg_id, topic=topic, limit=limit, broker=broker)
        elif queue is not None:
            end = INT64_MAX if to_offset is None else to_offset
            answer = asked.by_queue(topic, queue, from_offset or 0, end, limit=limit, broker=broker)
            if not answer.messages.num_rows:
                check_queues(opened, topic, logs.chosen(opened, [broker] if broker else None, False), [queue])
        else:
            answer = asked.by_time(topic, from_ms, to_ms, limit=limit, broker=broker)
        if not options.json:
            options.out.note("\t".join(names))
        for batch in answer.messages.to_batches():
            show(options.out, batch, names)
        if not answer.messages.num_rows:
            options.out.note("no message found")


def _check(key: str | None, msg_id: str | None, queue: int | None, timed: bool) -> None:
    """One question at a time; a time may narrow a key."""
    asked = [name for name, there in (("--key", key), ("--id", msg_id), ("--queue", queue)) if there is not None]
    if len(asked) > 1 or (timed and asked and asked != ["--key"]):
        raise InvalidRequestError("ask one question: --key, --id, --queue, or --from and --to (also with --key)")
    if not asked and not timed:
        raise InvalidRequestError("say what to find: --key, --id, --queue, or --from and --to")
