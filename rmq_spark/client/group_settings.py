"""What a consumer group's settings say about receiving (RocketMQ's subscriptionGroup.json)."""

from __future__ import annotations

from rmq_spark.client.store import Store
from rmq_spark.rules.group_config import GroupSettings, settings_of
from rmq_spark.rules.topics import GroupConfigs

__all__ = ["GroupSettings", "group_settings"]


def group_settings(store: Store, group: str) -> GroupSettings:
    """The settings of `group` as they are now."""
    return settings_of(store.nameserver.look(lambda view: dict(view.state.fold(GroupConfigs).configs.get(group, {}))))
