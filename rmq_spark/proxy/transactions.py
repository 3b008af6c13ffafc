"""EndTransaction, and asking producers about transactions that stay open (check-back).

The transaction check writes its questions into the log (`services/transaction_check.py`). A proxy that has a producer
for the topic claims a question and passes it on over telemetry; the producer answers by EndTransaction. If it does not,
the next question comes by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final

from rmq_spark.client.check_answers import read_halves, settle_by_id, shown_half
from rmq_spark.client.send_result import SendResult
from rmq_spark.client.store import Store
from rmq_spark.errors import ClosedError, PreconditionFailedError, RmqError
from rmq_spark.log.view import LogView
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.proxy import wire
from rmq_spark.proxy.calls import Call, Right
from rmq_spark.proxy.clients import Clients
from rmq_spark.proxy.incoming import topic_name
from rmq_spark.proxy.metrics import Metrics
from rmq_spark.proxy.outgoing import outgoing
from rmq_spark.proxy.status import OK, Code, RefusedError
from rmq_spark.proxy.topics import Directory
from rmq_spark.proxy.wire import Resolution
from rmq_spark.proxy.workers import Workers
from rmq_spark.rules import transaction as rules
from rmq_spark.rules.transaction import Transactions, TransactionState

LOOK_SECONDS: Final = 1.0
"""So often the proxy looks for questions."""
_MARK: Final = ":"
"""Stands between broker and transaction in the id that clients know."""
_OUTCOMES: Final = {Resolution.COMMIT: TransactionState.COMMIT, Resolution.ROLLBACK: TransactionState.ROLLBACK}

_log = logging.getLogger(__name__)


def wire_id(result: SendResult) -> str:
    """The transaction id that a client is told; empty for messages of none."""
    return "" if result.transaction_id is None else f"{result.broker}{_MARK}{result.transaction_id}"


class TransactionEnds:
    """Ends transactions as their producers say."""

    def __init__(self, store: Store, workers: Workers, directory: Directory, metrics: Metrics) -> None:
        self._store = store
        self._workers = workers
        self._directory = directory
        self._metrics = metrics

    async def end_transaction(self, call: Call, request: Any, context: Any) -> Any:
        """Commit or roll back."""
        topic = topic_name(request.topic)
        call.allow_topic(Right.PUB, topic)
        outcome = _OUTCOMES.get(request.resolution)
        if outcome is None:
            raise RefusedError(Code.BAD_REQUEST, "a transaction is committed or rolled back", told=request.resolution)
        broker, mark, tx_id = request.transaction_id.partition(_MARK)
        if not mark or not await self._directory.has_broker(broker):
            raise RefusedError(Code.INVALID_TRANSACTION_ID, "not a transaction id of this store")
        try:
            await self._workers.run(self._end, broker, tx_id, topic, outcome)
        except PreconditionFailedError as error:
            raise RefusedError(Code.INVALID_TRANSACTION_ID, str(error)) from error
        self._metrics.note_ended(topic, committed=outcome is TransactionState.COMMIT)
        return wire.EndTransactionResponse(status=OK)

    def _end(self, broker: str, tx_id: str, topic: str, outcome: TransactionState) -> None:
        # The right to publish was asked for this topic only.
        settle_by_id(self._store.log(broker, Transactions), tx_id, outcome, topic=topic)


class CheckBack:
    """Passes questions about open transactions on to producers."""

    def __init__(self, store: Store, workers: Workers, clients: Clients) -> None:
        self._store = store
        self._workers = workers
        self._clients = clients

    async def watch(self) -> None:
        """Pass questions on, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            topics = self._clients.published_topics()
            if not topics:
                continue
            try:
                asked = await self._workers.run(self._claim, topics)
            except ClosedError:
                return
            except RmqError as error:
                _log.warning("questions about transactions could not be read, trying again: %s", error)
                continue
            for transaction_id, half in asked:
                self._ask(transaction_id, half)

    def _ask(self, transaction_id: str, half: StoredMessage) -> None:
        seen = shown_half(half)
        command = wire.TelemetryCommand(status=OK)
        recover = command.recover_orphaned_transaction_command
        recover.transaction_id = transaction_id
        recover.message.CopyFrom(outgoing(seen, None))
        recover.message.topic.name = seen.topic
        if not any(client.send(command) for client in self._clients.publishers(seen.topic)):
            _log.info("no producer could be asked about transaction %s; it is asked again later", transaction_id)

    # ------------------------------------------------------------ in a thread

    def _claim(self, topics: Collection[str]) -> list[tuple[str, StoredMessage]]:
        """The questions about these topics that nobody answers yet, claimed by this proxy."""

        def open_questions(view: LogView) -> list[tuple[str, int]]:
            known = view.state.fold(Transactions).open
            return [
                (tx_id, each.checks)
                for tx_id, each in known.items()
                if each.checks and not each.claimed and each.group in topics
            ]

        claimed = []
        for broker in self._store.brokers():
            log = self._store.log(broker, Transactions)
            for tx_id, checks in log.look(open_questions):
                try:
                    transaction = log.decide(rules.claim(tx_id, checks)).answer
                    half = read_halves(log, transaction)[0]
                except PreconditionFailedError as error:
                    _log.info("transaction %s needs no answer: %s", tx_id, error)
                    continue
                claimed.append((f"{broker}{_MARK}{tx_id}", half))
        return claimed
