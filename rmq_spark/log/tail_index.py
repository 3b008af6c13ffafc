"""Which commits are not rolled yet, and which of them holds a queue's messages.

Four numbers a commit and three a run, in flat arrays: a look for one queue compares one array with a number, and a read
by queue offset touches only the files that hold it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rmq_spark.log.file_format import FileMeta, pack, unpack

I64 = npt.NDArray[np.int64]

SMALL_COMMIT_BYTES: Final = 48 * 1024
"""A commit of at most so many bytes is small: it is read whole with its metadata."""
SMALL_COMMITS_MAX: Final = 256
"""So many small commits at most are read together without a plan."""

_COLUMNS: Final = {name: name for name in ("firsts", "times", "sizes", "run_keys", "run_bases", "run_commits")}
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
        self.lists_runs = True
        """False if it was loaded from a dump that does not list all runs, as older versions made them."""
        self._topics: dict[str, int] = {}

    def add(self, meta: FileMeta) -> None:
        """Note the newest commit."""
        first, runs, bases = meta.doc["first"], meta.runs, meta.bases
        self.firsts.append(first)
        self.times.append(meta.doc["ts"])
        self.sizes.append(meta.size)
        self.fingerprints.append(fingerprint(meta.digest))
        numbers = [self._topics.setdefault(topic, len(self._topics)) for topic in runs.topics]
        if len(bases) == 1:  # as of most commits; a twelfth of an append of one message
            self.run_keys.append(numbers[0] << 32 | runs.queue.item())
            self.run_bases.append(bases.item())
        else:
            self.run_keys.frombytes((np.array(numbers, np.int64)[runs.topic] << 32 | runs.queue).tobytes())
            self.run_bases.frombytes(np.asarray(bases, np.int64).tobytes())
        self.run_commits.extend([first] * len(bases))

    def drop_below(self, floor: int) -> None:
        """Forget the commits that were rolled."""
        count = bisect_right(self.firsts, floor - 1)
        if count:
            del self.firsts[:count], self.times[:count], self.sizes[:count], self.fingerprints[:count]
            runs = bisect_right(self.run_commits, floor - 1)
            del self.run_keys[:runs], self.run_bases[:runs], self.run_commits[:runs]

    def from_offset(self, offset: int) -> list[int]:
        """First offsets of the commits that begin at `offset` or behind it."""
        return self.firsts[self.number_of(offset) :].tolist()

    def number_of(self, first: int) -> int:
        """Position of the commit that begins at `first`."""
        return bisect_left(self.firsts, first)

    def holding(self, topics: Collection[str] | None, queues: Collection[int] | None) -> I64:
        """First offsets of the commits that hold messages of these topics and queues; None: of any."""
        keys = np.asarray(self.run_keys)
        wanted = np.ones(len(keys), np.bool_)
        if topics is not None:
            wanted &= np.isin(keys >> 32, [self._topics[topic] for topic in topics if topic in self._topics])
        if queues is not None:
            wanted &= np.isin(keys & 0xFFFFFFFF, list(queues))
        return np.asarray(self.run_commits)[wanted]

    def in_ranges(self, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> I64:
        """First offsets of the commits that hold queue offsets [low, high) of the queues named."""
        runs = [self._runs_in(*queue, *bounds)[0] for queue, bounds in ranges.items()]
        return np.concatenate([np.empty(0, np.int64), *runs])

    def small_in_range(self, topic: str, queue: int, low: int, high: int) -> list[tuple[int, int]]:
        """First offset and fingerprint of the commits that hold these offsets of a queue, if they are few and small.

        Nothing if some of them are not, or if the commits here do not hold all the offsets.
        """
        commits, bases = self._runs_in(topic, queue, low, high)
        if not len(bases) or low < bases[0] or len(bases) > SMALL_COMMITS_MAX:
            return []
        numbers = [self.number_of(first) for first in commits.tolist()]
        if any(self.sizes[number] > SMALL_COMMIT_BYTES for number in numbers):
            return []
        return [(self.firsts[number], self.fingerprints[number]) for number in numbers]

    def _runs_in(self, topic: str, queue: int, low: int, high: int) -> tuple[I64, I64]:
        commits, bases = self.runs_of(topic, queue)
        begin = max(0, int(np.searchsorted(bases, low, "right")) - 1)
        end = int(np.searchsorted(bases, high))
        return commits[begin:end], bases[begin:end]

    def runs_of(self, topic: str, queue: int) -> tuple[I64, I64]:
        """Of each run of this queue: first offset of its commit, and the queue offset at which it begins."""
        runs = np.flatnonzero(np.asarray(self.run_keys) == (self._topics.get(topic, -1) << 32 | queue))
        return np.asarray(self.run_commits)[runs], np.asarray(self.run_bases)[runs]

    def dump(self) -> dict[str, object]:
        """The index as a JSON value."""
        columns = {name: _packed_steps(getattr(self, attribute)) for name, attribute in _COLUMNS.items()}
        return {**columns, "topics": list(self._topics)}

    @classmethod
    def load(cls, value: dict[str, Any]) -> TailIndex:
        """The inverse of `dump`."""
        self = cls()
        for name, attribute in _COLUMNS.items():
            if name in value:
                numbers = np.cumsum(unpack(value[name], "i8"), dtype=np.int64)
                getattr(self, attribute).frombytes(numbers.tobytes())
        self._topics = {topic: number for number, topic in enumerate(value.get("topics", ()))}
        not_listed = unpack(value["wide"], "i8") if "wide" in value else ()
        self.lists_runs = not self.firsts or ("topics" in value and not len(not_listed))
        return self


def fingerprint(digest: str) -> int:
    """The first 63 bits of a digest, as an integer that fits everywhere."""
    return int(digest[:16], 16) >> 1


def _packed_steps(values: array[int]) -> str:
    return pack(np.diff(np.asarray(values), prepend=0))
