"""What to read and where it is: a query, and the plan of files that may hold its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import schema
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.files import LogFiles
from rmq_spark.log.marks import SegmentRef
from rmq_spark.log.tail_index import TailIndex, fingerprint
from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.log.view import LogView

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to read. Every part narrows it; the default is everything."""

    topics: frozenset[str] | None = None
    """Only these topics; None: all, system topics included."""
    queues: frozenset[int] | None = None
    """Only these queue ids."""
    start: int = 0
    """First log offset."""
    end: int | None = None
    """Exclusive end as a log offset; None: what is there now."""
    offsets: I64 | None = None
    """Only these log offsets, which must rise."""
    ranges: Mapping[tuple[str, int], tuple[int, int]] | None = None
    """Queue offset ranges by (topic, queue); queues that are not named are not read."""
    from_ms: int | None = None
    """Only messages with storeTimestamp >= this."""
    to_ms: int | None = None
    """Only messages with storeTimestamp < this."""
    tag_codes: frozenset[int] | None = None
    """Skip runs that hold none of these tag hash codes. Prunes only; give `predicate` for the real strings."""
    keys: frozenset[str] = frozenset()
    """Only messages that have one of these keys among theirs; empty: any."""
    msg_id: str | None = None
    """Only messages with this id."""
    predicate: Callable[[pa.RecordBatch], BOOL] | None = None
    """A mask over rows that have at least `predicate_columns`."""
    predicate_columns: tuple[str, ...] = ()
    """What `predicate` looks at."""
    columns: tuple[str, ...] | None = None
    """Columns to return, in this order; None: all of `schema.MESSAGE`."""
    skip_expired: bool = False
    """True: a range that retention deletes while it is read is left out instead of raising."""

    def __post_init__(self) -> None:
        for field_name in ("topics", "keys"):  # `in` would look for parts of the name, and find other topics
            if isinstance(text := getattr(self, field_name), str):
                raise TypeError(f"{field_name} is a set of names; write frozenset({{{text!r}}})")
        for field_name in ("columns", "predicate_columns"):  # a loop would take each letter for a name
            if isinstance(text := getattr(self, field_name), str):
                raise TypeError(f"{field_name} is a tuple of names; write ({text!r},)")

    def wants_any(self, firsts: I64, ends: I64) -> BOOL:
        """Which of the log ranges [first, end) hold one of `offsets`; all, if none are named."""
        if self.offsets is None:
            return np.ones(len(firsts), np.bool_)
        return np.searchsorted(self.offsets, firsts) < np.searchsorted(self.offsets, ends)


@dataclass(slots=True)
class ScanStats:
    """What a scan touched; filled in as it runs."""

    files_read: int = 0
    files_pruned: int = 0
    blocks_read: int = 0
    blocks_pruned: int = 0
    bytes_read: int = 0
    bytes_pruned: int = 0
    rows_read: int = 0
    rows_returned: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """A log range and where it is."""

    first: int
    end: int
    path: str
    kind: str
    fingerprint: int = 0
    """For a commit or a segment: which file it is."""
    commit: FileMeta | None = None
    """For a row file: the commit that refers to it."""
    part: int = 0
    """For a row file: which of the commit's."""
    size: int = 0
    """For a commit: bytes of its file."""


@dataclass(slots=True)
class Plan:
    """A fixed range to read."""

    query: Query
    sources: list[Source]
    end: int
    starts: dict[str, I64]
    stats: ScanStats = field(default_factory=ScanStats)
    bounds: dict[str, tuple[I64, I64]] = field(init=False)
    """The query's ranges by topic: lower and upper queue offset, indexed by queue id."""

    def __post_init__(self) -> None:
        self.bounds = _by_queue(self.query.ranges or {})


class Log(Protocol):
    """What reading needs of a log's handle: its files, and its newest mark when one has moved."""

    files: LogFiles
    broker: str

    def refresh(self) -> LogView:
        """Return the log as it is now."""


def _by_queue(ranges: Mapping[tuple[str, int], tuple[int, int]]) -> dict[str, tuple[I64, I64]]:
    by_topic: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, queue), (low, high) in ranges.items():
        by_topic.setdefault(topic, []).append((queue, low, high))
    bounds = {}
    for topic, entries in by_topic.items():
        queue, low, high = np.array(entries, np.int64).T
        size = int(queue.max()) + 1
        lows, highs = np.zeros(size, np.int64), np.zeros(size, np.int64)
        lows[queue], highs[queue] = low, high
        bounds[topic] = (lows, highs)
    return bounds


def plan(view: LogView, query: Query, stats: ScanStats) -> Plan:
    """Decide which files to look at, from what the view knows; reads nothing.

    Raises:
        InvalidRequestError: an unknown column.
    """
    for name in (query.columns or ()) + query.predicate_columns:
        if name not in schema.MESSAGE.names:
            raise InvalidRequestError("unknown column", column=name, known=schema.MESSAGE.names)
    if query.predicate is not None and not query.predicate_columns:
        raise InvalidRequestError("a predicate needs predicate_columns: which columns it looks at")
    state, mark = view.state, view.mark
    end = state.offset if query.end is None else min(query.end, state.offset)
    start = max(query.start, mark.log_start)
    sources = [
        segment_source(view.root, segment, segment.first, segment.end)
        for segment in mark.segments
        if segment.end > start
        and segment.first < end
        and (query.from_ms is None or segment.max_ms >= query.from_ms)
        and (query.to_ms is None or segment.min_ms < query.to_ms)
        and query.wants_any(np.array([segment.first]), np.array([segment.end]))[0]
    ]
    stats.files_pruned += len(mark.segments) - len(sources)
    if end > mark.floor:
        sources += _tail_sources(view, query, max(start, mark.floor), end, stats)
    narrowed = replace(query, start=start, end=end)
    return Plan(narrowed, sources, end, state.queues.starts(), stats)


def _tail_sources(view: LogView, query: Query, start: int, end: int, stats: ScanStats) -> list[Source]:
    commits = view.state.commits
    firsts, times, fingerprints, sizes = (
        np.frombuffer(column, np.int64).copy() if column else np.empty(0, np.int64)
        for column in (commits.firsts, commits.times, commits.fingerprints, commits.sizes)
    )
    ends = np.append(firsts[1:], view.state.offset)
    wanted = (ends > start) & (firsts < end)
    if query.from_ms is not None:
        wanted &= times >= query.from_ms
    if query.to_ms is not None:
        wanted &= times < query.to_ms
    wanted &= query.wants_any(firsts, ends)
    holding = _holding(commits, query)
    if holding is not None:
        wanted &= np.isin(firsts, np.fromiter(holding, np.int64))
    stats.files_pruned += int((~wanted).sum())
    columns = (firsts[wanted], ends[wanted], fingerprints[wanted], sizes[wanted])
    return [
        Source(first, last, paths.commit(view.root, first), "commit", mark, size=size)
        for first, last, mark, size in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _holding(commits: TailIndex, query: Query) -> set[int] | None:
    """First offsets of the commits that may hold what is asked for; None: any may."""
    if query.ranges is not None:
        return commits.in_ranges(query.ranges)
    if query.topics is None:
        return None
    return commits.holding(query.topics, query.queues)


def segment_source(root: str, segment: SegmentRef, first: int, end: int) -> Source:
    """The part [first, end) of a segment as a source."""
    return Source(first, end, f"{paths.segments(root)}/{segment.name}", "segment", fingerprint(segment.digest))
