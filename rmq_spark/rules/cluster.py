"""Brokers and settings that count for the whole store. Lives in the nameserver log.

A broker is a log of its own. One that is read-only gets no more messages from producers, and consumers go on, as after
RocketMQ's `wipeWritePerm`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.request import Decision, Rule
from rmq_spark.log.state import LogState
from rmq_spark.log.undo import Journal
from rmq_spark.rules.delay import LEVELS_MS

_DELAY_LEVELS: Final = "delayLevels"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What is known of a broker beside its log."""

    read_only: bool
    since_ms: int
    """storeTimestamp of the record that said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Settings of a store that every client of it follows."""

    auto_create_topics: bool = True
    """Whether a send to an unknown topic creates it (RocketMQ's `autoCreateTopicEnable`)."""
    backlog_max: int = 0
    """Sends to a topic are refused while a group has so many messages of it left to consume; 0: never. A topic may
    have its own number."""
    delay_levels_ms: tuple[int, ...] = LEVELS_MS
    """Delay of each level (RocketMQ's `messageDelayLevel`). Each broker's log has it, too: it tells from where on."""


class ClusterConfig(Fold):
    """Brokers by name, and the store's settings."""

    name: ClassVar[str] = "cluster"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_cluster_config",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.brokers = self.table(dict[str, BrokerConfig]())
        self.values = self.table(dict[str, Any]())

    def apply(self, records: Records) -> None:
        for value, store_ms in zip(records.values(), records.store_ms, strict=True):
            if "broker" in value:
                name, read_only = need(value["broker"], str, "broker"), value["readOnly"]
                if not isinstance(read_only, bool):
                    raise TypeError("readOnly must be bool")
                self.brokers[name] = BrokerConfig(read_only, store_ms)
            for setting, chosen in need(value.get("settings", {}), dict, "settings").items():
                self.values[setting] = chosen

    def settings(self) -> ClusterSettings:
        """The settings as they are now."""
        return ClusterSettings(
            auto_create_topics=bool(self.values.get("autoCreateTopics", True)),
            backlog_max=int(self.values.get("backlogMax", 0)),
            delay_levels_ms=self.own_delay_levels or LEVELS_MS,
        )

    @property
    def own_delay_levels(self) -> tuple[int, ...] | None:
        """The delay levels that the store was given; None if it was not."""
        levels = self.values.get(_DELAY_LEVELS)
        return None if levels is None else tuple(levels)

    def read_only(self) -> frozenset[str]:
        """Brokers that producers leave alone."""
        return frozenset(name for name, config in self.brokers.items() if config.read_only)

    def dump(self) -> Any:
        brokers = {name: [config.read_only, config.since_ms] for name, config in self.brokers.items()}
        return {"brokers": brokers, "values": dict(self.values)}

    def load(self, value: Any, version: int) -> None:
        self.brokers = self.table({name: BrokerConfig(*config) for name, config in value["brokers"].items()})
        self.values = self.table(dict(value["values"]))


def put_broker(broker: str, *, read_only: bool | None = None) -> Rule[BrokerConfig]:
    """Make a broker known, and say whether it is read-only; None leaves that as it is. The same again changes nothing.

    Args:
        broker: a legal name.
        read_only: whether producers leave it alone.
    """

    def rule(state: LogState) -> Decision[BrokerConfig]:
        known = state.fold(ClusterConfig).brokers.get(broker)
        if known is not None and read_only in (None, known.read_only):
            return Decision(known)
        record = {"broker": broker, "readOnly": bool(read_only)}
        return Decision(BrokerConfig(bool(read_only), state.now_ms), records=[(ClusterConfig.topics[0], record)])

    return rule


def update_settings(changed: Mapping[str, Any]) -> Rule[None]:
    """Change settings of the store.

    Args:
        changed: new values by the names `autoCreateTopics` and `backlogMax`.

    Raises:
        InvalidRequestError: an unknown name, or a value of the wrong kind.
    """
    for name, value in changed.items():
        if name == "autoCreateTopics" and isinstance(value, bool):
            continue
        if name == "backlogMax" and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            continue
        raise InvalidRequestError(
            "settings of a store are autoCreateTopics (true or false) and backlogMax (0 or more)",
            setting=name,
            value=value,
        )

    def rule(state: LogState) -> Decision[None]:
        known = state.fold(ClusterConfig).values
        new = {name: value for name, value in changed.items() if known.get(name) != value or name not in known}
        return Decision(None, records=[(ClusterConfig.topics[0], {"settings": new})] if new else [])

    return rule


def put_delay_levels(levels_ms: Sequence[int]) -> Rule[None]:
    """Give the store a list of delay levels; each broker's log must be told, too (`timer.change_levels`)."""

    def rule(state: LogState) -> Decision[None]:
        if state.fold(ClusterConfig).own_delay_levels == tuple(levels_ms):
            return Decision(None)
        return Decision(None, records=[(ClusterConfig.topics[0], {"settings": {_DELAY_LEVELS: list(levels_ms)}})])

    return rule
