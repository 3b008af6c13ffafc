"""Retention that takes nothing that is still needed: delayed messages are carried forward, old halves given up."""

from __future__ import annotations

from rmq_spark.client.store import Store
from rmq_spark.errors import DataExpiredError, OutcomeUnknownError, PreconditionFailedError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import ExpireResult, Hold, expire
from rmq_spark.log.view import LogView
from rmq_spark.rules.all_folds import BROKER_FOLDS
from rmq_spark.rules.transaction import OpenTransaction, Transactions
from rmq_spark.services.timer import BrokerTimers
from rmq_spark.services.transaction_check import BrokerChecks


def retention_hold(log: CommitLog) -> Hold:
    """What `expire` asks before it drops segments of a broker's log.

    Delayed messages below the new start are appended again with the same due time. Transactions that are still open
    with half messages there are given up, as RocketMQ does with those older than its files.
    """
    holder = log.clock.token()
    timers, checks = BrokerTimers(log, holder), BrokerChecks(log, holder)

    def hold(start: int) -> int:
        _give_up_old(log, checks, start)
        return timers.carry_forward(start)

    return hold


def expire_broker(
    store: Store, broker: str, *, scheduled: bool = False, before_ms: int | None = None
) -> ExpireResult:  # fmt: skip
    """`expire` of a broker's log, with everything that is pending kept.

    Raises:
        as `expire`.
    """
    log = store.log(broker, *BROKER_FOLDS)
    return expire(log, scheduled=scheduled, before_ms=before_ms, hold=retention_hold(log))


def _give_up_old(log: CommitLog, checks: BrokerChecks, start: int) -> None:
    def old(view: LogView) -> dict[str, OpenTransaction]:
        open_ = view.state.fold(Transactions).open
        if not open_:
            return {}
        # What has its first half before the new start began before the first commit that stays.
        limit = next((segment.max_ms for segment in reversed(view.mark.segments) if segment.end <= start), 0)
        return {tx_id: each for tx_id, each in open_.items() if each.began_ms <= limit}

    for tx_id, transaction in log.look(old).items():
        try:
            checks.give_up(tx_id, transaction)
        except (PreconditionFailedError, OutcomeUnknownError, DataExpiredError):
            continue
