"""How busy a store is: messages in and out a second, and what is left to consume, by topic and by group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.store import Store


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted at one moment."""

    at_ns: int
    sent: Mapping[str, int]
    """Topic -> messages that were ever stored in it."""
    consumed: Mapping[tuple[str, str], int]
    """(group, topic) -> sum of the committed offsets."""
    lag: Mapping[tuple[str, str], tuple[int, int]]
    """(group, topic) -> messages left to consume, and the age of the oldest of them in milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTraffic:
    """One topic."""

    topic: str
    messages: int
    """Ever stored in it."""
    in_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTraffic:
    """One topic of a group, its retry topic included."""

    group: str
    topic: str
    lag: int
    lag_ms: int
    out_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Rates between two moments."""

    seconds: float
    topics: tuple[TopicTraffic, ...]
    groups: tuple[GroupTraffic, ...]


def count(store: Store) -> Counts:
    """Count everything now.

    Raises:
        CorruptDataError: a file of a log is damaged or missing.
    """
    sent: dict[str, int] = {}
    for topic in store.topics():
        for broker in topic.queues:
            sent[topic.name] = sent.get(topic.name, 0) + _stored(store, broker, topic.name)
    offsets = GroupOffsets(store)
    consumed: dict[tuple[str, str], int] = {}
    lag: dict[tuple[str, str], tuple[int, int]] = {}
    for group in offsets.groups():
        for queue in offsets.lag(group):
            key = (group, queue.topic)
            before = lag.get(key, (0, 0))
            lag[key] = before[0] + queue.lag, max(before[1], queue.lag_ms)
            consumed[key] = consumed.get(key, 0) + (queue.committed or 0)
    return Counts(store.clock.elapsed_ns(), sent, consumed, lag)


def _stored(store: Store, broker: str, topic: str) -> int:
    return store.log(broker).look(lambda view: sum(end for _, _, end in view.state.queues.of_topic(topic)))


def between(before: Counts, after: Counts) -> Traffic:
    """The rates between two counts, and what is left at the second one."""
    seconds = max((after.at_ns - before.at_ns) / 1e9, 1e-9)
    return Traffic(
        seconds=seconds,
        topics=tuple(
            TopicTraffic(topic=topic, messages=total, in_per_second=max(0, total - before.sent.get(topic, 0)) / seconds)
            for topic, total in sorted(after.sent.items())
        ),
        groups=tuple(
            GroupTraffic(
                group=group,
                topic=topic,
                lag=left[0],
                lag_ms=left[1],
                # What was committed first at a start position was not consumed.
                out_per_second=max(0, after.consumed[group, topic] - before.consumed[group, topic]) / seconds
                if (group, topic) in before.consumed
                else 0.0,
            )
            for (group, topic), left in sorted(after.lag.items())
        ),
    )
