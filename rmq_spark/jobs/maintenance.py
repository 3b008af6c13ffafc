"""`jobs/roll.py` and `jobs/expire.py`: keep logs short and disks free, one Spark task for each log.

A store with one broker is served by the driver alone, and Spark is not even started: a log is rolled by one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rmq_spark.cli import logs
from rmq_spark.cli.output import Cell, Output, Table
from rmq_spark.client.store import Store
from rmq_spark.errors import RmqError
from rmq_spark.jobs.job import Job
from rmq_spark.log.collect import collect
from rmq_spark.log.expire import expire as expire_log
from rmq_spark.log.roll import roll as roll_log
from rmq_spark.model.settings import LogSettings
from rmq_spark.model.times import FORMS, parse_time
from rmq_spark.spark.table_tasks import Place

Document = dict[str, Any]
Work = Callable[[Store, logs.LogPlace], Document]


@dataclass(frozen=True, slots=True)
class Rolling:
    """What is done to a log by `roll.py`."""

    min_commits: int

    def __call__(self, store: Store, place: logs.LogPlace) -> Document:
        """Turn its commits into segments, and delete what nothing needs any more."""
        log = place.open(store)
        done = roll_log(log, min_commits=self.min_commits)
        return {
            "log": place.name,
            "commits": done.commits,
            "segments": len(done.segments),
            "deletedFiles": done.deleted,
            "deletedRowFiles": collect(log),
        }


@dataclass(frozen=True, slots=True)
class Expiring:
    """What is done to a log by `expire.py`."""

    before: str | None
    scheduled: bool

    def __call__(self, store: Store, place: logs.LogPlace) -> Document:
        """Drop its segments that are too old, or the oldest while the disk is too full."""
        log = place.open(store)
        limit = None if self.before is None else parse_time(self.before, "--before", store.clock.now_ms())
        done = expire_log(log, scheduled=self.scheduled, before_ms=limit)
        return {
            "log": place.name,
            "segments": len(done.segments),
            "messages": sum(segment.end - segment.first for segment in done.segments),
            "logStart": done.log_start,
            "diskTooFull": done.forced,
            "deletedFiles": done.deleted,
            "deletedRowFiles": collect(log),
        }


def roll(arguments: Sequence[str] | None = None) -> int:
    """Roll logs; returns the exit code."""
    job = _job(
        "roll",
        "Turn many small commits into few segments, and delete files that nothing needs any more.",
        ["--store /var/lib/rmq --once", "--store /var/lib/rmq --continuous --interval 600"],
    )
    job.parser.add_argument("--min-commits", type=int, default=2, help="leave a log alone that has fewer to roll")
    return job.run(lambda given: _maintain(job, given, Rolling(max(1, given.min_commits))), arguments)


def expire(arguments: Sequence[str] | None = None) -> int:
    """Drop what is older than the retention; returns the exit code."""
    job = _job(
        "expire",
        "Drop segments that are older than the retention, or the oldest while the disk is too full.",
        [
            "--store /var/lib/rmq --settings conf/store.toml --once",
            "--store /var/lib/rmq --before 2026-01-01T00:00:00Z",
            "--store /var/lib/rmq --scheduled --continuous --interval 600",
        ],
    )
    job.parser.add_argument(
        "--before", metavar="TIME", help=f"drop what is older, whatever the retention says: {FORMS}"
    )
    job.parser.add_argument(
        "--scheduled", action="store_true", help="act only at the hours of delete_when, or when the disk is filling"
    )

    def work(given: argparse.Namespace) -> None:
        if given.before is not None:
            parse_time(given.before, "--before", 0)  # a wrong one is told before anything is done
        _maintain(job, given, Expiring(given.before, given.scheduled))

    return job.run(work, arguments)


def _job(name: str, purpose: str, examples: Sequence[str]) -> Job:
    job = Job(name, purpose, examples, paced="again each --interval seconds")
    job.parser.add_argument("--broker", action="append", metavar="NAME", help="only this log; may be repeated")
    job.parser.add_argument("--nameserver", action="store_true", help="only the cluster-wide log")
    return job


def _maintain(job: Job, given: argparse.Namespace, work: Work) -> None:
    with job.open(given) as store:

        def once() -> None:
            places = logs.chosen(store, given.broker, given.nameserver)
            documents = _spread(job, given, places, work) if len(places) > 2 else [work(store, one) for one in places]
            headers = [name.upper() for name in documents[0]]
            rows: list[list[Cell]] = [list(document.values()) for document in documents]
            Output(json=given.json).result(documents, Table(headers, rows))

        job.again(given, once)


def _spread(job: Job, given: argparse.Namespace, places: Sequence[logs.LogPlace], work: Work) -> list[Document]:
    """The work on each log in a task of its own; the first error of any of them is raised when all have ended."""
    place, settings = job.place(given), asdict(job.settings(given)[0])
    tasks = job.session().sparkContext.parallelize(list(places), len(places))
    answers = tasks.map(lambda log: _in_task(place, settings, log, work)).collect()
    for answer in answers:
        if isinstance(answer, RmqError):
            raise answer
    return [answer for answer in answers if not isinstance(answer, RmqError)]


def _in_task(place: Place, settings: dict[str, Any], log: logs.LogPlace, work: Work) -> Document | RmqError:
    options = dict(place.options) or None
    try:
        with Store.open(place.uri, settings=LogSettings(**settings), options=options) as store:
            return work(store, log)
    except RmqError as error:  # a value: Spark would repeat the task, and give the driver only its text
        return error
