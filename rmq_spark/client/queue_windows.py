"""The next messages of queues, read ahead: what the threads of a consumer share, so that each message is read once.

A window is a range of a queue and the messages in it that match a filter. Several threads take their messages out of
one window; a decision in the log says who gets which.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rmq_spark.errors import DataExpiredError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.queue_reader import QueueFilter, read_queue

ROWS_MIN: Final = 32
ROWS_MAX: Final = 8192
"""How many messages a read looks at: it starts small, because bodies may be large."""
WINDOW_BYTES: Final = 1 << 20
"""What the messages of a window shall take, about."""
GROWTH: Final = 4
WINDOWS_MAX: Final = 256
"""Queues whose windows are kept; those that were used longest ago are read again."""


@dataclass(frozen=True, slots=True)
class Window:
    """Messages of a queue from `low` to `high` that match."""

    low: int
    high: int
    offsets: list[int]
    messages: pa.RecordBatch
    """One row for each of `offsets`."""
    place: int
    """Where in the log to look for later ones."""
    rows: int
    """How many messages the next read should look at."""

    def has(self, offset: int) -> bool:
        """Whether it tells what is at `offset`."""
        return self.low <= offset < self.high

    def index(self, offset: int) -> int:
        """Number of the first of its messages at `offset` or behind it."""
        return bisect_left(self.offsets, offset)

    def count_from(self, offset: int) -> int:
        """How many of its messages are at `offset` or behind it."""
        return len(self.offsets) - self.index(offset)


@dataclass(slots=True)
class _Slot:
    lock: threading.Lock
    window: Window | None = None


class QueueWindows:
    """Windows of the queues of one log and one group of consumers. Safe to use from any thread."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._slots: OrderedDict[tuple[str, int, str], _Slot] = OrderedDict()

    def at(self, topic: str, queue: int, offset: int, wanted: QueueFilter, expression: str) -> Window:
        """A window that has `offset`, or begins behind it if retention has taken it; empty at the queue's end.

        Args:
            topic: the queue's topic.
            queue: the queue's id.
            offset: where it must begin, at the latest.
            wanted: which messages match.
            expression: names the filter.

        Raises:
            CorruptDataError: a file is damaged.
        """
        slot = self._slot((topic, queue, expression))
        with slot.lock:
            known = slot.window
            if known is not None and known.has(offset):
                return known
            slot.window = self._read(topic, queue, offset, wanted, known)
            return slot.window

    def _slot(self, key: tuple[str, int, str]) -> _Slot:
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = _Slot(threading.Lock())
                while len(self._slots) > WINDOWS_MAX:
                    self._slots.popitem(last=False)
            else:
                self._slots.move_to_end(key)
            return slot

    def _read(self, topic: str, queue: int, offset: int, wanted: QueueFilter, known: Window | None) -> Window:
        rows = ROWS_MIN if known is None else known.rows
        place = known.place if known is not None and known.high <= offset else 0
        try:
            read = read_queue(self._log, topic, queue, offset, rows_max=rows, wanted=wanted, place=place)
        except DataExpiredError as error:
            offset = int(str(error.context["first"]))
            read = read_queue(self._log, topic, queue, offset, rows_max=rows, wanted=wanted)
        if read.next_offset - offset == rows:  # there is more: the next read is as large as this one's messages allow
            size = max(read.messages.nbytes, 1)
            rows = max(ROWS_MIN, min(ROWS_MAX, rows * GROWTH, rows * WINDOW_BYTES // size))
        offsets: list[int] = read.messages.column("queueOffset").to_pylist()
        return Window(offset, read.next_offset, offsets, read.messages, read.place, rows)
