"""One message's life: every copy that the log holds, by the id that copies share, and the fate of its transaction.

RocketMQ's services never change a message: they write it again, into another topic. A transactional message is first
half, then delivered; a delayed one waits in a topic of the engine, then is delivered; one that a consumer fails on is
copied into the group's retry topic, and in the end into its dead-letter topic. Each copy has its own place and time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.store import Store
from rmq_spark.log.scan import Query
from rmq_spark.model.properties import REAL_TOPIC, TRANSACTION_ID
from rmq_spark.query.messages import MessageQuery
from rmq_spark.rules import system_topics
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.rules.pop import PopState
from rmq_spark.rules.timer import TimerProgress
from rmq_spark.rules.trace_record import TraceRecord, TraceType, decode
from rmq_spark.rules.transaction import Op, op_id

if TYPE_CHECKING:
    from rmq_spark.log.view import LogView

STEPS_MAX: Final = 1000
"""A trace shows at most so many copies, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One copy of the message."""

    stage: str
    """`half`, `checked` (its producers were asked), `committed`, `rolled back`, `given up` (asked too often),
    `delayed`, `recalled`, `delivered`, `retried` or `dead-lettered`."""
    topic: str
    real_topic: str | None
    """Where a half or delayed message is meant to go."""
    broker: str
    queue: int
    queue_offset: int
    commit_offset: int
    store_ms: int
    reconsume_times: int
    group: str | None
    """Whose retry or dead-letter topic it is."""
    consumed_by: tuple[str, ...]
    """Groups that have committed an offset behind it."""
    waited_for_by: tuple[str, ...]
    """Groups that read the queue and have not come so far."""
    held_by: tuple[str, ...] = ()
    """Groups that received it by POP and have not acknowledged it."""


def trace(store: Store, msg_id: str, *, query: MessageQuery | None = None) -> list[Step]:
    """The copies of the message with this id in all topics of all brokers, oldest first; none if nobody has it.

    Raises:
        InvalidRequestError: an id that no message can have.
        CorruptDataError: the log or the index is damaged.
    """
    asked = query or MessageQuery(store)
    rows = _rows(asked, msg_id)
    halves = [row for row in rows if row["topic"] == system_topics.HALF_TOPIC]
    if halves:
        rows += _transaction(asked, _properties(halves[0]).get(TRANSACTION_ID))
    parked = next((row for row in rows if row["topic"] == system_topics.TIMER_TOPIC), None)
    if parked is not None:
        rows += _recall(store, parked)
    rows.sort(key=lambda row: (row["storeTimestamp"], row["brokerName"], row["commitOffset"]))
    return [_step(store, row) for row in rows]


def client_traces(store: Store, msg_id: str, *, query: MessageQuery | None = None) -> list[TraceRecord]:
    """What clients that trace have said about a message, in the order of time; none if no client of it traces.

    Raises:
        CorruptDataError: the log or the index is damaged.
    """
    if store.find_topic(system_topics.TRACE_TOPIC) is None:
        return []
    asked = query or MessageQuery(store)
    messages = asked.by_key(system_topics.TRACE_TOPIC, msg_id, limit=STEPS_MAX).messages
    records = []
    for body in messages["body"].to_pylist():
        try:
            records += [record for record in decode(body.decode()) if record.msg_id == msg_id]
        except ValueError:
            continue  # not written by a client; whoever may send may send nonsense
    return sorted(records, key=lambda record: (record.ms, record.type is not TraceType.PUB, record.type == "SubAfter"))


def _step(store: Store, row: dict[str, Any]) -> Step:
    passed, waiting, held = _groups(store, row)
    return Step(
        stage=row.get("stage") or _stage(row["topic"]),
        topic=row["topic"],
        real_topic=_properties(row).get(REAL_TOPIC),
        broker=row["brokerName"],
        queue=row["queueId"],
        queue_offset=row["queueOffset"],
        commit_offset=row["commitOffset"],
        store_ms=row["storeTimestamp"],
        reconsume_times=row["reconsumeTimes"] or 0,
        group=system_topics.group_of(row["topic"]),
        consumed_by=passed,
        waited_for_by=waiting,
        held_by=held,
    )


def _properties(row: dict[str, Any]) -> dict[str, str]:
    return dict(row["properties"] or ())


def _rows(query: MessageQuery, msg_id: str) -> list[dict[str, Any]]:
    """The copies of a message."""
    candidates = query.by_id(msg_id, limit=STEPS_MAX).messages
    messages = candidates.filter(pc.equal(candidates["msgId"], msg_id))
    at = messages.schema.get_field_index("storeTimestamp")
    return list(messages.set_column(at, "storeTimestamp", messages["storeTimestamp"].cast(pa.int64())).to_pylist())


def _transaction(query: MessageQuery, tx_id: str | None) -> list[dict[str, Any]]:
    """What was said of a transaction: that its producers were asked, and how it ended."""
    if tx_id is None:
        return []
    said: list[dict[str, Any]] = []
    checks = 0
    while asked := _rows(query, op_id(tx_id, Op.CHECK, checks + 1)):
        said += [{**row, "stage": "checked"} for row in asked]
        checks += 1
    for op, stage in ((Op.COMMIT, "committed"), (Op.ROLLBACK, "rolled back")):
        said += [{**row, "stage": stage} for row in _rows(query, op_id(tx_id, op, checks))]
    return said


def _recall(store: Store, parked: dict[str, Any]) -> list[dict[str, Any]]:
    """The record that keeps a delayed message from being delivered; none if it was not recalled."""
    log = store.log(parked["brokerName"])
    query = Query(topics=frozenset(TimerProgress.topics), start=parked["commitOffset"])
    for batch in log.scan(query):
        named = batch.filter(pc.match_substring(batch.column("body"), parked["msgId"]))
        for row in named.to_pylist():
            recalled = json.loads(row["body"]).get("recall")
            if recalled is not None and recalled[1:] == [_properties(parked)[REAL_TOPIC], parked["msgId"]]:
                said = {name: row[name] for name in ("topic", "queueId", "queueOffset", "commitOffset")}
                ms = int(row["storeTimestamp"].timestamp() * 1000 + 0.5)
                return [{**parked, **said, "storeTimestamp": ms, "stage": "recalled"}]
    return []


def _stage(topic: str) -> str:
    if topic == system_topics.HALF_TOPIC:
        return "half"
    if topic == system_topics.CHECK_MAX_TOPIC:
        return "given up"
    if system_topics.is_waiting(topic):
        return "delayed"
    if system_topics.is_retry(topic):
        return "retried"
    return "dead-lettered" if system_topics.is_dlq(topic) else "delivered"


def _groups(store: Store, row: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Groups that have consumed the message, those that have not come so far, and those that hold it now."""
    topic, queue, at = row["topic"], row["queueId"], row["queueOffset"]

    def look(view: LogView) -> tuple[list[tuple[str, int]], set[str]]:
        groups = view.state.fold(ConsumerOffsets).offsets
        offsets = ((group, topics.get(topic, {}).get(queue)) for group, topics in sorted(groups.items()))
        known = [(group, offset) for group, offset in offsets if offset is not None]
        pop = view.state.fold(PopState)
        return known, {group for group, _ in known if pop.claim_of((group, topic, queue), at) is not None}

    known, held = store.log(row["brokerName"], ConsumerOffsets, PopState).look(look)
    passed = tuple(group for group, offset in known if offset > at and group not in held)
    waiting = tuple(group for group, offset in known if offset <= at and group not in held)
    return passed, waiting, tuple(sorted(held))
