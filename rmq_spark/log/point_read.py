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
import pyarrow.compute as pc

from rmq_spark.errors import CorruptDataError
from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import booleans_of, integers
from rmq_spark.log.scan_plan import Query, ScanStats

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.view import LogView

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Places:
    """Where messages are."""

    commit: I64
    """Log offsets."""
    known: tuple[tuple[str, int, int], ...] = ()
    """Of each its topic, queue and queue offset, or nothing at all: if they are known, a segment needs no search."""


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
    for topic, queue, offset in places.known:
        low, high = ranges.get((topic, queue), (offset, offset))
        ranges[topic, queue] = min(low, offset), max(high, offset + 1)
    query = Query(offsets=np.unique(places.commit), ranges=ranges or None, columns=needed, skip_expired=True)
    batches = list(log.scan(query, stats))
    messages = pa.concat_batches(batches) if batches else schema.no_messages(needed)
    at = pc.index_in(integers(places.commit), messages.column("commitOffset"))
    was_read = booleans_of(at.is_valid())
    if ranges and not was_read.all():
        log.look(lambda view: _refuse_held(view, places, was_read))
    return messages.take(at.drop_null()).select(list(columns))


def _refuse_held(view: LogView, places: Places, was_read: BOOL) -> None:
    """Raise if the log still holds one of the messages that were not read where they were said to be."""
    for commit, (topic, queue, offset), there in zip(
        places.commit.tolist(), places.known, was_read.tolist(), strict=True
    ):
        visible = offset >= view.state.queues.bounds(topic, queue)[0]
        if not there and visible and view.mark.log_start <= commit < view.state.offset:
            raise CorruptDataError("a message is not where it was said to be", topic=topic, queue=queue, at=offset)
