"""Which commits are not rolled yet, and which of them holds a queue's messages.

Four numbers a commit and three a run, in flat arrays: a look for one queue compares one array with a number, and a read
by queue offset touches only the files that hold it. A commit with very many runs is not listed run by run: it counts as
one that may hold any queue.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from rmq_spark.log.file_format import FileMeta, pack, unpack

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

WIDE_RUNS: Final = 64
"""A commit with more runs than this is not listed run by run."""
SMALL_COMMIT_BYTES: Final = 48 * 1024
"""A commit of at most so many bytes is small: it is read whole with its metadata."""
SMALL_COMMITS_MAX: Final = 256
"""So many small commits at most are read together without a plan."""

_COLUMNS: Final = {name: name for name in ("firsts", "times", "sizes", "run_keys", "run_bases", "run_commits", "wide")}
_COLUMNS["prints"] = "fingerprints"
"""Name in a dump -> attribute."""


class TailIndex:
    """First offset, store time, size and fingerprint of each commit that is not rolled yet, and its runs.

    The fingerprint tells a commit from an orphan: a reader that planned to read a name, and slept until it was freed
    and taken again by a writer that slept even longer, finds another file there.
    """

    def __init__(self) -> None:
        self.firsts = array("q")
        self.times = array("q")
        self.sizes = array("q")
        self.fingerprints = array("q")
        self.run_keys = array("q")
        """Per run: its topic's number and its queue."""
        self.run_bases = array("q")
        """Per run: queue offset of its first message."""
        self.run_commits = array("q")
        """Per run: first offset of its commit."""
        self.wide = array("q")
        """First offsets of commits whose runs are not listed."""
        self._topics: dict[str, int] = {}

    def add(self, meta: FileMeta) -> None:
        """Note the newest commit."""
        first, runs, bases = meta.doc["first"], meta.runs, meta.bases
        self.firsts.append(first)
        self.times.append(meta.doc["ts"])
        self.sizes.append(meta.size)
        self.fingerprints.append(fingerprint(meta.digest))
        count = len(runs.rows)
        if count == 1:
            self.run_keys.append(self._number(runs.topics[runs.topic.item()]) << 32 | runs.queue.item())
            self.run_bases.append(int(bases[0]))
            self.run_commits.append(first)
        elif count > WIDE_RUNS:
            self.wide.append(first)
        else:
            numbers = [self._number(topic) for topic in runs.topics]
            for topic, queue, base in zip(runs.topic.tolist(), runs.queue.tolist(), bases.tolist(), strict=True):
                self.run_keys.append(numbers[topic] << 32 | queue)
                self.run_bases.append(base)
                self.run_commits.append(first)

    def drop_below(self, floor: int) -> None:
        """Forget the commits that were rolled."""
        count = bisect_right(self.firsts, floor - 1)
        if count:
            del self.firsts[:count], self.times[:count], self.sizes[:count], self.fingerprints[:count]
            runs = bisect_right(self.run_commits, floor - 1)
            del self.run_keys[:runs], self.run_bases[:runs], self.run_commits[:runs]
            del self.wide[: bisect_right(self.wide, floor - 1)]

    def from_offset(self, offset: int) -> list[int]:
        """First offsets of the commits that hold `offset` or later ones."""
        at = max(0, bisect_right(self.firsts, offset) - 1)
        return self.firsts[at:].tolist()

    def number_of(self, first: int) -> int:
        """Position of the commit that begins at `first`."""
        return bisect_left(self.firsts, first)

    def holding(self, topics: Collection[str], queues: Collection[int] | None = None) -> set[int]:
        """First offsets of the commits that may hold messages of these topics (and queues)."""
        numbers = [self._topics[topic] for topic in topics if topic in self._topics]
        keys = np.frombuffer(self.run_keys, np.int64) if self.run_keys else np.empty(0, np.int64)
        wanted = np.isin(keys >> 32, numbers)
        if queues is not None:
            wanted &= np.isin(keys & 0xFFFFFFFF, list(queues))
        commits = np.frombuffer(self.run_commits, np.int64)[wanted].tolist() if self.run_commits else []
        return {*commits, *self.wide}

    def in_ranges(self, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> set[int]:
        """First offsets of the commits that may hold queue offsets [low, high) of the queues named."""
        commits = set(self.wide)
        for (topic, queue), (low, high) in ranges.items():
            commits.update(self.run_commits[row] for row in self._runs_in(topic, queue, low, high))
        return commits

    def small_in_range(self, topic: str, queue: int, low: int, high: int) -> list[tuple[int, int]] | None:
        """First offset and fingerprint of the commits that hold these offsets of a queue, if all of them are small.

        None: the commits here do not hold all of them, or some are large, or may hold any queue.
        """
        rows = self._runs_in(topic, queue, low, high)
        if self.wide or not rows or low < self.run_bases[rows[0]] or len(rows) > SMALL_COMMITS_MAX:
            return None
        numbers = [self.number_of(self.run_commits[row]) for row in rows]
        if any(self.sizes[number] > SMALL_COMMIT_BYTES for number in numbers):
            return None
        return [(self.firsts[number], self.fingerprints[number]) for number in numbers]

    def runs_of(self, topic: str, queue: int) -> tuple[I64, I64]:
        """First offsets of the commits that list a run of this queue, and the queue offset at which each run begins."""
        rows = self._runs_of(topic, queue)
        if not len(rows):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return (
            np.frombuffer(self.run_commits, np.int64)[rows],
            np.frombuffer(self.run_bases, np.int64)[rows],
        )

    def dump(self) -> dict[str, object]:
        """The index as a JSON value."""
        columns = {name: _packed_steps(getattr(self, attribute)) for name, attribute in _COLUMNS.items()}
        return {**columns, "topics": list(self._topics)}

    @classmethod
    def load(cls, value: dict[str, object]) -> TailIndex:
        """The inverse of `dump`; commits of an older dump, which lists no runs, may hold any queue."""
        self = cls()
        for name, attribute in _COLUMNS.items():
            if name in value:
                numbers = np.cumsum(unpack(str(value[name]), "i8"), dtype=np.int64)
                getattr(self, attribute).frombytes(numbers.tobytes())
        topics = value.get("topics")
        if isinstance(topics, list):
            self._topics = {topic: number for number, topic in enumerate(topics)}
        else:
            self.wide = array("q", self.firsts)
        return self

    def _number(self, topic: str) -> int:
        return self._topics.setdefault(topic, len(self._topics))

    def _runs_in(self, topic: str, queue: int, low: int, high: int) -> list[int]:
        """Numbers of the runs that may hold queue offsets [low, high)."""
        rows = self._runs_of(topic, queue)
        if low >= high or not len(rows):
            return []
        bases = np.frombuffer(self.run_bases, np.int64)[rows]
        begin = max(0, int(np.searchsorted(bases, low, "right")) - 1)
        found: list[int] = rows[begin : int(np.searchsorted(bases, high, "left"))].tolist()
        return found

    def _runs_of(self, topic: str, queue: int) -> I64:
        number = self._topics.get(topic)
        if number is None or not self.run_keys:
            return np.empty(0, np.int64)
        rows: I64 = np.flatnonzero(np.frombuffer(self.run_keys, np.int64) == (number << 32 | queue))
        return rows


def fingerprint(digest: str) -> int:
    """The first 63 bits of a digest, as an integer that fits everywhere."""
    return int(digest[:16], 16) >> 1


def _packed_steps(values: array[int]) -> str:
    return pack(np.diff(np.frombuffer(values, np.int64), prepend=0) if values else np.empty(0, np.int64))
