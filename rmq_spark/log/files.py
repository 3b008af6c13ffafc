"""The one door to a log's files: where they are, their checked metadata, and what to do when they have moved.

Files move while they are read: commits are rolled into segments, segments are merged, and names become free. A reader
plans by fingerprint, reads through this door, and plans again when another file stands where the planned one was.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

from rmq_spark.errors import CorruptDataError, NotFoundError
from rmq_spark.log.file_format import TAIL_BYTES, FileMeta
from rmq_spark.log.file_reader import Tail, read_meta
from rmq_spark.log.tail_index import fingerprint
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.marks import SegmentRef
    from rmq_spark.log.view import LogView

Planned = TypeVar("Planned")
Answer = TypeVar("Answer")

CACHED_BYTES: Final = 32 * 1024 * 1024
"""Metadata is kept up to so many bytes; of small commits, whose metadata comes with their rows, the whole file."""

NEAR_COMMITS: Final = 8
"""Who has folded so many commits and is not at the end lists what there is, and reads ahead."""
AHEAD_COMMITS: Final = 128
"""So many files are read at a time: enough to keep a bucket's connections busy, and 8 MiB at most."""


class LogFiles:
    """Files of one log. Safe to use from any thread."""

    def __init__(self, storage: Storage, root: str) -> None:
        self.storage = storage
        self.root = root
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], FileMeta] = OrderedDict()
        self._kept_bytes = 0

    def commits_from(self, offset: int) -> Iterator[FileMeta]:
        """The metadata of the commits from `offset` on, whatever stands there now, up to the first absent name.

        Who is far behind has many to read: behind the first few, as many as a listing names are read at a time.

        Raises:
            CorruptDataError: one is damaged.
        """
        ahead: Iterator[tuple[int, Tail | None]] = iter(())
        for number in count():
            if number == NEAR_COMMITS:
                listed = sorted(commit_numbers(self.storage, self.root, offset))
                ahead = zip(listed, self._read_ahead([paths.commit(self.root, first) for first in listed]), strict=True)
            first, tail = next((each for each in ahead if each[0] >= offset), (offset, None))
            try:
                path = paths.commit(self.root, offset)
                meta = read_meta(self.storage, path, "commit", tail if first == offset else None)
            except NotFoundError:
                return
            self.keep(meta)
            yield meta
            offset += meta.rows

    def has(self, path: str, wanted: int) -> bool:
        """Whether the metadata of this file is here, so that asking for it reads nothing."""
        return (path, wanted) in self._kept

    def meta(self, path: str, kind: str, wanted: int, tail: Tail | None = None) -> FileMeta:
        """The metadata of the file with the fingerprint `wanted`; `tail` are its last bytes, if they were read before.

        Raises:
            NotFoundError: it is gone, or another file stands there: plan again.
            CorruptDataError: it is damaged.
        """
        key = (path, wanted)
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                return known
        meta = read_meta(self.storage, path, kind, tail)
        if fingerprint(meta.digest) != wanted:
            raise NotFoundError("another file stands where the planned one was", path=path)
        self.keep(meta)
        return meta

    def commits(self, wanted: Sequence[tuple[int, int]]) -> list[FileMeta]:
        """The metadata of several commits, each by its first offset and fingerprint.

        Raises:
            NotFoundError: one of them is gone, or another file stands there: plan again.
            CorruptDataError: one of them is damaged.
        """
        names = [paths.commit(self.root, first) for first, _ in wanted]
        absent = [name for name, (_, mark) in zip(names, wanted, strict=True) if not self.has(name, mark)]
        tails = dict(zip(absent, self._read_ahead(absent), strict=True))
        return [self.meta(name, "commit", mark, tails.get(name)) for name, (_, mark) in zip(names, wanted, strict=True)]

    def _read_ahead(self, names: Sequence[str]) -> Iterator[Tail | None]:
        """The last bytes of each file, read many at a time; None: it is not there."""
        for at in range(0, len(names), AHEAD_COMMITS):
            yield from self.storage.read_tails(names[at : at + AHEAD_COMMITS], TAIL_BYTES)

    def segment(self, segment: SegmentRef) -> FileMeta:
        """The metadata of a segment that a mark names.

        Raises:
            NotFoundError: it is gone, or another file stands there.
            CorruptDataError: it is damaged.
        """
        return self.meta(f"{paths.segments(self.root)}/{segment.name}", "segment", fingerprint(segment.digest))

    def segment_of(self, segments: Sequence[SegmentRef], topic: str, queue: int, offset: int) -> int:
        """Number of the segment that holds a queue's offset; if none does, of the first one behind it.

        Raises:
            NotFoundError, CorruptDataError: as `segment`.
        """
        low, high = 0, len(segments)
        while low < high:
            at = middle = (low + high) // 2
            while at < high and not (run := (meta := self.segment(segments[at])).runs.of_queue(topic, queue)):
                at += 1  # this one has no message of the queue: the next one tells the direction
            if at == high or offset < meta.bases[run[0]]:
                high = middle
            elif offset >= meta.bases[run[0]] + meta.runs.rows[run[0]]:
                low = at + 1
            else:
                return at
        return low

    def keep(self, meta: FileMeta) -> None:
        """Remember a file's metadata for whoever asks next."""
        with self._lock:
            key = (meta.path, fingerprint(meta.digest))
            before = self._kept.pop(key, None)
            self._kept[key] = meta
            self._kept_bytes += meta.tail_bytes - (before.tail_bytes if before is not None else 0)
            while self._kept_bytes > CACHED_BYTES and len(self._kept) > 1:
                self._kept_bytes -= self._kept.popitem(last=False)[1].tail_bytes


def commit_numbers(storage: Storage, root: str, offset: int) -> list[int]:
    """First offsets of the commits from `offset` on, as a listing shows them, in no order."""
    names = (paths.file_number(info.name) for info in storage.list(paths.commitlog(root)))
    return [number for number in names if number is not None and number >= offset]


def read_planned(log: CommitLog, plan: Callable[[LogView], Planned], answer: Callable[[Planned], Answer]) -> Answer:
    """Plan from the log as it is now and work out an answer from files; plan again when they have moved meanwhile.

    Raises:
        CorruptDataError: a file is missing, or another one stands in its place, though nothing has moved.
    """
    epoch = -1
    while True:
        planned, seen = log.look(lambda view: (plan(view), view.mark.epoch))
        try:
            return answer(planned)
        except NotFoundError as error:
            if seen == epoch:
                raise CorruptDataError(
                    "a file of the log is missing or another one stands in its place", **error.context
                ) from error
            epoch = seen
