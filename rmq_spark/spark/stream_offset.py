"""The stream's offset: one log position per broker, as JSON that Spark keeps in the checkpoint and compares as text.

Beside each position stands how many messages of the subscription lie before it. That number tells, without looking at
old files, whether there is anything new, how much, and whether retention has taken something that was not read.

The start of a new query is part of its first batch's end (`from`). Spark's offset log keeps only ends: after a crash
in batch 0 it asks for the start again, and "latest" would by then be another place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

from rmq_spark.errors import InvalidRequestError, UnsupportedVersionError
from rmq_spark.spark.options import ReadOptions

VERSION: Final = 1


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in one broker's log."""

    offset: int
    """Log offset of the next message, of whatever topic."""
    seen: int
    """Messages of the subscription before it, ever."""
    print_: int | None = field(default=None, compare=False)
    """Fingerprint of the commit before it, if that was not rolled yet: a log that was cut has another one there."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream is, in all brokers' logs."""

    brokers: Mapping[str, Position]
    """A broker that is not named is read from its beginning: it came after the query's start."""
    subscription: Mapping[str, Any]
    """What is read, so that a listener can tell whose progress this is."""
    is_new: bool = False
    """A start that no batch has recorded yet."""
    origin: Mapping[str, Position] | None = None
    """In the first batch's end: where the query started."""
    starts: str | None = None
    """Name of the file with first offsets per queue, as long as they matter."""
    store: str | None = None
    group: str | None = None
    store_id: str = ""
    """Which store it belongs to, however its URI is written."""

    def position(self, broker: str) -> Position:
        """Where the stream is in one broker's log."""
        return self.brokers.get(broker, Position(0, 0))

    def started(self) -> StreamOffset:
        """The first end of a new query, if nothing is read yet: it differs from the start and records it."""
        return replace(self, is_new=False, origin=self.brokers)

    def to_json(self) -> dict[str, Any]:
        """As Spark stores it. Equal offsets give equal text: keys are sorted, numbers are whole."""
        value: dict[str, Any] = {"brokers": _dump(self.brokers)}
        if self.origin is not None:
            value["from"] = _dump(self.origin)
        if self.group is not None:
            value["group"] = self.group
        value["id"] = self.store_id
        if self.is_new:
            value["new"] = True
        if self.starts is not None:
            value["starts"] = self.starts
        if self.store is not None:
            value["store"] = self.store
        value["sub"] = dict(self.subscription)
        value["v"] = VERSION
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StreamOffset:
        """The inverse of `to_json`.

        Raises:
            UnsupportedVersionError: a newer version wrote it.
            InvalidRequestError: it is not an offset of this source.
        """
        try:
            if value["v"] != VERSION:
                raise UnsupportedVersionError(
                    "the checkpoint was written by another version; upgrade rmq-spark", version=value["v"]
                )
            return cls(
                _load(value["brokers"]),
                value["sub"],
                bool(value.get("new", False)),
                _load(value["from"]) if "from" in value else None,
                value.get("starts"),
                value.get("store"),
                value.get("group"),
                value["id"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidRequestError("not an offset of this source", offset=str(value)[:200]) from error


def subscription_json(options: ReadOptions) -> dict[str, Any]:
    """What is read, as a small JSON value with sorted keys; equal subscriptions are equal values."""
    value: dict[str, Any] = {}
    if options.assign is not None:
        value["assign"] = [
            [topic, broker, _ranges(queues)]
            for (topic, broker), queues in sorted(
                options.assign.items(), key=lambda item: (item[0][0], item[0][1] or "")
            )
        ]
    if options.pattern is not None:
        value["pattern"] = options.pattern
    if options.retry_topic is not None:
        value["retry"] = options.retry_topic  # not only that there is one: another group's was counted otherwise
    if options.topics is not None:
        value["topics"] = sorted(options.topics)
    return value


def assigned(subscription: Mapping[str, Any]) -> dict[tuple[str, str | None], tuple[int, ...]] | None:
    """The queues by (topic, broker) of a subscription that names them, else None."""
    if "assign" not in subscription:
        return None
    return {
        (topic, broker): tuple(queue for low, high in ranges for queue in range(low, high + 1))
        for topic, broker, ranges in subscription["assign"]
    }


def _ranges(queues: tuple[int, ...]) -> list[list[int]]:
    """Ascending numbers as [first, last] pairs: ten thousand queues are seldom as many pairs."""
    groups = (list(group) for _, group in groupby(enumerate(queues), key=lambda item: item[1] - item[0]))
    return [[group[0][1], group[-1][1]] for group in groups]


def _dump(brokers: Mapping[str, Position]) -> dict[str, list[int]]:
    return {broker: _numbers(brokers[broker]) for broker in sorted(brokers)}


def _numbers(place: Position) -> list[int]:
    numbers = [place.offset, place.seen]
    return numbers if place.print_ is None else [*numbers, place.print_]


def _load(value: Mapping[str, list[int]]) -> dict[str, Position]:
    return {broker: Position(*(int(number) for number in place[:3])) for broker, place in value.items()}
