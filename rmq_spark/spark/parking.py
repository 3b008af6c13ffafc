"""Rows with a delay: stored in a topic of the engine, as RocketMQ's broker does, with the real target in properties.

The service that moves them when they are due is not part of the sink.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.model import delays, properties
from rmq_spark.spark import pairs
from rmq_spark.spark.bad_rows import Faults
from rmq_spark.spark.pairs import Pairs
from rmq_spark.spark.sink_columns import Columns, numbers_of

BOOL = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parked:
    """Where the rows of a batch are stored once those with a delay are parked."""

    topic: pa.Array
    queue: I64
    parts: list[Pairs]
    """Properties that say when they are due, and where they go then."""


def check_delays(columns: Columns, now: int, faults: Faults) -> None:
    """Mark rows that nobody could park."""
    level = numbers_of(columns, "delayTimeLevel")
    if level is not None:
        wrong = (level < 0) | (level > delays.LEVELS_MAX)
        faults.mark(wrong, f"its delayTimeLevel is not 0 (no delay) to {delays.LEVELS_MAX}")
    deliver = numbers_of(columns, "deliverTimestamp")
    if deliver is not None:
        late = deliver > now if level is None else (deliver > now) & (level <= 0)
        far = late & (np.where(late, deliver, now) - now > delays.TIMER_AHEAD_MAX_MS)
        faults.mark(far, "its delivery is over 3 days ahead")


def park(columns: Columns, topic: pa.Array, queue: I64, now: int) -> Parked | None:
    """Park rows with a delay level or a delivery time after `now`; None when no row has either.

    A delay level goes before a delivery time. A time that has passed leaves a row where it is.
    """
    level = numbers_of(columns, "delayTimeLevel")
    deliver = numbers_of(columns, "deliverTimestamp")
    if level is None and deliver is None:
        return None
    place = Parked(topic, queue, [])
    waits = np.zeros(len(queue), np.bool_)
    if level is not None:
        waits = level > 0
        place.parts.append(_numbered(properties.DELAY_LEVEL, level, waits))
        topic = pc.if_else(pa.array(waits), delays.SCHEDULE_TOPIC, topic)
        queue = np.where(waits, level - 1, queue)
    if deliver is not None:
        timed = columns["deliverTimestamp"].is_valid().to_numpy(zero_copy_only=False) & ~waits
        late = timed & (deliver > now)
        place.parts.append(_numbered(properties.TIMER_DELIVER_MS, deliver, timed))
        place.parts.append(_numbered(properties.TIMER_OUT_MS, _due(deliver), late))
        topic = pc.if_else(pa.array(late), delays.TIMER_TOPIC, topic)
        queue = np.where(late, delays.TIMER_QUEUE, queue)
        waits = waits | late
    rows = np.flatnonzero(waits)
    place.parts.append(pairs.constant(properties.REAL_TOPIC, place.topic.filter(pa.array(waits)), rows))
    place.parts.append(_numbered(properties.REAL_QID, place.queue, waits))
    return Parked(topic, queue, place.parts)


def _due(deliver: I64) -> I64:
    # A time on the full second is kept under the one before: it fires when that is over, never early.
    return (deliver - 1) // delays.TIMER_PRECISION_MS * delays.TIMER_PRECISION_MS


def _numbered(name: str, numbers: I64, mask: BOOL) -> Pairs:
    return pairs.constant(name, pa.array(numbers[mask]).cast(pa.string()), np.flatnonzero(mask))
