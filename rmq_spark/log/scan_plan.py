"""What to read and where it is: a query, and the plan of files that may hold its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import schema
from rmq_spark.log.files import LogFiles
from rmq_spark.log.marks import SegmentRef
from rmq_spark.log.tail_index import fingerprint
from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.log.view import LogView

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

FAR: Final = 1 << 62
"""Behind every offset."""


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
    bytes_read: int = 0
    rows_read: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """A log range and where it is."""

    first: int
    end: int
    path: str
    kind: str
    fingerprint: int
    """Which file it is."""
    size: int = 0
    """For a commit: bytes of its file."""
    bases: I64 | None = None
    """For a row file, as its commit says: queue offset of each run's first row."""
    store_ms: int = 0
    """For a row file, as its commit says: storeTimestamp of its messages."""


@dataclass(slots=True)
class Plan:
    """A fixed range to read."""

    query: Query
    sources: list[Source]
    bounds: dict[str, tuple[I64, I64]]
    """By topic: lower and upper queue offset, indexed by queue id. Of other queues nothing is read if the query names
    ranges, and everything if it does not."""
    stats: ScanStats = field(default_factory=ScanStats)


class Log(Protocol):
    """What reading needs of a log's handle: its files, and its newest mark when one has moved."""

    files: LogFiles
    broker: str

    def refresh(self) -> LogView:
        """Return the log as it is now."""


def queue_bounds(ranges: Mapping[tuple[str, int], tuple[int, int]]) -> dict[str, tuple[I64, I64]]:
    """A query's ranges as `Plan.bounds`."""
    by_topic: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, queue), (low, high) in ranges.items():
        by_topic.setdefault(topic, []).append((queue, low, high))
    bounds = {}
    for topic, entries in by_topic.items():
        queue, low, high = np.array(entries, np.int64).T
        lows, highs = np.zeros((2, int(queue.max()) + 1), np.int64)
        lows[queue], highs[queue] = low, high
        bounds[topic] = (lows, highs)
    return bounds


def plan(view: LogView, query: Query, stats: ScanStats | None = None) -> Plan:
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
    narrowed = replace(query, start=max(query.start, mark.log_start), end=end)
    told = np.array([(each.first, each.end, each.min_ms, each.max_ms) for each in mark.segments], np.int64)
    sources = [
        segment_source(view.root, segment, segment.first, segment.end)
        for segment, wanted in zip(mark.segments, may_hold(narrowed, *told.reshape(-1, 4).T), strict=True)
        if wanted
    ]
    if query.ranges is None:
        bounds = {topic: (first, np.full(len(first), FAR)) for topic, first in state.queues.starts().items()}
    else:
        starts = {queue: state.queues.bounds(*queue)[0] for queue in query.ranges}
        bounds = queue_bounds({queue: (max(low, starts[queue]), high) for queue, (low, high) in query.ranges.items()})
    return Plan(narrowed, sources + _tail_sources(view, narrowed), bounds, stats or ScanStats())


def may_hold(query: Query, firsts: I64, ends: I64, min_ms: I64, max_ms: I64) -> BOOL:
    """Which log ranges may hold what is asked for, by their offsets and times."""
    wanted = (ends > query.start) & (firsts < (FAR if query.end is None else query.end))
    wanted &= (max_ms >= (query.from_ms or 0)) & (min_ms < (FAR if query.to_ms is None else query.to_ms))
    return wanted & query.wants_any(firsts, ends)


def _tail_sources(view: LogView, query: Query) -> list[Source]:
    commits = view.state.commits
    firsts, times = np.array(commits.firsts), np.array(commits.times)
    ends = np.append(firsts[1:], view.state.offset)[: len(firsts)]
    wanted = may_hold(query, firsts, ends, times, times)
    ranges = query.ranges
    holding = commits.holding(query.topics, query.queues) if ranges is None else commits.in_ranges(ranges)
    wanted &= np.isin(firsts, holding)
    columns = (firsts, ends, np.array(commits.fingerprints), np.array(commits.sizes))
    return [
        Source(first, end, paths.commit(view.root, first), "commit", mark, size)
        for first, end, mark, size in zip(*(column[wanted].tolist() for column in columns), strict=True)
    ]


def segment_source(root: str, segment: SegmentRef, first: int, end: int) -> Source:
    """The part [first, end) of a segment as a source."""
    return Source(first, end, f"{paths.segments(root)}/{segment.name}", "segment", fingerprint(segment.digest))
