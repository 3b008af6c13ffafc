"""What a consumer group's settings say about receiving (RocketMQ's subscriptionGroup.json)."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_spark.client.store import Store
from rmq_spark.rules.retry import RETRY_MAX_TIMES
from rmq_spark.rules.topics import GroupConfigs


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a group; a group that has none has RocketMQ's defaults."""

    orderly: bool = False
    """`consumeMessageOrderly`: messages of a queue are received in order (FIFO)."""
    retry_max_times: int = RETRY_MAX_TIMES
    """`retryMaxTimes`: a message is delivered once more than this, then goes to the dead-letter topic."""


def group_settings(store: Store, group: str) -> GroupSettings:
    """The settings of `group` as they are now."""
    config = store.nameserver.look(lambda view: view.state.fold(GroupConfigs).configs.get(group, {}))
    return GroupSettings(
        orderly=bool(config.get("consumeMessageOrderly", False)),
        retry_max_times=int(config.get("retryMaxTimes", RETRY_MAX_TIMES)),
    )
