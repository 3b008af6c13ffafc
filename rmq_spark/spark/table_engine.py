"""The Spark engine of the tables: the kernel runs in tasks, each log range enters a table in one commit.

It goes along the log as the in-process engine does (`rmq_spark/tables/engine.py`), under the same lease, by the same
marks, and can go on where that one stopped. What differs is who makes the rows, and there are two writers:

- `files`: tasks write the files themselves, in the layout of the in-process engine; the driver commits their names in
  one exclusive entry of Delta's log. No jar is needed, no row passes through the JVM, and every storage will do.
- `delta`: tasks hand their rows to delta-spark, which writes and commits them with the range's transaction id. For
  those whose tables must be written by delta-spark alone. Its commits are not exclusive on local disks and S3: there
  the lease alone keeps engines apart.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.errors import PySparkException

from rmq_spark.client.store import Store
from rmq_spark.errors import DataExpiredError, ExistsError, FencedError, InvalidRequestError, RmqError
from rmq_spark.spark.table_tasks import PART_MESSAGES, Answer, Part, Place, TableRows, cut, write_files
from rmq_spark.tables import data_files, engine
from rmq_spark.tables.delta_actions import DataFile, data_file
from rmq_spark.tables.engine import Progress, ReputResult, no_progress
from rmq_spark.tables.lease import LEASE_MS, TableLease
from rmq_spark.tables.log_ranges import LogRange, LogRanges, OvertakenError, check_brokers
from rmq_spark.tables.range_rows import MESSAGE_TABLES, RangeRows
from rmq_spark.tables.schemas import TABLES, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Writer = Literal["files", "delta"]
WRITERS: Final[tuple[Writer, ...]] = ("files", "delta")
PARTS_PER_CORE: Final = 2
"""Parts of a step: enough that no core waits long for the last one."""
DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
}
"""What a session needs, beside Delta's jars, for the writer `delta`; conf/spark-delta.conf has the same.

The last two keep Hadoop from writing hidden check-sum files on local disks: those of a table that was dropped would
make Spark take files of the same names in its successor for damaged.
"""

# How delta-spark shall write: times as other engines read them, row groups small enough for look-ups.
_WRITE_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
}
_ROW_GROUP_BYTES: Final = {"consumequeue": 4 << 20, "index": 1 << 20, "consumer_offsets": 4 << 20}

_log = logging.getLogger(__name__)


def reput(
    spark: SparkSession,
    store: Store,
    *,
    place: Place | None = None,
    brokers: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    writer: Writer = "files",
    part_messages: int = PART_MESSAGES,
    wait_s: float = 0.0,
    lease_ms: int = LEASE_MS,
    progress: Progress = no_progress,
) -> ReputResult:
    """Advance the tables to the end of the logs, trim what has expired, and tidy up.

    Args:
        spark: the session whose tasks make the rows.
        store: open for writing, here in the driver.
        place: how tasks reach the same store; by default its URI, without options.
        brokers: whose logs; all by default.
        tables: which tables; all by default.
        writer: who writes the files, see above.
        part_messages: messages of a task; a step has `PARTS_PER_CORE` tasks for each core.
        wait_s: how long to wait for another engine.
        lease_ms: how long a lease lasts unless it is renewed; it is, as long as this runs.
        progress: called with messages done, and messages in all.

    Raises:
        InvalidRequestError: no such table or writer; a store in memory; a session without Delta.
        NotFoundError: there is no such broker.
        PreconditionFailedError: another engine holds the lease, and still does after `wait_s` seconds.
        FencedError: the lease was lost on the way; what was committed stays, nothing is doubled.
        CorruptDataError: a log or a table is damaged, or a table is ahead of its log.
    """
    place = place or Place(store.storage.uri)
    _check(spark, store, place, brokers=brokers, writer=writer, part_messages=part_messages)
    names = tuple(tables or TABLES)
    result = ReputResult()
    with TableLease.acquire(store, names, name="spark", wait_s=wait_s, duration_ms=lease_ms) as lease:
        works = [_Broker(spark, place, LogRanges(store, broker, names), store) for broker in brokers or store.brokers()]
        ends = [work.ranges.bounds()[1] for work in works]
        total = sum(work.ranges.behind(end) for work, end in zip(works, ends, strict=True))
        progress(0, total)
        with _held(lease, lease_ms) as hold:
            for work, end in zip(works, ends, strict=True):
                steps = _Steps(
                    writer=writer,
                    part_messages=part_messages,
                    end=end,
                    result=result,
                    progress=lambda done: progress(min(done, total), total),
                    hold=hold,
                )
                work.run(steps)
        engine.tend(store, names, lease)
    return result


def rebuild(
    spark: SparkSession,
    store: Store,
    *,
    place: Place | None = None,
    brokers: Sequence[str] | None = None,
    writer: Writer = "files",
    part_messages: int = PART_MESSAGES,
    **options: Any,
) -> ReputResult:
    """Empty the tables and fill them from the logs; arguments, `options` and errors are those of `reput`.

    Readers see the old rows, then none, then more and more. With brokers named, rows of other brokers' logs stay.
    """
    place = place or Place(store.storage.uri)
    _check(
        spark, store, place, brokers=brokers, writer=writer, part_messages=part_messages
    )  # before anything is emptied
    lease = {name: value for name, value in options.items() if name in ("tables", "wait_s", "lease_ms")}
    engine.empty(store, brokers=brokers, **lease)
    return reput(spark, store, place=place, brokers=brokers, writer=writer, part_messages=part_messages, **options)


def _check(
    spark: SparkSession,
    store: Store,
    place: Place,
    *,
    brokers: Sequence[str] | None,
    writer: Writer,
    part_messages: int,
) -> None:
    if part_messages < 1:
        raise InvalidRequestError("a part has at least one message", part_messages=part_messages)
    if writer not in WRITERS:
        raise InvalidRequestError("no such writer", writer=writer, known=list(WRITERS))
    check_brokers(store, brokers)
    if place.uri.startswith("memory:"):
        raise InvalidRequestError("a store in memory is seen by one process only; use a path", store=place.uri)
    if writer == "delta":
        _check_delta(spark)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """What the ranges of a call have in common."""

    writer: Writer
    part_messages: int
    end: int
    result: ReputResult
    progress: Callable[[int], None]
    hold: Callable[[], None]


class _Broker:
    """Advances tables along one broker's log."""

    def __init__(self, spark: SparkSession, place: Place, ranges: LogRanges, store: Store) -> None:
        self._spark = spark
        self._place = place
        self.ranges = ranges
        self._store = store
        self._rows = RangeRows(ranges.log)

    def run(self, steps: _Steps) -> None:
        cores = max(1, self._spark.sparkContext.defaultParallelism)
        while True:
            current = self.ranges.following(
                self.ranges.marks(), steps.end, steps.part_messages * cores * PARTS_PER_CORE
            )
            if current is None:
                return
            steps.hold()
            try:
                landed = self._write_files(current, steps) if steps.writer == "files" else self._write(current, steps)
            except (OvertakenError, DataExpiredError) as error:
                _log.info("the tables of %s go on from their newest marks: %s", self.ranges.broker, error)
                continue
            except PySparkException:
                # delta-spark's tasks cannot tell the driver why: if retention took the range, there is another one.
                if self.ranges.bounds()[0] <= current.start:
                    raise
                continue
            steps.result.ranges += 1
            steps.result.messages += current.end - current.start
            for name, rows in landed.items():
                steps.result.rows[name] += rows
            steps.progress(steps.result.messages)

    def _parts(self, current: LogRange, steps: _Steps) -> list[Part]:
        parts = cut(self.ranges.log, self._place, current.start, current.end, steps.part_messages)
        if not parts:
            raise OvertakenError(f"retention has passed the range from {current.start} to {current.end}")
        return parts

    # ------------------------------------------------------------ files

    def _write_files(self, current: LogRange, steps: _Steps) -> dict[str, int]:
        """Land one range, all files by tasks; returns the rows that entered each table."""
        files: dict[str, list[DataFile]] = {name: [] for name in current.marks}
        with ThreadPoolExecutor(1, thread_name_prefix="rmq-offsets") as beside:
            offsets = beside.submit(self._write_offsets, current)
            for table, file in self._files_of_tasks(current, steps):
                files[table].append(file)
            if (offsets_file := offsets.result()) is not None:
                files["consumer_offsets"].append(offsets_file)
        self.ranges.make_durable(current.end)
        for name in current.marks:
            steps.hold()
            self.ranges.land(name, current, files[name])
        return {name: sum(file.rows or 0 for file in table_files) for name, table_files in files.items()}

    def _files_of_tasks(self, current: LogRange, steps: _Steps) -> Iterator[tuple[str, DataFile]]:
        tables = [name for name in current.marks if name in MESSAGE_TABLES]
        if not tables:
            return
        parts = self._parts(current, steps)
        tasks = self._spark.sparkContext.parallelize(parts, len(parts))
        answers: list[Answer] = tasks.mapPartitions(lambda mine: write_files(mine, tables)).collect()
        for answer in answers:
            if isinstance(answer, RmqError):
                raise answer
            spec = TABLES[answer[0]]
            yield spec.name, data_file(answer[1], spec, spec.root)

    def _write_offsets(self, current: LogRange) -> DataFile | None:
        """The range's offset commits, which are few: made here while tasks work on its messages."""
        if "consumer_offsets" not in current.marks:
            return None
        rows = self._rows.offset_rows(current.start, current.end)
        if not rows.num_rows:
            return None
        spec, clock = TABLES["consumer_offsets"], self._store.clock
        name = data_files.file_name(self.ranges.broker, current.start, current.end, clock.token())
        return data_files.write(self._store.storage, spec, data_files.in_order(rows, spec), name, clock)

    # ------------------------------------------------------------ delta-spark

    def _write(self, current: LogRange, steps: _Steps) -> dict[str, int]:
        """Land one range, all rows by delta-spark; returns the rows that entered each table."""
        self.ranges.make_durable(current.end)
        landed = {}
        for name in current.marks:
            spec = TABLES[name]
            if name in MESSAGE_TABLES:
                rows = TableRows.load(self._spark, name, self._parts(current, steps))
            else:
                made = self._rows.offset_rows(current.start, current.end)
                if not made.num_rows:
                    # delta-spark would add a file without rows, which says nothing of whose it is.
                    self.ranges.land(name, current, [])
                    landed[name] = 0
                    continue
                rows = TableRows.load(self._spark, name, made)
            landed[name] = self._append(spec, rows, current, steps)
        return landed

    def _append(self, spec: TableSpec, rows: DataFrame, current: LogRange, steps: _Steps) -> int:
        """One commit of delta-spark; returns how many rows it added."""
        delta, clock = self.ranges.deltas[spec.name], self._store.clock
        self.ranges.check_mark(spec.name, current)
        if delta.snapshot is None:
            # The engine's own first entry says which features the table has: none that not everybody reads.
            try:
                delta.commit([], "CREATE TABLE", clock.now_ms(), clock.token())
            except ExistsError:
                self.ranges.check_mark(spec.name, current)
        before = set(delta.snapshot.files) if delta.snapshot else set()
        for name, value in {**_WRITE_SETTINGS, "parquet.block.size": str(_ROW_GROUP_BYTES[spec.name])}.items():
            self._spark.conf.set(name, value)
        steps.hold()
        app_id = spec.app_id(self.ranges.broker)
        writing = rows.write.format("delta").mode("append").option("compression", "zstd")
        writing = writing.option("txnAppId", app_id).option("txnVersion", current.end)
        writing.save(f"{_hadoop_uri(self._store)}/{spec.root}")
        snapshot = delta.refresh()
        mark = snapshot.mark(spec, self.ranges.broker) if snapshot else None
        if snapshot is None or mark != current.end:
            raise OvertakenError(f"{spec.name} is at {mark} after a commit that should have left it at {current.end}")
        return sum(file.rows or 0 for path, file in snapshot.files.items() if path not in before)


def _hadoop_uri(store: Store) -> str:
    """The store as Hadoop's file systems name it."""
    uri = store.storage.uri.rstrip("/")
    if uri.startswith(("s3://", "gs://", "az://")):
        raise InvalidRequestError(
            "delta-spark reaches object stores by Hadoop's own connectors; use the writer `files`", store=uri
        )
    return uri


def _check_delta(spark: SparkSession) -> None:
    for name, value in DELTA_SETTINGS.items():
        if value not in spark.sparkContext.getConf().get(name, ""):
            raise InvalidRequestError(
                "this session is not set up for delta-spark; see conf/spark-delta.conf, or use the writer `files`",
                setting=name,
            )


@contextmanager
def _held(lease: TableLease, lease_ms: int) -> Iterator[Callable[[], None]]:
    """Renew the lease from a thread, as a Spark job may take longer than it lasts.

    The function that it yields renews it, too, and raises if that cannot be done.
    """
    stop = threading.Event()
    one = threading.Lock()

    def hold() -> None:
        with one:
            lease.hold()

    def renew() -> None:
        while not stop.wait(lease_ms / 8000):
            try:
                hold()
            except FencedError:
                return  # whoever is about to commit finds the same
            except RmqError as error:
                _log.warning("the lease on the tables could not be renewed yet: %s", error)

    thread = threading.Thread(target=renew, name="rmq-table-lease", daemon=True)
    thread.start()
    try:
        yield hold
    finally:
        stop.set()
        thread.join()
