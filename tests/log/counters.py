"""Folds for tests: named counters, and a fold that wants every column of its records."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from faulty import message

from rmq_spark.errors import PreconditionFailedError
from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision, Rule
from rmq_spark.log.state import LogState
from rmq_spark.log.undo import Journal


class Counters(Fold):
    """Numbers by name; a record adds to one."""

    name: ClassVar[str] = "test_counters"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_test_counter",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.values = self.table(dict[str, int]())

    def apply(self, records: Records) -> None:
        for value in records.values():
            name = need(value["name"], str, "name")
            self.values[name] = self.values.get(name, 0) + need(value["add"], int, "add")

    def dump(self) -> Any:
        return dict(self.values)

    def load(self, value: Any, version: int) -> None:
        self.values = self.table(value)


class Arrivals(Fold):
    """Every record with all that can be known of it."""

    name: ClassVar[str] = "test_arrivals"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_test_here", "rmq_sys_test_there")
    columns: ClassVar[tuple[str, ...]] = ("body", "queueId", "queueOffset", "msgId", "properties", "bornTimestamp")

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.seen = self.table(dict[str, list[Any]]())

    def apply(self, records: Records) -> None:
        for at in range(len(records)):
            key = f"{records.topic}/{records.queue_ids[at]}/{records.queue_offsets[at]}"
            if key in self.seen:
                raise ValueError(f"two records at {key}")
            self.seen[key] = [
                records.bodies[at].decode(),
                records.msg_ids[at],
                sorted(records.properties[at].items()),
                records.born_ms[at],
                records.store_ms[at],
            ]

    def dump(self) -> Any:
        return dict(self.seen)

    def load(self, value: Any, version: int) -> None:
        self.seen = self.table(value)


def adding(name: str, add: int = 1, msg_id: str = "r") -> MessageBatch:
    """A record as a message."""
    body = json.dumps({"name": name, "add": add}).encode()
    return message(msg_id, topic=Counters.topics[0], body=body)


def arriving(
    msg_id: str, *, topic: int = 0, queue: int = 0, body: bytes = b"b", properties: tuple[tuple[str, str], ...] = ()
) -> MessageBatch:
    return MessageBatch.of(
        topic=Arrivals.topics[topic],
        queue_id=queue,
        msg_id=msg_id,
        body=body,
        born_timestamp_ms=7,
        properties=properties,
    )


def value_of(state: LogState, name: str = "n") -> int:
    return state.fold(Counters).values.get(name, 0)


def increment(name: str = "n", *, only_at: int | None = None, below: int | None = None) -> Rule[int]:
    """Add one and answer the value before; refuse unless it is `only_at`, or below `below`."""

    def rule(state: LogState) -> Decision[int]:
        value = value_of(state, name)
        if (only_at is not None and value != only_at) or (below is not None and value >= below):
            raise PreconditionFailedError("the counter is elsewhere", value=value)
        return Decision(value, records=[(Counters.topics[0], {"name": name, "add": 1})])

    return rule


def look(name: str = "n") -> Rule[int]:
    """Answer the value and append nothing."""
    return lambda state: Decision(value_of(state, name))
