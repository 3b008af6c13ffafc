"""Answering the transaction check: what a live producer does when somebody asks about its group's transactions.

The questions are op messages in the log (`rules/transaction.py`). One producer of the group claims each, reads the half
messages, asks the user's function, and commits or rolls back. If it dies meanwhile, the next question comes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rmq_spark.client.observer import tell_ended
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import decompressed, stored_messages
from rmq_spark.client.transaction import Observers
from rmq_spark.errors import ClosedError, PreconditionFailedError, RmqError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.queue_reader import read_queue
from rmq_spark.model import properties as names
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import transaction as rules
from rmq_spark.rules.system_topics import HALF_TOPIC
from rmq_spark.rules.transaction import OpenTransaction, Transactions, TransactionState

Checker = Callable[[StoredMessage], TransactionState]
"""Tells what has become of the transaction that a message belongs to."""

WAIT_SECONDS: Final = 0.5

_log = logging.getLogger(__name__)


def read_halves(log: CommitLog, transaction: OpenTransaction) -> list[StoredMessage]:
    """The half messages of a transaction, in their order.

    Raises:
        DataExpiredError: retention has taken one.
    """
    messages: list[StoredMessage] = []
    for offset in transaction.halves:
        messages += stored_messages(read_queue(log, HALF_TOPIC, rules.HALF_QUEUE, offset, rows_max=1).messages)
    return messages


def shown_half(half: StoredMessage) -> StoredMessage:
    """A half message as its producer knows it: with the topic that it was sent to, and a plain body."""
    return decompressed(replace(half, topic=half.properties[names.REAL_TOPIC]))


def settle(log: CommitLog, tx_id: str, outcome: TransactionState, halves: list[StoredMessage]) -> None:
    """Commit a transaction whose half messages are `halves`, or roll it back.

    Raises:
        PreconditionFailedError: it is not open any more, or has other messages.
        RmqError: as `CommitLog.decide`.
    """
    now = log.clock.now_ms()
    rows = [rules.real_row(half.to_row(), now) for half in halves]
    log.decide(rules.settle(tx_id, outcome, len(halves), rows))


def settle_by_id(log: CommitLog, tx_id: str, outcome: TransactionState, *, topic: str) -> list[StoredMessage]:
    """Commit or roll back an open transaction of a topic that somebody else began; returns its half messages.

    Raises:
        PreconditionFailedError: it is not open any more, never was, or has messages of another topic.
        RmqError: as `CommitLog.decide`.
    """
    known = log.look(lambda view: view.state.fold(Transactions).open.get(tx_id))
    halves = [] if known is None else read_halves(log, known)
    if not halves or any(half.properties[names.REAL_TOPIC] != topic for half in halves):
        raise PreconditionFailedError("the topic has no open transaction with this id", transaction=tx_id)
    settle(log, tx_id, outcome, halves)
    return halves


class CheckAnswers:
    """Answers the questions about the transactions of one group."""

    def __init__(self, store: Store, group: str, checker: Checker, observers: Observers = tuple) -> None:
        self._store = store
        self._group = group
        self._checker = checker
        self._observers = observers
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer in a thread of its own, until `close`."""
        self._thread = threading.Thread(target=self._run, name="rmq-check-answers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits for an answer that is under way."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def run_once(self) -> int:
        """Answer what is asked now; return how many transactions were settled.

        Raises:
            RmqError: a log could not be read or written; call again.
        """
        return sum(self._answer_log(self._store.log(broker, Transactions)) for broker in self._store.brokers())

    def _answer_log(self, log: CommitLog) -> int:
        open_ = log.look(lambda view: list(view.state.fold(Transactions).open.items()))
        asked = [(tx_id, each.checks) for tx_id, each in open_ if self._is_for_me(each)]
        settled = 0
        for tx_id, checks in asked:
            try:
                transaction = log.decide(rules.claim(tx_id, checks)).answer
                settled += self._answer(log, tx_id, transaction)
            except PreconditionFailedError as error:
                _log.info("transaction %s needs no answer: %s", tx_id, error)
        return settled

    def _is_for_me(self, transaction: OpenTransaction) -> bool:
        return transaction.group == self._group and transaction.checks > 0 and not transaction.claimed

    def _answer(self, log: CommitLog, tx_id: str, transaction: OpenTransaction) -> int:
        halves = read_halves(log, transaction)
        state = self._ask(halves[0])
        if state is TransactionState.UNKNOWN:
            return 0  # the next question comes by itself (rule 18)
        settle(log, tx_id, state, halves)
        tell_ended(
            self._observers(),
            [half.to_row() for half in halves],
            group=self._group,
            broker=log.broker,
            tx_id=tx_id,
            committed=state is TransactionState.COMMIT,
            from_check=True,
        )
        return 1

    def _ask(self, half: StoredMessage) -> TransactionState:
        try:
            return TransactionState(self._checker(shown_half(half)))
        except Exception:  # noqa: BLE001 - the user's function: whatever it raises means that it does not know
            _log.exception("the checker failed on message %s; it is asked again later", half.msg_id)
            return TransactionState.UNKNOWN

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.run_once()
                logs = [self._store.log(broker) for broker in self._store.brokers()]
                if len(logs) == 1:
                    logs[0].wait(logs[0].view.state.offset, WAIT_SECONDS)
                else:
                    self._stop.wait(WAIT_SECONDS)
            except ClosedError:
                return  # the store was closed before the producer
            except RmqError as error:
                _log.warning("questions about transactions could not be answered, trying again: %s", error)
                self._stop.wait(WAIT_SECONDS)
