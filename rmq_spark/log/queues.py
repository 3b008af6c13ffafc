"""The fold that numbers messages: next and first offset of every queue, as numpy arrays.

A topic's queues lie side by side in one long array, so a commit with ten thousand runs is numbered by a few
array operations; the only Python loop is over the commit's distinct topics.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rmq_spark.log.file_format import pack, unpack
from rmq_spark.log.run_index import Runs

I64 = npt.NDArray[np.int64]


class Queues:
    """Next offset (exclusive end) and start of each queue of one log."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._base = np.zeros(8, np.int64)
        self._capacity = np.zeros(8, np.int64)
        self._next = np.zeros(64, np.int64)
        self._start = np.zeros(64, np.int64)
        self._used = 0
        self._slot_of: dict[tuple[str, int], int] = {}
        """Slots of queues that single-run commits used, so that they need no array work."""

    def number(self, runs: Runs) -> I64:
        """Return the queue offset of each run's first row, without changing anything.

        A queue that has several runs, in several files of a commit, goes on from one to the next.
        """
        if len(runs.rows) == 1:
            slot = self._slot(runs)  # first: it may put a larger array into the place of `_next`
            return np.array([self._next[slot]])
        slots = self._slots(runs)
        order = np.argsort(slots, kind="stable")
        ordered, rows = slots[order], runs.rows[order]
        before = np.cumsum(rows, dtype=np.int64) - rows
        is_first = np.diff(ordered, prepend=-1) != 0
        bases = np.empty(len(slots), np.int64)
        bases[order] = self._next[ordered] + before - before[is_first][np.cumsum(is_first) - 1]
        return bases

    def advance(self, runs: Runs) -> None:
        """Count the rows of a commit that has landed, or of a segment."""
        if len(runs.rows) == 1:
            slot = self._slot(runs)
            self._next[slot] += runs.rows[0]
        else:
            slots = self._slots(runs)
            np.add.at(self._next, slots, runs.rows)

    def resume(self, runs: Runs, bases: I64) -> None:
        """Take over the offsets that a commit behind damage names: how many messages were lost is not known."""
        # Backwards, so that of a queue that is in several files of the commit the first one counts.
        slots = self._slots(runs)
        self._next[slots[::-1]] = bases[::-1]

    def bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """Return (first readable offset, next offset); (0, 0) for a queue that never had a message."""
        topic_id = self._ids.get(topic)
        if topic_id is None or not 0 <= queue < self._capacity[topic_id]:
            return 0, 0
        slot = int(self._base[topic_id]) + queue
        return int(self._start[slot]), int(self._next[slot])

    def topics(self) -> list[str]:
        """Topics that ever had a message in this log."""
        return sorted(self._ids)

    def of_topic(self, topic: str) -> Iterator[tuple[int, int, int]]:
        """Yield (queue, first readable offset, next offset) of each queue that ever had a message."""
        starts, ends = self.arrays(topic)
        queues = np.flatnonzero(ends)
        yield from zip(queues.tolist(), starts[queues].tolist(), ends[queues].tolist(), strict=True)

    def arrays(self, topic: str) -> tuple[I64, I64]:
        """Copies of (first readable offset, next offset) of each queue of `topic`, indexed by queue id."""
        part = self._place(topic)
        return self._start[part].copy(), self._next[part].copy()

    def starts(self) -> dict[str, I64]:
        """Copies of the start offsets by queue, of the topics where any queue does not start at 0."""
        starts = {topic: self._start[self._place(topic)] for topic in self._ids}
        return {topic: mine.copy() for topic, mine in starts.items() if mine.any()}

    def truncate(self, topic: str) -> None:
        """Hide every message so far of `topic`: its queues start where they end now."""
        part = self._place(topic)
        self._start[part] = self._next[part]

    def raise_starts(self, older: Queues) -> None:
        """Move starts up to where `older` (the state at the log's start) ends."""
        for topic in older._ids:
            ends = older.arrays(topic)[1]
            queues = np.flatnonzero(ends).astype(np.int32)
            none = np.zeros(len(queues), np.int32)
            slots = self._slots(Runs([topic], none, queues, none, none, none))
            self._start[slots] = np.maximum(self._start[slots], ends[queues])

    def _place(self, topic: str) -> slice:
        """Where the queues of a topic lie; empty for an unknown topic."""
        topic_id = self._ids.get(topic)
        if topic_id is None:
            return slice(0, 0)
        low = int(self._base[topic_id])
        return slice(low, low + int(self._capacity[topic_id]))

    def dump(self) -> dict[str, object]:
        """The state as a JSON value."""
        topics, places = [], [np.empty(0, np.int64)]
        for topic in sorted(self._ids):
            part = self._place(topic)
            used = np.flatnonzero(self._next[part])
            # Room that an append took and did not use (it lost, or failed) is no part of the state.
            if len(used):
                topics.append(topic)
                places.append(np.arange(part.start, part.start + int(used[-1]) + 1))
        order = np.concatenate(places)
        return {
            "topics": topics,
            "capacity": pack(np.array([len(place) for place in places[1:]], np.int64)),
            "next": pack(self._next[order]),
            "start": pack(self._start[order]),
        }

    def same_ends(self, other: Queues) -> bool:
        """Whether both know the same queues with the same next offsets, wherever they start."""
        mine, theirs = self.dump(), other.dump()
        return all(mine[name] == theirs[name] for name in ("topics", "capacity", "next"))

    @classmethod
    def load(cls, value: dict[str, object]) -> Queues:
        """The inverse of `dump`."""
        self = cls()
        topics: list[str] = value["topics"]  # type: ignore[assignment]
        count = len(topics)
        self._ids = {topic: index for index, topic in enumerate(topics)}
        capacity = unpack(str(value["capacity"]), "i8")
        self._capacity = np.concatenate([capacity, np.zeros(8, np.int64)])
        base = np.concatenate([[0], np.cumsum(capacity)])
        self._base = np.concatenate([base[:count], np.zeros(8, np.int64)]).astype(np.int64)
        self._used = int(base[-1])
        spare = np.zeros(64, np.int64)
        self._next = np.concatenate([unpack(str(value["next"]), "i8"), spare])
        self._start = np.concatenate([unpack(str(value["start"]), "i8"), spare])
        return self

    def _slot(self, runs: Runs) -> int:
        """The slot of an only run."""
        place = (runs.topics[0], runs.queue.item())
        slot = self._slot_of.get(place)
        if slot is None:
            slot = self._slot_of[place] = int(self._slots(runs)[0])
        return slot

    def _slots(self, runs: Runs) -> I64:
        ids = self._ids
        try:
            known = [ids[topic] for topic in runs.topics]
        except KeyError:
            known = [self._add(topic) for topic in runs.topics]
        topic_ids = np.array(known, np.int64)[runs.topic]
        if np.any(runs.queue >= self._capacity[topic_ids]):
            for index, topic in enumerate(runs.topics):
                mine = runs.queue[runs.topic == index]
                if len(mine):
                    self._grow(ids[topic], int(mine.max()) + 1)
        slots: I64 = self._base[topic_ids] + runs.queue
        return slots

    def _add(self, topic: str) -> int:
        topic_id = self._ids.get(topic)
        if topic_id is None:
            topic_id = self._ids[topic] = len(self._ids)
            if topic_id >= len(self._base):
                self._base = np.concatenate([self._base, np.zeros_like(self._base)])
                self._capacity = np.concatenate([self._capacity, np.zeros_like(self._capacity)])
        return topic_id

    def _grow(self, topic_id: int, queues: int) -> None:
        """Move a topic to a larger place at the end; the old place stays unused until the next load."""
        old = int(self._capacity[topic_id])
        if queues <= old:
            return
        capacity = 1 << (queues - 1).bit_length()
        self._slot_of.clear()
        while self._used + capacity > len(self._next):
            self._next = np.concatenate([self._next, np.zeros_like(self._next)])
            self._start = np.concatenate([self._start, np.zeros_like(self._start)])
        low, new = int(self._base[topic_id]), self._used
        self._next[new : new + old] = self._next[low : low + old]
        self._start[new : new + old] = self._start[low : low + old]
        self._base[topic_id], self._capacity[topic_id] = new, capacity
        self._used += capacity
