"""The sink: tasks write row files, the driver lands them in one commit.

Spark makes a new writer for every batch of a stream, and another one to commit it: what tasks learn on the driver
travels with the pickled writer, and what the commit needs travels in the tasks' messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmq_spark.clock import Clock, SystemClock
from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.rows import RowFile, write_row_file
from rmq_spark.model.settings import LogSettings
from rmq_spark.spark.batch_content import read_plan
from rmq_spark.spark.open_stores import kept_storage, readable_store
from rmq_spark.spark.options import WriteOptions
from rmq_spark.spark.sink_columns import check_columns, to_columns
from rmq_spark.spark.sink_commit import INLINE_TASK_BYTES, BatchName, Written, commit, throw_away, to_bytes
from rmq_spark.spark.sink_plan import SinkPlan, make_plan
from rmq_spark.spark.sink_rows import RowMaker
from rmq_spark.storage import paths

FILE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of rows that a task gathers before it writes them as a file; bounds its memory. A task waits for the flush of
its last file, with nothing else to do: the smaller that one is, the better."""
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A task that has written much writes larger files, up to this: the driver reads something of each."""
ROW_BYTES: Final = 90
"""What a row weighs in a file beside the columns that it came with: ids, times, offsets."""

_QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's local property that tells a task which query it works for."""


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """What a task tells the driver."""

    written: Written


class _Sink:
    """What both writers share."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._columns = check_columns((field.name, field.dataType.simpleString()) for field in schema)
        if "topic" not in self._columns and options.topic is None:
            raise InvalidRequestError("rows have no topic: give the option topic or a column topic")
        # Planned here, where Spark reports an error whole; of one that is raised while a writer is pickled, on its way
        # to the tasks, it keeps the last line. A writer that is made to commit a batch has a plan that nobody asks for.
        store = readable_store(options.store, options.storage_options)
        turn = int(store.clock.token()[-8:], 16)
        self._plan = make_plan(store, options, by_row="topic" in self._columns, turn=turn)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        plan = self._plan
        task = TaskContext.get()
        assert task is not None  # noqa: S101 - Spark calls it in a task
        partition = task.partitionId()
        clock = SystemClock()
        maker = RowMaker(self._options, plan, clock, partition)
        files: list[Future[RowFile]] = []
        inline_rows, count = b"", 0
        # One file is written while the next one's rows come in: Spark's side needs the time that the disk takes.
        with ThreadPoolExecutor(1, thread_name_prefix="rmq-sink") as background:
            for part, is_last in _gathered(iterator):
                rows = maker.make(to_columns(part, self._columns))
                count += rows.num_rows
                if files:
                    files[-1].result()  # no more than two files' rows are in memory
                if is_last and not files and rows.nbytes <= INLINE_TASK_BYTES:
                    inline_rows = to_bytes(rows)
                else:
                    files.append(background.submit(self._write_file, rows, plan, clock))
        return SinkMessage(
            Written(
                partition=partition,
                broker=plan.broker,
                query_id=task.getLocalProperty(_QUERY_ID),
                files=tuple(file.result() for file in files),
                inline_rows=inline_rows,
                rows=count,
                topics=maker.used,
            )
        )

    def _write_file(self, rows: pa.Table, plan: SinkPlan, clock: Clock) -> RowFile:
        return write_row_file(
            kept_storage(self._options.store, self._options.storage_options),
            paths.broker_root(plan.broker),
            MessageBatch(table=rows),  # the maker has checked every row
            nonce=clock.token(),
            block_bytes=LogSettings().block_bytes,
        )

    def _throw_away(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        throw_away(self._options, _written(messages))


class RocketMQBatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write`: all rows land in one commit, or nothing is visible."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequestError(
                "a log is only appended to: write with mode append; to start over, delete the topic first"
            )
        super().__init__(options, schema)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        options = self._options
        name = None
        if options.txn_app_id is not None and options.txn_version is not None:
            name = BatchName(app=_application(options, options.txn_app_id), number=options.txn_version)
        commit(options, _written(messages), name)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._throw_away(messages)


class RocketMQStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream`: each batch lands once, however often Spark repeats it.

    Output mode complete, which Spark announces as overwriting, appends the whole result each time, as
    Kafka's sink does.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        options = self._options
        written = _written(messages)
        query_id = next((part.query_id for part in written if part.query_id), None)
        app_id = options.txn_app_id or query_id
        if app_id is None:
            if written:
                raise InvalidRequestError("Spark named no query id; name the application by the option txnAppId")
            return  # no task, no row
        name = BatchName(
            app=_application(options, app_id),
            number=batchId,
            plan=read_plan(options, batchId),
            old_app=query_id if options.txn_app_id is None and options.topic is not None else None,
        )
        commit(options, written, name)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._throw_away(messages)


def _application(options: WriteOptions, app_id: str) -> str:
    """Under what name batches are counted: with the topic, as Delta counts a name's versions for each table.

    A copied checkpoint has its original's query id: with another topic it is another application.
    """
    return app_id if options.topic is None else f"{app_id} -> {options.topic}"


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    # Failed tasks have left no message.
    return [message.written for message in messages if isinstance(message, SinkMessage)]


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[list[pa.RecordBatch], bool]]:
    """Batches in groups that are worth a file (Spark's own have 10,000 rows), and whether a group is the last."""
    group: list[pa.RecordBatch] = []
    size = before = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        weight = batch.nbytes + ROW_BYTES * batch.num_rows
        if group and size + weight > min(max(FILE_BYTES, before // 4), FILE_BYTES_MAX):
            yield group, False
            before += size
            group, size = [], 0
        group.append(batch)
        size += weight
    if group:
        yield group, True
