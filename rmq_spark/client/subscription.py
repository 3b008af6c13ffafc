"""What a consumer wants of a topic: all messages, those with some tags, or those that match SQL92."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_spark.errors import InvalidRequestError
from rmq_spark.filter import Filter, compile_sql, compile_tags
from rmq_spark.log.queue_reader import ALL, QueueFilter


@dataclass(frozen=True, slots=True)
class Subscription:
    """A compiled filter."""

    wanted: QueueFilter
    expression: str
    """Names it: equal expressions want the same."""


def subscription(topic: str, tags: str | None = None, sql: str | None = None) -> Subscription:
    """Compile what a consumer asked for; nothing, or the tag `*`, means every message.

    Raises:
        InvalidRequestError: both are given, or one cannot be read.
    """
    if tags is not None and sql is not None:
        raise InvalidRequestError("give either tags or sql, not both", topic=topic)
    for name, text in (("topic", topic), ("tags", tags or ""), ("sql", sql or "")):
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name} must be a text", **{name: text})
    if sql is not None:
        return Subscription(_filter(compile_sql(sql), None), f"sql {sql}")
    by_tag = compile_tags(tags or "*")
    return Subscription(ALL if by_tag.codes is None else _filter(by_tag, by_tag.codes), f"tags {by_tag.expression}")


def _filter(compiled: Filter, codes: frozenset[int] | None) -> QueueFilter:
    return QueueFilter(
        tag_codes=codes,
        predicate=lambda batch: compiled.mask(batch).to_numpy(zero_copy_only=False),
        columns=tuple(sorted(compiled.columns)),
    )
