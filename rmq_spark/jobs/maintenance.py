"""The jobs `roll` and `expire`: keep logs short and disks free, one Spark task for each log.

A store with one broker is served by the driver alone, and Spark is not even started: a log is rolled by one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rmq_spark.cli import logs, upkeep
from rmq_spark.cli.consent import require_consent
from rmq_spark.cli.output import Table
from rmq_spark.cli.upkeep import Document
from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError, RmqError
from rmq_spark.jobs.job import Job, at_least_one
from rmq_spark.model.settings import LogSettings
from rmq_spark.model.times import FORMS, parse_time
from rmq_spark.spark.table_tasks import Place

Work = Callable[[Store, logs.LogPlace], Document]
Shown = Callable[[Sequence[Document]], Table]


@dataclass(frozen=True, slots=True)
class Rolling:
    """What `roll` does to a log."""

    min_commits: int

    def __call__(self, store: Store, place: logs.LogPlace) -> Document:
        """Turn its commits into segments, and delete what nothing needs any more."""
        return upkeep.roll_log(place.open(store), self.min_commits)


@dataclass(frozen=True, slots=True)
class Expiring:
    """What `expire` does to a log."""

    before: str | None
    scheduled: bool
    dry_run: bool = False

    def limit_ms(self, store: Store) -> int | None:
        """What `--before` means now."""
        return None if self.before is None else parse_time(self.before, "--before", store.clock.now_ms())

    def __call__(self, store: Store, place: logs.LogPlace) -> Document:
        """Drop its segments that are too old, or the oldest while the disk is too full."""
        if self.dry_run:
            return upkeep.preview_log(place.open(store), before_ms=self.limit_ms(store))
        return upkeep.expire_log(place.open(store), scheduled=self.scheduled, before_ms=self.limit_ms(store))


def roll(arguments: Sequence[str] | None = None) -> int:
    """Roll logs; returns the exit code."""
    job = _job(
        "roll",
        "Turn many small commits into few segments, and delete files that nothing needs any more.",
        ["--store /var/lib/rmq --once", "--store /var/lib/rmq --continuous --interval 600"],
    )
    job.parser.add_argument(
        "--min-commits", type=at_least_one, default=2, help="leave a log alone that has fewer to roll"
    )

    def work(options: argparse.Namespace) -> None:
        with job.open(options) as store:
            _maintain(job, options, store, Rolling(options.min_commits), upkeep.rolled_table)

    return job.run(work, arguments)


def expire(arguments: Sequence[str] | None = None) -> int:
    """Drop what is older than the retention; returns the exit code."""
    job = _job(
        "expire",
        "Drop segments that are older than the retention, or the oldest while the disk is too full.",
        [
            "--store /var/lib/rmq --conf conf/store.toml --once",
            "--store /var/lib/rmq --before 30d --dry-run",
            "--store /var/lib/rmq --before 2026-01-01T00:00:00Z --yes",
            "--store /var/lib/rmq --scheduled --continuous --interval 600",
        ],
    )
    job.parser.add_argument(
        "--before", metavar="TIME", help=f"drop what is older, whatever the retention says: {FORMS}"
    )
    job.parser.add_argument(
        "--scheduled", action="store_true", help="act only at the hours of delete_when, or when the disk is filling"
    )

    job.parser.add_argument("--dry-run", action="store_true", help="only show what it would do")
    job.parser.add_argument("-y", "--yes", action="store_true", help="with --before: do not ask")

    def work(options: argparse.Namespace) -> None:
        if options.dry_run and (options.scheduled or options.continuous):
            raise InvalidRequestError("--dry-run shows what would go now; leave --scheduled and --continuous out")
        if options.before is not None:
            parse_time(options.before, "--before", 0)  # an invalid time is reported before anything is done
        expiring = Expiring(options.before, options.scheduled, options.dry_run)
        with job.open(options, read_only=options.dry_run) as store:
            if not options.dry_run and not options.yes:
                _ask(options, store, expiring)
            table = upkeep.preview_table if options.dry_run else upkeep.expired_table
            _maintain(job, options, store, expiring, table)

    return job.run(work, arguments)


def _ask(options: argparse.Namespace, store: Store, expiring: Expiring) -> None:
    """Ask before a time of the caller's own is used; what the settings say needs no consent."""
    limit = expiring.limit_ms(store)
    if limit is None:
        return
    preview = Expiring(expiring.before, scheduled=False, dry_run=True)
    previews = [preview(store, place) for place in logs.chosen(store, options.broker, options.nameserver)]
    require_consent(options.yes, upkeep.expire_question(previews, limit))


def _job(name: str, purpose: str, examples: Sequence[str]) -> Job:
    job = Job(name, purpose, examples, paced="again each --interval seconds")
    job.parser.add_argument("--broker", action="append", metavar="NAME", help="only this log; may be repeated")
    job.parser.add_argument("--nameserver", action="store_true", help="only the cluster-wide log")
    return job


def _maintain(job: Job, options: argparse.Namespace, store: Store, work: Work, table: Shown) -> None:
    def once() -> None:
        places = logs.chosen(store, options.broker, options.nameserver)
        documents = _spread(job, options, places, work) if len(places) > 2 else [work(store, one) for one in places]
        job.out(options).result(documents, table(documents))

    job.again(options, once)


def _spread(job: Job, options: argparse.Namespace, places: Sequence[logs.LogPlace], work: Work) -> list[Document]:
    """The work on each log in a task of its own; the first error of any of them is raised when all have ended."""
    place, settings = job.place(options), asdict(job.settings(options)[0])
    tasks = job.session().sparkContext.parallelize(list(places), len(places))
    answers = tasks.map(lambda log: _in_task(place, settings, log, work)).collect()
    for answer in answers:
        if isinstance(answer, RmqError):
            raise answer
    return [answer for answer in answers if not isinstance(answer, RmqError)]


def _in_task(place: Place, settings: dict[str, Any], log: logs.LogPlace, work: Work) -> Document | RmqError:
    storage_options = dict(place.options) or None
    try:
        with Store.open(place.uri, settings=LogSettings(**settings), options=storage_options, services="off") as store:
            return work(store, log)
    except RmqError as error:  # a value: Spark would repeat the task, and give the driver only its text
        return error
