"""The stream side of the source: start, how far the next batch goes, its tasks, and the group's progress.

Spark keeps one Python process for these calls as long as the query runs, so handles and run indexes are kept. A reader
is also pickled into every task, where only `read` is called: it opens nothing before it is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rmq_spark.client.store import Store
from rmq_spark.clock import SystemClock
from rmq_spark.errors import InvalidRequestError, RmqError
from rmq_spark.spark.batch_reader import TaskPartition
from rmq_spark.spark.log_cursor import LogCursor
from rmq_spark.spark.options import ReadOptions, parse_read
from rmq_spark.spark.read_plan import Task
from rmq_spark.spark.resolve import folds_for, settle_group
from rmq_spark.spark.schema import Shape, shape_of
from rmq_spark.spark.start_file import StartFiles
from rmq_spark.spark.stream_offset import Position, StreamOffset, subscription_json
from rmq_spark.spark.stream_start import resolve_start
from rmq_spark.spark.subscription import check_bounds, check_topics
from rmq_spark.spark.task_reader import read_task, reads_little

if TYPE_CHECKING:
    from rmq_spark.spark.group_progress import GroupProgress

_log = logging.getLogger(__name__)

_BEGINNING: Final = Position(0, 0)


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a subscription batch by batch; see `stream_offset` for what an offset is."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        # Nothing is checked here: when a constructor raises, Spark 4.2 reports an UnboundLocalError of its own instead.
        self._raw_options = dict(options)
        self._schema = schema
        self._planner: _Planner | None = None

    @cached_property
    def _options(self) -> ReadOptions:
        return parse_read(self._raw_options, streaming=True)

    @cached_property
    def _shape(self) -> Shape:
        return shape_of(self._schema, decompress=self._options.decompress)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}  # open handles stay on the driver

    @property
    def _plan(self) -> _Planner:
        if self._planner is None:
            options, shape = self._options, self._shape
            self._planner = _Planner(options, light=reads_little(options, shape))
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        return self._plan.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.cap()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # Trigger.Once asks for everything; the options' limits count for every other trigger.
        limited = not isinstance(limit, ReadAllAvailable)
        return self._plan.latest(StreamOffset.from_json(start), limited=limited).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._plan.report().to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = self._plan.tasks(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskPartition):
            return iter(())
        return read_task(self._options, self._shape, partition.task, None, None)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.consumer_group is not None:
            self._plan.commit(StreamOffset.from_json(end))

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


class _Planner:
    """The driver's side of a stream: open handles, and what was found out about the logs."""

    def __init__(self, options: ReadOptions, *, light: bool) -> None:
        self._options = options
        self._light = light
        self._clock = SystemClock()
        self._store = Store.open(
            options.store,
            options=options.storage_options,
            read_only=options.consumer_group is None,
            services="off",
        )
        self._subscription = subscription_json(options)
        self._store_id = str(self._store.info.get("nonce", ""))[:8]
        self._cursors: dict[str, LogCursor] = {}
        self._initial: StreamOffset | None = None
        self._ends: dict[str, Position] | None = None
        """With Trigger.AvailableNow: where the query ends."""
        self._waiting_since = self._clock.elapsed_ns()
        self._starts = StartFiles(self._store.storage)
        self._progress = _progress(self._store, options.consumer_group)
        self._has_begun = False
        """Whether this run of the query has looked for new messages yet."""

    def close(self) -> None:
        self._store.close()

    def cursors(self) -> dict[str, LogCursor]:
        """A cursor for each broker there is now; brokers may be added while the query runs."""
        for broker in self._store.brokers():
            if broker not in self._cursors:
                self._cursors[broker] = LogCursor(
                    self._store.log(broker, *folds_for(self._options)), self._options, light=self._light
                )
        return self._cursors

    def initial(self) -> StreamOffset:
        """Where a new query starts; found out once, however often Spark asks."""
        if self._initial is None:
            check_topics(self._store, self._options)
            check_bounds(self._store, self._options)
            options = settle_group(self._store, self._options)
            positions, starts = resolve_start(self._store, options, self.cursors())
            self._initial = self._offset(positions, is_new=True, starts=starts)
        return self._initial

    def cap(self) -> None:
        """Remember the logs' ends: this query reads no further."""
        self._ends = {broker: cursor.end() for broker, cursor in self.cursors().items()}

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset:
        """The end of the next batch; `start` itself when there is nothing to read (or too little to bother)."""
        ends = self._ends or {broker: cursor.end() for broker, cursor in self.cursors().items()}
        begin = self._counted(start, ends)
        if not self._has_begun:
            self._has_begun = True
            if start.subscription != self._subscription:
                check_topics(self._store, self._options)
            if not start.is_new:
                # A driver that died after its last batch may not have noted it; Spark tells only with the next one.
                self.commit(start)
        backlog = {broker: _backlog(broker, begin.position(broker), end) for broker, end in ends.items()}
        total = sum(backlog.values())
        if start.is_new and not total:
            # A batch without rows, but with a record of where the query started: from now on a restart knows it.
            return start.started()
        if not total or (self._ends is None and not start.is_new and self._waits(total)):
            for broker in (broker for broker, more in backlog.items() if not more):
                self._cursors[broker].note_idle(start.position(broker), ends[broker])
            return start
        positions = dict(begin.brokers)
        for broker, end in ends.items():
            if backlog[broker]:
                share = self._share(backlog[broker], total) if limited else (None, None)
                positions[broker] = self._cursors[broker].advance(begin.position(broker), end, *share)
        self._waiting_since = self._clock.elapsed_ns()
        if start.is_new:
            # The first batch's end keeps all that the start was: a restart finds both here.
            return replace(self._offset(positions, starts=start.starts), origin=start.brokers)
        return self._offset(positions, starts=None if self._is_settled(start.starts, positions) else start.starts)

    def report(self) -> StreamOffset:
        """The logs' ends, for Spark's progress reports."""
        return self._offset({broker: cursor.end() for broker, cursor in self.cursors().items()})

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[Task]:
        """The tasks of one batch. The same however often it is asked, as the messages between two positions are."""
        self._check_store(end)
        begin, counted = start.brokers, start.subscription
        if start.is_new and end.origin is not None:
            # After a crash in batch 0 Spark asks for the start again; the batch's end tells where it really was.
            begin, counted = end.origin, end.subscription
        same = counted == self._subscription
        wanted = {broker: _between(begin.get(broker, _BEGINNING), place, same) for broker, place in end.brokers.items()}
        total = max(1, sum(wanted.values()))
        tasks: list[Task] = []
        least = self._options.min_partitions
        starts = self._starts.read(end.starts if start.is_new else start.starts)
        ends: dict[tuple[str, str, int], int] = {}
        for broker, position in end.brokers.items():
            first = begin.get(broker, _BEGINNING)
            if position.offset <= first.offset:
                continue
            some, touched = self.cursors()[broker].plan(
                first,
                position,
                starts.of(broker),
                same_subscription=same,
                tasks_min=None if least is None else max(1, -(-least * wanted[broker] // total)),
            )
            tasks += some
            ends.update({(topic, broker, queue): offset for (topic, queue), offset in touched.items()})
        if self._progress is not None:
            self._progress.planned(end, ends)
        return tasks

    def commit(self, end: StreamOffset) -> None:
        """Note the group's progress; the checkpoint is the truth, so a failure here only makes the lag look larger."""
        if self._progress is None:
            return
        try:
            self._progress.commit(end, self.cursors(), self._starts.read(end.starts))
        except RmqError as error:
            _log.warning("the group's progress could not be noted: %s", error)

    def _offset(
        self, positions: Mapping[str, Position], *, is_new: bool = False, starts: str | None = None
    ) -> StreamOffset:
        group = self._options.consumer_group
        return StreamOffset(
            positions,
            self._subscription,
            is_new=is_new,
            starts=starts,
            store=self._options.store if group is not None else None,
            group=group,
            store_id=self._store_id,
        )

    def _check_store(self, offset: StreamOffset) -> None:
        if offset.store_id != self._store_id:
            raise InvalidRequestError(
                "the checkpoint belongs to another store; give the query its own, or a new checkpoint",
                store=self._options.store,
                expected=offset.store_id,
                actual=self._store_id,
            )

    def _counted(self, start: StreamOffset, ends: Mapping[str, Position]) -> StreamOffset:
        """The start of a batch, checked, with the messages of this subscription before it.

        Raises:
            InvalidRequestError: it belongs to another store, or to a part of the log that is not there.
        """
        self._check_store(start)
        for broker, position in start.brokers.items():
            end = ends[broker].offset if broker in ends else 0
            if position.offset > end and broker in self._cursors:
                end = self._cursors[broker].end().offset  # AvailableNow may have fixed its end before the start
            if position.offset > end:
                raise InvalidRequestError(
                    "the checkpoint is ahead of the log: messages that were read are not there any more; give the "
                    "query a new checkpoint",
                    broker=broker,
                    position=position.offset,
                    end=end,
                )
            if broker in self._cursors:
                self._cursors[broker].check_same_log(position)
        if start.subscription == self._subscription:
            return start
        # Other topics than before: they are read from the same place on, but their messages were not counted.
        return replace(start, brokers={b: self._cursors[b].at(p.offset) for b, p in start.brokers.items()})

    def _waits(self, available: int) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None or available >= least:
            return False
        waited = (self._clock.elapsed_ns() - self._waiting_since) // 1_000_000
        return waited < self._options.max_trigger_delay_ms

    def _share(self, backlog: int, total: int) -> tuple[int | None, int | None]:
        """A broker's part of the limits, by its part of the backlog."""
        rows, size = self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        return (
            None if rows is None else max(1, rows * backlog // total),
            None if size is None else max(1, size * backlog // total),
        )

    def _is_settled(self, name: str | None, positions: Mapping[str, Position]) -> bool:
        settled = self._starts.read(name).settled
        return all(positions.get(broker, _BEGINNING).offset >= offset for broker, offset in settled.items())


def _between(start: Position, end: Position, same_subscription: bool) -> int:
    """How much lies between: messages of the subscription or, if they were counted for another one, of any."""
    return end.seen - start.seen if same_subscription else end.offset - start.offset


def _backlog(broker: str, start: Position, end: Position) -> int:
    """Messages to read.

    Raises:
        InvalidRequestError: there are fewer than were read: whatever the reason, going on would skip new ones.
    """
    if end.offset < start.offset:
        return 0  # AvailableNow fixed its end before
    if end.seen < start.seen:
        raise InvalidRequestError(
            "the checkpoint counts more messages than there are: it is of another log; give the query a new checkpoint",
            broker=broker,
            counted=start.seen,
            actual=end.seen,
        )
    return end.seen - start.seen


def _progress(store: Store, group: str | None) -> GroupProgress | None:
    if group is None:
        return None
    from rmq_spark.spark.group_progress import GroupProgress  # not every stream has a group

    return GroupProgress(store, group)
