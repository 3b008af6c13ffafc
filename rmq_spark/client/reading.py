"""Reading a topic as Arrow: what can be asked, and errors that name the nearest right answer."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rmq_spark.client.compression import decompress
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.filter import Filter, compile_sql, compile_tags
from rmq_spark.log import schema
from rmq_spark.log.scan import Query
from rmq_spark.model import names, times
from rmq_spark.model.kafka_names import KAFKA_NAMES
from rmq_spark.rules import system_topics

if TYPE_CHECKING:
    from rmq_spark.client.store import Store

Time = datetime | str | int
"""A `datetime`, ISO text, or milliseconds since 1970."""


def nearest(name: str, known: Iterable[str]) -> dict[str, str]:
    """The known name that is most like `name`, as a fact for an error; nothing if none is."""
    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    return {"nearest": near[0]} if near else {}


def nearest_column(name: str, known: Iterable[str]) -> dict[str, str]:
    """As `nearest`, for a column: those who come from Kafka say `value` where the body is meant."""
    ours = KAFKA_NAMES.get(str(name).lower(), "")
    return {"nearest": ours} if ours in set(known) else nearest(str(name), known)


def filter_parts(tags: str | None, sql: str | None) -> dict[str, Any]:
    """Tag codes to prune by, and the predicate that both expressions make together, as arguments of a `Query`.

    Raises:
        InvalidRequestError: an expression does not compile, or names a tag that no message can have.
    """
    parts: dict[str, Any] = {}
    filters: list[Filter] = []
    if tags is not None:
        tagged = compile_tags(tags)
        # RocketMQ takes `a | b` for one tag, of which there can be no message.
        if wrong := sorted(tag for tag in tagged.tags or () if "|" in tag):
            raise InvalidRequestError("a tag has no '|'; write || between tags", tags=tags, tag=wrong[0])
        if tagged.tags is not None:
            parts["tag_codes"] = tagged.codes
            filters.append(tagged)
    if sql is not None:
        filters.append(compile_sql(sql))
    if filters:
        parts["predicate"] = lambda batch: np.logical_and.reduce(
            [one.mask(batch).to_numpy(zero_copy_only=False) for one in filters]
        )
        parts["predicate_columns"] = tuple(sorted(frozenset().union(*(one.columns for one in filters))))
    return parts


def scan_topic(
    store: Store,
    topic: str,
    *,
    tags: str | None,
    sql: str | None,
    keys: str | Sequence[str] | None,
    since: Time | None,
    until: Time | None,
    queue: int | Sequence[int] | None,
    columns: Sequence[str] | None,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """What `Store.scan` and `Store.read` share: the columns, and the batches. Everything is checked before it returns.

    Raises:
        as `Store.scan`.
    """
    wanted = _columns(columns)
    for name, text in (("tags", tags), ("sql", sql)):
        if text is not None and not isinstance(text, str):
            raise InvalidRequestError(f"{name} must be a text", **{name: text})
    if keys is not None and not isinstance(keys, str) and not _all_of(keys, str):
        raise InvalidRequestError("keys is a text or a list of texts", keys=keys)
    if queue is not None and not isinstance(queue, int) and not _all_of(queue, int):
        raise InvalidRequestError("queue is a queue id or a list of them", queue=queue)
    now = store.clock.now_ms()
    queues = None if queue is None else frozenset((queue,) if isinstance(queue, int) else queue)
    query = Query(
        topics=frozenset((names.check_topic(topic),)),
        queues=queues,
        keys=frozenset((keys,) if isinstance(keys, str) else keys or ()),
        from_ms=None if since is None else times.time_ms(since, "since", now),
        to_ms=None if until is None else times.time_ms(until, "until", now),
        **filter_parts(tags, sql),
    )
    brokers = _brokers(store, topic)
    if queues is not None:
        _check_queues(store, topic, brokers, queues)
    return pa.schema([schema.MESSAGE.field(name) for name in wanted]), _batches(store, brokers, query, wanted)


def _all_of(values: object, kind: type) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str) and all(isinstance(one, kind) for one in values)


def _batches(store: Store, brokers: Sequence[str], query: Query, wanted: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    # Whether a body is compressed is written in another column.
    needed = tuple(dict.fromkeys((*wanted, "sysFlag"))) if "body" in wanted else wanted
    for broker in brokers:
        for batch in store.log(broker).scan(replace(query, columns=needed)):
            if batch.num_rows:
                yield decompress(batch).select(list(wanted)) if "body" in wanted else batch


def _columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    known = tuple(schema.MESSAGE.names)
    if columns is None:
        return known
    if isinstance(columns, str):
        raise InvalidRequestError("columns is a list of names", columns=columns)
    for name in columns:
        if name not in known:
            raise InvalidRequestError("unknown column", column=name, **nearest_column(name, known), known=list(known))
    if not columns:
        raise InvalidRequestError("name at least one column", known=list(known))
    return tuple(dict.fromkeys(columns))


def _brokers(store: Store, topic: str) -> list[str]:
    """The brokers that may hold messages of the topic."""
    configured = store.find_topic(topic)
    if configured is not None:
        return sorted(configured.queues)
    # The engine's own topics are configured nowhere; they exist where they have messages.
    holding = [broker for broker in store.brokers() if _queues_there(store, broker, topic)]
    if not holding and not system_topics.is_made_by_engine(topic):
        raise NotFoundError("no such topic", topic=topic, **nearest(topic, (one.name for one in store.topics())))
    return holding


def _queues_there(store: Store, broker: str, topic: str) -> set[int]:
    return store.log(broker).look(lambda view: {queue for queue, _, _ in view.state.queues.of_topic(topic)})


def _check_queues(store: Store, topic: str, brokers: Sequence[str], queues: Iterable[int]) -> None:
    """Refuse queues that exist on no broker: an empty answer would hide the mistake."""
    configured = store.find_topic(topic)
    known: set[int] = set()
    for broker in brokers:
        known.update(range(configured.queues.get(broker, 0) if configured else 0), _queues_there(store, broker, topic))
    for queue in sorted(queues):
        if queue not in known and known:
            near = min(known, key=lambda each: (abs(each - queue), each))
            raise NotFoundError("no such queue", topic=topic, queue=queue, nearest=near, queues=len(known))
