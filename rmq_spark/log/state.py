"""The folded state of one log: everything that reading its commits in order tells.

Nothing in here is stored as the truth; snapshots and segments carry copies that the chain vouches for.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from rmq_spark.log.file_format import FileMeta, pack, unpack
from rmq_spark.log.folds import (
    FOLD_TOPICS,
    FOLDS,
    LATER_FOLDS,
    Fold,
    Record,
    RowFiles,
    SinkBatches,
    apply_record,
)
from rmq_spark.log.queues import Queues

GENESIS: Final = "0" * 32
"""What the first commit names as its predecessor's digest."""

WRITER_TTL_MS: Final = 7 * 24 * 3_600_000
"""How long the last append of a writer is remembered after it; later retries raise `OutcomeUnknownError`."""

AnyFold = TypeVar("AnyFold", bound=Fold)


@dataclass(frozen=True, slots=True)
class LastAppend:
    """The newest commit of one writer."""

    epoch: int
    seq: int
    handle: str
    """Which handle it was: two processes may hold the same writer's name."""
    store_ms: int


class LogState:
    """State before the message at `offset`. Owned by one handle; not safe to share between threads."""

    def __init__(self) -> None:
        self.offset = 0
        """The next commit's first offset: the log's exclusive end."""
        self.digest = GENESIS
        """Digest of the last commit."""
        self.store_ms = 0
        """storeTimestamp of the last commit."""
        self.durable = 0
        """Everything below is known to survive power loss."""
        self.queues = Queues()
        self.writers: dict[str, LastAppend] = {}
        self.commits = TailIndex()
        self.folds: dict[str, Fold] = {fold.topic: fold() for fold in FOLDS}

    def fold(self, kind: type[AnyFold]) -> AnyFold:
        """The fold of class `kind`."""
        found = self.folds[kind.topic]
        assert isinstance(found, kind)  # noqa: S101 - the registry maps each topic to its own class
        return found

    def apply(self, meta: FileMeta, records: Iterable[Record]) -> None:
        """Take in the next commit; `records` are the rows of its system topics that have a fold."""
        doc = meta.doc
        for record in records:
            apply_record(self.folds[record.topic], record, self.queues)
        self.queues.advance(meta.runs, parts_of(doc))
        self.offset = doc["first"] + meta.rows
        self.digest = meta.digest
        self.store_ms = doc["ts"]
        if doc["flush"] == "sync":
            self.durable = self.offset
        self.writers[doc["writer"]] = LastAppend(doc["epoch"], doc["seq"], doc["handle"], doc["ts"])
        if app := doc.get("app"):
            self.fold(SinkBatches).land(*app[:3])
        if files := doc.get("files"):
            self.fold(RowFiles).refer([file[0] for file in files], doc["first"])
        self.commits.add(doc["first"], doc["ts"], meta.size, fingerprint(meta.digest))

    def last_append(self, writer: str) -> LastAppend | None:
        """The newest commit of `writer`, if it is still remembered."""
        last = self.writers.get(writer)
        if last is None or last.store_ms < self.store_ms - WRITER_TTL_MS:
            return None
        return last

    def dump(self) -> dict[str, bytes]:
        """The state as named payloads, for snapshots and segments."""
        self.writers = {
            name: last for name, last in self.writers.items() if last.store_ms >= self.store_ms - WRITER_TTL_MS
        }
        core = {
            "offset": self.offset,
            "digest": self.digest,
            "ts": self.store_ms,
            "durable": self.durable,
            "writers": {
                name: [last.epoch, last.seq, last.handle, last.store_ms] for name, last in sorted(self.writers.items())
            },
        }
        payloads: dict[str, Any] = {"core": core, "queues": self.queues.dump(), "commits": self.commits.dump()}
        for fold in self.folds.values():
            value = fold.dump()
            if value or fold.name not in LATER_FOLDS:
                payloads[fold.name] = value
        return {name: json.dumps(value, separators=(",", ":")).encode() for name, value in payloads.items()}

    @classmethod
    def load(cls, payloads: dict[str, bytes]) -> LogState:
        """The inverse of `dump`; a fold that the writer did not know starts empty."""
        self = cls()
        core = json.loads(payloads["core"])
        self.offset, self.digest, self.store_ms = core["offset"], core["digest"], core["ts"]
        self.durable = core["durable"]
        self.writers = {name: LastAppend(*last) for name, last in core["writers"].items()}
        self.queues = Queues.load(json.loads(payloads["queues"]))
        self.commits = TailIndex.load(json.loads(payloads["commits"]))
        for fold in self.folds.values():
            if fold.name in payloads:
                fold.load(json.loads(payloads[fold.name]))
        return self


class TailIndex:
    """First offset, store time, size and fingerprint of each commit that is not rolled yet: 32 bytes a commit.

    The fingerprint tells a commit from an orphan: a reader that planned to read a name, and slept until it was freed
    and taken again by a writer that slept even longer, finds another file there.
    """

    def __init__(self) -> None:
        self.firsts = array("q")
        self.times = array("q")
        self.sizes = array("q")
        self.prints = array("q")

    def add(self, first: int, store_ms: int, size: int, print_: int) -> None:
        """Note the newest commit."""
        self.firsts.append(first)
        self.times.append(store_ms)
        self.sizes.append(size)
        self.prints.append(print_)

    def drop_below(self, floor: int) -> None:
        """Forget the commits that were rolled."""
        count = bisect_right(self.firsts, floor - 1)
        if count:
            del self.firsts[:count], self.times[:count], self.sizes[:count], self.prints[:count]

    def from_offset(self, offset: int) -> list[int]:
        """First offsets of the commits that hold `offset` or later ones."""
        at = max(0, bisect_right(self.firsts, offset) - 1)
        return self.firsts[at:].tolist()

    def dump(self) -> dict[str, str]:
        """The index as a JSON value."""
        return {name: pack(np.diff(np.frombuffer(getattr(self, name), np.int64), prepend=0)) for name in _TAIL_COLUMNS}

    @classmethod
    def load(cls, value: dict[str, str]) -> TailIndex:
        """The inverse of `dump`."""
        self = cls()
        for name in _TAIL_COLUMNS:
            numbers = np.cumsum(unpack(value[name], "i8"), dtype=np.int64)
            getattr(self, name).frombytes(numbers.tobytes())
        return self


_TAIL_COLUMNS: Final = ("firsts", "times", "sizes", "prints")


def fingerprint(digest: str) -> int:
    """The first 63 bits of a digest, as an integer that fits everywhere."""
    return int(digest[:16], 16) >> 1


def parts_of(doc: dict[str, Any]) -> list[int]:
    """Runs of each file of a commit: one part inline, else one for each referenced file."""
    files = doc.get("files")
    return [file[4] for file in files] if files else [-1]


def state_topics(topics: list[str]) -> list[str]:
    """Those of a commit's topics that have a fold."""
    return [topic for topic in topics if topic in FOLD_TOPICS]
