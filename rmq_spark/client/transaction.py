"""A transaction as its producer holds it: half messages that become visible together, or never."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from rmq_spark.client.observer import Observer, tell_ended
from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError, OutcomeUnknownError, RmqError
from rmq_spark.log.commit_log import AppendResult, CommitLog
from rmq_spark.log.request import Rule
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import transaction as rules
from rmq_spark.rules.transaction import Transactions, TransactionState

Observers = Callable[[], Sequence[Observer]]
"""Asked when there is something to tell, because observers come and go."""


class Transaction:
    """An open transaction of one producer; `Producer.begin_transaction` makes it. Safe to use from any thread.

    After `OutcomeUnknownError`, calling `commit` or `rollback` again lands it once.
    """

    def __init__(self, store: Store, group: str, tx_id: str, immunity_ms: int, observers: Observers = tuple) -> None:
        self.id = tx_id
        """Every message of the transaction carries it."""
        self.broker: str | None = None
        """Whose log holds it; the first message decides."""
        self.state = TransactionState.UNKNOWN
        """How it ended; `UNKNOWN` while it is open."""
        self._store = store
        self._group = group
        self._immunity_ms = immunity_ms
        self._observers = observers
        self._lock = threading.Lock()
        self._halves: list[MessageRow] = []
        self._ending: tuple[TransactionState, Rule[None]] | None = None
        """The rule that ends it, kept over retries."""

    def add(self, broker: str, row: MessageRow, deliver_ms: int | None) -> AppendResult:
        """Append the half message for `row`.

        Raises:
            InvalidRequestError: the transaction has ended; or the topic is on another broker.
            PreconditionFailedError: it was ended by somebody else (a check); nothing was written.
            OutcomeUnknownError: it may have been written; the transaction can only be rolled back.
        """
        with self._lock:
            self._check_open()
            if self.broker not in (None, broker):
                raise InvalidRequestError(
                    "messages of one transaction must share a broker", topic=row.topic, broker=self.broker
                )
            self.broker = broker
            half = rules.half_row(row, self.id, self._group, deliver_ms=deliver_ms, immunity_ms=self._immunity_ms)
            rule = rules.prepare(self.id, self._group, len(self._halves), [half])
            log = self._log()
            try:
                result = log.decide(rule).result
            except OutcomeUnknownError:
                result = log.decide(rule).result  # the same rule again lands once; a second failure is the caller's
            self._halves.append(half)
            return result

    def commit(self) -> None:
        """Make all messages visible, in one commit. Committing again changes nothing.

        Raises:
            InvalidRequestError: it was rolled back.
            PreconditionFailedError: it is not open any more: a check has settled it. Nothing was written.
        """
        self._end(TransactionState.COMMIT)

    def rollback(self) -> None:
        """Drop all messages. Rolling back again changes nothing.

        Raises:
            as `commit`.
        """
        self._end(TransactionState.ROLLBACK)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.state is TransactionState.UNKNOWN and self._ending is None:
            try:
                self.rollback()
            except RmqError as failed:
                error.add_note(f"the transaction could not be rolled back and is left to the check: {failed}")

    def _end(self, outcome: TransactionState) -> None:
        with self._lock:
            if self.state is outcome:
                return
            self._check_open()
            if self._ending is not None and self._ending[0] is not outcome:
                raise InvalidRequestError(
                    "it is not known whether the transaction has ended; do the same again", tried=str(self._ending[0])
                )
            if self._halves:
                if self._ending is None:
                    now = self._store.clock.now_ms()
                    rows = [rules.real_row(half, now) for half in self._halves]
                    self._ending = (outcome, rules.settle(self.id, outcome, len(self._halves), rows))
                try:
                    self._log().decide(self._ending[1])
                except RmqError as error:
                    if not isinstance(error, OutcomeUnknownError):
                        self._ending = None  # nothing was written
                    raise
            self.state = outcome
            tell_ended(
                self._observers(),
                self._halves,
                group=self._group,
                broker=self.broker or "",
                tx_id=self.id,
                committed=outcome is TransactionState.COMMIT,
            )

    def _check_open(self) -> None:
        if self.state is not TransactionState.UNKNOWN:
            raise InvalidRequestError("the transaction has ended", transaction=self.id, state=str(self.state))

    def _log(self) -> CommitLog:
        assert self.broker is not None  # noqa: S101 - there is a message
        return self._store.log(self.broker, Transactions)
