"""Delayed messages: how long they wait, where they wait (parking), and what is delivered when they are due (facts 6).

A message with a delay level waits in the schedule topic, in queue level - 1; it is due that long after its commit. A
message with a delivery time waits in the timer topic and is due at `TIMER_OUT_MS`. Both say in `REAL_TOPIC` and
`REAL_QID` where they go. Times are kept to the millisecond; RocketMQ rounds them to the second.

Whether a message is parked is decided when it is sent, from what its sender asks for (`Delay`), and never again: the
delivered copy keeps its properties (rule 16), and is written as it is.

Rows come one by one (`park`, `unpark`) or as columns (`park_columns`, `due_after_levels`); the forms agree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import CorruptDataError, InvalidRequestError
from rmq_spark.model import properties as names
from rmq_spark.model.message import Message
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC

BOOL = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]

LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's `messageDelayLevel`."""
ROCKETMQ_DELAY_MAX_MS: Final = 3 * 86_400_000
"""RocketMQ's brokers take delivery times up to three days ahead; here it is a setting that is off."""
TIMER_QUEUE: Final = 0

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"([1-9]\d{0,8})([smhd])", re.ASCII)
_INTEGER: Final = re.compile(r"-?\d{1,18}", re.ASCII)
_TIMER: Final = frozenset({names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_OUT_MS})


def parse_levels(text: str) -> tuple[int, ...]:
    """Delays in milliseconds from a list such as `1s 5s 10s` (units s, m, h, d); level 1 is the first.

    Raises:
        InvalidRequestError: no level, or one that is not a positive number and a unit.
    """
    levels = []
    for part in text.split():
        match = _LEVEL.fullmatch(part)
        if match is None:
            raise InvalidRequestError("a delay level is a number and s, m, h or d, such as 10s", level=part)
        levels.append(int(match[1]) * _UNIT_MS[match[2]])
    if not levels:
        raise InvalidRequestError("the list of delay levels is empty", levels=text)
    return tuple(levels)


LEVELS_MS: Final = parse_levels(LEVELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelaySettings:
    """How long messages may be delayed."""

    levels_ms: tuple[int, ...] = LEVELS_MS
    """Delay of each level; level 1 is the first."""
    delay_max_ms: int | None = None
    """How far ahead a delivery time may be; None: as far as one likes."""

    def clamp(self, level: int) -> int:
        """The level that counts: above the highest it is the highest, 0 or less is none (rule 15)."""
        return max(0, min(level, len(self.levels_ms)))

    def level_ms(self, level: int) -> int:
        """Delay of a level; 0 for none."""
        at = self.clamp(level)
        return self.levels_ms[at - 1] if at else 0


DEFAULT: Final = DelaySettings()


@dataclass(frozen=True, slots=True)
class Delay:
    """What a sender asks for. A level goes before a time (rule 15)."""

    level: int = 0
    """Delay level; 0 or less: none."""
    deliver_ms: int | None = None
    """Not before this time; None or a time that has passed: now."""

    def waits(self, now_ms: int) -> bool:
        """Whether a message with it is parked."""
        return self.level > 0 or (self.deliver_ms is not None and self.deliver_ms > now_ms)


NO_DELAY: Final = Delay()


def of_message(message: Message, now_ms: int) -> Delay:
    """The delay that a producer's message asks for."""
    return Delay(message.delay_level, message.deliver_ms(now_ms)) if message.is_delayed else NO_DELAY


def check_delay(delay: Delay, now_ms: int, settings: DelaySettings = DEFAULT) -> None:
    """Check that a delivery time is not too far ahead: exactly the maximum is allowed (rule 14).

    Raises:
        InvalidRequestError: it is.
    """
    if delay.level > 0 or delay.deliver_ms is None or settings.delay_max_ms is None:
        return
    if delay.deliver_ms - now_ms > settings.delay_max_ms:
        raise InvalidRequestError(
            "delivery time is too far ahead; send it later, or raise the maximum delay",
            ahead_ms=delay.deliver_ms - now_ms,
            limit_ms=settings.delay_max_ms,
        )


# ------------------------------------------------------------ one message


def park(row: MessageRow, delay: Delay, now_ms: int, settings: DelaySettings = DEFAULT) -> MessageRow:
    """The row to store for a message with a delay: parked, unless it is to be delivered now.

    Properties of an earlier delay are replaced.

    Raises:
        InvalidRequestError: the delivery time is too far ahead.
    """
    check_delay(delay, now_ms, settings)
    kept = [pair for pair in row.properties if pair[0] != names.DELAY_LEVEL and pair[0] not in _TIMER]
    if delay.level > 0:
        level = settings.clamp(delay.level)
        kept = [*_moved(kept, row), (names.DELAY_LEVEL, str(level))]
        return row._replace(topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=kept)
    if delay.deliver_ms is None:
        return row
    kept.append((names.TIMER_DELIVER_MS, str(delay.deliver_ms)))
    if delay.deliver_ms <= now_ms:
        return row._replace(properties=kept)
    kept = [*_moved(kept, row), (names.TIMER_OUT_MS, str(delay.deliver_ms))]
    return row._replace(topic=TIMER_TOPIC, queue_id=TIMER_QUEUE, properties=kept)


def _moved(pairs: list[tuple[str, str]], row: MessageRow) -> list[tuple[str, str]]:
    rest = [pair for pair in pairs if pair[0] not in (names.REAL_TOPIC, names.REAL_QID)]
    return [*rest, (names.REAL_TOPIC, row.topic), (names.REAL_QID, str(row.queue_id))]


def due_ms(message: StoredMessage, settings: DelaySettings = DEFAULT) -> int:
    """When a parked message is to be delivered: TIMER_OUT_MS, or so long after its commit as its level says.

    Raises:
        CorruptDataError: it is not parked, or lacks its property.
    """
    if message.topic == TIMER_TOPIC:
        return _stored_integer(message, names.TIMER_OUT_MS)
    if message.topic != SCHEDULE_TOPIC:
        raise CorruptDataError("message is not parked", topic=message.topic, commit_offset=message.commit_offset)
    return message.store_ms + settings.level_ms(_stored_integer(message, names.DELAY_LEVEL))


def unpark(message: StoredMessage) -> MessageRow:
    """The row to deliver for a parked message: in its real queue, otherwise as it is.

    Only offsets and the store time will differ; DELAY, TIMER_* and REAL_* stay visible (rules 16, 20).

    Raises:
        CorruptDataError: it does not say where it goes.
    """
    topic = message.properties.get(names.REAL_TOPIC)
    if not topic:
        raise CorruptDataError(
            "parked message does not name its topic", topic=message.topic, commit_offset=message.commit_offset
        )
    return message.to_row()._replace(topic=topic, queue_id=_stored_integer(message, names.REAL_QID))


def _stored_integer(message: StoredMessage, name: str) -> int:
    text = message.properties.get(name, "")
    if not _INTEGER.fullmatch(text):
        raise CorruptDataError(
            "parked message lacks a number",
            property=name,
            value=text,
            topic=message.topic,
            commit_offset=message.commit_offset,
        )
    return int(text)


# ------------------------------------------------------------ columns


@dataclass(frozen=True, slots=True)
class AddedProperty:
    """One property that some rows get."""

    name: str
    rows: I64
    """Numbers of the rows, ascending."""
    values: pa.Array


@dataclass(frozen=True, slots=True)
class ParkedColumns:
    """Where the rows of a batch are stored, and what parking adds to their properties."""

    topic: pa.Array
    queue: I64
    added: list[AddedProperty]


def park_columns(
    topic: pa.Array,
    queue: I64,
    *,
    level: I64 | None,
    deliver: pa.Array | None,
    now_ms: int,
    settings: DelaySettings = DEFAULT,
) -> ParkedColumns:
    """`park` for many rows that have no delay properties yet.

    Args:
        topic: where each row goes.
        queue: its queue there.
        level: delay level of each row, 0 or less for none; None when no row has one.
        deliver: delivery time of each row in milliseconds (int64), null for none; None when no row has one.
        now_ms: rows with a time that has passed stay where they are.
        settings: the levels.
    """
    added: list[AddedProperty] = []
    real_topic, real_queue = topic, queue
    waits = np.zeros(len(queue), np.bool_)
    if level is not None:
        waits = level > 0
        level = np.minimum(level, len(settings.levels_ms))
        added.append(_numbers(names.DELAY_LEVEL, level, waits))
        topic = pc.if_else(pa.array(waits), SCHEDULE_TOPIC, topic)
        queue = np.where(waits, level - 1, queue)
    if deliver is not None:
        timed = deliver.is_valid().to_numpy(zero_copy_only=False) & ~waits
        times: I64 = pc.fill_null(deliver, 0).to_numpy(zero_copy_only=False)
        late = timed & (times > now_ms)
        added.append(_numbers(names.TIMER_DELIVER_MS, times, timed))
        added.append(_numbers(names.TIMER_OUT_MS, times, late))
        topic = pc.if_else(pa.array(late), TIMER_TOPIC, topic)
        queue = np.where(late, TIMER_QUEUE, queue)
        waits = waits | late
    added.append(AddedProperty(names.REAL_TOPIC, np.flatnonzero(waits), real_topic.filter(pa.array(waits))))
    added.append(_numbers(names.REAL_QID, real_queue, waits))
    return ParkedColumns(topic, queue, added)


def too_far_ahead(level: I64 | None, deliver: I64, now_ms: int, settings: DelaySettings = DEFAULT) -> BOOL:
    """Which rows have a delivery time that `check_delay` refuses; 0 stands for no time."""
    if settings.delay_max_ms is None:
        return np.zeros(len(deliver), np.bool_)
    late = deliver > now_ms if level is None else (deliver > now_ms) & (level <= 0)
    far: BOOL = late & (np.where(late, deliver, now_ms) - now_ms > settings.delay_max_ms)
    return far


def no_such_level(level: I64, settings: DelaySettings = DEFAULT) -> BOOL:
    """Which levels are neither 0 (no delay) nor one of the list; `park` takes the nearest for them."""
    wrong: BOOL = (level < 0) | (level > len(settings.levels_ms))
    return wrong


def due_after_levels(store_ms: I64, level: I64, settings: DelaySettings = DEFAULT) -> I64:
    """When messages with a delay level (1 or more) are due, from their store times."""
    due: I64 = store_ms + np.array(settings.levels_ms, np.int64)[np.minimum(level, len(settings.levels_ms)) - 1]
    return due


def _numbers(name: str, numbers: I64, mask: BOOL) -> AddedProperty:
    return AddedProperty(name, np.flatnonzero(mask), pa.array(numbers[mask]).cast(pa.string()))
