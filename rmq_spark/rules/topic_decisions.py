"""Creating and changing topics: the decisions on `TopicConfigs` (facts 3.1, 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.log.request import Decision, Rule
from rmq_spark.log.state import LogState
from rmq_spark.model import names
from rmq_spark.rules import routing, system_topics
from rmq_spark.rules.cluster import ClusterConfig
from rmq_spark.rules.message_type import MessageType
from rmq_spark.rules.topics import Topic, TopicConfigs, topic_of

PERMISSIONS = range(8)
"""Values that a permission may have, as in RocketMQ: 4 read, 2 write, 1 inherit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """What somebody wants of a topic; None leaves it as it is.

    Raises:
        InvalidRequestError: a number or a name that no topic can have.
    """

    read_queues: int | None = None
    """Queues on each broker that consumers read."""
    write_queues: int | None = None
    """Queues on each broker that producers write; never more than are read."""
    permission: int | None = None
    message_type: MessageType | str | None = None
    backlog_max: int | None = None
    brokers: tuple[str, ...] = ()
    """Brokers to put it on beside those that it is on."""

    def __post_init__(self) -> None:
        for count in (self.read_queues, self.write_queues):
            if count is not None:
                names.check_queues(count)
        for broker in self.brokers:
            names.check_broker(broker)
        if self.permission is not None and self.permission not in PERMISSIONS:
            raise InvalidRequestError("a permission is 0 to 7: 4 read, 2 write, 6 both", permission=self.permission)
        if self.message_type is not None and self.message_type not in list(MessageType):
            raise InvalidRequestError(
                "no such message type", message_type=self.message_type, known=[str(each) for each in MessageType]
            )
        if self.backlog_max is not None and self.backlog_max < 0:
            raise InvalidRequestError("a backlog limit is 0 or more", backlog_max=self.backlog_max)

    def fields(self) -> dict[str, Any]:
        """The fields of a record that it sets."""
        chosen = {
            "perm": self.permission,
            "type": None if self.message_type is None else str(MessageType(self.message_type)),
            "backlogMax": self.backlog_max,
        }
        return {name: value for name, value in chosen.items() if value is not None}


def create(name: str, wanted: TopicChange, default_queues: int) -> Rule[tuple[Topic, bool]]:
    """Create a topic unless it exists; the answer says what is there, and whether it was created.

    Args:
        name: a name that clients may send to.
        wanted: with at least one broker.
        default_queues: of each broker where `wanted` names no number.

    Raises:
        InvalidRequestError: an illegal name, or more queues would be written than read.
    """
    system_topics.check_sendable(name)
    read = wanted.read_queues or wanted.write_queues or default_queues
    write = wanted.write_queues or read
    queues = dict.fromkeys(wanted.brokers, read)
    for broker in queues:
        numbers = routing.QueueNumbers(broker=broker, read=read, write=write)
        routing.check_resize(numbers, numbers)

    def rule(state: LogState) -> Decision[tuple[Topic, bool]]:
        cluster = state.fold(ClusterConfig)
        known = state.fold(TopicConfigs).configs.get(name)
        if known is not None:
            return Decision((topic_of(known, cluster), False))
        config: dict[str, Any] = {"topic": name, "queues": queues, "perm": 6, **wanted.fields()}
        if write != read:
            config["write"] = dict.fromkeys(queues, write)
        return Decision((topic_of(config, cluster), True), records=[(TopicConfigs.topics[0], config)])

    return rule


def update(name: str, wanted: TopicChange, undrained: Mapping[str, Collection[int]] | None = None) -> Rule[Topic]:
    """Change a topic; the answer is what it is afterwards.

    Args:
        name: the topic.
        wanted: what to change.
        undrained: by broker: queues that hold messages which some group has not consumed; they stay readable.

    The rule raises:
        NotFoundError: there is no such topic.
        InvalidRequestError: messages would be left behind (rule 22): write shrinks first, read last.
    """

    def rule(state: LogState) -> Decision[Topic]:
        cluster = state.fold(ClusterConfig)
        config = state.fold(TopicConfigs).configs.get(name)
        if config is None:
            raise NotFoundError("no such topic", topic=name)
        before = topic_of(config, cluster)
        read, write = dict(before.queues), dict(before.write_queues)
        for broker in {**read, **dict.fromkeys(wanted.brokers)}:
            was = routing.QueueNumbers(broker=broker, read=read.get(broker, 0), write=write.get(broker, 0))
            usual = was.read or max(read.values(), default=1)
            new_read = usual if wanted.read_queues is None else wanted.read_queues
            new_write = wanted.write_queues if wanted.write_queues is not None else was.write or new_read
            now = routing.QueueNumbers(broker=broker, read=new_read, write=new_write)
            _check_shrink(name, was, now)
            routing.check_resize(was, now, (undrained or {}).get(broker, ()))
            read[broker], write[broker] = new_read, new_write
        kept = {field: value for field, value in config.items() if field not in ("updatedAt", "queues", "write")}
        changed: dict[str, Any] = {**kept, "queues": read, **wanted.fields()}
        if read != write:
            changed["write"] = write
        if {field: value for field, value in config.items() if field != "updatedAt"} == changed:
            return Decision(before)
        return Decision(topic_of(changed, cluster), records=[(TopicConfigs.topics[0], changed)])

    return rule


def _check_shrink(topic: str, before: routing.QueueNumbers, after: routing.QueueNumbers) -> None:
    if after.read < before.write:
        raise InvalidRequestError(
            "a topic cannot get fewer queues at once: producers still write the upper ones, and nobody would be "
            "assigned them; lower the write number first, wait until every group has consumed them, then the read one",
            topic=topic,
            broker=before.broker,
            read=before.read,
            write=before.write,
            wanted=after.read,
        )


def ensure_queues(name: str, broker: str, queues: int) -> Rule[None]:
    """Make sure that a topic exists with at least `queues` queues on a broker; what it has elsewhere stays.

    Raises:
        InvalidRequestError: an illegal name or number.
    """
    system_topics.check_sendable(name)
    names.check_broker(broker)
    names.check_queues(queues)

    def rule(state: LogState) -> Decision[None]:
        known = state.fold(TopicConfigs).configs.get(name, {"topic": name, "queues": {}, "perm": 6})
        if known["queues"].get(broker, 0) >= queues:
            return Decision(None)
        kept = {field: value for field, value in known.items() if field != "updatedAt"}
        wanted = {**known["queues"], broker: queues}
        if "write" in kept:
            kept["write"] = {**kept["write"], broker: queues}
        return Decision(None, records=[(TopicConfigs.topics[0], {**kept, "queues": wanted})])

    return rule
