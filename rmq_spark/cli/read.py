"""`rmq read`: messages of a topic, narrowed by queue, offset, time, tag, key or id. It stops at the log's end."""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmq_spark.cli import logs
from rmq_spark.cli.options import INT64_MAX, BrokersOption, ConfOption, JsonOption, StoreOption, common
from rmq_spark.cli.output import Output, printable, to_json
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.model.times import FORMS, format_ms, parse_time

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
    from_time: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help=f"Stored at this time or later ({FORMS}).")
    ] = None,
    to_time: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Stored before this time.")] = None,
    tags: Annotated[str | None, typer.Option("--tags", metavar="EXPR", help="With one of these: 'A || B'.")] = None,
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
    from rmq_spark.log.scan import Query

    given = common(ctx, store, json, conf)
    with given.open(read_only=True) as opened:
        now = opened.clock.now_ms()
        query = Query(
            topics=frozenset((topic,)),
            queues=frozenset(queue) if queue else None,
            queue_start=from_offset,
            queue_end=to_offset,
            from_ms=None if from_time is None else parse_time(from_time, "--from", now),
            to_ms=None if to_time is None else parse_time(to_time, "--to", now),
            key=key,
            msg_id=msg_id,
            **_tag_parts(tags),
        )
        names = columns_of(columns, given.json)
        if not given.json:
            given.out.note("\t".join(names))
        for batch in _limited(_scan(opened, topic, broker, query, names), limit):
            show(given.out, batch, names)


def show(out: Output, batch: pa.RecordBatch, names: tuple[str, ...]) -> None:
    """Write one line for each message: a JSON object with the columns' names, or their values with tabs between."""
    values = [_values(batch.column(name), name) for name in names]
    if out.json:
        out.lines(to_json(_json_object(names, row)) for row in zip(*values, strict=True))
    else:
        out.lines("\t".join(map(_text, names, row)) for row in zip(*values, strict=True))


def _tag_parts(expression: str | None) -> dict[str, Any]:
    """Tag codes to prune by, and the predicate that compares the tags themselves."""
    if expression is None:
        return {}
    from rmq_spark.filter import compile_tags

    compiled = compile_tags(expression)
    if compiled.tags is None:
        return {}
    return {
        "tag_codes": compiled.codes,
        "predicate": lambda batch: compiled.mask(batch).to_numpy(zero_copy_only=False),
        "predicate_columns": tuple(sorted(compiled.columns)),
    }


def columns_of(text: str | None, json: bool) -> tuple[str, ...]:
    """The columns to show: those of `--columns`, or what text and JSON show without it.

    Raises:
        InvalidRequestError: there is no such column.
    """
    from rmq_spark.log import schema

    known = tuple(schema.MESSAGE.names)
    if text is None:
        return known if json else TEXT_COLUMNS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidRequestError(f"unknown column{hint}", column=name, known=list(known))
    return tuple(dict.fromkeys(names))


def _scan(
    store: Store, topic: str, brokers: list[str] | None, query: Query, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Batches of all brokers with plain bodies.

    Raises:
        NotFoundError: no such topic or broker.
    """
    from dataclasses import replace

    from rmq_spark.client.compression import decompress

    # Whether a body is compressed is written in another column.
    needed = tuple(dict.fromkeys((*names, "sysFlag"))) if "body" in names else names
    query = replace(query, columns=needed)
    for place in _places(store, topic, brokers):
        for batch in place.open(store).scan(query):
            yield decompress(batch) if "body" in names else batch


def _places(store: Store, topic: str, brokers: list[str] | None) -> list[logs.LogPlace]:
    from rmq_spark.model import names

    names.check_topic(topic)
    found = store.find_topic(topic)
    if found is not None:
        places = [logs.broker_place(broker) for broker in sorted(found.queues)]
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
    found = {}
    for name, value in zip(names, row, strict=True):
        if name == "body":
            field, found_value = _body(value)
            found[field] = found_value
        else:
            found[name] = value
    return found


def _body(body: bytes) -> tuple[str, str]:
    try:
        return "body", body.decode()
    except UnicodeDecodeError:
        return "bodyBase64", base64.b64encode(body).decode()


def _text(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("storeTimestamp", "bornTimestamp"):
        return format_ms(value)
    if name == "properties":
        return printable(to_json(value))
    if name == "body":
        field, text = _body(value)
        return printable(text) if field == "body" else f"base64:{text}"
    return printable(str(value))
