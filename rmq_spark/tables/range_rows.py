"""The rows that one log range gives each table, made by the kernel in one pass over the range's messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
_COLUMNS: Final = tuple(name for name in kernel.COLUMNS if name != "brokerName")


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
        made: dict[str, list[pa.RecordBatch]] = {name: [] for name in _KERNELS if name in tables}
        if made:
            for batch in self._messages(start, end):
                for name, rows in made.items():
                    rows.append(_KERNELS[name](batch))
        found = {name: join(rows, TABLES[name]) for name, rows in made.items()}
        if "consumer_offsets" in tables:
            found["consumer_offsets"] = self._history.rows(start, end)
        return found

    def _messages(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The range's messages without bodies, in few large batches."""
        held: list[pa.RecordBatch] = []
        size = 0
        # The broker is the same for all of them, and added when they are one batch.
        for batch in kernel.read_range(self._log, start, end, columns=_COLUMNS):
            held.append(kernel.without_payload(batch))
            size += held[-1].nbytes
            if size >= _HELD_BYTES:
                yield from self._combined(held)
                held, size = [], 0
        if held:
            yield from self._combined(held)

    def _combined(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        table = pa.Table.from_batches(batches).combine_chunks()
        broker = pa.DictionaryArray.from_arrays(pa.array(np.zeros(table.num_rows, np.int8)), [self._log.broker])
        return list(table.append_column("brokerName", broker).to_batches())


_KERNELS: Final = {"consumequeue": kernel.consumequeue_rows, "index": kernel.index_rows}
