"""What the tasks of one write need to know of the store; asked for once, by the driver, so that all agree on it."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_spark.client.store import DEFAULT_BROKER, Store
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.rules.delay import LEVELS_MS
from rmq_spark.spark.options import WriteOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """Where a write goes."""

    broker: str
    """The broker whose log takes all rows."""
    queues: dict[str, int]
    """Topics that exist -> their queues on this broker; 0: the topic is on other brokers only."""
    turn: int
    """Where dealing out to queues starts; tasks add their number."""
    delay_levels_ms: tuple[int, ...] = LEVELS_MS
    """Delay levels of the store."""


def make_plan(store: Store, options: WriteOptions, *, by_row: bool, turn: int) -> SinkPlan:
    """Look up what a write needs to know.

    Args:
        store: the store, open for reading at least.
        options: of the write.
        by_row: whether rows name topics themselves; else only the topics of the options count.
        turn: any number; where dealing out starts.

    Raises:
        NotFoundError: a topic of the options does not exist and must not be created.
        InvalidRequestError: a topic of the options has no queues on the broker.
    """
    topics = {topic.name: topic for topic in store.topics()}
    named = [name for name in (options.topic, options.bad_records_topic) if name is not None]
    broker = options.broker_name or DEFAULT_BROKER
    if options.broker_name is None and options.topic in topics:
        topic = topics[options.topic]
        broker = min(filter(topic.writable_on, topic.queues), default=DEFAULT_BROKER)
    wanted = topics if by_row else [name for name in named if name in topics]
    plan = SinkPlan(
        broker=broker,
        queues={name: topics[name].writable_on(broker) for name in wanted},
        turn=turn,
        delay_levels_ms=store.cluster_settings().delay_levels_ms,
    )
    for name in named:
        if name not in plan.queues and not options.auto_create_topic:
            raise NotFoundError("no such topic, and autoCreateTopic is false; create it first", topic=name)
        if plan.queues.get(name) == 0:
            raise no_queues(name, broker, sorted(topics[name].queues))
    return plan


def no_queues(topic: str, broker: str, brokers: list[str]) -> InvalidRequestError:
    """The error for a topic that is not on the broker of the write."""
    return InvalidRequestError(
        "topic has no queues on the broker of this write; name another by the option brokerName",
        topic=topic,
        brokerName=broker,
        brokers=brokers,
    )
