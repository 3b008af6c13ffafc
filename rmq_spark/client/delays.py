"""What a delay counts from, and how long a level is: one list of levels for all brokers of a store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from rmq_spark.model.message import Message
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import cluster, delay, timer
from rmq_spark.rules.cluster import ClusterConfig
from rmq_spark.rules.timer import TimerProgress

if TYPE_CHECKING:
    from rmq_spark.client.store import Store


def set_delay_levels(store: Store, levels: str) -> None:
    """Give the delay levels of a store other delays, such as `1s 5s 10s`; messages that wait keep theirs.

    Brokers that are added later have them, too. If it fails, call it again.

    Raises:
        InvalidRequestError: not a list of numbers with s, m, h or d.
    """
    store.nameserver.decide(cluster.put_delay_levels(delay.parse_levels(levels)))
    adopt_levels(store, store.brokers())


def adopt_levels(store: Store, brokers: Iterable[str]) -> None:
    """Tell the logs of brokers the delay levels that the store was given, if it was. Call it before they get messages.

    Raises:
        InvalidRequestError: an illegal name.
    """
    levels = store.nameserver.look(lambda view: view.state.fold(ClusterConfig).own_delay_levels)
    if levels is not None:
        for broker in brokers:
            store.log(broker, TimerProgress).decide(timer.change_levels(levels))


def log_now(store: Store, broker: str) -> int:
    """The time that a delay counts from: the log's, as far as it is known here, if that is ahead of the clock.

    Messages are due by the log's time. One that counts from a clock that is behind would be delivered too early.
    """
    return max(store.clock.now_ms(), store.log(broker).view.state.store_ms)


def parked(store: Store, broker: str, message: Message, row: MessageRow, settings: delay.DelaySettings) -> MessageRow:
    """The row to store for a message that asks for a delay.

    Raises:
        InvalidRequestError: the delivery time is too far ahead.
        RmqError: the log could not be read.
    """
    now = log_now(store, broker)
    settings = settings_for(store, message.delay_level, settings)
    return delay.park(row, delay.of_message(message, now), now, settings)


def settings_for(store: Store, level: int, settings: delay.DelaySettings = delay.DEFAULT) -> delay.DelaySettings:
    """Settings that know a level: the store may have a longer list, which is looked up only for the few that need it.

    Raises:
        RmqError: a log could not be read.
    """
    if level <= len(settings.levels_ms):
        return settings
    levels = store.nameserver.look(lambda view: view.state.fold(ClusterConfig).own_delay_levels)
    # An older version told the list to the brokers only.
    lists = [_levels_of(store, broker) for broker in store.brokers()] if levels is None else [levels]
    return replace(settings, levels_ms=max([settings.levels_ms, *lists], key=len))


def _levels_of(store: Store, broker: str) -> tuple[int, ...]:
    return store.log(broker, TimerProgress).look(lambda view: view.state.fold(TimerProgress).levels()[-1][1].levels_ms)
