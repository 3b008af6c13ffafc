"""Topics and consumer groups with their settings: folds of the nameserver log, and the decisions on them."""

from __future__ import annotations

from typing import Any, ClassVar

from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.undo import Journal


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
