"""Decisions on POP: receive, acknowledge, change the invisible time, give back what is overdue, reset.

Each is a rule for `CommitLog.decide`: it looks at the state where its records land. So two consumers never hold one
message within its invisible time, and any number of revivers give a message back once. Time is the log's own. The log
must have the folds `FOLDS`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from rmq_spark.log.fold import Fold
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision, Rule
from rmq_spark.log.state import LogState
from rmq_spark.model import properties
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import retry, system_topics
from rmq_spark.rules.offsets import ConsumerOffsets, offset_records
from rmq_spark.rules.pop import (
    Claim,
    Order,
    Place,
    PopState,
    change_record,
    claim_record,
    clear_record,
    end_record,
)
from rmq_spark.rules.receipt import Receipt

FOLDS: Final[tuple[type[Fold], ...]] = (PopState, ConsumerOffsets)
"""What a log must fold for these decisions."""

RECEIVE_MAX: Final = 32
"""Most messages of one receive, as in RocketMQ."""
INVISIBLE_MS_MAX: Final = 12 * 3_600_000
"""Longest time that a message may be held, as in RocketMQ."""
REVIVE_MS: Final = 1_000
"""So often somebody looks for messages whose time is over."""

_Record = tuple[str, Mapping[str, Any]]


# ------------------------------------------------------------ receive


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What a consumer has read of a queue and may get: the messages that match among those from `low` to `high`."""

    topic: str
    queue: int
    low: int
    """First offset that was looked at."""
    high: int
    """Behind the last one."""
    offsets: Sequence[int]
    """Those that match, ascending."""
    is_start: bool = False
    """Whether `low` is where a group starts that has no offset yet; then it gets one, even with nothing to receive."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a consumer holds now of one queue."""

    topic: str
    queue: int
    offsets: Sequence[int]
    claim: Claim
    reconsume_times: Sequence[int] | None = None
    """FIFO: how often each was delivered before; else the messages themselves tell."""


@dataclass(frozen=True, slots=True)
class Received:
    """What came of a receive."""

    claimed: tuple[Claimed, ...]
    moved: tuple[tuple[str, int], ...]
    """Queues whose next offset is outside of the candidates by now: read them again."""
    blocked: tuple[tuple[str, int], ...] = ()
    """FIFO: queues whose last batch is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo:
    """How a FIFO group receives."""

    attempt_id: str | None = None
    """Names the receive; the same one again gets the same messages without waiting."""
    retry_max_times: int = retry.RETRY_MAX_TIMES
    """A message that was delivered once more than this is not delivered again: `revive` moves it away."""


def receive(
    group: str,
    candidates: Sequence[Candidates],
    *,
    count: int,
    invisible_ms: int,
    consumer: str,
    fifo: Fifo | None = None,
) -> Rule[Received]:
    """Claim up to `count` of the candidates, queue after queue in the order given, from each next offset on.

    Messages that do not match are passed over. What is claimed, and the group's new offset, are one commit.
    """

    def rule(state: LogState) -> Decision[Received]:
        pop = state.fold(PopState)
        claimed: list[Claimed] = []
        moved: list[tuple[str, int]] = []
        blocked: list[tuple[str, int]] = []
        offsets: dict[tuple[str, int], int] = {}
        records: list[_Record] = []
        left = count
        for each in candidates:
            if not left and not each.is_start:
                continue
            queue = (each.topic, each.queue)
            place = (group, *queue)
            stored = next_offset(state, place)
            position = _position(state, stored, each)
            if position is None:
                moved.append(queue)
                continue
            if pop.orders and blocked_ms(state, place, fifo, state.now_ms) is not None:
                blocked.append(queue)
                continue
            at = bisect_left(each.offsets, position)
            taken = each.offsets[at : at + left]
            left -= len(taken)
            after = at + len(taken)
            goes_on = each.offsets[after] if after < len(each.offsets) else each.high
            goes_to = goes_on
            if taken:
                claim = Claim(taken[0], state.now_ms, invisible_ms, consumer)
                order = None if fifo is None else _order(_valid_order(pop, place, stored), taken, goes_on, fifo)
                claimed.append(Claimed(*queue, taken, claim, None if order is None else order.reconsume_times))
                records.append((PopState.topics[0], claim_record(place, taken, claim, order)))
                if order is not None:
                    goes_to = taken[0]  # in order: it moves when they are acknowledged
            if goes_to != stored:
                offsets[queue] = goes_to
        records += _offsets(group, offsets, {"member": consumer})
        return Decision(Received(tuple(claimed), tuple(moved), tuple(blocked)), records=records)

    return rule


def next_offset(state: LogState, place: Place) -> int | None:
    """Where a group goes on in a queue: its committed offset; None when it has none."""
    topics = state.fold(ConsumerOffsets).offsets.get(place[0])
    queues = None if topics is None else topics.get(place[1])
    return None if queues is None else queues.get(place[2])


def _position(state: LogState, stored: int | None, candidates: Candidates) -> int | None:
    """Where the group goes on in the queue; None if the candidates do not tell what is there."""
    if stored is None:
        return candidates.low if candidates.is_start else None
    position = max(stored, state.queues.bounds(candidates.topic, candidates.queue)[0])  # retention passes consumers by
    if candidates.low <= position < candidates.high or position == candidates.low:
        return position
    return None


def blocked_ms(state: LogState, place: Place, fifo: Fifo | None, now_ms: int) -> int | None:
    """How long a FIFO queue is blocked from `now_ms` on if nobody acknowledges anything; None when it is free.

    It is blocked while any message of its last batch is not acknowledged and still invisible.
    """
    pop = state.fold(PopState)
    order = _valid_order(pop, place, next_offset(state, place))
    if order is None or (fifo is not None and fifo.attempt_id is not None and fifo.attempt_id == order.attempt_id):
        return None
    unfinished = pop.unfinished(place)
    left = max(pop.held[place][offset].due_ms for offset in unfinished) - now_ms
    if left > 0:
        return left
    # Delivered too often: whoever revives moves it to the dead-letter topic before the queue goes on.
    return REVIVE_MS if fifo is not None and _spent(order, unfinished, fifo.retry_max_times) else None


def _valid_order(pop: PopState, place: Place, stored: int | None) -> Order | None:
    """The FIFO batch in flight; none if the group was set to another offset since."""
    unfinished = pop.unfinished(place)
    return pop.orders[place] if unfinished and unfinished[0] == stored else None


def _order(before: Order | None, taken: Sequence[int], end: int, fifo: Fifo) -> Order:
    """The FIFO batch that `taken` makes after the batch before, if that is not finished."""
    times: dict[int, int] = {}
    if before is not None:
        again = fifo.attempt_id is not None and fifo.attempt_id == before.attempt_id
        times = {
            offset: count if again else count + 1
            for offset, count in zip(before.offsets, before.reconsume_times, strict=True)
        }
    return Order(tuple(taken), tuple(times.get(offset, 0) for offset in taken), end, fifo.attempt_id)


def is_spent(fifo_times: int, maximum: int) -> bool:
    """Whether a message of a FIFO batch that was delivered `fifo_times` times before this time must not come again."""
    return retry.is_given_up(fifo_times + 1, maximum, retry.Path.POP)


def _spent(order: Order, offsets: Sequence[int], maximum: int) -> list[int]:
    """Those of a FIFO batch that must not be delivered again."""
    times = dict(zip(order.offsets, order.reconsume_times, strict=True))
    return [offset for offset in offsets if is_spent(times[offset], maximum)]


# ------------------------------------------------------------ acknowledge, change


class AckStatus(Enum):
    """What came of an acknowledgement, or of a change."""

    OK = "ok"
    """The message was held by this receipt; it is acknowledged, or kept longer, even if its time was over."""
    NOT_HELD = "not held"
    """Nobody holds it: it was acknowledged before, or the group was reset."""
    EXPIRED = "expired"
    """Nobody holds it, and the receipt's time is over: it was given back to the group unless acknowledged before."""
    STALE = "stale"
    """It is held by a newer receipt: its time was changed, or it was received again."""
    UNKNOWN = "unknown"
    """There is no such message."""


def ack(group: str, receipts: Sequence[tuple[str, Receipt]]) -> Rule[list[AckStatus]]:
    """Acknowledge messages by topic (the one they were read from) and receipt. Doing it again changes nothing."""
    return ack_all([(group, topic, receipt) for topic, receipt in receipts])


def ack_all(receipts: Sequence[tuple[str, str, Receipt]]) -> Rule[list[AckStatus]]:
    """As `ack`, for messages of several groups: by group, topic and receipt."""

    def rule(state: LogState) -> Decision[list[AckStatus]]:
        answers: list[AckStatus] = []
        ended: dict[Place, dict[int, None]] = {}
        for group, topic, receipt in receipts:
            place = (group, topic, receipt.queue_id)
            status = _judge(state, place, receipt)
            answers.append(status)
            if status is AckStatus.OK:
                ended.setdefault(place, {})[receipt.queue_offset] = None
        return Decision(answers, records=_end(state, ended))

    return rule


@dataclass(frozen=True, slots=True)
class Changed:
    """What came of a change of the invisible time."""

    status: AckStatus
    claim: Claim | None = None
    """What the new receipt names; None unless `OK`."""


def change_invisible(
    group: str, receipts: Sequence[tuple[str, Receipt]], *, invisible_ms: int, consumer: str
) -> Rule[list[Changed]]:
    """Let messages be visible again `invisible_ms` from now on; the old receipts stop working (rule 31).

    Args:
        group: the group.
        receipts: with the topics that the messages were read from.
        invisible_ms: how long nobody else gets them.
        consumer: who holds them.
    """
    each = [(group, topic, receipt) for topic, receipt in receipts]
    return change_all(each, invisible_ms=invisible_ms, consumer=consumer)


def change_all(
    receipts: Sequence[tuple[str, str, Receipt]], *, invisible_ms: int, consumer: str
) -> Rule[list[Changed]]:
    """As `change_invisible`, for messages of several groups: by group, topic and receipt."""

    def rule(state: LogState) -> Decision[list[Changed]]:
        answers: list[Changed] = []
        records: list[_Record] = []
        for group, topic, receipt in receipts:
            place = (group, topic, receipt.queue_id)
            status = _judge(state, place, receipt)
            claim = None
            if status is AckStatus.OK:
                claim = Claim(receipt.queue_offset, state.now_ms, invisible_ms, consumer)
                records.append((PopState.topics[0], change_record(place, receipt.queue_offset, claim)))
            answers.append(Changed(status, claim))
        return Decision(answers, records=records)

    return rule


def give_up(group: str, messages: Sequence[tuple[str, Receipt, StoredMessage]]) -> Rule[list[AckStatus]]:
    """Move messages that are held to the group's dead-letter topic; copies and the end of the claims are one commit.

    Args:
        group: the group.
        messages: each with the topic that it was read from and its receipt; bodies as they are to be stored.
    """

    def rule(state: LogState) -> Decision[list[AckStatus]]:
        answers: list[AckStatus] = []
        ended: dict[Place, dict[int, None]] = {}
        rows: list[MessageRow] = []
        for topic, receipt, message in messages:
            place = (group, topic, receipt.queue_id)
            status = _judge(state, place, receipt)
            answers.append(status)
            if status is AckStatus.OK:
                ended.setdefault(place, {})[receipt.queue_offset] = None
                rows.append(retry.dead_letter_row(message, group))
        return Decision(answers, rows=MessageBatch.from_rows(rows) if rows else None, records=_end(state, ended))

    return rule


def _judge(state: LogState, place: Place, receipt: Receipt) -> AckStatus:
    claim = state.fold(PopState).claim_of(place, receipt.queue_offset)
    if claim is None:
        if receipt.queue_offset >= state.queues.bounds(place[1], place[2])[1]:
            return AckStatus.UNKNOWN
        return AckStatus.EXPIRED if receipt.is_expired(state.now_ms) else AckStatus.NOT_HELD
    same = (claim.start, claim.pop_ms, claim.invisible_ms) == (
        receipt.start_offset,
        receipt.pop_ms,
        receipt.invisible_ms,
    )
    return AckStatus.OK if same else AckStatus.STALE


def _end(state: LogState, ended: Mapping[Place, Mapping[int, object]]) -> list[_Record]:
    """Records by which messages are held no longer; the offset of a FIFO group moves with them."""
    pop = state.fold(PopState)
    records: list[_Record] = []
    for place, offsets in ended.items():
        records.append((PopState.topics[0], end_record(place, offsets)))
        unfinished = pop.unfinished(place)
        stored = next_offset(state, place)
        if (order := _valid_order(pop, place, stored)) is not None:
            after = next((offset for offset in unfinished if offset not in offsets), order.end)
            if after != stored:
                records += _offsets(place[0], {(place[1], place[2]): after}, {})
    return records


# ------------------------------------------------------------ revive


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """A message whose time is over, as somebody saw it."""

    claim: Claim
    message: StoredMessage | None
    """As the log has it; None when retention has taken it."""
    fifo_times: int | None = None
    """FIFO: how often it was delivered before; None for others, whose messages tell."""


@dataclass(frozen=True, slots=True)
class Revived:
    """What came of giving messages back."""

    retried: int = 0
    """Copies in the group's retry topic."""
    dead: int = 0
    """Copies in its dead-letter topic."""
    lost: int = 0
    """Messages that retention took before they were acknowledged."""


def revive(place: Place, overdue: Mapping[int, Overdue], *, retry_max_times: int) -> Rule[Revived]:
    """Give back messages whose time is over: a copy to the retry topic, or to the dead-letter topic after the maximum.

    Copies and the end of the claims are one commit. Only what is still held by the same claim is given back, so any
    number of callers may try. FIFO batches stay where they are (rule 30); only a message that was delivered too often,
    or that retention took, leaves them.
    """
    copies = {
        offset: copy_of(place, each, retry_max_times) for offset, each in overdue.items() if each.message is not None
    }

    def rule(state: LogState) -> Decision[Revived]:
        pop = state.fold(PopState)
        first = state.queues.bounds(place[1], place[2])[0]
        order = pop.orders.get(place)
        in_order = () if order is None else order.offsets
        spent = () if order is None else _spent(order, pop.unfinished(place), retry_max_times)
        ended: dict[int, None] = {}
        rows: list[MessageRow] = []
        lost = 0
        for offset, each in overdue.items():
            if pop.claim_of(place, offset) != each.claim or each.claim.due_ms > state.now_ms:
                continue
            if (offset in in_order) != (each.fifo_times is not None):
                continue
            waits = offset in in_order and offset not in spent
            if waits or each.message is None:
                if offset >= first:
                    continue
                lost += 1
            else:
                rows.append(copies[offset])
            ended[offset] = None
        dead = sum(system_topics.is_dlq(row.topic) for row in rows)
        return Decision(
            Revived(len(rows) - dead, dead, lost),
            rows=MessageBatch.from_rows(rows) if rows else None,
            records=_end(state, {place: ended}) if ended else (),
        )

    return rule


def copy_of(place: Place, overdue: Overdue, retry_max_times: int) -> MessageRow:
    """The copy of a message that was not acknowledged in time, for the topic that it goes to."""
    group, topic, _ = place
    message = overdue.message
    if message is None:
        raise ValueError("there is no copy of a message that is gone")
    times = message.reconsume_times if overdue.fifo_times is None else overdue.fifo_times
    kept = {properties.FIRST_POP_MS: str(overdue.claim.pop_ms), **message.properties}
    message = replace(message, reconsume_times=times, properties=kept)
    if overdue.fifo_times is not None or retry.is_given_up(times + 1, retry_max_times, retry.Path.POP):
        return retry.dead_letter_row(message, group)
    return retry.retry_row(message, retry_topic_of(group, topic))


def retry_topic_of(group: str, topic: str) -> str:
    """Where a group's messages of a topic come back; those of a retry topic come back there."""
    return topic if system_topics.is_retry(topic) else system_topics.pop_retry_topic(group, topic)


# ------------------------------------------------------------ reset


def reset(group: str, offsets: Mapping[tuple[str, int], int]) -> Rule[None]:
    """Set a group's next offsets by topic and queue; what it holds there is forgotten, and late acks do nothing."""

    def rule(state: LogState) -> Decision[None]:
        records = [*clear_records(state, group, offsets), *_offsets(group, offsets, {"admin": True})]
        return Decision(None, records=records)

    return rule


def clear_records(state: LogState, group: str, queues: Mapping[tuple[str, int], object] | None = None) -> list[_Record]:
    """Records that forget what a group holds in these queues, or in all; for whoever sets its offsets or deletes it."""
    held = state.fold(PopState).held
    if queues is None:
        return [(PopState.topics[0], clear_record(group))] if any(place[0] == group for place in held) else []
    return [
        (PopState.topics[0], clear_record(group, topic, queue))
        for topic, queue in queues
        if (group, topic, queue) in held
    ]


def _offsets(group: str, offsets: Mapping[tuple[str, int], int], extra: Mapping[str, Any]) -> list[_Record]:
    return [(ConsumerOffsets.topics[0], value) for value in offset_records(group, offsets, extra)]
