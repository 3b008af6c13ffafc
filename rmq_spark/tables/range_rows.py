"""The rows that one log range gives each table, made by the kernel in one pass over the range's messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from rmq_spark.tables import kernel
from rmq_spark.tables.consumer_offsets import OffsetHistory
from rmq_spark.tables.data_files import join
from rmq_spark.tables.schemas import TABLES

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog

_HELD_BYTES: Final = 512 * 1024 * 1024
"""Messages (without bodies) that the kernel works on at once. Scans give small batches, and arrays cost by the call."""
COLUMNS: Final = tuple(name for name in kernel.COLUMNS if name != "brokerName")
"""Message columns that `message_rows` needs."""


class RangeRows:
    """Makes rows of one broker's log; keep it for the ranges that follow."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._history = OffsetHistory(log)

    def make(self, start: int, end: int, tables: Collection[str]) -> dict[str, pa.Table]:
        """Rows of [start, end) for each of `tables`, in no order.

        Raises:
            DataExpiredError: retention deleted a part of the range meanwhile.
            CorruptDataError: a file is damaged.
        """
        rows: dict[str, pa.Table] = {}
        if any(name in tables for name in MESSAGE_TABLES):
            rows = message_rows(kernel.read_range(self._log, start, end, columns=COLUMNS), self._log.broker, tables)
        if "consumer_offsets" in tables:
            rows["consumer_offsets"] = self.offset_rows(start, end)
        return rows

    def offset_rows(self, start: int, end: int) -> pa.Table:
        """Rows of [start, end) for `consumer_offsets` alone.

        Raises:
            as `make`.
        """
        return self._history.rows(start, end)


def message_rows(messages: Iterable[pa.RecordBatch], broker: str, tables: Collection[str]) -> dict[str, pa.Table]:
    """Rows of a log range's messages, which have `COLUMNS`, for those of `tables` that are made of messages."""
    made: dict[str, list[pa.RecordBatch]] = {name: [] for name in MESSAGE_TABLES if name in tables}
    for batch in _combined(messages, broker):
        for name, rows in made.items():
            rows.append(MESSAGE_TABLES[name](batch))
    return {name: join(rows, TABLES[name]) for name, rows in made.items()}


def _combined(messages: Iterable[pa.RecordBatch], broker: str) -> Iterator[pa.RecordBatch]:
    """Messages without bodies, in few large batches."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in messages:
        held.append(kernel.without_payload(batch))
        size += held[-1].nbytes
        if size >= _HELD_BYTES:
            yield from _with_broker(held, broker)
            held, size = [], 0
    if held:
        yield from _with_broker(held, broker)


def _with_broker(batches: list[pa.RecordBatch], broker: str) -> list[pa.RecordBatch]:
    """The broker is the same for all of them, and added when they are one batch."""
    table = pa.Table.from_batches(batches).combine_chunks()
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(table.num_rows, np.int8)), [broker])
    return list(table.append_column("brokerName", names).to_batches())


MESSAGE_TABLES: Final = {"consumequeue": kernel.consumequeue_rows, "index": kernel.index_rows}
"""Tables whose rows are made of the messages of a range alone."""
