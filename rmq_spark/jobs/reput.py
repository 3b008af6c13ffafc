"""The jobs `reput`, `rebuild` and `consumer_offsets`: advance the tables, or recreate them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_spark.errors import InvalidRequestError
from rmq_spark.jobs.following import MESSAGES, OFFSETS, follow
from rmq_spark.jobs.job import Job, positive, seconds
from rmq_spark.spark import table_engine
from rmq_spark.spark.table_tasks import PART_MESSAGES, Place
from rmq_spark.tables.engine import ReputResult
from rmq_spark.tables.lease import LEASE_MS
from rmq_spark.tables.log_ranges import check_brokers
from rmq_spark.tables.schemas import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmq_spark.client.store import Store


def _job(name: str, purpose: str, examples: Sequence[str]) -> Job:
    job = Job(name, purpose, examples, paced="go on whenever messages come in")
    add = job.parser.add_argument
    add("--broker", action="append", metavar="NAME", help="only this broker's log; may be repeated")
    add("--writer", choices=table_engine.WRITERS, default="files", help="tasks write the files, or delta-spark does")
    add("--delta-jars", metavar="DIR", type=Path, help="writer delta: where its jars are, if spark-submit has none")
    add("--part-messages", metavar="N", type=int, default=PART_MESSAGES, help="messages that a task reads")
    add("--wait", metavar="SECONDS", type=seconds, help="wait so long for another engine; 0, or --lease")
    add("--lease", metavar="SECONDS", type=positive, default=LEASE_MS / 1000, help="others wait so long after a crash")
    add("--checkpoint", metavar="URI", help="continuous: where Spark remembers what it has seen")
    return job


def reput(arguments: Sequence[str] | None = None) -> int:
    """Bring the tables to the end of the logs; returns the exit code."""
    job = _job(
        "reput",
        "Bring the tables consumequeue, index and consumer_offsets to the end of the logs.",
        [
            "--store /var/lib/rmq --once",
            "--store hdfs://namenode/rmq --table index --once",
            "--store /var/lib/rmq --continuous --checkpoint /var/lib/rmq-jobs/reput",
        ],
    )
    job.parser.add_argument("--table", action="append", choices=tuple(TABLES), help="only this one; may be repeated")
    return job.run(lambda options: _advance(job, options, tuple(options.table or TABLES)), arguments)


def consumer_offsets(arguments: Sequence[str] | None = None) -> int:
    """Bring the table of consumer offsets to the end of the logs; returns the exit code."""
    job = _job(
        "consumer_offsets",
        "Bring the table consumer_offsets to the end of the logs.",
        [
            "--store /var/lib/rmq --once",
            "--store /var/lib/rmq --continuous --checkpoint /var/lib/rmq-jobs/offsets",
        ],
    )
    return job.run(lambda options: _advance(job, options, ("consumer_offsets",)), arguments)


def rebuild(arguments: Sequence[str] | None = None) -> int:
    """Empty the tables and fill them from the logs; returns the exit code."""
    job = _job(
        "rebuild",
        "Empty the tables and fill them from the logs. Queries stay complete meanwhile, only slower.",
        ["--store /var/lib/rmq", "--store /var/lib/rmq --table index"],
    )
    job.parser.add_argument("--table", action="append", choices=tuple(TABLES), help="only this one; may be repeated")

    def work(options: argparse.Namespace) -> None:
        if options.continuous:
            raise InvalidRequestError("a rebuild ends; run reput --continuous after it")
        tables = tuple(options.table or TABLES)
        with job.open(options) as store:
            check_brokers(store, options.broker)  # before anything is emptied
            spark = job.session(delta=options.writer == "delta", delta_jars=options.delta_jars)
            _show(job, options, _step(job, options, spark, store, tables, advance=table_engine.rebuild))

    return job.run(work, arguments)


def _advance(job: Job, options: argparse.Namespace, tables: Sequence[str]) -> None:
    if options.continuous and not options.checkpoint:
        raise InvalidRequestError("--continuous needs --checkpoint: a directory of its own, not in the store")
    with job.open(options) as store:
        check_brokers(store, options.broker)  # before Spark is started
        spark = job.session(delta=options.writer == "delta", delta_jars=options.delta_jars)
        if not options.continuous:
            _show(job, options, _step(job, options, spark, store, tables))
            return

        def step() -> None:
            done = _step(job, options, spark, store, tables)
            if done.messages:
                _show(job, options, done)

        news = [OFFSETS] if tuple(tables) == ("consumer_offsets",) else [MESSAGES, OFFSETS]
        follow(
            spark,
            job.place(options),
            news,
            checkpoint=options.checkpoint,
            interval_s=options.interval,
            step=step,
            stopping=job.stopping,
        )
        job.say("stopped")


def _step(
    job: Job,
    options: argparse.Namespace,
    spark: SparkSession,
    store: Store,
    tables: Sequence[str],
    *,
    advance: Callable[..., ReputResult] = table_engine.reput,
) -> ReputResult:
    place: Place = job.place(options)
    wait_s = options.wait if options.wait is not None else options.lease if options.continuous else 0.0
    return advance(
        spark,
        store,
        place=place,
        brokers=options.broker,
        tables=tables,
        writer=options.writer,
        part_messages=options.part_messages,
        wait_s=wait_s,
        lease_ms=int(options.lease * 1000),
        progress=job.progress("messages"),
    )


def _show(job: Job, options: argparse.Namespace, done: ReputResult) -> None:
    rows = ", ".join(f"{count:,} into {name}" for name, count in done.rows.items())
    document = {"messages": done.messages, "ranges": done.ranges, "rows": done.rows}
    job.out(options).result(document, f"{done.messages:,} messages; rows: {rows}")


if __name__ == "__main__":
    sys.exit(reput())
