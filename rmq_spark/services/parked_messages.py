"""Parked messages as columns: when they are due, and the copies that are delivered or carried forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.filter.properties_column import text_column
from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import repeated
from rmq_spark.model import properties as names
from rmq_spark.rules import delay
from rmq_spark.rules.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_spark.rules.timer import Copies

I64 = npt.NDArray[np.int64]

WAITING_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
DUE_COLUMNS: Final = ("topic", "commitOffset", "storeTimestamp", "properties")
"""What `due_times` looks at."""
UNKNOWN: Final = -1
"""Due time of a message that does not say when it is due, or where it goes."""

Levels = Sequence[tuple[int, delay.DelaySettings]]
"""Log offsets from which on a list of delay levels counts, rising."""


def due_times(messages: pa.RecordBatch, levels: Levels) -> I64:
    """When each parked message is due, in milliseconds; `UNKNOWN` where its properties do not tell."""
    due = _numbers(messages, names.TIMER_OUT_MS)
    scheduled = pc.equal(messages.column("topic"), SCHEDULE_TOPIC).to_numpy(zero_copy_only=False)
    if scheduled.any():
        level = _numbers(messages, names.DELAY_LEVEL)
        store = messages.column("storeTimestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
        commit = messages.column("commitOffset").to_numpy(zero_copy_only=False)
        for offset, settings in levels:
            mine = np.flatnonzero(scheduled & (commit >= offset))
            known = mine[level[mine] > 0]
            due[mine] = UNKNOWN
            due[known] = delay.due_after_levels(store[known], level[known], settings)
    unknown = (_numbers(messages, names.REAL_QID) < 0) | text_column(messages, names.REAL_TOPIC).missing
    due[unknown] = UNKNOWN
    return due


def delivered(messages: pa.RecordBatch, due_ms: I64) -> Copies:
    """The copies that go into the real queues; otherwise the messages stay as they are (rules 16, 20)."""
    topics = text_column(messages, names.REAL_TOPIC).array
    queues = pa.array(_numbers(messages, names.REAL_QID).astype(np.int32))
    return Copies.of(_rows(messages, topic=topics, queueId=queues), topics, due_ms)


def carried(messages: pa.RecordBatch, due_ms: I64) -> Copies:
    """The copies that wait on in the timer topic; a message with a delay level gets its due time written down."""
    count = messages.num_rows
    maps = messages.column("properties")
    if (out := text_column(messages, names.TIMER_OUT_MS)).missing.any():
        maps = _with_due(maps, due_ms, out.missing)
    rows = _rows(
        messages,
        topic=repeated(TIMER_TOPIC, count),
        queueId=pa.array(np.full(count, delay.TIMER_QUEUE, np.int32)),
        properties=maps,
    )
    return Copies.of(rows, text_column(messages, names.REAL_TOPIC).array, due_ms)


def _rows(messages: pa.RecordBatch, **replaced: pa.Array) -> pa.Table:
    filled = [replaced[name] if name in replaced else messages.column(name) for name in schema.ROWS.names]
    return pa.Table.from_arrays(filled, schema=schema.ROWS)


def _with_due(maps: pa.MapArray, due_ms: I64, missing: npt.NDArray[np.bool_]) -> pa.MapArray:
    """The maps with TIMER_OUT_MS in those that lack it: carried messages with a level, few enough for a loop."""
    rows = [
        [*(pairs or ()), (names.TIMER_OUT_MS, str(due))] if lacks else pairs
        for pairs, due, lacks in zip(maps.to_pylist(), due_ms.tolist(), missing.tolist(), strict=True)
    ]
    return pa.array(rows, schema.PROPERTIES)


def _numbers(messages: pa.RecordBatch, name: str) -> I64:
    """A property as numbers; `UNKNOWN` where it is missing or not a number of up to 18 digits."""
    texts = text_column(messages, name).array
    plain = pc.match_substring_regex(texts, r"^[0-9]{1,18}$")
    numbers: I64 = pc.fill_null(pc.if_else(plain, texts, None).cast(pa.int64()), UNKNOWN).to_numpy(zero_copy_only=False)
    return numbers.copy()
