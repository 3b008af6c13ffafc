"""Decisions for the simulation: counters and a lease, and the check that each was true where it landed.

Every decision has an id, which is the message id of its record; so the log itself tells which ones landed, and where.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rmq_spark.errors import PreconditionFailedError
from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision, Rule
from rmq_spark.log.state import LogState
from rmq_spark.log.undo import Journal
from rmq_spark.rules.lease import TableLeases

LEASE = "table"


class SimCounters(Fold):
    """Counters by name. A record says what it was decided on; one that was not true there is damage."""

    name: ClassVar[str] = "sim_counters"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_sim_counter",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.values = self.table(dict[str, int]())

    def apply(self, records: Records) -> None:
        for value in records.values():
            name, before = need(value["name"], str, "name"), need(value["from"], int, "from")
            if before != self.values.get(name, 0):
                raise ValueError(f"{name} was decided on {before}, and is {self.values.get(name, 0)}")
            self.values[name] = before + 1

    def dump(self) -> Any:
        return dict(self.values)

    def load(self, value: Any, version: int) -> None:
        self.values = self.table(value)


@dataclass(eq=False)
class Tried:
    """One decision that a process tried to make."""

    msg_id: str
    topic: str
    name: str
    """Counter, or holder of the lease."""
    least: int
    """What the counter had reached for certain when the decision was asked for; or how long the lease is to last."""
    asked: list[int] = field(default_factory=list)
    """What it was asked on, each time: the counter, or the log's time."""
    answered: int | None = None
    """What its caller was told."""


class Decisions:
    """Everything that was decided in one run, as the callers saw it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.tried: dict[str, Tried] = {}
        self._reached: dict[str, int] = {}
        """What callers know of each counter."""

    def increment(self, name: str, *, limit: int) -> tuple[Tried, Rule[int]]:
        """A rule that adds one while the counter is below `limit`, and answers what it was."""
        tried = self._new(SimCounters.topics[0], name, self._reached.get(name, 0))

        def rule(state: LogState) -> Decision[int]:
            value = state.fold(SimCounters).values.get(name, 0)
            tried.asked.append(value)
            if value >= limit:
                raise PreconditionFailedError("the counter is full", value=value)
            return Decision(value, _record(tried, {"name": name, "from": value}))

        return tried, rule

    def read(self, name: str) -> tuple[Tried, Rule[int]]:
        """A rule that answers what the counter is, and appends nothing."""
        tried = self._new("", name, self._reached.get(name, 0))
        return tried, lambda state: Decision(state.fold(SimCounters).values.get(name, 0))

    def lease(self, holder: str, duration_ms: int) -> tuple[Tried, Rule[int]]:
        """A rule that takes the lease unless another holds it, and answers since when it is held."""
        tried = self._new(TableLeases.topics[0], holder, duration_ms)

        def rule(state: LogState) -> Decision[int]:
            held = state.fold(TableLeases).leases.get(LEASE)
            tried.asked.append(state.now_ms)
            if held is not None and held.holder != holder and held.until_ms > state.now_ms:
                raise PreconditionFailedError("another holds the lease", holder=held.holder)
            epoch = held.epoch + 1 if held is not None else 1
            until = state.now_ms + duration_ms
            value = {"table": LEASE, "holder": holder, "epoch": epoch, "until": until}
            return Decision(state.now_ms, _record(tried, value))

        return tried, rule

    def answer(self, tried: Tried, value: int) -> None:
        """A caller was told `value`."""
        assert tried.answered is None, f"seed {self._seed}: {tried} was answered twice"
        tried.answered = value
        if tried.topic != TableLeases.topics[0]:
            self._know(tried, value, value + 1 if tried.topic else value)

    def refuse(self, tried: Tried) -> None:
        """A caller was refused."""
        if tried.topic == SimCounters.topics[0]:
            self._know(tried, tried.asked[-1], tried.asked[-1])

    def _know(self, tried: Tried, told: int, reached: int) -> None:
        assert told >= tried.least, (
            f"seed {self._seed}: {tried} was told {told}, though {tried.name} had reached {tried.least} before it asked"
        )
        self._reached[tried.name] = max(reached, self._reached.get(tried.name, 0))

    def check(self, landed: Iterable[tuple[str, str, int]]) -> int:
        """Replay the records of the log, in order: (topic, message id, store time); returns how many landed.

        Raises:
            AssertionError: a decision was not true where it landed, or was answered and is not there.
        """
        seed = self._seed
        values: dict[str, int] = {}
        held: tuple[str, int] | None = None
        seen: set[str] = set()
        for topic, msg_id, store_ms in landed:
            if topic not in (SimCounters.topics[0], TableLeases.topics[0]):
                continue
            tried = self.tried[msg_id]
            assert msg_id not in seen, f"seed {seed}: {tried} landed twice"
            seen.add(msg_id)
            if topic == SimCounters.topics[0]:
                truth = values.get(tried.name, 0)
                values[tried.name] = truth + 1
            else:
                truth = store_ms
                free = held is None or held[0] == tried.name or held[1] <= store_ms
                assert free, f"seed {seed}: {tried} took the lease that {held} had"
                held = (tried.name, store_ms + tried.least)
            assert truth in tried.asked, f"seed {seed}: {tried} landed where {truth} was true"
            assert tried.answered in (None, truth), f"seed {seed}: {tried} landed where {truth} was true"
        for tried in self.tried.values():
            if tried.topic and tried.answered is not None:
                assert tried.msg_id in seen, f"seed {seed}: {tried} was answered and is not in the log"
        for name, reached in self._reached.items():
            assert reached <= values.get(name, 0), f"seed {seed}: {name} was seen at {reached} and is {values}"
        return len(seen)

    def _new(self, topic: str, name: str, least: int) -> Tried:
        tried = Tried(f"D{len(self.tried):07d}", topic, name, least)
        self.tried[tried.msg_id] = tried
        return tried


def _record(tried: Tried, value: dict[str, Any]) -> MessageBatch:
    return MessageBatch.of(
        topic=tried.topic, queue_id=0, msg_id=tried.msg_id, body=json.dumps(value).encode(), born_timestamp_ms=0
    )
