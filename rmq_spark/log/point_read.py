"""Reading single messages: from a place in the log to the message there, by one read of one block.

A scan decides from a file's metadata what to read, and reads that metadata each time: right for ranges, and too much
for one message. Here the metadata comes from the log's cache. In a commit a
log offset is a row number. A segment is sorted by queue, so there the queue offset says which row it is; whoever knows
only the log offset has it looked for in the blocks whose bounds allow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import integers, repeated
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.files import read_planned
from rmq_spark.log.scan_plan import Source, segment_source
from rmq_spark.log.tail_index import fingerprint
from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.view import LogView

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Places:
    """Where messages are; as many entries in each array."""

    commit: I64
    """Log offsets."""
    topic: tuple[str, ...] | None = None
    """Topics, queues and queue offsets, if they are known: then a segment needs no search."""
    queue: I64 | None = None
    offset: I64 | None = None

    def take(self, rows: I64) -> Places:
        """The given entries."""
        topic, queue, offset = self.topic, self.queue, self.offset
        return Places(
            self.commit[rows],
            None if topic is None else tuple(topic[row] for row in rows.tolist()),
            None if queue is None else queue[rows],
            None if offset is None else offset[rows],
        )


@dataclass(frozen=True, slots=True)
class _LogSnapshot:
    """Where the places are, as of one refresh."""

    sources: list[tuple[Source, I64]]
    """The files that hold the places, each with the numbers of those that it holds."""
    starts: dict[tuple[str, int], int]
    """First offset that is still held, of the queues that are known beforehand."""


class _File:
    """A file's metadata with what finding a row needs."""

    def __init__(self, meta: FileMeta) -> None:
        self.meta = meta
        self.first_rows = meta.runs.first_rows()
        self.bases = meta.bases if "base" in meta.doc else None
        """Queue offset of each run's first row; None for a row file, whose commit has them."""
        self.files: list[list[object]] = meta.doc.get("files", [])

    def run_of(self, topic: str, queue: int) -> int | None:
        """Number of a queue's run."""
        runs = self.meta.runs
        if topic not in runs.topics:
            return None
        mine = np.flatnonzero((runs.topic == runs.topics.index(topic)) & (runs.queue == queue))
        return int(mine[0]) if len(mine) else None


class PointReader:
    """Reads single messages of one log. Safe to use from any thread."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.bytes_read = 0
        """Bytes fetched so far, metadata included."""

    def fetch(self, places: Places, columns: tuple[str, ...] = tuple(schema.MESSAGE.names)) -> pa.RecordBatch:
        """The messages at `places`, in their order, with the given columns of `schema.MESSAGE`.

        Messages that are not held any more (expired, or of a deleted topic) are left out, and so are places beyond
        the log's end.

        Raises:
            CorruptDataError: a file is damaged or missing.
        """
        needed = tuple(dict.fromkeys((*columns, "topic", "queueId", "queueOffset", "commitOffset")))
        order = np.argsort(places.commit, kind="stable")
        ordered = places.take(order)

        def read(seen: _LogSnapshot) -> tuple[_LogSnapshot, list[tuple[pa.RecordBatch, I64, I64]]]:
            return seen, [(*self._read(source, ordered.take(at), needed), at) for source, at in seen.sources]

        seen, parts = read_planned(self._log, lambda view: _locate(view, ordered), read)
        if not parts:
            return _empty(columns)
        if len(parts) == 1 and len(parts[0][1]) == 1:
            whole = parts[0][0]
        else:
            table = pa.Table.from_batches([batch for batch, _, _ in parts]).combine_chunks()
            places_of = order[np.concatenate([at[found] for _, found, at in parts])]
            [whole] = table.to_batches() or [_empty(needed)]
            whole = _in_order(whole, places_of)
        return self._visible(whole, seen.starts).select(list(columns))

    def offset_before(self, source: Source, ms: int) -> int:
        """A log offset that no message of a segment stored before `ms` reaches; near the first that does not fit.

        Raises:
            NotFoundError: the file is gone: look again where the range is.
            CorruptDataError: it is damaged.
        """
        bounds = self._file(source).meta.block_bounds
        early = bounds[bounds[:, 2] < ms]
        return int(early[:, 1].max()) + 1 if len(early) else source.first

    def _read(self, source: Source, places: Places, columns: tuple[str, ...]) -> tuple[pa.RecordBatch, I64]:
        """Rows of one file, and which of the places they are of."""
        file = self._file(source)
        if file.files:
            return self._read_parts(source, file, places, columns)
        if source.kind == "segment":
            rows, found = self._segment_rows(file, places)
        else:
            rows, found = places.commit - source.first, np.arange(len(places.commit))
        reading = _Reading(self._log.broker, file, source.first, file.bases, file.meta.doc["ts"])
        batch = self._take(reading, rows, columns)
        if not np.array_equal(batch.column("commitOffset").to_numpy(zero_copy_only=False), places.commit[found]):
            raise file.meta.corrupt("messages are not at the log offsets that were said", offset=int(places.commit[0]))
        return batch, found

    def _read_parts(
        self, source: Source, file: _File, places: Places, columns: tuple[str, ...]
    ) -> tuple[pa.RecordBatch, I64]:
        """As `_read`, of a commit that refers to row files."""
        counts = np.array([int(str(entry[2])) for entry in file.files], np.int64)
        firsts = source.first + np.cumsum(counts) - counts
        run_counts = np.array([int(str(entry[4])) for entry in file.files], np.int64)
        run_firsts = np.cumsum(run_counts) - run_counts
        batches, found = [], []
        numbers = np.searchsorted(firsts, places.commit, "right") - 1
        for number, at in _groups(numbers, np.arange(len(places.commit))):
            entry = file.files[number]
            part = self._row_file(str(entry[0]), str(entry[1]))
            low = int(run_firsts[number])
            bases = None if file.bases is None else file.bases[low : low + int(run_counts[number])]
            reading = _Reading(self._log.broker, part, int(firsts[number]), bases, file.meta.doc["ts"])
            batches.append(self._take(reading, places.commit[at] - firsts[number], columns))
            found.append(at)
        [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return whole, np.concatenate(found)

    def _segment_rows(self, file: _File, places: Places) -> tuple[I64, I64]:
        """Row numbers in a segment, and which of the places they are of."""
        if places.topic is None or places.queue is None or places.offset is None or file.bases is None:
            return self._search(file, places.commit)
        rows = np.empty(len(places.commit), np.int64)
        entries = zip(places.topic, places.queue.tolist(), places.offset.tolist(), strict=True)
        for at, (topic, queue, offset) in enumerate(entries):
            run = file.run_of(topic, queue)
            place = -1 if run is None else offset - int(file.bases[run])
            if run is None or not 0 <= place < int(file.meta.runs.rows[run]):
                raise file.meta.corrupt("a message is not where it was said to be", topic=topic, queue=queue, at=offset)
            rows[at] = file.first_rows[run] + place
        return rows, np.arange(len(rows))

    def _search(self, file: _File, offsets: I64) -> tuple[I64, I64]:
        bounds, starts = file.meta.block_bounds, file.meta.block_rows
        low, high = int(offsets.min()), int(offsets.max())
        blocks = np.flatnonzero((bounds[:, 1] >= low) & (bounds[:, 0] <= high))
        some = [block for block in blocks.tolist() if _overlaps(offsets, bounds[block])]
        rows, found = [], []
        reader = FileReader(self._log.storage, file.meta)
        for block, batch in reader.read_blocks(some, ["commitOffset"]):
            held = batch.column(0).to_numpy(zero_copy_only=False)
            here = np.flatnonzero(np.isin(held, offsets))
            rows.append(starts[block] + here)
            found.append(np.searchsorted(offsets, held[here]))
        self.bytes_read += reader.bytes_read
        return np.concatenate([np.empty(0, np.int64), *rows]), np.concatenate([np.empty(0, np.int64), *found])

    def _take(self, reading: _Reading, rows: I64, columns: tuple[str, ...]) -> pa.RecordBatch:
        """The given rows, in their order."""
        meta = reading.file.meta
        blocks = np.searchsorted(meta.block_rows, rows, "right") - 1
        wanted = sorted(set(blocks.tolist()))
        reader = FileReader(self._log.storage, meta)
        settled = meta.kind == "segment"
        stored = [name for name in columns if name != "brokerName" and (settled or name not in _DERIVED)]
        batches, numbers = [], []
        for block, batch in reader.read_blocks(wanted, stored):
            at = np.flatnonzero(blocks == block)
            inside = rows[at] - meta.block_rows[block]
            chosen = batch.slice(int(inside[0]), 1) if len(at) == 1 else batch.take(pa.array(inside))
            batches.append(reading.finish(chosen, rows[at], columns))
            numbers.append(at)
        self.bytes_read += reader.bytes_read
        if len(batches) == 1:
            return batches[0]
        [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
        return _in_order(whole, np.concatenate(numbers))

    def _visible(self, messages: pa.RecordBatch, starts: dict[tuple[str, int], int]) -> pa.RecordBatch:
        """Those that their queues still hold: a deleted topic's messages stay in their files for a while."""
        topics, queues, offsets = (messages.column(name).to_pylist() for name in ("topic", "queueId", "queueOffset"))
        places = list(zip(topics, queues, strict=True))
        if not starts.keys() >= set(places):

            def bounds(view: LogView) -> dict[tuple[str, int], int]:
                return {place: view.state.queues.bounds(*place)[0] for place in dict.fromkeys(places)}

            starts = self._log.look(bounds)
        keep = [offset >= starts[place] for place, offset in zip(places, offsets, strict=True)]
        return messages if all(keep) else messages.filter(pa.array(keep))

    def _file(self, source: Source) -> _File:
        known = self._log.files.has(source.path, source.fingerprint)
        meta = self._log.files.meta(source.path, source.kind, source.fingerprint)
        self.bytes_read += 0 if known else meta.size - meta.data_end
        return _File(meta)

    def _row_file(self, name: str, digest: str) -> _File:
        known = self._log.files.has(paths.data_file(self._log.root, name), fingerprint(digest))
        meta = self._log.files.row_file(name, digest)
        self.bytes_read += 0 if known else meta.size - meta.data_end
        return _File(meta)


_DERIVED: Final = frozenset({"commitOffset", "queueOffset", "storeTimestamp"})
"""Columns that commits and row files do not store."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What turns rows of a file into messages."""

    broker: str
    file: _File
    first: int
    """Log offset of the file's first row (of a segment: not used)."""
    bases: I64 | None
    store_ms: int

    def finish(self, batch: pa.RecordBatch, rows: I64, columns: tuple[str, ...]) -> pa.RecordBatch:
        """The rows with the given columns; those that the file does not store are worked out."""
        arrays = [batch.column(name) if name in batch.schema.names else self._derive(name, rows) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([schema.MESSAGE.field(name) for name in columns]))

    def _derive(self, name: str, rows: I64) -> pa.Array:
        if name == "brokerName":
            return repeated(self.broker, len(rows))
        if name == "commitOffset":
            return integers(rows + self.first)
        if name == "storeTimestamp":
            return integers(np.full(len(rows), self.store_ms, np.int64)).cast(schema.TIMESTAMP)
        if self.bases is None:
            raise self.file.meta.corrupt("the file's queue offsets are not known")
        runs = np.searchsorted(self.file.first_rows, rows, "right") - 1
        return integers(rows + (self.bases - self.file.first_rows)[runs])


def _locate(view: LogView, places: Places) -> _LogSnapshot:
    """The files that hold the places now, each with the numbers of those that it holds."""
    offsets, mark, state = places.commit, view.mark, view.state
    held = np.flatnonzero((offsets >= mark.log_start) & (offsets < state.offset))
    rolled = held[offsets[held] < mark.floor]
    sources = []
    if len(rolled):
        ends = np.array([segment.end for segment in mark.segments], np.int64)
        for number, at in _groups(np.searchsorted(ends, offsets[rolled], "right"), rolled):
            segment = mark.segments[number]
            sources.append((segment_source(view.root, segment, segment.first, segment.end), at))
    fresh = held[offsets[held] >= mark.floor]
    if len(fresh):
        commits = state.commits
        # A view on the array must not outlive the look: the array could not grow meanwhile.
        firsts = np.frombuffer(commits.firsts, np.int64)
        numbers = np.searchsorted(firsts, offsets[fresh], "right") - 1
        del firsts
        for number, at in _groups(numbers, fresh):
            first = commits.firsts[number]
            source = Source(first, first, paths.commit(view.root, first), "commit", commits.fingerprints[number])
            sources.append((source, at))
    queues = zip(places.topic or (), () if places.queue is None else places.queue.tolist(), strict=False)
    starts = {queue: state.queues.bounds(*queue)[0] for queue in queues}
    return _LogSnapshot(sources, starts)


def _groups(numbers: I64, rows: I64) -> list[tuple[int, I64]]:
    """Rows by the number that they have; numbers rise or are few."""
    if len(numbers) == 1:
        return [(int(numbers[0]), rows)]
    return [(number, rows[numbers == number]) for number in np.unique(numbers).tolist()]


def _in_order(batch: pa.RecordBatch, numbers: I64) -> pa.RecordBatch:
    """The rows by the number that each has; whoever asks for rising places gets them without a copy."""
    if (numbers[1:] >= numbers[:-1]).all():
        return batch
    return batch.take(pa.array(np.argsort(numbers, kind="stable")))


def _overlaps(offsets: I64, bound: I64) -> bool:
    """Whether one of the offsets, which rise, lies within a block's bounds."""
    at = int(np.searchsorted(offsets, int(bound[0])))
    return at < len(offsets) and int(offsets[at]) <= int(bound[1])


def _empty(columns: tuple[str, ...]) -> pa.RecordBatch:
    kinds = pa.schema([schema.MESSAGE.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in kinds], schema=kinds)
