"""The batch side of the source: plan once when Spark asks for partitions, then tasks read.

The plan is frozen when the DataFrame is first planned: reading it twice gives the same messages, loading it again sees
new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq_spark.errors import RmqError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.run_table import RunIndex
from rmq_spark.log.scan import Query
from rmq_spark.spark.bounds import ByTimestamp
from rmq_spark.spark.open_stores import forget_store, kept_store
from rmq_spark.spark.options import ReadOptions
from rmq_spark.spark.read_plan import Task, make_tasks, queue_ranges
from rmq_spark.spark.resolve import folds_for, queue_bounds, settle_group
from rmq_spark.spark.schema import shape_of
from rmq_spark.spark.subscription import Subscription, check_bounds, check_topics
from rmq_spark.spark.task_reader import read_task, reads_little

_log = logging.getLogger(__name__)


class TaskPartition(InputPartition):
    """One task of a read."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.task = task


class RocketMQBatchReader(DataSourceReader):
    """Reads a fixed range of messages. Defines no `pushFilters`: that hook of Spark 4.2 mixes up DataFrames."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._shape = shape_of(schema, decompress=options.decompress)
        self._from_ms = options.starting.ms if isinstance(options.starting, ByTimestamp) else None
        self._to_ms = options.ending.ms if isinstance(options.ending, ByTimestamp) else None

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        try:
            store = kept_store(options.store, options.storage_options, read_only=True)
            check_topics(store, options)
            check_bounds(store, options)
            options = settle_group(store, options)
            folds = folds_for(options)
            tasks = [task for broker in store.brokers() for task in self._plan(options, store.log(broker, *folds))]
        except RmqError:
            forget_store(self._options.store, self._options.storage_options)
            raise
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskPartition):
            return iter(())  # Spark's stand-in when there is nothing to read
        return read_task(self._options, self._shape, partition.task, self._from_ms, self._to_ms)

    def _plan(self, options: ReadOptions, log: CommitLog) -> list[Task]:
        log.refresh()  # the handle may be an earlier plan's
        subscription = Subscription(options, log.broker)
        while True:
            bounds = queue_bounds(log, options, subscription)
            floor = log.view.mark.log_start
            query = Query(end=log.view.state.offset, from_ms=self._from_ms, to_ms=self._to_ms)
            table = RunIndex(log).list_runs(query, subscription.select)
            if log.view.mark.log_start == floor:
                break  # else retention moved on meanwhile: what is asked for may be gone
        ranges = queue_ranges(table, bounds, log.view.state.queues.starts())
        tasks = make_tasks(
            log.broker,
            table,
            ranges,
            tasks_min=options.min_partitions,
            rows_max=options.max_records_per_partition,
            light=reads_little(options, self._shape),
        )
        _log.info(
            "%s: %d messages in %d queues and %d files; %d tasks",
            log.broker,
            sum(part.rows for part in ranges),
            len(ranges),
            len(table.sources),
            len(tasks),
        )
        return tasks
