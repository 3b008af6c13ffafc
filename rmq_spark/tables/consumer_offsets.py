"""From offset commits to rows of `consumer_offsets`: how far each group was behind whenever it said how far it is.

A row is made for each queue of each offset commit. `maxOffset` is where the queue ended at that place of the log, and
`lagMs` how long the first message that was not consumed had waited then, so a row depends on the log before it and on
nothing else: not on when the row was made, nor on how the log was cut into ranges.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import CorruptDataError, DataExpiredError
from rmq_spark.log.queues import Queues
from rmq_spark.log.run_table import RunIndex
from rmq_spark.log.scan import Query
from rmq_spark.log.time_search import Queue, TimeSearch
from rmq_spark.rules.offsets import MAX_OFFSET, MAX_QUEUE, ConsumerOffsets, check_form
from rmq_spark.tables.kernel import read_range
from rmq_spark.tables.schemas import CONSUMER_OFFSETS, TIMESTAMP

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

RECORD_TOPICS: Final = frozenset(ConsumerOffsets.topics)
RECORD_COLUMNS: Final = ("commitOffset", "storeTimestamp", "body")
"""Message columns that `offset_commits` looks at."""

OFFSET_COMMITS: Final = pa.schema(
    [
        pa.field("group", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("committedOffset", pa.int64()),
        pa.field("commitOffset", pa.int64()),
        pa.field("updatedAt", TIMESTAMP),
    ]
)
"""What `offset_commits` returns."""

_FIRST_WINDOW: Final = 100_000
_UNKNOWN: Final = -1


def offset_commits(batch: pa.RecordBatch) -> pa.RecordBatch:
    """State messages of the offsets' topic as one row for each queue; a deleted group is a row without a topic.

    Raises:
        CorruptDataError: a body is not what the log's own fold can read.
    """
    rows: list[tuple[str, str | None, int | None, int | None, int, int]] = []
    places = batch.column("commitOffset").to_pylist()
    times = batch.column("storeTimestamp").cast(pa.int64()).to_pylist()
    for body, place, store_ms in zip(batch.column("body").to_pylist(), places, times, strict=True):
        try:
            value = json.loads(body)
            check_form(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptDataError("an offset commit cannot be read", offset=place, reason=str(error)) from error
        if value.get("deleted"):
            rows.append((value["group"], None, None, None, place, store_ms * 1000))
            continue
        # Older versions let any numbers in, and one that a column cannot hold must not stop the table for ever. An
        # offset gets the nearest that there is, which leaves the lag right; queues with such ids never had messages.
        rows += [
            (value["group"], value["topic"], int(queue), min(max(offset, 0), MAX_OFFSET), place, store_ms * 1000)
            for queue, offset in value["offsets"].items()
            if int(queue) <= MAX_QUEUE
        ]
    columns = list(zip(*rows, strict=True)) or [()] * len(OFFSET_COMMITS)
    arrays = [
        pa.array(column, pa.int64()).cast(TIMESTAMP) if field.type == TIMESTAMP else pa.array(column, field.type)
        for column, field in zip(columns, OFFSET_COMMITS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=OFFSET_COMMITS)


def consumer_offset_rows(commits: pa.RecordBatch, broker: str, ends: I64, waiting_since: I64) -> pa.RecordBatch:
    """Rows of `consumer_offsets`.

    Args:
        commits: as `offset_commits` returns them.
        broker: whose log they are in.
        ends: per row, the queue's exclusive end at that place.
        waiting_since: per row, storeTimestamp (ms) of the message at the committed offset; -1 when unknown.
    """
    gone = commits.column("topic").is_null()
    committed = commits.column("committedOffset").fill_null(0).to_numpy()
    lag = np.maximum(ends - committed, 0)
    at = commits.column("updatedAt").cast(pa.int64()).to_numpy() // 1000
    lag_ms = np.where(lag == 0, 0, np.maximum(at - waiting_since, 0))
    missing = gone.to_numpy(zero_copy_only=False)
    columns = {
        "brokerName": pa.repeat(broker, commits.num_rows),
        "maxOffset": pa.array(ends, mask=missing),
        "lag": pa.array(lag, mask=missing),
        "lagMs": pa.array(lag_ms, mask=missing | ((waiting_since == _UNKNOWN) & (lag > 0))),
    }
    arrays = [columns[name] if name in columns else commits.column(name) for name in CONSUMER_OFFSETS.names]
    return pa.RecordBatch.from_arrays(arrays, schema=CONSUMER_OFFSETS)


class OffsetHistory:
    """Makes rows of `consumer_offsets` from ranges of one log; remembers metadata that it has read."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._runs = RunIndex(log)
        self._times = TimeSearch(log)

    def rows(self, start: int, end: int) -> pa.Table:
        """The rows of the log range [start, end).

        Raises:
            DataExpiredError: retention deleted a part of it meanwhile.
            CorruptDataError: a file or a record is damaged.
        """
        # A scan gives a batch for each commit of the log, and `_facts` reads the range: so once for all of them.
        all_commits = pa.Table.from_batches(self._commits(start, end), OFFSET_COMMITS).combine_chunks()
        parts = [
            consumer_offset_rows(commits, self._log.broker, *self._facts(commits, start, end))
            for commits in all_commits.to_batches()
        ]
        return pa.Table.from_batches(parts, CONSUMER_OFFSETS)

    def _commits(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for batch in read_range(self._log, start, end, topics=RECORD_TOPICS, columns=RECORD_COLUMNS):
            commits = offset_commits(batch)
            if commits.num_rows:
                yield commits

    def _facts(self, commits: pa.RecordBatch, start: int, end: int) -> tuple[I64, I64]:
        """Per row: the queue's end at that place, and when the message at the committed offset was stored (-1)."""
        topics = commits.column("topic")
        places = commits.column("commitOffset").to_numpy()
        committed = commits.column("committedOffset").fill_null(0).to_numpy()
        ends = np.zeros(commits.num_rows, np.int64)
        since = np.full(commits.num_rows, _UNKNOWN, np.int64)
        wanted: dict[Queue, list[int]] = {}
        for row, (topic, queue) in enumerate(
            zip(topics.to_pylist(), commits.column("queueId").to_pylist(), strict=True)
        ):
            if topic is not None:
                wanted.setdefault((topic, queue), []).append(row)
        held = _QueueRows.read(self._log, start, end, frozenset(topic for topic, _ in wanted))
        idle = []
        for queue, numbers in wanted.items():
            rows = np.array(numbers)
            if queue in held.queues:
                ends[rows] = held.ends_at(queue, places[rows])
                since[rows] = held.times_at(queue, committed[rows])
            else:
                idle.append(queue)
        for queue, offset in self._ends_before(idle, start).items():
            ends[wanted[queue]] = offset
        self._fill_older(wanted, committed, ends, since)
        return ends, since

    def _fill_older(self, wanted: dict[Queue, list[int]], committed: I64, ends: I64, since: I64) -> None:
        """Look up when messages before the range were stored; the same one only once."""
        for queue, rows in wanted.items():
            known: dict[int, int] = {}
            for row in rows:
                offset = int(committed[row])
                if since[row] != _UNKNOWN or offset >= ends[row]:
                    continue
                if offset not in known:
                    # By the log's own start: whether the topic was deleted since must not make a difference.
                    stored_ms = self._times.stored_at(queue, offset)
                    known[offset] = _UNKNOWN if stored_ms is None else stored_ms
                since[row] = known[offset]

    def _ends_before(self, queues: list[Queue], position: int) -> dict[Queue, int]:
        """Where queues ended before a log offset: the end of their last run before it.

        Raises:
            DataExpiredError: retention went past that offset meanwhile.
        """
        left = set(queues)
        ends_by_queue: dict[Queue, int] = {}
        mark = self._log.look(lambda view: view.mark)
        high, window = position, _FIRST_WINDOW
        while left and high > mark.log_start:
            low = max(mark.log_start, high - window)
            table = self._runs.list_runs(Query(start=low, end=high), _Among(left).select)
            ends = table.base + table.rows
            for topic, queue, offset in zip(table.topic.tolist(), table.queue.tolist(), ends.tolist(), strict=True):
                place = (table.topics[topic], queue)
                ends_by_queue[place] = max(offset, ends_by_queue.get(place, 0))
            left -= ends_by_queue.keys()
            high, window = low, window * 2
        if left:
            # Retention may have deleted a queue's last run since the first look: the newest mark knows of it, and any
            # run behind that mark's start would have been found.
            mark = self._log.look(lambda view: view.mark)
            if mark.log_start > position:
                raise DataExpiredError("the range was deleted meanwhile", position=position, log_start=mark.log_start)
            older = Queues.load(mark.starts)
            ends_by_queue.update({queue: older.bounds(*queue)[1] for queue in left})
        return ends_by_queue


class _QueueRows:
    """Offsets and times of some topics' messages in a log range, by queue."""

    def __init__(self) -> None:
        self.queues: dict[Queue, tuple[I64, I64, I64]] = {}
        """Log offsets, queue offsets and store times, ascending."""

    @classmethod
    def read(cls, log: CommitLog, start: int, end: int, topics: frozenset[str]) -> _QueueRows:
        self = cls()
        if not topics:
            return self
        names = ("topic", "queueId", "commitOffset", "queueOffset", "storeTimestamp")
        batches = list(read_range(log, start, end, topics=topics, columns=names))
        if not batches:
            return self
        table = pa.Table.from_batches(batches)
        topic = table["topic"].combine_chunks().dictionary_encode()
        if isinstance(topic, pa.ChunkedArray):
            topic = topic.unify_dictionaries().combine_chunks()
        codes = topic.indices.to_numpy()
        queue, place, offset = (table[name].to_numpy() for name in names[1:4])
        store_ms = pc.cast(table["storeTimestamp"], pa.int64()).to_numpy()
        order = np.lexsort((place, queue, codes))
        codes, queue = codes[order], queue[order]
        edges = np.flatnonzero((codes[1:] != codes[:-1]) | (queue[1:] != queue[:-1])) + 1
        texts = topic.dictionary.to_pylist()
        for rows in np.split(order, edges):
            key = (texts[topic.indices[int(rows[0])].as_py()], int(table["queueId"][int(rows[0])].as_py()))
            self.queues[key] = (place[rows], offset[rows], store_ms[rows])
        return self

    def ends_at(self, queue: Queue, positions: I64) -> I64:
        """The queue's exclusive end before each log offset; as offsets are dense, the first row tells where it was."""
        places, offsets, _ = self.queues[queue]
        ends: I64 = offsets[0] + np.searchsorted(places, positions)
        return ends

    def times_at(self, queue: Queue, offsets: I64) -> I64:
        """When the messages at queue offsets were stored; -1 for those outside."""
        _, held, times = self.queues[queue]
        at = offsets - held[0]
        inside = (at >= 0) & (at < len(held))
        stored_ms: I64 = np.where(inside, times[np.clip(at, 0, len(held) - 1)], _UNKNOWN)
        return stored_ms


class _Among:
    """Selects the queues it was created with."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self._ids: dict[str, list[int]] = {}
        for topic, queue in queues:
            self._ids.setdefault(topic, []).append(queue)

    def select(self, topic: str, queues: I64) -> BOOL:
        return np.isin(queues, self._ids.get(topic, []))
