"""`rmq read`: messages of a topic, narrowed by queue, offset, time, tag, SQL92, key or id; it stops at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmq_spark.cli import logs
from rmq_spark.cli.message_fields import body_field
from rmq_spark.cli.options import (
    INT64_MAX,
    BrokersOption,
    ConfOption,
    FromOption,
    JsonOption,
    StoreOption,
    ToOption,
    common,
)
from rmq_spark.cli.output import Output, printable, to_json
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.model.times import format_ms, parse_time

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.client.store import Store
    from rmq_spark.log.scan import Query

TEXT_COLUMNS: Final = ("storeTimestamp", "brokerName", "queueId", "queueOffset", "tags", "keys", "body")
"""What text shows unless `--columns` says otherwise; JSON has everything then."""


def read(
    ctx: typer.Context,
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    queue: Annotated[list[int] | None, typer.Option("--queue", min=0, help="Only this queue; may be repeated.")] = None,
    from_offset: Annotated[int, typer.Option("--from-offset", min=0, max=INT64_MAX, help="First queue offset.")] = 0,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, max=INT64_MAX, help="Queue offset to stop before.")
    ] = None,
    from_time: FromOption = None,
    to_time: ToOption = None,
    tags: Annotated[str | None, typer.Option("--tags", metavar="EXPR", help="With one of these: 'A || B'.")] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="EXPR", help="With properties for which this is true, in SQL92.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="With this key.")] = None,
    msg_id: Annotated[str | None, typer.Option("--id", metavar="MSGID", help="With this message id.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, max=INT64_MAX, help="At most so many messages.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAMES", help="What to show, with commas between.")
    ] = None,
    broker: BrokersOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Show messages, one a line, in order per queue, one broker after the other; stop at the end."""
    from rmq_spark.client.reading import filter_parts
    from rmq_spark.log.scan import Query

    options = common(ctx, store, json, conf)
    check_offsets(from_offset, to_offset)
    with options.open(read_only=True) as opened:
        from_ms, to_ms = time_range(from_time, to_time, opened.clock.now_ms())
        names = columns_of(columns, options.json)
        places = _places(opened, topic, broker)
        query = Query(
            topics=frozenset((topic,)),
            queues=frozenset(queue) if queue else None,
            ranges=_ranges(opened, topic, places, queue or (), (from_offset, to_offset)),
            from_ms=from_ms,
            to_ms=to_ms,
            keys=frozenset() if key is None else frozenset((key,)),
            msg_id=msg_id,
            **filter_parts(tags, sql),
        )
        check_queues(opened, topic, places, queue or ())
        if not options.json:
            options.out.note("\t".join(names))
        for batch in _limited(_scan(opened, places, query, names), limit):
            show(options.out, batch, names)


def show(out: Output, batch: pa.RecordBatch, names: tuple[str, ...]) -> None:
    """Write one line for each message: a JSON object with the columns' names, or their values with tabs between."""
    values = [_values(batch.column(name), name) for name in names]
    if out.json:
        out.lines(to_json(_json_object(names, row)) for row in zip(*values, strict=True))
    else:
        out.lines("\t".join(map(_text, names, row)) for row in zip(*values, strict=True))


def check_offsets(start: int | None, end: int | None) -> None:
    """Refuse a range of queue offsets that can hold nothing.

    Raises:
        InvalidRequestError: it ends before it starts.
    """
    if start is not None and end is not None and end < start:
        raise InvalidRequestError("--to-offset is before --from-offset", from_offset=start, to_offset=end)


def time_range(start: str | None, end: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """What `--from` and `--to` mean, in milliseconds since 1970.

    Raises:
        InvalidRequestError: one of them is no time, or the range ends before it starts.
    """
    from_ms = None if start is None else parse_time(start, "--from/--since", now_ms)
    to_ms = None if end is None else parse_time(end, "--to/--until", now_ms)
    if from_ms is not None and to_ms is not None and to_ms < from_ms:
        raise InvalidRequestError(
            "--to/--until is before --from/--since", from_time=format_ms(from_ms), to_time=format_ms(to_ms)
        )
    return from_ms, to_ms


def check_queues(store: Store, topic: str, places: Sequence[logs.LogPlace], queues: Iterable[int]) -> None:
    """Refuse queues that exist on none of the brokers that are read: an empty answer would hide the mistake.

    Raises:
        NotFoundError: there is no such queue.
    """
    wanted = set(queues)
    if not wanted:
        return
    configured = store.find_topic(topic)
    known: set[int] = set()
    for place in places:
        known.update(range(configured.queues.get(place.name, 0) if configured else 0))
        known.update(queue for queue, _, _ in place.open(store).refresh().state.queues.of_topic(topic))
    if missing := wanted - known:
        raise NotFoundError("no such queue", topic=topic, queue=min(missing), queues=len(known))


def _ranges(
    store: Store, topic: str, places: Sequence[logs.LogPlace], queues: Iterable[int], bounds: tuple[int, int | None]
) -> dict[tuple[str, int], tuple[int, int]] | None:
    """The same bounds for each of the queues, by default for all that have messages; None without bounds."""
    start, end = bounds
    if not start and end is None:
        return None
    chosen = set(queues)
    for place in places if not chosen else ():
        chosen.update(queue for queue, _, _ in place.open(store).refresh().state.queues.of_topic(topic))
    return {(topic, queue): (start, INT64_MAX if end is None else end) for queue in chosen}


def columns_of(text: str | None, json: bool) -> tuple[str, ...]:
    """The columns to show: those of `--columns`, or what text and JSON show without it.

    Raises:
        InvalidRequestError: there is no such column.
    """
    from rmq_spark.client.reading import nearest_column
    from rmq_spark.log import schema

    known = tuple(schema.MESSAGE.names)
    if text is None:
        return known if json else TEXT_COLUMNS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in known:
            near = nearest_column(name, known).get("nearest")
            hint = f"; did you mean {near!r}?" if near else ""
            raise InvalidRequestError(f"unknown column{hint}", column=name, known=list(known))
    return tuple(dict.fromkeys(names))


def _scan(
    store: Store, places: Sequence[logs.LogPlace], query: Query, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Batches of all brokers with plain bodies."""
    from dataclasses import replace

    from rmq_spark.client.compression import decompress

    # Whether a body is compressed is written in another column.
    needed = tuple(dict.fromkeys((*names, "sysFlag"))) if "body" in names else names
    query = replace(query, columns=needed)
    for place in places:
        for batch in place.open(store).scan(query):
            yield decompress(batch) if "body" in names else batch


def _places(store: Store, topic: str, brokers: list[str] | None) -> list[logs.LogPlace]:
    """The logs that hold the topic, or those of them that were named.

    Raises:
        NotFoundError: no such topic or broker.
    """
    from rmq_spark.model import names

    names.check_topic(topic)
    configured = store.find_topic(topic)
    if configured is not None:
        places = [logs.broker_place(broker) for broker in sorted(configured.queues)]
    else:
        # The engine's own topics are configured nowhere; they exist where they have messages.
        every = [logs.NAMESERVER, *map(logs.broker_place, store.brokers())]
        places = [place for place in every if _has_messages(store, place, topic)]
        if not places:
            raise NotFoundError("no such topic", topic=topic)
    if brokers is None:
        return places
    wanted = logs.named(store, brokers, nameserver=False)
    return [place for place in places if place in wanted]


def _has_messages(store: Store, place: logs.LogPlace, topic: str) -> bool:
    queues = place.open(store).refresh().state.queues
    return any(first < end for _, first, end in queues.of_topic(topic))


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    if left == 0:
        return
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def _values(column: pa.Array, name: str) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    if name == "properties":
        return [dict(pairs or ()) for pairs in column.to_pylist()]
    return list(column.to_pylist())


def _json_object(names: tuple[str, ...], row: tuple[Any, ...]) -> dict[str, Any]:
    document = {}
    for name, value in zip(names, row, strict=True):
        if name == "body":
            field, body = body_field(value)
            document[field] = body
        else:
            document[name] = value
    return document


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("storeTimestamp", "bornTimestamp"):
        return format_ms(value)
    if name == "properties":
        return printable(to_json(value))
    if name == "body":
        field, text = body_field(value)
        return printable(text) if field == "body" else f"base64:{text}"
    return printable(str(value))
