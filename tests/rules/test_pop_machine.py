"""Hypothesis drives POP through any sequence of calls; consumers and revivers act on what they saw earlier."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pop_world import DLQ, RETRY, TOPIC, PopWorld, receipts_of

from rmq_spark.rules import pop_decisions
from rmq_spark.rules.pop_decisions import Candidates, Fifo
from rmq_spark.rules.receipt import Receipt

MAXIMUM = 2
TAGS = ("a", "b")
QUEUES = ((TOPIC, 0), (TOPIC, 1), (RETRY, 0))
COUNTS = st.integers(1, 4)
INVISIBLE = st.integers(1, 5).map(lambda seconds: seconds * 1000)


class PopMachine(RuleBasedStateMachine):
    """A group that wants one of two tags, beside a model: who holds which message by which receipt, until when."""

    def __init__(self) -> None:
        super().__init__()
        self.world = PopWorld()
        self.wanted: set[str] = set()
        self.acked: set[str] = set()
        self.holders: dict[str, tuple[str, Receipt]] = {}
        """Message -> topic and receipt of whoever holds it."""
        self.old: list[tuple[str, Receipt]] = []
        """Receipts that counted once."""
        self.seen: list[Candidates] = []
        self.overdue: list[Any] = []

    def id_of(self, topic: str, queue: int, offset: int) -> str:
        return self.world.queues[topic, queue][offset].msg_id

    @rule(count=COUNTS, queue=st.integers(0, 1), tags=st.sampled_from(TAGS))
    def send(self, count: int, queue: int, tags: str) -> None:
        ids = self.world.send(count, queue=queue, tags=tags)
        if tags == "a":
            self.wanted.update(ids)

    @rule(place=st.sampled_from(QUEUES), rows=st.integers(1, 6))
    def look(self, place: tuple[str, int], rows: int) -> None:
        """A consumer reads a queue; it may be late to decide."""
        self.seen.append(self.world.candidates(*place, rows=rows, tags="a" if place[0] == TOPIC else None))

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), count=COUNTS, invisible_ms=INVISIBLE)
    def receive(self, data: Any, count: int, invisible_ms: int) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.seen), min_size=1, max_size=3, unique_by=lambda c: c.topic))
        received = self.world.receive(*chosen, count=count, invisible_ms=invisible_ms)
        taken = receipts_of(received)
        assert len(taken) <= count
        for topic, receipt in taken:
            msg_id = self.id_of(topic, receipt.queue_id, receipt.queue_offset)
            assert msg_id in self.wanted
            assert msg_id not in self.acked, "an acknowledged message came again"
            assert msg_id not in self.holders, "a message is held twice"
            self.holders[msg_id] = (topic, receipt)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def ack(self, data: Any) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.holders)), min_size=1, unique=True))
        assert set(self.world.ack(*[self.holders[msg_id] for msg_id in ids])) == {"OK"}
        for msg_id in ids:
            self.old.append(self.holders.pop(msg_id))
            self.acked.add(msg_id)

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def use_old_receipt(self, data: Any) -> None:
        receipt = data.draw(st.sampled_from(self.old))
        if receipt in self.holders.values():
            return  # changed there and back within one millisecond: it is the newest again
        before = self.world.dump()
        assert self.world.ack(receipt) != ["OK"]
        assert self.world.change(receipt, 1000)[0] != "OK"
        assert self.world.dump() == before

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), invisible_ms=INVISIBLE)
    def change(self, data: Any, invisible_ms: int) -> None:
        msg_id = data.draw(st.sampled_from(sorted(self.holders)))
        status, new = self.world.change(self.holders[msg_id], invisible_ms)
        assert status == "OK" and new is not None
        self.old.append(self.holders[msg_id])
        self.holders[msg_id] = new

    @rule(seconds=st.integers(1, 4))
    def pass_time(self, seconds: int) -> None:
        self.world.now_ms += seconds * 1000

    @rule()
    def look_for_overdue(self) -> None:
        """A reviver reads what is overdue; it may be late to decide."""
        self.overdue += self.world.overdue().items()

    @precondition(lambda self: self.overdue)
    @rule(data=st.data())
    def revive(self, data: Any) -> None:
        place, overdue = data.draw(st.sampled_from(self.overdue))
        copies = {name: len(self.world.ids(name)) for name in (RETRY, DLQ)}
        self.world.decide(pop_decisions.revive(place, overdue, retry_max_times=MAXIMUM))
        for name, before in copies.items():
            for msg_id in self.world.ids(name)[before:]:
                receipt = self.holders.pop(msg_id)
                assert receipt[1].is_expired(self.world.now_ms), "a message was taken from its holder before its time"
                self.old.append(receipt)

    @rule(place=st.sampled_from(QUEUES), count=COUNTS)
    def lose_a_race(self, place: tuple[str, int], count: int) -> None:
        """A decision is tried, and another commit takes its place."""
        state, before = self.world.state, self.world.dump()
        state.open_trial(self.world.now_ms)
        seen = self.world.candidates(*place)
        decision = pop_decisions.receive("g", [seen], count=count, invisible_ms=1, consumer="late")(state)
        self.world._take(decision)
        state.undo_trial()
        assert self.world.dump() == before

    @invariant()
    def what_is_in_flight_is_what_somebody_holds(self) -> None:
        assert sum(self.world.pop.in_flight("g").values()) == len(self.holders)

    def teardown(self) -> None:
        """In the end every message is acknowledged, or dead after its last delivery: none has vanished."""
        for _ in range(200):
            self.world.now_ms += 10_000
            self.world.revive(MAXIMUM)
            taken: list[tuple[str, Receipt]] = []
            for place in QUEUES:
                seen = self.world.candidates(*place, tags="a" if place[0] == TOPIC else None)
                taken += receipts_of(self.world.receive(seen))
            if not taken:
                break
            self.world.ack(*taken)
            self.acked.update(self.id_of(topic, receipt.queue_id, receipt.queue_offset) for topic, receipt in taken)
        dead = self.world.ids(DLQ)
        assert len(dead) == len(set(dead))
        assert not self.acked & set(dead)
        assert self.acked | set(dead) == self.wanted
        assert self.world.pop.dump() == []


class FifoMachine(RuleBasedStateMachine):
    """A FIFO group on one queue: whoever receives gets what follows all that is acknowledged, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = PopWorld()
        self.batch: dict[int, tuple[str, Receipt]] = {}
        """What is in flight and not acknowledged."""
        self.done = 0
        """Everything before it is acknowledged or dead."""
        self.acked: set[int] = set()
        self.delivered: dict[int, int] = {}
        self.attempt: str | None = None
        self.attempts = 0
        self.last: list[int] = []

    @rule(count=COUNTS)
    def send(self, count: int) -> None:
        self.world.send(count)

    @rule(count=COUNTS, invisible_ms=INVISIBLE, again=st.booleans())
    def receive(self, count: int, invisible_ms: int, again: bool) -> None:
        if not again or self.attempt is None:
            self.attempts += 1
        attempt = self.attempt if again and self.attempt else f"t{self.attempts}"
        same = attempt == self.attempt and bool(self.batch)
        received = self.world.receive(
            count=count, invisible_ms=invisible_ms, fifo=Fifo(attempt_id=attempt, retry_max_times=MAXIMUM)
        )
        invisible = any(not receipt.is_expired(self.world.now_ms) for _, receipt in self.batch.values())
        spent = any(self.delivered[offset] > MAXIMUM for offset in self.batch)
        assert bool(received.blocked) == ((invisible or spent) and not same)
        if not received.claimed:
            return
        (claimed,) = received.claimed
        offsets = list(claimed.offsets)
        assert offsets == list(range(self.done, self.done + len(offsets))), "order was broken"
        times = list(claimed.reconsume_times or ())
        for offset, reconsumed in zip(offsets, times, strict=True):
            # Again and not the same attempt: one delivery more.
            known = offset in self.unfinished_batch
            assert reconsumed == (self.delivered[offset] - same if known else 0)
            self.delivered[offset] = reconsumed + 1
        self.batch = {receipt.queue_offset: (topic, receipt) for topic, receipt in receipts_of(received)}
        self.last = offsets
        self.acked -= set(offsets)
        self.attempt = attempt

    @property
    def unfinished_batch(self) -> list[int]:
        """Offsets of the last batch, if it is not finished."""
        return self.last if self.batch else []

    @precondition(lambda self: self.batch)
    @rule(data=st.data())
    def ack(self, data: Any) -> None:
        offset = data.draw(st.sampled_from(sorted(self.batch)))
        assert self.world.ack(self.batch.pop(offset)) == ["OK"]
        self.acked.add(offset)
        self.advance()

    def advance(self) -> None:
        self.done = min(self.batch, default=max([self.done, *(offset + 1 for offset in self.last)]))
        assert self.world.committed() == self.done

    @precondition(lambda self: self.batch)
    @rule(data=st.data(), invisible_ms=INVISIBLE)
    def change(self, data: Any, invisible_ms: int) -> None:
        offset = data.draw(st.sampled_from(sorted(self.batch)))
        status, new = self.world.change(self.batch[offset], invisible_ms)
        assert status == "OK" and new is not None
        self.batch[offset] = new

    @rule(seconds=st.integers(1, 4))
    def pass_time(self, seconds: int) -> None:
        self.world.now_ms += seconds * 1000

    @rule()
    def revive(self) -> None:
        before = len(self.world.ids(DLQ))
        self.world.revive(MAXIMUM)
        assert self.world.ids(RETRY) == []
        for msg_id in self.world.ids(DLQ)[before:]:
            offset = self.world.ids(TOPIC).index(msg_id)
            _, receipt = self.batch.pop(offset)
            assert receipt.is_expired(self.world.now_ms)
            assert self.delivered[offset] == MAXIMUM + 1
        if len(self.world.ids(DLQ)) > before:
            self.advance()

    def teardown(self) -> None:
        for _ in range(100):
            self.world.now_ms += 10_000
            self.world.revive(MAXIMUM)
            received = self.world.receive(fifo=Fifo(attempt_id=None, retry_max_times=MAXIMUM))
            if not received.claimed:
                break
            self.world.ack(*receipts_of(received))
        assert (self.world.committed() or 0) == len(self.world.ids(TOPIC))
        assert self.world.pop.dump() == []


TestPopMachine = PopMachine.TestCase
TestPopMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestFifoMachine = FifoMachine.TestCase
TestFifoMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
