"""Receiving and settling by POP, for all groups: one reader for each group and broker, acks of all in one decision."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Final

from rmq_spark.client.group_queues import decide
from rmq_spark.client.pop_broker import PopBroker
from rmq_spark.client.store import Store
from rmq_spark.errors import RmqError
from rmq_spark.rules import pop_decisions
from rmq_spark.rules.pop_decisions import AckStatus, Changed
from rmq_spark.rules.receipt import Receipt
from rmq_spark.rules.start_offset import ConsumeFrom

READERS_MAX: Final = 500
"""Groups and brokers whose read-ahead is kept; the one that was used longest ago goes first."""

Held = tuple[str, str, Receipt]
"""Group, topic that the message was read from, and receipt."""


class Pop:
    """POP on a store. Its methods block; safe to use from any thread."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._lock = Lock()
        self._readers: OrderedDict[tuple[str, str], PopBroker] = OrderedDict()

    def known(self, group: str, broker: str) -> PopBroker | None:
        """As `reader`, if there is one already; does not block."""
        return self._readers.get((group, broker))

    def reader(self, group: str, broker: str) -> PopBroker:
        """What receives for a group from a broker."""
        with self._lock:
            known = self._readers.get((group, broker))
            if known is None:
                known = self._readers[group, broker] = PopBroker(
                    self._store, group, broker, consumer=self._name, consume_from=ConsumeFrom.LATEST
                )
                if len(self._readers) > READERS_MAX:
                    self._readers.popitem(last=False)
            else:
                self._readers.move_to_end((group, broker))
            return known

    def ack(self, held: Sequence[Held]) -> list[AckStatus | RmqError]:
        """Acknowledge messages: one commit a broker. An error concerns the messages of one broker only."""
        answers: list[AckStatus | RmqError] = [AckStatus.UNKNOWN] * len(held)
        for broker, rows in _by_broker(held).items():
            try:
                log = self._store.log(broker, *pop_decisions.FOLDS)
                statuses = decide(log, pop_decisions.ack_all([held[at] for at in rows]))
            except RmqError as error:
                for at in rows:
                    answers[at] = error
            else:
                for at, status in zip(rows, statuses, strict=True):
                    answers[at] = status
        return answers

    def change(self, held: Sequence[Held], invisible_ms: int, consumer: str) -> list[Receipt | AckStatus]:
        """Let messages be visible again after another time; the new receipts, or why there is none.

        Raises:
            RmqError: as `CommitLog.decide`; messages of other brokers may have been changed.
        """
        answers: list[Receipt | AckStatus] = [AckStatus.UNKNOWN] * len(held)
        for broker, rows in _by_broker(held).items():
            log = self._store.log(broker, *pop_decisions.FOLDS)
            rule = pop_decisions.change_all([held[at] for at in rows], invisible_ms=invisible_ms, consumer=consumer)
            decided = decide(log, rule)
            for at, changed in zip(rows, decided, strict=True):
                answers[at] = _renewed(held[at][2], changed)
        return answers

    def dead_letter(self, held: Held) -> AckStatus:
        """Give up a message.

        Raises:
            DataExpiredError: retention has taken it.
            RmqError: as `CommitLog.decide`.
        """
        group, topic, receipt = held
        return self.reader(group, receipt.broker).dead_letter(topic, receipt)


def _renewed(receipt: Receipt, changed: Changed) -> Receipt | AckStatus:
    claim = changed.claim
    if claim is None:
        return changed.status
    return replace(receipt, start_offset=claim.start, pop_ms=claim.pop_ms, invisible_ms=claim.invisible_ms)


def _by_broker(held: Sequence[Held]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for at, (_, _, receipt) in enumerate(held):
        rows.setdefault(receipt.broker, []).append(at)
    return rows
