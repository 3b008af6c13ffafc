"""The job `lag_report`: how far consumer groups are behind, shown, or kept as rows for plots and alarms."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rmq_spark.cli.output import Table
from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.errors import NotFoundError
from rmq_spark.jobs.job import Job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq_spark.client.store import Store

SCHEMA: Final = (
    "`group` string, topic string, brokerName string, queueId int, committedOffset long, minOffset long, "
    "maxOffset long, lag long, lagMs long, missed long, updatedAt timestamp, reportedAt timestamp"
)
"""Columns of a report, as Spark's DDL."""
FORMATS: Final = ("parquet", "delta", "json", "csv")

_SHOWN: Final = (
    "GROUP",
    "TOPIC",
    "BROKER",
    "QUEUE",
    "COMMITTED",
    "MIN OFFSET",
    "MAX OFFSET",
    "LAG",
    "LAG MS",
    "MISSED",
)

Row = tuple[Any, ...]


def lag_report(arguments: Sequence[str] | None = None) -> int:
    """Report the lag of groups; returns the exit code."""
    job = Job(
        "lag_report",
        "Show how far consumer groups are behind, queue by queue, or append it to a table.",
        [
            "--store /var/lib/rmq",
            "--store /var/lib/rmq --group billing --json",
            "--store /var/lib/rmq --output /var/lib/lag --format parquet --continuous --interval 60",
        ],
        paced="again each --interval seconds",
    )
    add = job.parser.add_argument
    add("--group", action="append", metavar="NAME", help="only this group; may be repeated")
    add("--output", metavar="URI", help="append the rows there, as Spark reaches it, instead of showing them")
    add("--format", choices=FORMATS, default="parquet", help="of --output")
    add("--delta-jars", metavar="DIR", type=Path, help="format delta: where its jars are, if spark-submit has none")

    def work(options: argparse.Namespace) -> None:
        with job.open(options, read_only=True) as store:
            spark = _session(job, options) if options.output else None
            job.again(options, lambda: _report(job, options, store, spark))

    return job.run(work, arguments)


def _session(job: Job, options: argparse.Namespace) -> SparkSession:
    return job.session(delta=options.format == "delta", delta_jars=options.delta_jars)


def rows_of(store: Store, groups: Sequence[str] | None) -> list[Row]:
    """One row for each queue of each group, as `SCHEMA` says.

    Raises:
        NotFoundError: a group that is named is not known.
    """
    offsets = GroupOffsets(store)
    known = offsets.groups()
    for group in groups or ():
        if group not in known:
            raise NotFoundError("no such group", group=group, known=known)
    now = _moment(store.clock.now_ms())
    return [
        (
            group,
            queue.topic,
            queue.broker,
            queue.queue,
            queue.committed,
            queue.first,
            queue.end,
            queue.lag,
            queue.lag_ms,
            queue.missed,
            None if queue.updated_ms is None else _moment(queue.updated_ms),
            now,
        )
        for group in groups or known
        for queue in offsets.lag(group)
    ]


def _report(job: Job, options: argparse.Namespace, store: Store, spark: SparkSession | None) -> None:
    rows = rows_of(store, options.group)
    if spark is not None:
        frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
        frame.write.format(options.format).mode("append").save(options.output)
        job.say(f"{len(rows):,} rows appended to {options.output}")
        return
    names = [column.strip().split(" ")[0].strip("`") for column in SCHEMA.split(",")]
    documents = [dict(zip(names, (_plain(value) for value in row), strict=True)) for row in rows]
    behind = sum(row[7] for row in rows)
    job.out(options).result(
        documents, f"{behind:,} messages behind in all", Table(_SHOWN, [row[: len(_SHOWN)] for row in rows])
    )


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _plain(value: object) -> object:
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else value


if __name__ == "__main__":
    sys.exit(lag_report())
