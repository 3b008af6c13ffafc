"""Asking producers about transactions that stay open, and giving up those that nobody knows about (facts 7).

Questions are counted whether or not a producer is there to answer (rule 18). A question is an op message in the log;
the producers of the group follow it (`client/check_answers.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from rmq_spark.client.check_answers import read_halves
from rmq_spark.client.store import Store
from rmq_spark.errors import DataExpiredError, OutcomeUnknownError, PreconditionFailedError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.state import LogState
from rmq_spark.log.view import LogView
from rmq_spark.rules import service_lease
from rmq_spark.rules import transaction as rules
from rmq_spark.rules.service_lease import ServiceLeases
from rmq_spark.rules.transaction import CheckSettings, OpenTransaction, Transactions
from rmq_spark.services.parts import BROKERS, Parts

LOOK_SECONDS: Final = 1.0
"""So often open transactions are looked at."""

_log = logging.getLogger(__name__)


class BrokerChecks:
    """Checks the transactions of one log.

    Args:
        log: the broker's.
        holder: who this is, for the lease.
        settings: how often is asked, and how many times.
        parts: of the service; a producer group whose transactions cannot be checked holds up no other.
    """

    def __init__(
        self, log: CommitLog, holder: str, settings: CheckSettings | None = None, parts: Parts | None = None
    ) -> None:
        log.use(Transactions, ServiceLeases)
        self._log = log
        self._holder = holder
        self._settings = settings or CheckSettings()
        self.parts = parts or Parts(rules.SERVICE, log.clock)
        self.next_check_ms: int | None = None
        """When the next transaction is due, as of the last look; None if none is open."""

    def run_once(self) -> None:
        """Ask about each transaction that is due, or give it up.

        Raises:
            RmqError: the log could not be read or written; call again.
        """
        now, others_until, open_ = self._log.look(self._look)
        due: dict[str, dict[str, OpenTransaction]] = {}
        for tx_id, each in open_.items():
            mine = others_until <= now or now - each.next_check_ms >= service_lease.TAKEOVER_MS
            if each.next_check_ms <= now and mine:
                due.setdefault(f"group {each.group}", {})[tx_id] = each
        self.parts.each(
            f"{BROKERS} {self._log.broker}",
            {group: partial(self._check, transactions) for group, transactions in due.items()},
        )
        if due:
            _, _, open_ = self._log.look(self._look)
        self.next_check_ms = min((each.next_check_ms for each in open_.values()), default=None)

    def _check(self, due: Mapping[str, OpenTransaction]) -> None:
        for tx_id, transaction in due.items():
            try:
                if transaction.checks < self._settings.checks_max:
                    self._log.decide(rules.check(tx_id, transaction.checks, self._settings, self._renewal))
                else:
                    self.give_up(tx_id, transaction)
            except (PreconditionFailedError, OutcomeUnknownError):
                continue  # somebody else was faster, or it may have landed: the next look tells

    def give_up(self, tx_id: str, transaction: OpenTransaction) -> None:
        """End a transaction without making its messages visible; they are kept in TRANS_CHECK_MAX_TIME_TOPIC.

        Those that retention has taken are lost, which is logged.

        Raises:
            PreconditionFailedError: it is not open any more, or has other messages now.
        """
        try:
            halves = read_halves(self._log, transaction)
        except DataExpiredError as error:
            first = int(str(error.context["first"]))
            left = tuple(offset for offset in transaction.halves if offset >= first)
            _log.warning(
                "half messages expired before their transaction was settled: transaction=%s messages=%d",
                tx_id,
                len(transaction.halves) - len(left),
            )
            halves = read_halves(self._log, replace(transaction, halves=left))
        rows = [rules.given_up_row(half.to_row(), transaction.checks) for half in halves]
        self._log.decide(rules.give_up(tx_id, len(transaction.halves), rows))

    def _look(self, view: LogView) -> tuple[int, int, dict[str, OpenTransaction]]:
        state = view.state
        lease = state.fold(ServiceLeases).leases.get(rules.SERVICE)
        others_until = lease.until_ms if lease is not None and lease.holder != self._holder else 0
        now = max(state.store_ms, self._log.clock.now_ms())
        return now, others_until, dict(state.fold(Transactions).open)

    def _renewal(self, state: LogState) -> list[tuple[str, Mapping[str, Any]]]:
        return service_lease.renewal(state, rules.SERVICE, self._holder)


class TransactionCheckService:
    """Checks the open transactions of a store; see `Service`.

    Args:
        store: an open store.
        settings: how often is asked, and how many times.
    """

    name = "transaction-check"

    def __init__(self, store: Store, settings: CheckSettings | None = None) -> None:
        self._store = store
        self._settings = settings
        self._holder = store.clock.token()
        self.parts = Parts(self.name, store.clock)
        self._checks: dict[str, BrokerChecks] = {}

    def run_once(self) -> float:
        work = {broker: partial(self._check_broker, broker) for broker in self._store.brokers()}
        self.parts.each(BROKERS, work, or_raise=True)
        return LOOK_SECONDS

    def _check_broker(self, broker: str) -> None:
        if broker not in self._checks:
            log = self._store.log(broker)
            self._checks[broker] = BrokerChecks(log, self._holder, self._settings, self.parts)
        self._checks[broker].run_once()

    def behind_ms(self) -> int:
        now = self._store.clock.now_ms()
        due = [each.next_check_ms for each in self._checks.values() if each.next_check_ms is not None]
        return max(0, now - min(due)) if due else 0
