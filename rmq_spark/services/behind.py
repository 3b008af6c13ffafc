"""How far each service is behind, judged by the log alone: whoever runs it, or nobody."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from rmq_spark.client.store import Store
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.view import LogView
from rmq_spark.rules.all_folds import BROKER_FOLDS
from rmq_spark.rules.pop import PopState
from rmq_spark.rules.timer import Progress, TimerProgress
from rmq_spark.rules.transaction import Transactions
from rmq_spark.services.parked_messages import Levels
from rmq_spark.services.retention import expiry_waits_ms
from rmq_spark.services.revive import overdue_ms
from rmq_spark.services.rolling import maintained_logs, roll_waits_ms
from rmq_spark.services.timer_index import TimerIndex
from rmq_spark.tables import engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLag:
    """How far a service is behind on one log."""

    service: str
    """As `Service.name`."""
    log: str
    """The broker, or `nameserver`."""
    pending: int
    """Work there is, due or not: delayed messages, open transactions, messages held by POP consumers, commits to
    roll, segments older than the retention, messages that are not in a table."""
    behind_ms: int
    """How long the oldest work has been due; 0: nothing is due."""


def services_behind(store: Store) -> list[ServiceLag]:
    """How far the services of a store are behind, by service and log. It only reads.

    Segments that are older than the retention stay until the next hour of `delete_when`, so up to a day behind is
    usual for `retention`. Tables are listed when there are some; they do not say since when they wait, so theirs is
    the age of the newest message if any is missing.

    Raises:
        RmqError: a log could not be read.
    """
    now_ms = store.clock.now_ms()
    lags: list[ServiceLag] = []
    for broker in store.brokers():
        log = store.log(broker, *BROKER_FOLDS)
        lags += [_timers(log, now_ms), *log.look(partial(_messages, log=broker, now_ms=now_ms))]
    for log in maintained_logs(store):
        lags += log.look(partial(_upkeep, log=log, now_ms=now_ms))
    lags += _tables(store, now_ms)
    return sorted(lags, key=lambda lag: (lag.service, lag.log))


def _timers(log: CommitLog, now_ms: int) -> ServiceLag:
    def ask(view: LogView) -> tuple[Progress, int, Levels, int]:
        timers = view.state.fold(TimerProgress)
        return timers.progress, view.state.offset, timers.levels(), view.mark.log_start

    index = TimerIndex(log, keep=False)
    index.refresh(*log.look(ask))
    due = index.next_due()
    return ServiceLag(
        service="timer", log=log.broker, pending=index.count, behind_ms=0 if due is None else max(0, now_ms - due)
    )


def _messages(view: LogView, log: str, now_ms: int) -> list[ServiceLag]:
    open_ = view.state.fold(Transactions).open
    due = min((each.next_check_ms for each in open_.values()), default=now_ms)
    held = sum(len(claims) for claims in view.state.fold(PopState).held.values())
    return [
        ServiceLag(service="transaction-check", log=log, pending=len(open_), behind_ms=max(0, now_ms - due)),
        ServiceLag(service="revive", log=log, pending=held, behind_ms=overdue_ms(view, now_ms)),
    ]


def _upkeep(view: LogView, log: CommitLog, now_ms: int) -> list[ServiceLag]:
    retention_ms = log.settings.retention_ms
    old = sum(segment.max_ms < now_ms - retention_ms for segment in view.mark.segments[:-1])
    return [
        ServiceLag(
            service="roll",
            log=log.broker,
            pending=len(view.state.commits.firsts),
            behind_ms=roll_waits_ms(view, now_ms),
        ),
        ServiceLag(
            service="retention", log=log.broker, pending=old, behind_ms=expiry_waits_ms(view, now_ms, retention_ms)
        ),
    ]


def _tables(store: Store, now_ms: int) -> list[ServiceLag]:
    behind: dict[str, int] = {}
    for one in engine.status(store):
        if one.version is not None and one.broker != engine.SHARED:
            behind[one.broker] = max(behind.get(one.broker, 0), one.behind)
    return [
        ServiceLag(
            service="tables",
            log=broker,
            pending=count,
            behind_ms=max(0, now_ms - store.log(broker).look(lambda view: view.state.store_ms)) if count else 0,
        )
        for broker, count in behind.items()
    ]
