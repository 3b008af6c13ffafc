"""Transactions: the fold of open ones, and the decisions on them (facts 7, design 9.7).

The messages of an open transaction are half messages: ordinary messages of the half topic, which alone makes them
invisible (rule 17). A half message is its own record. What becomes of a transaction is said by op messages: that it
was committed (the real messages stand in the same commit), rolled back or given up, or that its producers are asked.
Every decision holds only while the transaction is open and has the half messages that the decider knows of, so its
messages become visible together and once, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Final

from rmq_spark.errors import CorruptDataError, PreconditionFailedError
from rmq_spark.log.fold import Fold, Records
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision
from rmq_spark.log.state import LogState
from rmq_spark.log.undo import Journal, UndoDict
from rmq_spark.model import properties as names
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import delay, sys_flag
from rmq_spark.rules.system_topics import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC

SERVICE: Final = "transaction-check"
"""Name of the service whose lease those who ask share."""
HALF_QUEUE: Final = 0
IMMUNITY_MS: Final = 6_000
"""Nobody is asked about a transaction before it is so old (RocketMQ's `transactionTimeOut`)."""
IMMUNITY_SECONDS_MAX: Final = 2**31 - 1
"""Longest immunity that a message may ask for, RocketMQ's largest number."""

_STATE: Final = "STATE"
_CHECKS: Final = "CHECKS"
_NEXT: Final = "NEXT_CHECK_MS"
_TAG: Final = "d"
"""RocketMQ's tag of op messages."""


class TransactionState(StrEnum):
    """What a producer says of a transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    """Not known yet: ask again later. RocketMQ writes UNKNOW."""


class Op(StrEnum):
    """What an op message says."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    GIVEN_UP = "given-up"
    CHECK = "check"
    """The producers of the group are asked."""
    CLAIM = "claim"
    """One of them answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """When producers are asked about transactions that stay open."""

    interval_ms: int = 30_000
    """RocketMQ's `transactionCheckInterval`."""
    checks_max: int = 15
    """RocketMQ's `transactionCheckMax`; the next time it is due, it is given up."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """One that was neither committed nor rolled back."""

    group: str
    """Its producer group; any live producer of it may be asked (rule 19)."""
    began_ms: int
    """The log's time of its first half message."""
    next_check_ms: int
    """Not before this time anybody is asked, or it is given up."""
    halves: tuple[int, ...] = ()
    """Queue offsets of its messages in the half topic."""
    topics: tuple[str, ...] = ()
    """Where they go."""
    checks: int = 0
    """How often producers were asked."""
    claimed: bool = False
    """Whether one of them has begun to answer the last time."""


class Transactions(Fold):
    """The open transactions of a broker's log."""

    name: ClassVar[str] = "transactions"
    topics: ClassVar[tuple[str, ...]] = (HALF_TOPIC, OP_TOPIC)
    columns: ClassVar[tuple[str, ...]] = ("queueOffset", "properties")

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.open: UndoDict[str, OpenTransaction] = self.table()
        """By transaction id."""

    def apply(self, records: Records) -> None:
        if records.topic == HALF_TOPIC:
            for properties, offset, store_ms in zip(
                records.properties, records.queue_offsets, records.store_ms, strict=True
            ):
                # One without an id belongs to no transaction: nobody can commit it, and nobody is asked about it.
                if names.TRANSACTION_ID in properties:
                    self._begin(properties, offset, store_ms)
            return
        for properties in records.properties:
            if names.TRANSACTION_ID in properties:
                self._apply_op(properties)

    def _begin(self, properties: Any, offset: int, store_ms: int) -> None:
        tx_id = properties[names.TRANSACTION_ID]
        group, topic = properties[names.PRODUCER_GROUP], properties[names.REAL_TOPIC]
        immunity_ms = _immunity_ms(properties.get(names.CHECK_IMMUNITY_SECONDS))
        known = self.open.get(tx_id, OpenTransaction(group, store_ms, store_ms + immunity_ms))
        self.open[tx_id] = replace(known, halves=(*known.halves, offset), topics=(*known.topics, topic))

    def _apply_op(self, properties: Any) -> None:
        tx_id, op = properties[names.TRANSACTION_ID], Op(properties[_STATE])
        if op not in (Op.CHECK, Op.CLAIM):
            self.open.discard(tx_id)
            return
        checks, next_ms = int(properties[_CHECKS]), int(properties[_NEXT])
        known = self.open.get(tx_id)
        if known is not None:
            self.open[tx_id] = replace(known, checks=checks, next_check_ms=next_ms, claimed=op is Op.CLAIM)

    def dump(self) -> Any:
        return {
            tx_id: [
                each.group, each.began_ms, each.next_check_ms, each.halves, each.topics, each.checks, each.claimed,
            ]
            for tx_id, each in sorted(self.open.items())
        }  # fmt: skip

    def load(self, value: Any, version: int) -> None:
        self.open = self.table()
        for tx_id, (group, began, next_check, halves, topics, checks, claimed) in value.items():
            self.open[tx_id] = OpenTransaction(
                group, began, next_check, tuple(halves), tuple(topics), checks, claimed
            )  # fmt: skip


def _immunity_ms(seconds: str | None) -> int:
    """How long nobody is asked, as a half message says.

    Raises:
        ValueError: that is no time.
    """
    if seconds is None:
        return IMMUNITY_MS
    immunity = float(seconds)
    if not 0 <= immunity <= IMMUNITY_SECONDS_MAX:
        raise ValueError(f"{names.CHECK_IMMUNITY_SECONDS} must be 0 to {IMMUNITY_SECONDS_MAX}")
    return round(immunity * 1000)


# ------------------------------------------------------------ rows


def half_row(row: MessageRow, tx_id: str, group: str, *, deliver_ms: int | None, immunity_ms: int) -> MessageRow:
    """The half message for a message that is routed to its real queue. No transaction bits in its sysFlag (rule 17)."""
    pairs = [
        *row.properties,
        (names.TRANSACTION_PREPARED, "true"),
        (names.PRODUCER_GROUP, group),
        (names.TRANSACTION_ID, tx_id),
        (names.REAL_TOPIC, row.topic),
        (names.REAL_QID, str(row.queue_id)),
    ]
    if deliver_ms is not None:
        pairs.append((names.TIMER_DELIVER_MS, str(deliver_ms)))
    if immunity_ms != IMMUNITY_MS:
        pairs.append((names.CHECK_IMMUNITY_SECONDS, f"{immunity_ms / 1000}".removesuffix(".0")))
    flags = sys_flag.with_transaction(row.sys_flag, sys_flag.Transaction.NONE)
    return row._replace(topic=HALF_TOPIC, queue_id=HALF_QUEUE, sys_flag=flags, properties=pairs)


def real_row(half: MessageRow, now_ms: int) -> MessageRow:
    """The message that a commit makes visible: in its real queue, or parked if it is to be delivered later.

    Raises:
        CorruptDataError: the half message does not say where it goes.
    """
    properties = dict(half.properties)
    topic, queue = properties.get(names.REAL_TOPIC), properties.get(names.REAL_QID, "")
    if not topic or not queue.isdigit():
        raise CorruptDataError("half message does not name its queue", msg_id=half.msg_id, topic=topic, queue=queue)
    flags = sys_flag.with_transaction(half.sys_flag, sys_flag.Transaction.COMMIT)
    row = half._replace(topic=topic, queue_id=int(queue), sys_flag=flags)
    deliver = properties.get(names.TIMER_DELIVER_MS)
    return row if deliver is None else delay.park(row, delay.Delay(deliver_ms=int(deliver)), now_ms)


def given_up_row(half: MessageRow, checks: int) -> MessageRow:
    """The copy of a half message whose transaction is given up; it stays out of its real topic."""
    pairs = [*half.properties, (names.CHECK_TIMES, str(checks))]
    return half._replace(topic=CHECK_MAX_TOPIC, queue_id=0, properties=pairs)


# ------------------------------------------------------------ decisions


def prepare(tx_id: str, group: str, before: int, halves: Sequence[MessageRow]) -> Callable[[LogState], Decision[None]]:
    """A rule that adds half messages to a transaction that has `before` of them; the first ones begin it.

    Refuses with `PreconditionFailedError` if it has others: it was settled meanwhile, or the id is taken.
    """
    batch = MessageBatch.from_rows(halves)

    def rule(state: LogState) -> Decision[None]:
        known = state.fold(Transactions).open.get(tx_id)
        if before:
            _still_open(state, tx_id, before)
        elif known is not None:
            raise PreconditionFailedError("there is a transaction with this id", transaction=tx_id, group=group)
        return Decision(None, batch)

    return rule


def settle(
    tx_id: str, outcome: TransactionState, halves: int, rows: Sequence[MessageRow] = ()
) -> Callable[[LogState], Decision[None]]:
    """A rule that commits a transaction (`rows` become visible) or rolls it back, whatever it holds.

    Refuses with `PreconditionFailedError` if it is not open any more, or is to be committed and has another number of
    half messages.
    """
    if outcome is TransactionState.COMMIT:
        return _end(tx_id, Op.COMMIT, halves, rows)
    return _end(tx_id, Op(outcome), None, ())


def give_up(tx_id: str, halves: int, rows: Sequence[MessageRow]) -> Callable[[LogState], Decision[None]]:
    """A rule that ends a transaction that nobody knows about; `rows` keep its messages for people to look at.

    Refuses as `settle`.
    """
    return _end(tx_id, Op.GIVEN_UP, halves, rows)


def check(
    tx_id: str, checks: int, settings: CheckSettings, extra: Callable[[LogState], Sequence[Any]]
) -> Callable[[LogState], Decision[None]]:
    """A rule that asks the producers of a transaction's group once more; they see the op message in the log.

    Refuses with `PreconditionFailedError` if it is not open, or somebody has asked meanwhile, or it is too early.
    """

    def rule(state: LogState) -> Decision[None]:
        known = _still_open(state, tx_id)
        if known.checks != checks or known.next_check_ms > state.now_ms:
            raise PreconditionFailedError("somebody has asked about it already", transaction=tx_id, checks=known.checks)
        asked = replace(known, checks=checks + 1, next_check_ms=state.now_ms + settings.interval_ms)
        row = _op_row(state, tx_id, Op.CHECK, asked)
        return Decision(None, MessageBatch.from_rows([row]), list(extra(state)))

    return rule


def claim(tx_id: str, checks: int) -> Callable[[LogState], Decision[OpenTransaction]]:
    """A rule by which one of a group's producers takes on to answer; its answer is the transaction.

    Refuses with `PreconditionFailedError` if it is not open, or another producer answers.
    """

    def rule(state: LogState) -> Decision[OpenTransaction]:
        known = _still_open(state, tx_id)
        if known.checks != checks or known.claimed:
            raise PreconditionFailedError("another producer answers", transaction=tx_id, checks=known.checks)
        return Decision(known, MessageBatch.from_rows([_op_row(state, tx_id, Op.CLAIM, known)]))

    return rule


def _end(tx_id: str, op: Op, halves: int | None, rows: Sequence[MessageRow]) -> Callable[[LogState], Decision[None]]:
    def rule(state: LogState) -> Decision[None]:
        known = _still_open(state, tx_id, halves)
        return Decision(None, MessageBatch.from_rows([*rows, _op_row(state, tx_id, op, known)]))

    return rule


def _still_open(state: LogState, tx_id: str, halves: int | None = None) -> OpenTransaction:
    known = state.fold(Transactions).open.get(tx_id)
    if known is None:
        raise PreconditionFailedError(
            "the transaction is not open any more: it was committed, rolled back or given up", transaction=tx_id
        )
    if halves is not None and len(known.halves) != halves:
        raise PreconditionFailedError(
            "the transaction has other messages", transaction=tx_id, messages=len(known.halves), expected=halves
        )
    return known


def _op_row(state: LogState, tx_id: str, op: Op, known: OpenTransaction) -> MessageRow:
    pairs = [(names.TRANSACTION_ID, tx_id), (_STATE, str(op)), (_CHECKS, str(known.checks))]
    pairs.append((_NEXT, str(known.next_check_ms)))
    return MessageRow(
        topic=OP_TOPIC,
        queue_id=0,
        msg_id=op_id(tx_id, op, known.checks),
        tags=_TAG,
        keys=None,
        body="".join(f"{offset}," for offset in known.halves).encode(),  # as RocketMQ writes it
        flag=0,
        sys_flag=0,
        born_ms=state.now_ms,
        born_host=None,
        reconsume_times=0,
        properties=pairs,
    )


def op_id(tx_id: str, op: Op, checks: int) -> str:
    """Id of an op message: what it says, and how often producers had been asked by then."""
    return f"{tx_id}-{op}-{checks}"
