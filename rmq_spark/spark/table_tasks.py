"""What a Spark task does for the tables: read a part of a log range, run the kernel, and write or hand over rows.

A task opens no log: the driver plans which files hold its part, as for reads of `format("rocketmq")`.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from rmq_spark.clock import SystemClock
from rmq_spark.errors import RmqError
from rmq_spark.log import scan
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.files import LogFiles
from rmq_spark.spark.open_stores import kept_storage
from rmq_spark.spark.task_reader import TaskLog
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage
from rmq_spark.tables import data_files, kernel
from rmq_spark.tables.range_rows import COLUMNS, message_rows
from rmq_spark.tables.schemas import TABLES, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PART_MESSAGES: Final = 500_000
"""A task reads about so many messages: it holds some 300 bytes of each."""
BATCH_ROWS: Final = 50_000
"""Rows of a batch that goes to Spark."""

Answer = tuple[str, dict[str, object]] | RmqError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is, as tasks need it to open its storage."""

    uri: str
    options: tuple[tuple[str, str], ...] = ()

    def open(self) -> Storage:
        """The storage, kept open by the worker."""
        return kept_storage(self.uri, dict(self.options))


@dataclass(frozen=True, slots=True)
class Part:
    """Log offsets [start, end) of one broker, and the files that hold them."""

    place: Place
    broker: str
    start: int
    end: int
    sources: tuple[scan.Source, ...]


def cut(log: CommitLog, place: Place, start: int, end: int, messages: int) -> list[Part]:
    """Share a log range out into parts of about so many messages, along the files that hold it.

    A commit may be split, as its rows lie in the order of the log; a segment is read by one task, because in it they
    lie by queue.
    """
    planned = log.look(lambda view: scan.plan(view, scan.Query(start=start, end=end)))
    groups: list[list[tuple[scan.Source, int, int]]] = []
    size = 0
    for source in planned.sources:
        for low, high in _pieces(source, start, end, messages):
            if not groups or size + high - low > messages:
                groups.append([])
                size = 0
            groups[-1].append((source, low, high))
            size += high - low
    return [
        # A source names all of a file; the part's bounds narrow it.
        Part(place, log.broker, group[0][1], group[-1][2], tuple(source for source, _, _ in group))
        for group in groups
    ]


def _pieces(source: scan.Source, start: int, end: int, messages: int) -> Iterator[tuple[int, int]]:
    """[low, high) of each piece; one that was split off has at least `messages`, so it is a part of its own."""
    low, high = max(source.first, start), min(source.end, end)
    count = 1 if source.kind == "segment" else max(1, (high - low) // messages)
    return pairwise(low + (high - low) * step // count for step in range(count + 1))


def write_files(parts: Iterable[Part], tables: Sequence[str]) -> Iterator[Answer]:
    """Write each part's rows as files that no table names yet; yields table and entry of Delta's log, or an error."""
    for part in parts:
        try:
            yield from _write_part(part, tables)
        except RmqError as error:  # a value: Spark would repeat the task, and give the driver only its text
            yield error


class TableRows(DataSource):
    """Rows of one table as a DataFrame, made by the kernel in tasks; the driver puts the work into an option."""

    @classmethod
    def name(cls) -> str:
        return "rmq_table_rows"

    @classmethod
    def load(cls, spark: SparkSession, table: str, work: Sequence[Part] | pa.Table) -> DataFrame:
        """The rows of parts of a log, each a partition in the table's order; or rows that are there already."""
        spark.dataSource.register(cls)
        text = base64.b64encode(pickle.dumps((table, work))).decode()
        return spark.read.format(cls.name()).schema(spark_schema(TABLES[table])).option("work", text).load()

    def reader(self, schema: StructType) -> _RowsReader:
        table, work = pickle.loads(base64.b64decode(self.options["work"]))  # noqa: S301 - made by `load`
        return _RowsReader(table, work)


class _RowsReader(DataSourceReader):
    def __init__(self, table: str, work: Sequence[Part] | pa.Table) -> None:
        self._table = table
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        works = [self._work] if isinstance(self._work, pa.Table) else self._work
        return [InputPartition(work) for work in works]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        work: Part | pa.Table = partition.value
        spec = TABLES[self._table]
        rows = _rows(work, (self._table,))[self._table] if isinstance(work, Part) else work
        yield from kernel.plain(data_files.in_order(rows, spec), spec.schema).to_batches(max_chunksize=BATCH_ROWS)


def spark_schema(spec: TableSpec) -> str:
    """A table's columns as Spark's DDL has them."""
    kinds = {pa.string(): "string", pa.int32(): "int", pa.int64(): "long"}
    return ", ".join(f"`{column.name}` {kinds.get(column.type, 'timestamp')}" for column in spec.schema)


def _write_part(part: Part, tables: Sequence[str]) -> Iterator[tuple[str, dict[str, object]]]:
    storage, clock = part.place.open(), SystemClock()
    for table, rows in _rows(part, tables).items():
        if rows.num_rows:
            spec = TABLES[table]
            name = data_files.file_name(part.broker, part.start, part.end, clock.token())
            file = data_files.write(storage, spec, data_files.in_order(rows, spec), name, clock)
            yield table, file.add(data_change=True)["add"]


def _rows(part: Part, tables: Sequence[str]) -> dict[str, pa.Table]:
    log = TaskLog(LogFiles(part.place.open(), paths.broker_root(part.broker)), part.broker)
    query = scan.Query(start=part.start, end=part.end, columns=COLUMNS)
    planned = scan.Plan(query, list(part.sources), {})
    return message_rows(scan.run(log, planned), part.broker, tables)
