"""A log's state without a log: POP's decisions are carried out on it, and messages are plain values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision, Rule
from rmq_spark.log.run_index import Runs
from rmq_spark.log.state import LogState
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import pop_decisions
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.rules.pop import Claim, PopState
from rmq_spark.rules.pop_decisions import Candidates, Fifo, Overdue, Received
from rmq_spark.rules.receipt import Receipt

GROUP, TOPIC = "g", "orders"
RETRY = "%RETRY%g+orders"
DLQ = "%DLQ%g"
START_MS = 1_000_000


class PopWorld:
    """One log: its state, its messages by (topic, queue), and a clock."""

    def __init__(self) -> None:
        self.state = LogState(pop_decisions.FOLDS)
        self.now_ms = START_MS
        self.queues: dict[tuple[str, int], list[StoredMessage]] = {}
        self._sent = 0

    # ------------------------------------------------------------ messages

    def send(self, count: int = 1, *, topic: str = TOPIC, queue: int = 0, tags: str | None = None) -> list[str]:
        """Append messages; returns their ids."""
        ids = []
        for _ in range(count):
            self._sent += 1
            ids.append(f"m{self._sent}")
            self._append(self._message(topic, queue, ids[-1], tags))
        return ids

    def ids(self, topic: str, queue: int = 0) -> list[str]:
        return [message.msg_id for message in self.queues.get((topic, queue), [])]

    def expire(self, first: int, topic: str = TOPIC) -> None:
        """Retention takes the messages before `first`."""
        older = LogState().queues
        older.advance(_runs(topic, 0, first))
        self.state.queues.raise_starts(older)

    def _message(self, topic: str, queue: int, msg_id: str, tags: str | None) -> StoredMessage:
        return StoredMessage(
            topic=topic, broker="b", queue_id=queue, queue_offset=0, commit_offset=0, msg_id=msg_id, tags=tags,
            body=b"x", born_ms=0, store_ms=self.now_ms,
        )  # fmt: skip

    def _append(self, message: StoredMessage) -> None:
        mine = self.queues.setdefault((message.topic, message.queue_id), [])
        mine.append(replace(message, queue_offset=len(mine), store_ms=self.now_ms))
        self.state.queues.advance(_runs(message.topic, message.queue_id, 1))

    # ------------------------------------------------------------ decisions

    def decide(self, rule: Rule[Any]) -> Any:
        """Ask a rule twice, and take in what it decides: asking must not change anything."""
        self.state.open_trial(self.now_ms)
        before = self.dump()
        first = rule(self.state)
        assert self.dump() == before
        decision = rule(self.state)
        assert (decision.answer, decision.records) == (first.answer, first.records)
        self._take(decision)
        self.state.journal.close()
        self.reload()
        return decision.answer

    def _take(self, decision: Decision[Any]) -> None:
        if decision.rows is not None:
            for row in decision.rows.rows:
                self._append(
                    StoredMessage(
                        topic=row[0],
                        broker="b",
                        queue_id=row[1],
                        queue_offset=0,
                        commit_offset=0,
                        msg_id=row[2],
                        tags=row[3],
                        keys=row[4],
                        body=row[5],
                        born_ms=row[8],
                        store_ms=0,
                        reconsume_times=row[10],
                        properties=dict(row[11]),
                    )
                )
        for topic, value in decision.records:
            self.state.admit(
                MessageBatch.of(
                    topic=topic, queue_id=0, msg_id="r", body=json.dumps(value).encode(), born_timestamp_ms=0
                )
            )

    def reload(self) -> None:
        """A snapshot of the state gives the same state."""
        known = self.pop
        copy = LogState(pop_decisions.FOLDS).fold(PopState)
        copy.load(json.loads(json.dumps(known.dump())), PopState.version)
        assert copy.held == known.held and copy.orders == known.orders

    def dump(self) -> Any:
        return self.pop.dump(), self.state.fold(ConsumerOffsets).dump()

    @property
    def pop(self) -> PopState:
        return self.state.fold(PopState)

    def committed(self, topic: str = TOPIC, queue: int = 0) -> int | None:
        return pop_decisions.next_offset(self.state, (GROUP, topic, queue))

    # ------------------------------------------------------------ calls

    def candidates(
        self, topic: str = TOPIC, queue: int = 0, *, rows: int = 100, tags: str | None = None, low: int | None = None
    ) -> Candidates:
        """What a consumer reads of a queue from its next offset on."""
        stored = self.committed(topic, queue)
        first, end = self.state.queues.bounds(topic, queue)
        low = max(first, stored or 0) if low is None else low
        high = max(low, min(end, low + rows))
        messages = self.queues.get((topic, queue), [])[low:high]
        offsets = [each.queue_offset for each in messages if tags is None or each.tags == tags]
        return Candidates(topic=topic, queue=queue, low=low, high=high, offsets=offsets, is_start=stored is None)

    def receive(
        self,
        *candidates: Candidates,
        count: int = 32,
        invisible_ms: int = 30_000,
        consumer: str = "c",
        fifo: Fifo | None = None,
    ) -> Received:
        chosen = candidates or (self.candidates(),)
        rule = pop_decisions.receive(
            GROUP, chosen, count=count, invisible_ms=invisible_ms, consumer=consumer, fifo=fifo
        )
        received: Received = self.decide(rule)
        return received

    def take(self, count: int = 32, **named: Any) -> list[tuple[str, Receipt]]:
        """Receive from the one queue; topic and receipt of each message."""
        return receipts_of(self.receive(count=count, **named))

    def ack(self, *receipts: tuple[str, Receipt]) -> list[str]:
        return [status.name for status in self.decide(pop_decisions.ack(GROUP, receipts))]

    def change(self, receipt: tuple[str, Receipt], invisible_ms: int) -> tuple[str, tuple[str, Receipt] | None]:
        topic, old = receipt
        rule = pop_decisions.change_invisible(GROUP, [(topic, old)], invisible_ms=invisible_ms, consumer="c")
        (changed,) = self.decide(rule)
        if changed.claim is None:
            return changed.status.name, None
        return changed.status.name, (topic, receipt_of(changed.claim, topic, old.queue_id, old.queue_offset))

    def overdue(self) -> dict[tuple[str, str, int], dict[int, Overdue]]:
        """What a reviver sees and reads."""
        due = {}
        for place, claims in self.pop.overdue(self.now_ms, 1000):
            order = self.pop.orders.get(place)
            times = {} if order is None else dict(zip(order.offsets, order.reconsume_times, strict=True))
            first = self.state.queues.bounds(place[1], place[2])[0]
            due[place] = {
                offset: Overdue(
                    claim=claim,
                    message=self.queues[place[1], place[2]][offset] if offset >= first else None,
                    fifo_times=times.get(offset),
                )
                for offset, claim in claims.items()
            }
        return due

    def revive(self, maximum: int = 16) -> pop_decisions.Revived:
        done = pop_decisions.Revived()
        for place, overdue in self.overdue().items():
            one = self.decide(pop_decisions.revive(place, overdue, retry_max_times=maximum))
            done = pop_decisions.Revived(done.retried + one.retried, done.dead + one.dead, done.lost + one.lost)
        return done


def receipt_of(claim: Claim, topic: str, queue: int, offset: int) -> Receipt:
    return Receipt(
        start_offset=claim.start, pop_ms=claim.pop_ms, invisible_ms=claim.invisible_ms, broker="b", queue_id=queue,
        queue_offset=offset,
    )  # fmt: skip


def receipts_of(received: Received) -> list[tuple[str, Receipt]]:
    return [
        (claimed.topic, receipt_of(claimed.claim, claimed.topic, claimed.queue, offset))
        for claimed in received.claimed
        for offset in claimed.offsets
    ]


def offsets_of(receipts: list[tuple[str, Receipt]]) -> list[int]:
    return [receipt.queue_offset for _, receipt in receipts]


def _runs(topic: str, queue: int, count: int) -> Runs:
    zero = np.zeros(1, np.int32)
    return Runs([topic], zero, np.array([queue], np.int32), np.array([count], np.int32), zero, zero)
