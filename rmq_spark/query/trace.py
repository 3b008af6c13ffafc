"""One message's life: every copy of it that the log holds, by the id that all copies share (UNIQ_KEY).

RocketMQ's services never change a message: they write it again, into another topic. A transactional message is first
half, then delivered; a delayed one waits in a topic of the engine, then is delivered; one that a consumer fails on is
copied into the group's retry topic, and in the end into its dead-letter topic. Each copy has its own place and time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.store import Store
from rmq_spark.model.properties import REAL_TOPIC
from rmq_spark.query.messages import MessageQuery
from rmq_spark.rules import system_topics
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.rules.trace_record import TraceRecord, TraceType, decode

if TYPE_CHECKING:
    from rmq_spark.log.view import LogView

STEPS_MAX: Final = 1000
"""A trace shows at most so many copies, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One copy of the message."""

    stage: str
    """`half`, `checked` (half again, after its producer was asked), `given up` (asked too often), `delayed`,
    `delivered`, `retried` or `dead-lettered`."""
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


def trace(store: Store, msg_id: str, *, query: MessageQuery | None = None) -> list[Step]:
    """The copies of the message with this id in all topics of all brokers, oldest first; none if nobody has it.

    Raises:
        InvalidRequestError: an id that no message can have.
        CorruptDataError: the log or the index is damaged.
    """
    found = (query or MessageQuery(store)).by_id(msg_id, limit=STEPS_MAX).messages
    rows = _rows(found.filter(pc.equal(found["msgId"], msg_id)))
    halves = 0
    steps = []
    for row in reversed(rows):
        stage = _stage(row["topic"])
        if stage == "half":
            halves += 1
            stage = "half" if halves == 1 else "checked"
        passed, waiting = _groups(store, row)
        steps.append(
            Step(
                stage=stage,
                topic=row["topic"],
                real_topic=dict(row["properties"] or ()).get(REAL_TOPIC),
                broker=row["brokerName"],
                queue=row["queueId"],
                queue_offset=row["queueOffset"],
                commit_offset=row["commitOffset"],
                store_ms=row["storeTimestamp"],
                reconsume_times=row["reconsumeTimes"] or 0,
                group=system_topics.group_of(row["topic"]),
                consumed_by=passed,
                waited_for_by=waiting,
            )
        )
    return steps


def client_traces(store: Store, msg_id: str, *, query: MessageQuery | None = None) -> list[TraceRecord]:
    """What clients that trace have said about a message, in the order of time; none if no client of it traces.

    Raises:
        CorruptDataError: the log or the index is damaged.
    """
    if store.find_topic(system_topics.TRACE_TOPIC) is None:
        return []
    asked = query or MessageQuery(store)
    found = asked.by_key(system_topics.TRACE_TOPIC, msg_id, limit=STEPS_MAX).messages
    records = []
    for body in found["body"].to_pylist():
        try:
            records += [record for record in decode(body.decode()) if record.msg_id == msg_id]
        except ValueError:
            continue  # not written by a client; whoever may send may send nonsense
    return sorted(records, key=lambda record: (record.ms, record.type is not TraceType.PUB, record.type == "SubAfter"))


def _rows(messages: pa.Table) -> list[dict[str, Any]]:
    at = messages.schema.get_field_index("storeTimestamp")
    return list(messages.set_column(at, "storeTimestamp", messages["storeTimestamp"].cast(pa.int64())).to_pylist())


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


def _groups(store: Store, row: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Groups whose committed offset is behind the message, and those whose is not."""

    def committed(view: LogView) -> list[tuple[str, int]]:
        groups = view.state.fold(ConsumerOffsets).offsets
        queue = row["queueId"]
        found = ((group, topics.get(row["topic"], {}).get(queue)) for group, topics in sorted(groups.items()))
        return [(group, offset) for group, offset in found if offset is not None]

    known = store.log(row["brokerName"], ConsumerOffsets).look(committed)
    passed = tuple(group for group, offset in known if offset > row["queueOffset"])
    return passed, tuple(group for group, offset in known if offset <= row["queueOffset"])
