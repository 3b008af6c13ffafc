"""Topics and consumer groups with their settings: folds of the nameserver log.

What may be changed about a topic is in `rules/topic_decisions.py`, about a group in `rules/group_config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.undo import Journal
from rmq_spark.rules import routing
from rmq_spark.rules.cluster import ClusterConfig
from rmq_spark.rules.message_type import MessageType


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic's settings. Queue numbers are per broker, as in RocketMQ."""

    name: str
    queues: Mapping[str, int]
    """Broker name -> number of queues there that consumers read. No queue is written that is not read."""
    write_queues: Mapping[str, int] = field(default_factory=dict)
    """Broker name -> number of queues there that producers write."""
    permission: int = routing.READ | routing.WRITE
    """4: consumers may read it; 2: producers may write it; 6: both."""
    message_type: MessageType = MessageType.UNSPECIFIED
    """The only type of messages that producers may send; `UNSPECIFIED`: any but `PRIORITY`."""
    backlog_max: int = 0
    """Sends are refused while a group has so many of its messages left to consume; 0: never."""
    read_only_brokers: frozenset[str] = frozenset()
    """Brokers of the store that producers leave alone."""

    def message_queues(self) -> list[tuple[str, int]]:
        """Every (broker, queue id), in the order that routing uses."""
        return [(broker, queue) for broker in sorted(self.queues) for queue in range(self.queues[broker])]

    def writable_queues(self) -> list[tuple[str, int]]:
        """Every (broker, queue id) that producers may use now, in the order that routing uses."""
        return routing.write_queues(
            routing.QueueNumbers(broker=broker, read=self.queues[broker], write=count, permission=self.permission)
            for broker, count in self.write_queues.items()
            if broker not in self.read_only_brokers
        )

    def writable_on(self, broker: str) -> int:
        """How many queues on a broker producers may use now."""
        if broker in self.read_only_brokers or not self.permission & routing.WRITE:
            return 0
        return self.write_queues.get(broker, 0)

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read it."""
        return bool(self.permission & routing.READ)

    @property
    def has_priorities(self) -> bool:
        """Whether its queues are priorities: consumers drain high ones first."""
        return self.message_type is MessageType.PRIORITY


def may_read(config: Mapping[str, Any]) -> bool:
    """Whether consumers may read the topic that a record of `TopicConfigs` describes."""
    return bool(config.get("perm", routing.READ) & routing.READ)


def topic_of(config: Mapping[str, Any], cluster: ClusterConfig) -> Topic:
    """The topic that a record of `TopicConfigs` describes."""
    queues = dict(config["queues"])
    return Topic(
        name=config["topic"],
        queues=queues,
        write_queues={broker: min(queues[broker], count) for broker, count in config.get("write", queues).items()},
        permission=config.get("perm", routing.READ | routing.WRITE),
        message_type=MessageType(config.get("type", MessageType.UNSPECIFIED)),
        backlog_max=config.get("backlogMax", cluster.settings().backlog_max),
        read_only_brokers=cluster.read_only(),
    )


class TopicConfigs(Fold):
    """Topics and their queue numbers (RocketMQ's topics.json). Lives in the nameserver log."""

    name: ClassVar[str] = "topics"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_topic_config",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.configs = self.table(dict[str, dict[str, Any]]())
        self.brokers = self.table(dict[str, None]())
        """Brokers that ever had queues: their logs need upkeep even when their last topic is gone."""

    def apply(self, records: Records) -> None:
        for value, store_ms in zip(records.values(), records.store_ms, strict=True):
            name = need(value["topic"], str, "topic")
            deleted = bool(value.get("deleted"))
            queues = need(value["queues"] if not deleted else value.get("queues", {}), dict, "queues")
            for count in queues.values():
                need(count, int, "queues")
            for broker in queues:
                self.brokers[broker] = None
            if deleted:
                self.configs.discard(name)
            else:
                self.configs[name] = {**value, "updatedAt": store_ms}

    def dump(self) -> Any:
        return {"configs": dict(self.configs), "brokers": sorted(self.brokers)}

    def load(self, value: Any, version: int) -> None:
        self.configs = self.table(value["configs"])
        self.brokers = self.table(dict.fromkeys(value["brokers"]))


class GroupConfigs(Fold):
    """Consumer groups and their settings (RocketMQ's subscriptionGroup.json). Lives in the nameserver log."""

    name: ClassVar[str] = "groups"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_group_config",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.configs = self.table(dict[str, dict[str, Any]]())

    def apply(self, records: Records) -> None:
        for value, store_ms in zip(records.values(), records.store_ms, strict=True):
            name = need(value["group"], str, "group")
            if value.get("deleted"):
                self.configs.discard(name)
            else:
                self.configs[name] = {**value, "updatedAt": store_ms}

    def dump(self) -> Any:
        return dict(self.configs)

    def load(self, value: Any, version: int) -> None:
        self.configs = self.table(value)
