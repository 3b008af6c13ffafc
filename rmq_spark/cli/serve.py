"""`rmq serve`: run the services of a store as one process, until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmq_spark.cli import exits
from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, a_number, common
from rmq_spark.cli.output import Output, Table, complain
from rmq_spark.cli.serve_log import LogFormat, ServeLog
from rmq_spark.errors import InvalidRequestError

if TYPE_CHECKING:
    from rmq_spark.client.store import Store
    from rmq_spark.metrics import StoreGauges
    from rmq_spark.services.behind import ServiceLag
    from rmq_spark.services.runner import ServiceRunner, ServiceStatus

STATUS_SECONDS: Final = 60.0
"""Without a terminal, so often a line of the log says how the services are doing."""
DRAW_SECONDS: Final = 1.0
"""How often the status line of a terminal is drawn."""

_log = logging.getLogger("rmq_spark.serve")


def serve(
    ctx: typer.Context,
    *,
    metrics: Annotated[
        int | None,
        typer.Option("--metrics", metavar="PORT", min=0, max=65535, help="Answer /metrics and /health on this port."),
    ] = None,
    health: Annotated[
        int | None, typer.Option("--health", metavar="PORT", min=0, max=65535, help="Answer /health on this port.")
    ] = None,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help="Lines on stderr.")] = LogFormat.TEXT,
    no_retention: Annotated[bool, typer.Option("--no-retention", help="Do not delete old messages.")] = False,
    no_tables: Annotated[bool, typer.Option("--no-tables", help="Do not advance the tables.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run nothing: show how far each service is behind; fail if one is too far.")
    ] = False,
    max_behind: Annotated[
        float,
        typer.Option(
            "--max-behind", metavar="SECONDS", min=0, callback=a_number, help="With --check: how far is too far."
        ),
    ] = 60.0,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Run the services of a store until SIGTERM or Ctrl-C: timers, checks, revive, rolling, retention, tables.

    Any number of these may run at once, beside clients that embed services.
    """
    options = common(ctx, store, json, conf)
    if check:
        with options.open(read_only=True) as opened:
            _check(options.out, opened, max_behind)
        return
    if metrics is not None and health is not None:
        raise InvalidRequestError("--metrics answers /health, too; leave --health out")
    from rmq_spark.services.catalog import all_services
    from rmq_spark.services.runner import ServiceRunner
    from rmq_spark.services.status_page import StatusPage

    with ExitStack() as stack:
        log = stack.enter_context(ServeLog(log_format))
        stop = stack.enter_context(_stop_signals())
        opened = stack.enter_context(options.open(read_only=False))
        runner = ServiceRunner(all_services(opened, tables=not no_tables, retention=not no_retention), opened.clock)
        port = metrics if metrics is not None else health
        if port is not None:
            page = stack.enter_context(
                StatusPage(port, runner.status, metrics=metrics is not None, collectors=[_gauges(opened)])
            )
            _log.info("status at http://localhost:%d/health", page.port)
        stack.enter_context(runner)
        names = ", ".join(status.name for status in runner.status())
        _log.info("serving %s: %s", options.uri, names)
        _show_until(stop, runner, log)
        _log.info("stopping: each service ends its round")


def _gauges(store: Store) -> StoreGauges:
    """What `/metrics` tells of the whole store: how far groups are behind, among others."""
    from rmq_spark.metrics import StoreGauges
    from rmq_spark.model.message_id import own_address

    return StoreGauges(store, {"cluster": "DefaultCluster", "node_type": "service", "node_id": own_address()})


def _show_until(stop: threading.Event, runner: ServiceRunner, log: ServeLog) -> None:
    if log.draws:
        while not stop.wait(DRAW_SECONDS):
            log.draw(status_line(runner.status()))
        return
    while not stop.wait(STATUS_SECONDS):
        _log.info("%s", status_line(runner.status()))


def status_line(statuses: Sequence[ServiceStatus]) -> str:
    """How the services are doing, in one line."""
    parts = []
    for status in statuses:
        if status.failures:
            parts.append(f"{status.name} failing ({status.failures})")
        elif status.behind_ms:
            parts.append(f"{status.name} {status.behind_ms / 1000:.1f} s behind")
        else:
            parts.append(f"{status.name} ok" if status.runs else f"{status.name} starting")
    return " | ".join(parts)


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Set by the first SIGTERM or SIGINT; a second one does what it always does."""
    stop = threading.Event()
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _check(out: Output, store: Any, max_behind: float) -> None:
    from rmq_spark.services.behind import services_behind

    lags = services_behind(store)
    late = [lag for lag in lags if lag.service not in _MAY_WAIT and lag.behind_ms > max_behind * 1000]
    rows = [(lag.service, lag.log, lag.pending, _seconds(lag)) for lag in lags]
    document = [
        {"service": lag.service, "log": lag.log, "pending": lag.pending, "behindMs": lag.behind_ms} for lag in lags
    ]
    out.result(document, Table(("SERVICE", "LOG", "PENDING", "BEHIND"), rows))
    if late:
        complain(
            f"over {max_behind:g} s behind: {', '.join(sorted({lag.service for lag in late}))}; is `rmq serve` running?"
        )
        raise typer.Exit(exits.FAILED)


_MAY_WAIT: Final = frozenset({"retention", "tables"})
"""Services that may be far behind by their nature: one works at an hour of the day, the other may be a nightly job."""


def _seconds(lag: ServiceLag) -> str:
    return f"{lag.behind_ms / 1000:.1f} s" if lag.behind_ms else "-"
