"""Reading messages: prune by metadata, read the blocks and columns that are left, filter, add derived columns.

A plan is a list of sources, each a log range [first, end) and the file that holds it. Files move while a scan
runs (commits are rolled, segments merged); then the same range is found in its new file. That works because a
range's rows have the same order in every file: by topic, queue and log offset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import CorruptDataError, DataExpiredError, NotFoundError
from rmq_spark.log import bloom, schema
from rmq_spark.log.arrow_columns import booleans, booleans_of, column_of, integers, integers_of, repeated
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.files import LogFiles
from rmq_spark.log.marks import Mark
from rmq_spark.log.scan_plan import Log, Plan, Query, ScanStats, Source, plan, segment_source
from rmq_spark.log.small_commits import is_small, join_rows
from rmq_spark.log.tail_index import SMALL_COMMIT_BYTES
from rmq_spark.storage import paths

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]
ReadSource = Callable[[Source], Iterator[pa.RecordBatch]]

__all__ = ["Log", "Plan", "Query", "ScanStats", "Source", "plan", "read_plan", "run"]

_log = logging.getLogger(__name__)

GROUP_COMMITS = 4_096
GROUP_BYTES = 4 * 1024 * 1024
"""Neighbouring small commits are read together, up to so many, and so many bytes in all."""
DECIDING_ROWS = 65_536
"""Of columns that only decide which rows match, more rows at a time: most are thrown away at once."""
_PHYSICAL = {"commitOffset", "queueOffset", "storeTimestamp"}


def run(log: Log, planned: Plan) -> Iterator[pa.RecordBatch]:
    """Carry out a plan.

    Raises:
        DataExpiredError: retention deleted a part of it meanwhile, and the query does not skip that.
        CorruptDataError: a file is damaged or missing; nothing of the damaged part was returned.
    """
    for batch in _read_groups(log.files, log.broker, planned, lambda source: _read_moving(log, planned, source)):
        planned.stats.rows_returned += batch.num_rows
        yield batch


def read_plan(files: LogFiles, broker: str, planned: Plan) -> Iterator[pa.RecordBatch]:
    """Carry out a plan, as long as no file moves.

    Raises:
        NotFoundError: a file has moved; what was returned so far is right.
        CorruptDataError: a file is damaged.
    """

    def read(source: Source) -> Iterator[pa.RecordBatch]:
        return _read(files, broker, planned, source, read)

    return _read_groups(files, broker, planned, read)


def _groups(sources: list[Source]) -> Iterator[list[Source]]:
    """Neighbouring small commits together: what is done once a batch is then done once for many of them."""
    group: list[Source] = []
    size = 0
    for source in sources:
        small = source.kind == "commit" and 0 < source.size <= SMALL_COMMIT_BYTES
        if group and (not small or size + source.size > GROUP_BYTES or len(group) >= GROUP_COMMITS):
            yield group
            group, size = [], 0
        if small:
            group.append(source)
            size += source.size
        else:
            yield [source]
    if group:
        yield group


def _read_groups(files: LogFiles, broker: str, planned: Plan, read: ReadSource) -> Iterator[pa.RecordBatch]:
    for group in _groups(planned.sources):
        rows = None
        if len(group) > 1:
            with suppress(NotFoundError):  # some were rolled meanwhile: each is looked for by itself
                rows = _small_rows(files, broker, planned, group)
        if rows is not None:
            yield rows
        else:
            for source in group:
                yield from read(source)


def _small_rows(files: LogFiles, broker: str, planned: Plan, group: list[Source]) -> pa.RecordBatch | None:
    """The matching rows of small commits; None if one of them is not that simple."""
    metas = files.commits([(source.first, source.fingerprint) for source in group])
    if not all(is_small(meta) for meta in metas):
        return None
    stats = planned.stats
    stats.files_read += len(metas)
    stats.blocks_read += len(metas)
    stats.bytes_read += sum(meta.size for meta in metas)
    whole = join_rows(metas, broker)
    stats.rows_read += whole.num_rows
    rows = whole.filter(booleans(_matching(planned, whole)))
    return rows.select(list(planned.query.columns or schema.MESSAGE.names))


def _matching(planned: Plan, batch: pa.RecordBatch) -> BOOL:
    """Which rows of whole messages match the query."""
    query = planned.query
    topic, queue = batch.column("topic"), integers_of(batch.column("queueId"))
    offset = integers_of(batch.column("queueOffset"))
    mask = np.ones(len(batch), np.bool_)
    if query.queues is not None:
        mask &= np.isin(queue, list(query.queues))
    if query.topics is not None:
        mask &= booleans_of(pc.is_in(topic, column_of(sorted(query.topics), pa.string())))
    if query.ranges is not None:
        mask &= _within(topic, queue, offset, planned.bounds, inside=True)
    if planned.starts:
        lows = {name: (starts, np.full(len(starts), 1 << 62)) for name, starts in planned.starts.items()}
        mask &= _within(topic, queue, offset, lows, inside=False)
    return _with_values(planned, batch, mask, query.start, query.end)


def _with_values(planned: Plan, batch: pa.RecordBatch, mask: BOOL, low: int, high: int | None) -> BOOL:
    """Which of the rows in `mask` match the query by what the given columns say, and lie in the log range [low, high).

    A condition on a column that the batch does not have was checked before.
    """
    query, names = planned.query, batch.schema.names
    if "commitOffset" in names:
        commit = integers_of(batch.column("commitOffset"))
        mask &= (commit >= low) & (commit < (high if high is not None else 1 << 62))
        if query.offsets is not None:
            mask &= query.wants_any(commit, commit + 1)
    if "storeTimestamp" in names:
        times = integers_of(batch.column("storeTimestamp"))
        if query.from_ms is not None:
            mask &= times >= query.from_ms
        if query.to_ms is not None:
            mask &= times < query.to_ms
    if query.keys:
        mask &= np.logical_or.reduce([_has_key(batch.column("keys"), key) for key in query.keys])
    if query.msg_id is not None:
        mask &= booleans_of(pc.equal(batch.column("msgId"), query.msg_id))
    if query.predicate is not None and mask.any():
        rows = batch.select(list(query.predicate_columns))
        mask[mask] = np.asarray(query.predicate(rows if mask.all() else rows.filter(booleans(mask))), np.bool_)
    return mask


def _within(
    topic: pa.StringArray, queue: I64, offset: I64, bounds: dict[str, tuple[I64, I64]], *, inside: bool
) -> BOOL:
    """Which rows lie within their queue's bounds; queues that have none are `not inside`."""
    mask = np.full(len(queue), not inside, np.bool_)
    for name, (lows, highs) in bounds.items():
        mine = np.flatnonzero(booleans_of(pc.equal(topic, name)) & (queue < len(lows)))
        at = queue[mine]
        mask[mine] = (offset[mine] >= lows[at]) & (offset[mine] < highs[at])
    return mask


def _read_moving(log: Log, planned: Plan, source: Source) -> Iterator[pa.RecordBatch]:
    """Read one source; if its file is gone, read the same rows from where they are now."""

    def read_part(part: Source) -> Iterator[pa.RecordBatch]:
        return _read_moving(log, planned, part)

    returned = 0
    while True:
        skip = returned
        try:
            for batch in _read(log.files, log.broker, planned, source, read_part):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                part = batch.slice(skip) if skip else batch
                skip = 0
                returned += part.num_rows
                yield part
        except NotFoundError as error:
            moved = _relocate(log.refresh().mark, log.files.root, source)
            if moved is None and planned.query.skip_expired:
                _log.warning(
                    "retention deleted [%d, %d) of %s while it was read, going on without the rest of it",
                    source.first,
                    source.end,
                    log.broker,
                )
                return
            if moved is None:
                raise DataExpiredError(
                    "retention deleted the range while it was read", first=source.first, end=source.end
                ) from error
            if moved.path == source.path:
                raise CorruptDataError(
                    "a file of the log is missing or another one stands in its place",
                    file=source.path,
                    first=source.first,
                    end=source.end,
                ) from error
            source = moved
        else:
            return


def _relocate(mark: Mark, root: str, source: Source) -> Source | None:
    if source.end <= mark.log_start:
        return None
    for segment in mark.segments:
        if segment.first <= source.first and source.end <= segment.end:
            return segment_source(root, segment, source.first, source.end)
    return source


def _read(
    files: LogFiles, broker: str, planned: Plan, source: Source, read_part: ReadSource
) -> Iterator[pa.RecordBatch]:
    """Read one file; the row files that a commit refers to are read by `read_part`, each as a range of its own."""
    if source.kind == "rows" and source.commit is not None:
        named = source.commit.doc["files"][source.part]
        meta = files.row_file(named[0], named[1])
    else:
        meta = files.meta(source.path, source.kind, source.fingerprint)
    if row_files := meta.doc.get("files"):
        at = source.first
        for part, file in enumerate(row_files):
            path = paths.data_file(files.root, file[0])
            yield from read_part(Source(at, at + file[2], path, "rows", 0, meta, part))
            at += file[2]
        return
    yield from _Reading(files, broker, planned, source, meta).batches()


class _Reading:
    """One file's part of a scan."""

    def __init__(self, files: LogFiles, broker: str, planned: Plan, source: Source, meta: FileMeta) -> None:
        self._broker = broker
        self._planned = planned
        self._query = planned.query
        self._starts = planned.starts
        self._bounds = planned.bounds
        self._stats = planned.stats
        self._source = source
        self._meta = meta
        self._reader = FileReader(files.storage, meta)
        self._first_rows = meta.runs.first_rows()
        if source.kind == "rows" and source.commit is not None:
            counts = [file[4] for file in source.commit.doc["files"]]
            low = sum(counts[: source.part])
            self._bases = source.commit.bases[low : low + counts[source.part]]
            self._store_ms = source.commit.doc["ts"]
        else:
            self._bases = meta.bases
            self._store_ms = meta.doc["ts"]
        self._settled = source.kind == "segment"
        """Whether offsets and times are columns of the file."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        stats, meta = self._stats, self._meta
        total = int(meta.places.size.sum())
        spans = self._spans() if self._may_match() else None
        if spans is None or not len(spans[0]):
            stats.files_pruned += 1
            stats.blocks_pruned += len(meta.places.rows)
            stats.bytes_pruned += total
            return
        stats.files_read += 1
        blocks = self._blocks(*spans)
        stats.blocks_pruned += len(meta.places.rows) - len(blocks)
        yield from self._filtered(blocks, *spans)
        stats.bytes_read += self._reader.bytes_read
        stats.bytes_pruned += max(0, total - self._reader.bytes_read)

    def _may_match(self) -> bool:
        query, doc = self._query, self._meta.doc
        if self._query.keys and not any(bloom.may_contain(self._meta.bloom, key) for key in self._query.keys):
            return False
        return query.msg_id is None or doc["ids"][0] <= query.msg_id <= doc["ids"][1]

    def _spans(self) -> tuple[I64, I64]:
        """Row ranges [low, high) that may match, one for each run that may, neighbours joined."""
        query, runs, bases = self._query, self._meta.runs, self._bases
        keep = np.ones(len(runs.rows), np.bool_)
        if query.topics is not None:
            keep &= np.isin(runs.topic, [i for i, name in enumerate(runs.topics) if name in query.topics])
        if query.queues is not None:
            keep &= np.isin(runs.queue, list(query.queues))
        if query.tag_codes is not None:
            keep &= self._tagged(query.tag_codes)
        low, high = np.zeros(len(runs.rows), np.int64), np.full(len(runs.rows), np.iinfo(np.int64).max)
        for index, topic in enumerate(runs.topics):
            if (starts := self._starts.get(topic)) is not None:
                mine = (runs.topic == index) & (runs.queue < len(starts))
                low[mine] = np.maximum(low[mine], starts[runs.queue[mine]])
        if query.ranges is not None:
            self._apply_ranges(keep, low, high)
        first = self._first_rows + np.clip(low - bases, 0, runs.rows)
        last = self._first_rows + np.clip(high - bases, 0, runs.rows)
        if not self._settled:
            begin = self._source.first
            first = np.maximum(first, query.start - begin)
            last = np.minimum(last, (query.end if query.end is not None else 1 << 62) - begin)
        keep &= first < last
        first, last = first[keep], last[keep]
        if len(first) > 1:
            joined = first[1:] == last[:-1]
            first, last = first[np.append(True, ~joined)], last[np.append(~joined, True)]
        return first, last

    def _tagged(self, wanted: frozenset[int]) -> BOOL:
        runs = self._meta.runs
        counts = np.maximum(runs.tag_counts, 0)
        owner = np.repeat(np.arange(len(counts)), counts)
        hits = owner[np.isin(runs.tag_codes, list(wanted))]
        hit: BOOL = (np.bincount(hits, minlength=len(counts)) > 0) | (runs.tag_counts < 0)
        return hit

    def _apply_ranges(self, keep: BOOL, low: I64, high: I64) -> None:
        runs = self._meta.runs
        named = np.zeros(len(keep), np.bool_)
        for index, topic in enumerate(runs.topics):
            if (known := self._bounds.get(topic)) is None:
                continue
            lows, highs = known
            mine = np.flatnonzero((runs.topic == index) & (runs.queue < len(lows)))
            queue = runs.queue[mine]
            named[mine] = True
            low[mine] = np.maximum(low[mine], lows[queue])
            high[mine] = np.minimum(high[mine], highs[queue])
        keep &= named

    def _blocks(self, first: I64, last: I64) -> list[int]:
        starts = self._meta.block_rows
        touched = np.zeros(len(starts), np.int64)
        np.add.at(touched, np.searchsorted(starts, first, "right") - 1, 1)
        np.add.at(touched, np.searchsorted(starts, last, "left"), -1)
        wanted = np.cumsum(touched)[:-1] > 0
        if self._settled:
            query, bounds = self._query, self._meta.block_bounds
            wanted &= (bounds[:, 1] >= query.start) & (bounds[:, 0] < (query.end or 1 << 62))
            if query.from_ms is not None:
                wanted &= bounds[:, 3] >= query.from_ms
            if query.to_ms is not None:
                wanted &= bounds[:, 2] < query.to_ms
            wanted &= query.wants_any(bounds[:, 0], bounds[:, 1] + 1)
        else:
            wanted &= self._query.wants_any(self._source.first + starts[:-1], self._source.first + starts[1:])
        return np.flatnonzero(wanted).tolist()

    def _filtered(self, blocks: list[int], first: I64, last: I64) -> Iterator[pa.RecordBatch]:
        wanted = list(self._query.columns or schema.MESSAGE.names)
        deciding = self._deciding()
        rows_max = DECIDING_ROWS if deciding else None
        # Who knows the rows by queue and log offset has them in one read: nearly every one that is looked at matches.
        first_read = [*deciding, *wanted] if self._query.offsets is not None and self._bounds else deciding or wanted
        stretches = self._reader.read_stretches(blocks, list(dict.fromkeys(self._stored(first_read))), rows_max)
        for low, high, batch in stretches:
            self._stats.blocks_read += high - low
            rows = self._rows_of(low, high, first, last)
            self._stats.rows_read += len(rows)
            if not deciding:
                yield self._finish(low, batch, rows, wanted)
                continue
            begin, end = max(self._query.start, self._source.first), self._source.end
            end = end if self._query.end is None else min(self._query.end, end)
            every = np.ones(len(rows), np.bool_)
            rows = rows[_with_values(self._planned, self._finish(low, batch, rows, deciding), every, begin, end)]
            if len(rows):
                yield from self._complete(low, batch, rows, wanted)

    def _complete(self, block: int, batch: pa.RecordBatch, rows: I64, wanted: list[str]) -> Iterator[pa.RecordBatch]:
        """Matching rows with all wanted columns; the rest of these is read only of blocks that have such rows."""
        rest = [name for name in self._stored(wanted) if name not in batch.schema.names]
        if not rest:
            yield self._finish(block, batch, rows, wanted)
            return
        starts = self._meta.block_rows
        hit = np.unique(np.searchsorted(starts, rows, "right") - 1).tolist()
        for low, high, more in self._reader.read_stretches(hit, rest):
            begin, end = int(starts[low]), int(starts[high])
            part = batch.slice(begin - int(starts[block]), end - begin)
            names = batch.schema.names + more.schema.names
            whole = pa.RecordBatch.from_arrays(part.columns + more.columns, names=names)
            yield self._finish(low, whole, rows[np.searchsorted(rows, begin) : np.searchsorted(rows, end)], wanted)

    def _deciding(self) -> list[str]:
        """Columns that decide which rows match."""
        query = self._query
        names = list(query.predicate_columns)
        if self._query.keys:
            names.append("keys")
        if query.msg_id is not None:
            names.append("msgId")
        if self._settled and (query.from_ms is not None or query.to_ms is not None):
            names.append("storeTimestamp")
        if self._settled and (query.start > self._source.first or (query.end or 1 << 62) < self._source.end):
            names.append("commitOffset")
        if self._settled and (query.offsets is not None or not self._meta_inside()):
            names.append("commitOffset")
        return list(dict.fromkeys(names))

    def _meta_inside(self) -> bool:
        """Whether the file holds nothing outside the source's range (a merged segment holds more)."""
        doc = self._meta.doc
        return bool(self._source.first <= doc["first"] and doc["end"] <= self._source.end)

    def _rows_of(self, low_block: int, high_block: int, first: I64, last: I64) -> I64:
        """Row numbers (in the file) of these blocks that lie in the spans."""
        begin, end = self._meta.block_rows[low_block], self._meta.block_rows[high_block]
        low = int(np.searchsorted(last, begin, "right"))
        high = int(np.searchsorted(first, end, "left"))
        starts = np.maximum(first[low:high], begin)
        counts = np.minimum(last[low:high], end) - starts
        shift = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        rows: I64 = shift + np.arange(int(counts.sum()))
        if self._query.offsets is not None and not self._settled:  # there a log offset is a row number
            offsets = rows + self._source.first
            rows = rows[self._query.wants_any(offsets, offsets + 1)]
        return rows

    def _stored(self, names: list[str]) -> list[str]:
        """Those of `names` that are columns of this file."""
        return [name for name in names if name != "brokerName" and (self._settled or name not in _PHYSICAL)] or [
            "queueId"
        ]

    def _finish(self, block: int, batch: pa.RecordBatch, rows: I64, names: list[str]) -> pa.RecordBatch:
        """The given rows of a batch that begins with `block`, with the given columns, derived ones computed."""
        begin = int(self._meta.block_rows[block])
        count = len(rows)
        if count and count == rows[-1] - rows[0] + 1:
            batch = batch.slice(int(rows[0]) - begin, count)
        else:
            batch = batch.take(integers(rows - begin))
        arrays: list[Any] = []
        stored = {name: index for index, name in enumerate(batch.schema.names)}
        for name in names:
            if name in stored:
                arrays.append(batch.column(stored[name]))
            else:
                arrays.append(self._derive(name, rows))
        return pa.RecordBatch.from_arrays(arrays, schema=_message_part(tuple(names)))

    def _derive(self, name: str, rows: I64) -> pa.Array:
        if name == "brokerName":
            return repeated(self._broker, len(rows))
        if name == "commitOffset":
            return integers(rows + self._source.first)
        if name == "storeTimestamp":
            return integers(np.full(len(rows), self._store_ms, np.int64)).cast(schema.TIMESTAMP)
        shift = self._bases - self._first_rows
        ends = rows[[0, -1]] if len(rows) else rows
        run = np.searchsorted(self._first_rows, ends, "right") - 1
        if len(run) and run[0] == run[-1]:  # one run, as nearly always: one shift for all rows
            return integers(rows + shift[run[0]])
        return integers(rows + shift[np.searchsorted(self._first_rows, rows, "right") - 1])


@lru_cache(256)
def _message_part(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([schema.MESSAGE.field(name) for name in names])


def _has_key(keys: pa.StringArray, key: str) -> BOOL:
    matches = pc.equal(keys, key)
    if pc.any(pc.match_substring(keys, " ")).as_py():
        padded = pc.binary_join_element_wise("", keys, "", " ")
        matches = pc.or_kleene(matches, pc.match_substring(padded, f" {key} "))
    return booleans_of(matches)
