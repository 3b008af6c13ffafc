"""Queries on one broker's log: what `MessageQuery` asks each broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import NotFoundError
from rmq_spark.log import scan, schema
from rmq_spark.log.point_read import Places, fetch_messages
from rmq_spark.log.run_table import RunIndex
from rmq_spark.query.index_files import IndexHits, LookupStats
from rmq_spark.query.log_filters import LogFilters
from rmq_spark.rules import system_topics
from rmq_spark.tables import kernel
from rmq_spark.tables.delta_log import check_mark

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.view import LogView

I64 = npt.NDArray[np.int64]

_FIRST_SOURCES: Final = 8
_FIRST_WINDOW: Final = 8192
_PLACE_COLUMNS: Final = ("topic", "queueId", "queueOffset", "commitOffset", "sysFlag", "storeTimestamp")


@dataclass(slots=True)
class QueryStats:
    """What a query cost."""

    index: LookupStats = field(default_factory=LookupStats)
    """In the index."""
    scan: scan.ScanStats = field(default_factory=scan.ScanStats)
    """In the log behind the index."""
    fetched: int = 0
    """Messages that were read to be compared."""
    other_bytes: int = 0
    """Bytes of messages and of metadata that were fetched."""

    @property
    def bytes_read(self) -> int:
        """All bytes that were fetched."""
        return self.other_bytes + self.index.bytes_read + self.scan.bytes_read


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about keys or ids."""

    text: str
    """The key or the id."""
    by_id: bool
    topic: str | None
    """None: any topic."""
    limit: int
    from_ms: int | None = None
    to_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """The index as of one look."""

    mark: int | None
    """Up to where it is complete; None: there is none."""
    look_up: Callable[[], IndexHits]
    """Gives the rows for what was asked."""


class BrokerQuery:
    """Queries on one broker's log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._filters = LogFilters(log)
        self._runs = RunIndex(log)

    def has(self, topic: str) -> bool:
        """Whether the log holds messages of `topic`."""
        return any(self._log.look(lambda view: [end > first for _, first, end in view.state.queues.of_topic(topic)]))

    def topics(self) -> list[str]:
        """Topics with rows in the tables."""
        return [
            topic
            for topic in self._log.look(lambda view: view.state.queues.topics())
            if system_topics.has_table_rows(topic)
        ]

    def fetch(self, places: Places, stats: QueryStats) -> pa.RecordBatch:
        """Messages at places, with all columns."""
        cost = scan.ScanStats()
        messages = fetch_messages(self._log, places, stats=cost)
        stats.other_bytes += cost.bytes_read
        stats.fetched += messages.num_rows
        return messages

    # ------------------------------------------------------------ keys and ids

    def find(self, asked: Asked, index: Index, stats: QueryStats) -> pa.RecordBatch:
        """The newest messages that match: from the log behind the index's mark, then from the index."""
        start, end = self._log.look(lambda view: (view.mark.log_start, view.state.offset))
        check_mark("index", self._log.broker, index.mark, end)
        middle = max(start, index.mark or 0)
        batches: list[pa.RecordBatch] = []
        left = asked.limit
        for batch in self._in_log(asked, middle, end, stats):
            batches.append(batch.slice(0, left))
            left -= batches[-1].num_rows
            if left <= 0:
                return _joined(batches)
        if index.mark is not None:
            for batch in self._in_index(asked, index.look_up(), (start, middle), left, stats):
                batches.append(batch.slice(0, left))
                left -= batches[-1].num_rows
                if left <= 0:
                    break
        return _joined(batches)

    def _in_log(self, asked: Asked, start: int, end: int, stats: QueryStats) -> Iterator[pa.RecordBatch]:
        """Matches in [start, end), newest first."""
        before = self._filters.bytes_read
        if asked.by_id:
            ranges = self._filters.with_id(asked.text, asked.topic, start, end)
        else:
            ranges = self._filters.with_key(asked.text, asked.topic or "", start, end)
        stats.other_bytes += self._filters.bytes_read - before
        for first, last in ranges:
            query = scan.Query(
                topics=None if asked.topic is None else frozenset((asked.topic,)),
                start=first,
                end=last,
                from_ms=asked.from_ms,
                to_ms=asked.to_ms,
                keys=frozenset() if asked.by_id else frozenset((asked.text,)),
                msg_id=asked.text if asked.by_id else None,
                skip_expired=True,
            )
            batch = _newest_first(self._log.scan(query, stats.scan))
            batch = self._matching(batch, asked)
            if batch.num_rows:
                yield batch

    def _in_index(
        self, asked: Asked, hits: IndexHits, within: tuple[int, int], limit: int, stats: QueryStats
    ) -> Iterator[pa.RecordBatch]:
        """Matches among the index's hits within a log range, newest first; as few as are needed are read."""
        # A message can have several rows: the same key and id, or two keys of one hash.
        commits, rows = np.unique(hits.commit, return_index=True)
        rows = rows[(commits >= within[0]) & (commits < within[1])][::-1]
        for at in range(0, len(rows), limit):
            page = rows[at : at + limit]
            topics = [hits.topic[row] for row in page.tolist()]
            batch = self.fetch(_places(hits.commit[page], topics, hits.queue[page], hits.offset[page]), stats)
            batch = self._matching(batch, asked)
            if batch.num_rows:
                yield batch

    def _matching(self, batch: pa.RecordBatch, asked: Asked) -> pa.RecordBatch:
        """The messages that are what was asked for, whatever led to them; they are few, and compared one by one."""
        names = ("topic", "msgId" if asked.by_id else "keys")
        times = batch.column("storeTimestamp").cast(pa.int64()).to_pylist()
        rows = zip(*(batch.column(name).to_pylist() for name in names), times, strict=True)
        # to_pylist: from a few rows it is quicker than Arrow's functions; a message need not have flags.
        flags = kernel.is_indexed(np.array([flag or 0 for flag in batch.column("sysFlag").to_pylist()], np.int32))
        keep = [
            indexed
            and (topic == asked.topic if asked.topic is not None else system_topics.has_table_rows(topic))
            and (text == asked.text if asked.by_id else asked.text in (text or "").split(" "))
            and (asked.from_ms is None or store_ms >= asked.from_ms)
            and (asked.to_ms is None or store_ms < asked.to_ms)
            for indexed, (topic, text, store_ms) in zip(flags.tolist(), rows, strict=True)
        ]
        return batch if all(keep) else batch.filter(pa.array(keep))

    # ------------------------------------------------------------ queues and times

    def queue_range(
        self, topic: str, queue: int, within: tuple[int, int], limit: int, stats: QueryStats
    ) -> pa.RecordBatch:
        """The last messages of a queue's range."""
        first, last = self._log.look(lambda view: view.state.queues.bounds(topic, queue))
        low, high = max(within[0], first), min(within[1], last)
        if low >= high:
            return _joined([])
        table = self._runs.list_runs(scan.Query(), lambda name, queues: (queues == queue) & (name == topic))
        batches: list[pa.RecordBatch] = []
        for run in range(len(table.rows) - 1, -1, -1):
            base, run_end = int(table.base[run]), int(table.base[run] + table.rows[run])
            if run_end <= low or base >= high:
                continue
            source = table.sources[int(table.source[run])]
            query = scan.Query(
                start=source.first,
                end=source.end,
                ranges={(topic, queue): (max(low, base), min(high, run_end))},
                columns=_PLACE_COLUMNS,
                skip_expired=True,
            )
            batches += self._queued(query, limit - _count(batches), stats)
            if _count(batches) >= limit:
                break
        return _joined(batches)

    def time_range(
        self, topic: str, from_ms: int | None, to_ms: int | None, limit: int, stats: QueryStats
    ) -> pa.RecordBatch:
        """The last messages of a topic in a time range."""
        batches: list[pa.RecordBatch] = []
        for first, last in self._time_windows(from_ms, to_ms):
            query = scan.Query(
                topics=frozenset((topic,)),
                start=first,
                end=last,
                from_ms=from_ms,
                to_ms=to_ms,
                columns=_PLACE_COLUMNS,
                skip_expired=True,
            )
            batches += self._queued(query, limit - _count(batches), stats)
            if _count(batches) >= limit:
                break
        return _joined(batches)

    def _time_windows(self, from_ms: int | None, to_ms: int | None) -> Iterator[tuple[int, int]]:
        """Log ranges that hold what was stored in a time range, newest first, and larger the longer it takes."""

        def sources(view: LogView) -> list[scan.Source]:
            query = scan.Query(from_ms=from_ms, to_ms=to_ms)
            return scan.plan(view, query).sources

        left = self._log.look(sources)
        step, window = _FIRST_SOURCES, _FIRST_WINDOW
        while left:
            if left[-1].kind == "commit":
                part = [source for source in left[-step:] if source.kind == "commit"]
                del left[-len(part) :]
                step *= 2
                yield part[0].first, part[-1].end
                continue
            segment = left.pop()
            end = segment.end
            if to_ms is not None:
                with suppress(NotFoundError):  # merged or expired: then its range is read from its end
                    bounds = self._log.files.meta(segment.path, segment.kind, segment.fingerprint).block_bounds
                    early = bounds[bounds[:, 2] < to_ms]
                    end = min(end, int(early[:, 1].max()) + 1) if len(early) else segment.first
            while end > segment.first:
                start = max(segment.first, end - window)
                yield start, end
                end, window = start, window * 4

    def _queued(self, query: scan.Query, limit: int, stats: QueryStats) -> list[pa.RecordBatch]:
        """The last messages that a query of places gives, of those that consumers see; newest first."""
        batch = _newest_first(self._log.scan(query, stats.scan), _PLACE_COLUMNS)
        batch = batch.filter(pa.array(kernel.is_queued(batch.column("sysFlag").fill_null(0).to_numpy())))
        if not batch.num_rows:
            return []
        batch = batch.slice(0, limit)
        commit, queue, offset = (
            batch.column(name).to_numpy().astype(np.int64) for name in ("commitOffset", "queueId", "queueOffset")
        )
        return [self.fetch(_places(commit, batch.column("topic").to_pylist(), queue, offset), stats)]


def _places(commit: I64, topics: Sequence[str], queue: I64, offset: I64) -> Places:
    return Places(commit, tuple(zip(topics, queue.tolist(), offset.tolist(), strict=True)))


def _newest_first(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str] = tuple(schema.MESSAGE.names)
) -> pa.RecordBatch:
    kinds = pa.schema([schema.MESSAGE.field(name) for name in columns])
    table = pa.Table.from_batches(batches, kinds)
    if not table.num_rows:
        return schema.no_messages(columns)
    order = np.argsort(table["commitOffset"].to_numpy())[::-1]
    [batch] = table.take(pa.array(order)).combine_chunks().to_batches()
    return batch


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema.MESSAGE).combine_chunks()
    return table.to_batches()[0] if table.num_rows else schema.no_messages(schema.MESSAGE.names)


def _count(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)
