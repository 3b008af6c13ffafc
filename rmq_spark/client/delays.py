"""What a delay counts from, and how long a level is: both as the log that takes the message says."""

from __future__ import annotations

from dataclasses import replace

from rmq_spark.client.store import Store
from rmq_spark.model.message import Message
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import delay
from rmq_spark.rules.timer import TimerProgress


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
    if message.delay_level > len(settings.levels_ms):
        # The store may have a longer list: it is looked up for the few messages that need it.
        log = store.log(broker, TimerProgress)
        levels = log.look(lambda view: view.state.fold(TimerProgress).levels()[-1][1].levels_ms)
        settings = replace(settings, levels_ms=max(settings.levels_ms, levels, key=len))
    now = log_now(store, broker)
    return delay.park(row, delay.of_message(message, now), now, settings)
