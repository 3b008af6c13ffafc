"""Reading single messages: from places in the log to the messages there.

In a commit a log offset is a row number. A segment is sorted by queue, so there the queue offset says which row it is;
whoever knows only the log offset has it looked for in the blocks whose bounds allow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import CorruptDataError
from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import integers, integers_of
from rmq_spark.log.scan_plan import Query, ScanStats

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.view import LogView

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Places:
    """Where messages are; as many entries in each array."""

    commit: I64
    """Log offsets."""
    topic: tuple[str, ...] | None = None
    """Topics, queues and queue offsets, if they are known: then a segment needs no search."""
    queue: I64 | None = None
    offset: I64 | None = None

    def take(self, rows: I64) -> Places:
        """The given entries."""
        topic, queue, offset = self.topic, self.queue, self.offset
        return Places(
            self.commit[rows],
            None if topic is None else tuple(topic[row] for row in rows.tolist()),
            None if queue is None else queue[rows],
            None if offset is None else offset[rows],
        )

    def in_queues(self) -> list[tuple[tuple[str, int], int]]:
        """Each entry's topic, queue and queue offset; nothing if they are not known."""
        if self.topic is None or self.queue is None or self.offset is None:
            return []
        return list(zip(zip(self.topic, self.queue.tolist(), strict=True), self.offset.tolist(), strict=True))


def fetch_messages(
    log: CommitLog,
    places: Places,
    columns: tuple[str, ...] = tuple(schema.MESSAGE.names),
    stats: ScanStats | None = None,
) -> pa.RecordBatch:
    """The messages at `places`, in their order, with the given columns of `schema.MESSAGE`.

    Messages that are not held any more (expired, or of a deleted topic) are left out, and so are places beyond the
    log's end.

    Raises:
        CorruptDataError: a file is damaged or missing, or a message is not in the queue that the place names.
    """
    needed = tuple(dict.fromkeys((*columns, "commitOffset")))
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for queue, offset in places.in_queues():
        low, high = ranges.get(queue, (offset, offset))
        ranges[queue] = min(low, offset), max(high, offset + 1)
    query = Query(offsets=np.unique(places.commit), ranges=ranges or None, columns=needed, skip_expired=True)
    batches = list(log.scan(query, stats))
    messages = pa.concat_batches(batches) if batches else schema.no_messages(needed)
    held = integers_of(messages.column("commitOffset"))
    order = np.argsort(held)
    at = np.searchsorted(held, places.commit, sorter=order)
    found = at < len(held)
    found[found] = held[order[at[found]]] == places.commit[found]
    if ranges and not found.all():
        log.look(lambda view: _refuse_held(view, places.take(np.flatnonzero(~found))))
    return messages.take(integers(order[at[found]])).select(list(columns))


def _refuse_held(view: LogView, absent: Places) -> None:
    """Raise if the log still holds one of these messages, which are not where they were said to be."""
    for commit, ((topic, queue), offset) in zip(absent.commit.tolist(), absent.in_queues(), strict=True):
        visible = offset >= view.state.queues.bounds(topic, queue)[0]
        if visible and view.mark.log_start <= commit < view.state.offset:
            raise CorruptDataError("a message is not where it was said to be", topic=topic, queue=queue, at=offset)
