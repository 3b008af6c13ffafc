"""Which ranges of a log can hold a key or an id: what files say of themselves, kept in memory.

A file's metadata names its topics, its least and greatest id, and a bloom filter of its keys. That is true of a range
of the log for ever, wherever its messages move to, so it is read once for each commit or segment. Only ranges behind
the index's mark are looked at, which is all of the log while there is no index.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmq_spark.log import bloom
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.files import read_planned
from rmq_spark.log.scan import Query, Source, plan
from rmq_spark.log.tail_index import fingerprint
from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """What is known of the messages of one log range."""

    first: int
    end: int
    topics: frozenset[str]
    bloom: bytes
    least_id: str
    greatest_id: str


class LogFilters:
    """Filters of one log's ranges. Safe to use from any thread; keep it, because it remembers."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._filters: list[RangeFilter] = []
        """Ascending, without gaps."""
        self.bytes_read = 0
        """Bytes of metadata fetched so far."""

    def with_key(self, key: str, topic: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges of [start, end) that can hold messages of `topic` with `key`, newest first."""

        def may_hold(range_: RangeFilter) -> bool:
            return topic in range_.topics and bloom.may_contain(range_.bloom, key)

        return self._matching(may_hold, start, end)

    def with_id(self, msg_id: str, topic: str | None, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges of [start, end) that can hold messages (of `topic`) with the id, newest first."""

        def may_hold(range_: RangeFilter) -> bool:
            return range_.least_id <= msg_id <= range_.greatest_id and (topic is None or topic in range_.topics)

        return self._matching(may_hold, start, end)

    def _matching(self, may_hold: Callable[[RangeFilter], bool], start: int, end: int) -> Iterator[tuple[int, int]]:
        with self._lock:
            self._cover(start, end)
            ranges = [range_ for range_ in reversed(self._filters) if range_.end > start and range_.first < end]
        return ((max(r.first, start), min(r.end, end)) for r in ranges if may_hold(r))

    def _cover(self, start: int, end: int) -> None:
        """Have filters for all of [start, end), and forget those before it."""
        if start >= end:
            return
        self._filters = self._filters[bisect_left(self._filters, start, key=_last_of) :]
        if not self._filters:
            self._filters = self._read(start, end)
            return
        if self._filters[0].first > start:
            self._filters[:0] = self._read(start, self._filters[0].first)
        if self._filters[-1].end < end:
            self._filters += self._read(self._filters[-1].end, end)

    def _read(self, start: int, end: int) -> list[RangeFilter]:
        """Filters of the files that hold [start, end), cut to it."""

        def filters(sources: list[Source]) -> list[RangeFilter]:
            return [range_ for source in sources for range_ in self._filters_of(source)]

        ranges = read_planned(self._log, lambda view: plan(view, Query(start=start, end=end)).sources, filters)
        return [_cut(range_, start, end) for range_ in ranges if range_.end > start and range_.first < end]

    def _filters_of(self, source: Source) -> Iterator[RangeFilter]:
        meta = self._meta(source.path, source.kind, source.fingerprint)
        files = meta.doc.get("files")
        if not files:
            yield _filter(meta, source.first, source.end)
            return
        at = source.first
        for file in files:
            part = self._meta(paths.data_file(self._log.root, file[0]), "rows", fingerprint(file[1]))
            yield _filter(part, at, at + file[2])
            at += file[2]

    def _meta(self, path: str, kind: str, wanted: int) -> FileMeta:
        known = self._log.files.has(path, wanted)
        meta = self._log.files.meta(path, kind, wanted)
        self.bytes_read += 0 if known else meta.size - meta.data_end
        return meta


def _filter(meta: FileMeta, first: int, end: int) -> RangeFilter:
    least, greatest = meta.doc["ids"]
    return RangeFilter(first, end, frozenset(meta.runs.topics), meta.bloom, least, greatest)


def _cut(range_: RangeFilter, start: int, end: int) -> RangeFilter:
    if start <= range_.first and range_.end <= end:
        return range_
    first, last = max(range_.first, start), min(range_.end, end)
    return RangeFilter(first, last, range_.topics, range_.bloom, range_.least_id, range_.greatest_id)


def _last_of(range_: RangeFilter) -> int:
    return range_.end - 1
