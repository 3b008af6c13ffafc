"""Reading messages: prune by metadata, read the blocks and columns that are left, filter, add derived columns.

A plan is a list of sources, each a log range [first, end) and the file that holds it. Files move while a scan
runs (commits are rolled, segments merged); then the same range is found in its new file. That works because a
range's rows have the same order in every file: by topic, queue and log offset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import CorruptDataError, DataExpiredError, NotFoundError
from rmq_spark.log import bloom, schema
from rmq_spark.log.arrow_columns import booleans, booleans_of, integers, integers_of, repeated
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader, blocks_with
from rmq_spark.log.files import LogFiles
from rmq_spark.log.scan_plan import (
    FAR,
    Log,
    Plan,
    Query,
    ScanStats,
    Source,
    may_hold,
    plan,
    queue_bounds,
    segment_source,
)
from rmq_spark.log.small_commits import is_small, join_rows
from rmq_spark.log.tail_index import SMALL_COMMIT_BYTES, fingerprint
from rmq_spark.storage import paths

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]
FindAgain = Callable[[Source, NotFoundError], Source | None]
"""Where a source is whose file is gone; None: it is no longer held."""

__all__ = ["Log", "Plan", "Query", "ScanStats", "Source", "plan", "queue_bounds", "read_plan", "run"]

_log = logging.getLogger(__name__)

GROUP_BYTES = 4 * 1024 * 1024
"""Neighbouring small commits are read together, up to so many bytes in all."""
_DERIVED = {"brokerName", "commitOffset", "queueOffset", "storeTimestamp"}
"""Columns that a commit's or a row file's place in the log tells."""


def run(log: Log, planned: Plan) -> Iterator[pa.RecordBatch]:
    """Carry out a plan.

    Raises:
        DataExpiredError: retention deleted a part of it meanwhile, and the query does not skip that.
        CorruptDataError: a file is damaged or missing; nothing of the damaged part was returned.
    """

    def find_again(source: Source, error: NotFoundError) -> Source | None:
        mark = log.refresh().mark
        if source.end <= mark.log_start:
            if not planned.query.skip_expired:
                raise DataExpiredError(
                    "retention deleted the range while it was read", first=source.first, end=source.end
                ) from error
            _log.warning(
                "retention deleted [%d, %d) of %s while it was read, going on without the rest of it",
                source.first,
                source.end,
                log.broker,
            )
            return None
        for segment in mark.segments:
            moved = segment_source(log.files.root, segment, source.first, source.end)
            if segment.first <= source.first and source.end <= segment.end and moved.path != source.path:
                return moved
        raise CorruptDataError(
            "a file of the log is missing or another one stands in its place",
            file=source.path,
            first=source.first,
            end=source.end,
        ) from error

    return read_plan(log.files, log.broker, planned, find_again)


def _plan_again(source: Source, error: NotFoundError) -> Source | None:
    raise error


def read_plan(
    files: LogFiles, broker: str, planned: Plan, find_again: FindAgain = _plan_again
) -> Iterator[pa.RecordBatch]:
    """Carry out a plan, by default as long as no file moves.

    Raises:
        NotFoundError: a file has moved; what was returned so far is right.
        CorruptDataError: a file is damaged.
    """
    for group in _groups(planned.sources):
        rows = _small_rows(files, broker, planned, group)
        if rows is None:
            for source in group:
                yield from _read_source(files, broker, planned, source, find_again)
        elif rows.num_rows:
            yield rows


def _is_small(source: Source) -> bool:
    return 0 < source.size <= SMALL_COMMIT_BYTES


def _groups(sources: list[Source]) -> Iterator[list[Source]]:
    """Neighbouring small commits together: what is done once a batch is then done once for many of them."""
    group: list[Source] = []
    size = 0
    for source in sources:
        if group and not (_is_small(source) and _is_small(group[-1]) and size + source.size <= GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(source)
        size += source.size
    if group:
        yield group


def _small_rows(files: LogFiles, broker: str, planned: Plan, group: list[Source]) -> pa.RecordBatch | None:
    """The matching rows of small commits; None if one of them is not that simple."""
    if not _is_small(group[0]):
        return None
    try:
        metas = files.commits([(source.first, source.fingerprint) for source in group])
    except NotFoundError:  # some were rolled meanwhile: each is looked for by itself
        return None
    if not all(is_small(meta) for meta in metas):
        return None
    stats, query = planned.stats, planned.query
    stats.files_read += len(metas)
    stats.bytes_read += sum(meta.size for meta in metas)
    whole = join_rows(metas, broker)
    stats.rows_read += whole.num_rows
    topic = whole.column("topic").dictionary_encode()
    queue, offset = (integers_of(whole.column(name)) for name in ("queueId", "queueOffset"))
    wanted, low, high = _in_queues(planned, topic.dictionary.to_pylist(), integers_of(topic.indices), queue)
    mask = wanted & (low <= offset) & (offset < high)
    mask = _with_values(query, whole, mask, query.start, FAR if query.end is None else query.end)
    rows = whole.select(list(query.columns or schema.MESSAGE.names))
    return rows if mask.all() else rows.filter(booleans(mask))


def _in_queues(
    planned: Plan, topics: Sequence[str], topic: npt.NDArray[Any], queue: npt.NDArray[Any]
) -> tuple[BOOL, I64, I64]:
    """For rows or runs of these topics (by number) and queues: which are asked for, from and to which queue offset."""
    query = planned.query
    wanted = np.full(len(topic), query.ranges is None, np.bool_)
    low, high = np.zeros(len(topic), np.int64), np.full(len(topic), FAR)
    for number, name in enumerate(topics):
        if name in planned.bounds:
            lows, highs = planned.bounds[name]
            mine = np.flatnonzero((topic == number) & (queue < len(lows)))
            wanted[mine], low[mine], high[mine] = True, lows[queue[mine]], highs[queue[mine]]
    if query.topics is not None:
        wanted &= np.isin(topic, [number for number, name in enumerate(topics) if name in query.topics])
    if query.queues is not None:
        wanted &= np.isin(queue, list(query.queues))
    return wanted, low, high


def _with_values(query: Query, batch: pa.RecordBatch, mask: BOOL, low: int, high: int) -> BOOL:
    """Which of the rows in `mask` match the query by what the given columns say, and lie in the log range [low, high).

    A condition on a column that the batch does not have was checked before.
    """
    names = batch.schema.names
    if "commitOffset" in names:
        commit = integers_of(batch.column("commitOffset"))
        mask &= (commit >= low) & (commit < high) & query.wants_any(commit, commit + 1)
    if "storeTimestamp" in names and (query.from_ms is not None or query.to_ms is not None):
        times = integers_of(batch.column("storeTimestamp"))
        mask &= (times >= (query.from_ms or 0)) & (times < (FAR if query.to_ms is None else query.to_ms))
    if query.keys:
        mask &= np.logical_or.reduce([_has_key(batch.column("keys"), key) for key in query.keys])
    if query.msg_id is not None:
        mask &= booleans_of(pc.equal(batch.column("msgId"), query.msg_id))
    if query.predicate is not None and mask.any():
        rows = batch.select(list(query.predicate_columns))
        mask[mask] = np.asarray(query.predicate(rows if mask.all() else rows.filter(booleans(mask))), np.bool_)
    return mask


def _read_source(
    files: LogFiles, broker: str, planned: Plan, source: Source, find_again: FindAgain
) -> Iterator[pa.RecordBatch]:
    """Read one source; if its file is gone, read the same rows from where they are now."""
    returned = 0
    place: Source | None = source
    while place is not None:
        skip = returned
        try:
            meta = files.meta(place.path, place.kind, place.fingerprint)
            if meta.doc.get("files"):
                for part in _parts(files.root, place, meta):
                    yield from _read_source(files, broker, planned, part, find_again)
                return
            for batch in _Reading(files, broker, planned, place, meta).batches():
                rows = batch.slice(skip)
                skip = max(0, skip - batch.num_rows)
                returned += rows.num_rows
                if rows.num_rows:
                    yield rows
        except NotFoundError as error:
            place = find_again(place, error)
        else:
            return


def _parts(root: str, source: Source, meta: FileMeta) -> Iterator[Source]:
    """The row files that a commit refers to, each as a range of its own."""
    first = run = 0
    for name, digest, rows, _, runs in meta.doc["files"]:
        place = source.first + first
        bases = meta.bases[run : run + runs]
        path = paths.data_file(root, name)
        yield Source(place, place + rows, path, "rows", fingerprint(digest), bases=bases, store_ms=meta.doc["ts"])
        first, run = first + rows, run + runs


class _Reading:
    """One file's part of a scan."""

    def __init__(self, files: LogFiles, broker: str, planned: Plan, source: Source, meta: FileMeta) -> None:
        self._broker = broker
        self._query = planned.query
        self._planned = planned
        self._stats = planned.stats
        self._meta = meta
        self._reader = FileReader(files.storage, meta)
        self._first_rows = meta.runs.first_rows()
        self._first = source.first
        self._bases = meta.bases if source.bases is None else source.bases
        self._store_ms = meta.doc["ts"] if source.bases is None else source.store_ms
        self._settled = source.kind == "segment"
        """Whether offsets and times are columns of the file."""
        self._low = max(planned.query.start, source.first)
        self._high = source.end if planned.query.end is None else min(planned.query.end, source.end)
        """The log range to be read; the file may hold more."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        if not self._may_match():
            return
        first, last = self._spans()
        if not len(first):
            return
        self._stats.files_read += 1
        yield from self._filtered(self._blocks(first, last), first, last)
        self._stats.bytes_read += self._reader.bytes_read

    def _may_match(self) -> bool:
        query, meta = self._query, self._meta
        if query.keys and not any(bloom.may_contain(meta.bloom, key) for key in query.keys):
            return False
        return query.msg_id is None or meta.doc["ids"][0] <= query.msg_id <= meta.doc["ids"][1]

    def _spans(self) -> tuple[I64, I64]:
        """Row ranges [low, high) that may match, one for each run that may, neighbours joined."""
        query, runs = self._query, self._meta.runs
        keep, low, high = _in_queues(self._planned, runs.topics, runs.topic, runs.queue)
        if query.tag_codes is not None:
            keep &= self._tagged(query.tag_codes)
        first = self._first_rows + np.clip(low - self._bases, 0, runs.rows)
        last = self._first_rows + np.clip(high - self._bases, 0, runs.rows)
        if not self._settled:  # there a log offset is a row number
            first, last = np.maximum(first, self._low - self._first), np.minimum(last, self._high - self._first)
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

    def _blocks(self, first: I64, last: I64) -> list[int]:
        query, starts = self._query, self._meta.block_rows
        wanted = blocks_with(self._meta, first, last)
        if self._settled:
            least, greatest, min_ms, max_ms = self._meta.block_bounds.T
            wanted &= may_hold(query, least, greatest + 1, min_ms, max_ms)
        else:
            wanted &= query.wants_any(self._first + starts[:-1], self._first + starts[1:])
        return np.flatnonzero(wanted).tolist()

    def _filtered(self, blocks: list[int], first: I64, last: I64) -> Iterator[pa.RecordBatch]:
        wanted = list(self._query.columns or schema.MESSAGE.names)
        deciding = self._deciding()
        # Who knows the rows by queue and log offset has them in one read: nearly every one that is looked at matches.
        first_read = (
            [*deciding, *wanted] if self._query.offsets is not None and self._planned.bounds else deciding or wanted
        )
        for low, high, batch in self._reader.read(blocks, self._stored(first_read)):
            rows = self._rows_of(low, high, first, last)
            self._stats.rows_read += len(rows)
            if deciding:
                decided = self._finish(low, batch, rows, deciding)
                mask = np.ones(len(rows), np.bool_)
                rows = rows[_with_values(self._query, decided, mask, self._low, self._high)]
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
        for low, high, more in self._reader.read(hit, rest):
            begin, end = int(starts[low]), int(starts[high])
            part = batch.slice(begin - int(starts[block]), end - begin)
            names = batch.schema.names + more.schema.names
            whole = pa.RecordBatch.from_arrays(part.columns + more.columns, names=names)
            yield self._finish(low, whole, rows[np.searchsorted(rows, begin) : np.searchsorted(rows, end)], wanted)

    def _deciding(self) -> list[str]:
        """Columns that decide which rows match."""
        query, doc = self._query, self._meta.doc
        names = list(query.predicate_columns)
        if query.keys:
            names.append("keys")
        if query.msg_id is not None:
            names.append("msgId")
        if self._settled and (query.from_ms is not None or query.to_ms is not None):
            names.append("storeTimestamp")
        if self._settled and (query.offsets is not None or self._low > doc["first"] or self._high < doc["end"]):
            names.append("commitOffset")
        return list(dict.fromkeys(names))

    def _rows_of(self, low_block: int, high_block: int, first: I64, last: I64) -> I64:
        """Row numbers (in the file) of these blocks that lie in the spans."""
        begin, end = self._meta.block_rows[low_block], self._meta.block_rows[high_block]
        low = int(np.searchsorted(last, begin, "right"))
        high = int(np.searchsorted(first, end, "left"))
        starts = np.maximum(first[low:high], begin)
        counts = np.minimum(last[low:high], end) - starts
        shift = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        rows: I64 = shift + np.arange(int(counts.sum()))
        if self._query.offsets is not None and not self._settled:
            rows = rows[self._query.wants_any(rows + self._first, rows + self._first + 1)]
        return rows

    def _stored(self, names: list[str]) -> list[str]:
        """Those of `names` that are columns of this file, each once; one at least, to know how many rows there are."""
        derived = {"brokerName"} if self._settled else _DERIVED
        return list(dict.fromkeys(name for name in names if name not in derived)) or ["queueId"]

    def _finish(self, block: int, batch: pa.RecordBatch, rows: I64, names: list[str]) -> pa.RecordBatch:
        """The given rows of a batch that begins with `block`, with the given columns, derived ones computed."""
        begin = int(self._meta.block_rows[block])
        count = len(rows)
        if count and count == rows[-1] - rows[0] + 1:
            batch = batch.slice(int(rows[0]) - begin, count)
        else:
            batch = batch.take(integers(rows - begin))
        stored = set(batch.schema.names)
        arrays = [batch.column(name) if name in stored else self._derive(name, rows) for name in names]
        return pa.RecordBatch.from_arrays(arrays, schema=_message_part(tuple(names)))

    def _derive(self, name: str, rows: I64) -> pa.Array:
        if name == "brokerName":
            return repeated(self._broker, len(rows))
        if name == "commitOffset":
            return integers(rows + self._first)
        if name == "storeTimestamp":
            return integers(np.full(len(rows), self._store_ms, np.int64)).cast(schema.TIMESTAMP)
        shift = self._bases - self._first_rows
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
