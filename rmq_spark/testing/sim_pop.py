"""POP in the simulation of the services: consumers that receive, acknowledge, keep longer or forget, and the checks.

The log itself is the witness: the checks go over every claim, change and end that landed, those of crashed consumers
too, and compare them with what the consumers were told.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple, cast

from rmq_spark.client.pop_broker import PopBroker, Source
from rmq_spark.client.store import Store
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules.pop import PopState, expand
from rmq_spark.rules.pop_decisions import AckStatus, Fifo, next_offset
from rmq_spark.rules.receipt import TopicType, parse_receipt
from rmq_spark.rules.start_offset import ConsumeFrom
from rmq_spark.rules.system_topics import dlq_topic, pop_retry_topic
from rmq_spark.services.revive import ReviveService
from rmq_spark.testing.sim_world import Process, World

TOPIC, GROUP, QUEUES = "jobs", "workers", 2
RETRY, DLQ = pop_retry_topic(GROUP, TOPIC), dlq_topic(GROUP)
SOURCES = (
    *(Source(topic=TOPIC, queue=queue, shown_topic=TOPIC) for queue in range(QUEUES)),
    Source(topic=RETRY, queue=0, shown_topic=TOPIC, topic_type=TopicType.RETRY_V2),
)
ROUNDS_MAX = 60
"""So often calm consumers receive what is left; each round takes what was due."""


class Row(NamedTuple):
    """A row of the log, as far as checks look at it."""

    topic: str
    msg_id: str
    store_ms: int
    queue: int
    queue_offset: int
    times: int
    """`reconsumeTimes`."""
    body: bytes


Place = tuple[str, int, int]
"""Topic, queue and offset."""


@dataclass
class _Life:
    """What the log says of one copy of a message."""

    due_ms: int | None = None
    """Until when it is held; None while nobody holds it."""
    deliveries: int = 0
    last_due_ms: int = 0
    """Until when it was held in the end."""
    ended: bool = False
    final: bool = False
    """Whether it must not come again. In order, one that was acknowledged before an earlier one of its batch does
    (facts 8.5)."""


@dataclass(frozen=True)
class _Batch:
    """The last batch of a queue that is received in order."""

    times: dict[int, int] = field(default_factory=dict)
    """Offset -> how often it was delivered before."""
    attempt: str | None = None


@dataclass
class PopPart:
    """Consumers of one seed, and what they were told."""

    seed: int
    world: World
    open_log: Callable[[], CommitLog]
    store_of: Callable[[CommitLog], object]
    """As much of a store as a consumer needs."""
    faults: Callable[[], AbstractContextManager[None]]
    fifo: bool
    retry_max: int
    sent: dict[str, bool] = field(default_factory=dict)
    """Message id -> whether its send was acknowledged."""
    got: list[tuple[Place, int, int, int]] = field(default_factory=list)
    """Place, time and invisible time of each delivery, and how often it was delivered before."""
    tried: set[Place] = field(default_factory=set)
    """Somebody tried to acknowledge it, whatever came of it."""
    acked: dict[Place, str] = field(default_factory=dict)
    """Acknowledged for certain."""
    injected: dict[str, int] = field(default_factory=lambda: {"received": 0, "dead": 0, "came back": 0})

    @property
    def rng(self) -> Random:
        """The seed's dice."""
        return self.world.rng

    # -------------------------------------------------------- processes

    def producer(self, process: Process) -> None:
        """Send some messages."""
        log = self.open_log()
        for _ in range(self.rng.randint(1, 3)):
            rows = []
            for _ in range(self.rng.choice([1, 2, 5])):
                name = f"p{len(self.sent):07d}"
                self.sent[name] = False
                queue = self.rng.randrange(QUEUES)
                rows.append(MessageRow(TOPIC, queue, name, None, None, name.encode(), 0, 0, 0, None, 0, []))
            with self.faults():
                log.append(MessageBatch.from_rows(rows))
                self.sent.update((row.msg_id, True) for row in rows)
            self.world.sleep(self.rng.random() / 20)

    def consumer(self, process: Process) -> None:
        """Receive; acknowledge some, keep some longer or shorter, forget the others."""
        rng = self.rng
        broker = self._broker(self.open_log(), process.name)
        attempt: str | None = None
        for number in range(rng.randint(2, 5)):
            self.world.sleep(rng.random() / 10)
            with self.faults():
                attempt = attempt or f"{process.name}-{process.restarts}-{number}"
                taken = broker.receive(
                    rng.sample(SOURCES, len(SOURCES)),
                    count=rng.choice([1, 3, 32]),
                    invisible_ms=rng.choice([5, 50, 400]),
                    fifo=self._fifo(attempt),
                )
                attempt = None
                self._note(taken.messages)
                self._settle(broker, taken.messages)

    def _fifo(self, attempt: str) -> Fifo | None:
        return Fifo(attempt_id=attempt, retry_max_times=self.retry_max) if self.fifo else None

    def _settle(self, broker: PopBroker, messages: list[ReceivedMessage]) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            self.world.sleep(rng.choice([0.001, 0.05, 0.5]))
        for message in messages:
            if rng.random() < 0.15:
                receipt = parse_receipt(cast("str", message.receipt))
                topic = receipt.real_topic(GROUP, TOPIC)
                (changed,) = broker.change_invisible([(topic, receipt)], rng.choice([1, 30, 300]))
                if changed.claim is None or rng.random() < 0.5:
                    continue
        self.ack(broker, [message for message in messages if rng.random() < 0.6])

    def ack(self, broker: PopBroker, messages: list[ReceivedMessage]) -> None:
        """Acknowledge messages by the receipts that they came with; a changed one is stale by then."""
        if not messages:
            return
        receipts = [parse_receipt(cast("str", message.receipt)) for message in messages]
        places = [place_of(message) for message in messages]
        self.tried.update(places)
        answers = broker.ack([(receipt.real_topic(GROUP, TOPIC), receipt) for receipt in receipts])
        for message, place, status in zip(messages, places, answers, strict=True):
            if status is AckStatus.OK:
                self.acked[place] = message.msg_id

    def _note(self, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            receipt = parse_receipt(cast("str", message.receipt))
            self.got.append((place_of(message), receipt.pop_ms, receipt.invisible_ms, message.reconsume_times))

    def _broker(self, log: CommitLog, name: str) -> PopBroker:
        store = cast("Store", self.store_of(log))
        return PopBroker(store, GROUP, "b", consumer=name, consume_from=ConsumeFrom.EARLIEST)

    # -------------------------------------------------------- the end

    def finish(self, log: CommitLog) -> None:
        """A calm consumer and a calm reviver do what is left, while time passes."""
        seed, broker = self.seed, self._broker(log, "last")
        revive = ReviveService(cast("Store", self.store_of(log)))
        for number in range(ROUNDS_MAX):
            self.world.now_ms += 500
            revive.run_once()
            taken = broker.receive(SOURCES, count=32, invisible_ms=50, fifo=self._fifo(f"last-{number}"))
            self._note(taken.messages)
            self.ack(broker, taken.messages)
            if not taken.messages and not taken.again and not log.view.state.fold(PopState).held:
                break
        state = log.view.state
        assert not state.fold(PopState).held, f"seed {seed}: messages are still in flight"
        for source in SOURCES:
            first, end = state.queues.bounds(source.topic, source.queue)
            at = next_offset(state, (GROUP, source.topic, source.queue))
            assert max(first, at or 0) == end, (
                f"seed {seed}: {source.topic}/{source.queue} was not consumed: {at}, {end}"
            )

    # -------------------------------------------------------- checks

    def check(self, rows: dict[int, Row], bounds: Callable[[str, int], tuple[int, int]]) -> None:
        """Every promise of POP, over the whole life of the log."""
        lives = self._replay(rows, bounds)
        self._check_told(lives)
        copies: dict[str, list[Row]] = {}
        for _, row in sorted(rows.items()):
            if row.topic in (TOPIC, RETRY, DLQ):
                copies.setdefault(row.msg_id, []).append(row)
        for name, acknowledged in self.sent.items():
            mine = copies.get(name, [])
            assert mine or not acknowledged, f"seed {self.seed}: {name} was never in the log"
            if mine:
                self._check_message(name, mine, lives, bounds)
        self.injected["received"] = len(self.got)

    def _replay(self, rows: dict[int, Row], bounds: Callable[[str, int], tuple[int, int]]) -> dict[Place, _Life]:
        """Claims, changes and ends in the log's order: nothing is held twice within its invisible time."""
        lives: dict[Place, _Life] = defaultdict(_Life)
        batches: dict[tuple[str, int], _Batch] = {}
        for _, row in sorted(rows.items()):
            if row.topic != PopState.topics[0]:
                continue
            value = json.loads(row.body)
            queue = (value["topic"], value["queue"])
            if value["do"] == "claim" and "order" in value:
                self._claim_in_order(queue, value, lives, batches, row.store_ms, first=bounds(*queue)[0])
            elif value["do"] == "claim":
                for offset in expand(value["offsets"]):
                    assert not lives[*queue, offset].deliveries, (
                        f"seed {self.seed}: {queue} {offset} was received twice"
                    )
                    lives[*queue, offset] = _Life(row.store_ms + value["invisible"], 1)
            elif value["do"] == "change":
                life = lives[*queue, value["offset"]]
                assert life.due_ms is not None, f"seed {self.seed}: {queue} {value} was changed, and nobody held it"
                life.due_ms = row.store_ms + value["invisible"]
            else:
                ended = expand(value["offsets"])
                for offset in ended:
                    life = lives[*queue, offset]
                    life.due_ms, life.last_due_ms, life.ended = None, life.due_ms or 0, True
                in_batch = batches.get(queue, _Batch()).times
                for offset in ended:
                    lives[*queue, offset].final = all(lives[*queue, each].ended for each in in_batch if each < offset)
        return lives

    def _claim_in_order(
        self,
        queue: tuple[str, int],
        value: dict[str, Any],
        lives: dict[Place, _Life],
        batches: dict[tuple[str, int], _Batch],
        now_ms: int,
        *,
        first: int,
    ) -> None:
        """A FIFO batch: everything before it is done or expired, and nobody holds anything of the one before."""
        offsets, order = expand(value["offsets"]), value["order"]
        story = f"seed {self.seed}: {queue} {value} at {now_ms}"
        before = batches.get(queue, _Batch())
        unfinished = [offset for offset in before.times if not lives[*queue, offset].ended]
        again = bool(unfinished) and order["attempt"] == before.attempt
        held = [offset for offset in unfinished if (lives[*queue, offset].due_ms or 0) > now_ms]
        assert not held or again, f"{story}: {held} are held twice"
        skipped = [offset for offset in unfinished if offset < offsets[0] and offset >= first]
        assert not skipped and (not unfinished or offsets[0] >= unfinished[0]), (
            f"{story}: not from the first unfinished one, {unfinished}"
        )
        final = [offset for offset in offsets if lives[*queue, offset].final]
        assert not final, f"{story}: {final} came again after their end"
        earlier = before.times if unfinished else {}
        times = {offset: earlier[offset] + (not again) if offset in earlier else 0 for offset in offsets}
        assert order["times"] == list(times.values()), f"{story}: attempts are miscounted, expected {times}"
        for offset in unfinished:
            lives[*queue, offset].due_ms = None
        for offset in offsets:
            deliveries = lives[*queue, offset].deliveries + (not again)
            lives[*queue, offset] = _Life(now_ms + value["invisible"], deliveries)
        batches[queue] = _Batch(times, order["attempt"])

    def _check_told(self, lives: dict[Place, _Life]) -> None:
        for place, *_ in self.got:
            assert lives[place].deliveries, f"seed {self.seed}: {place} was handed over, and not claimed"

    def _check_message(
        self, name: str, copies: list[Row], lives: dict[Place, _Life], bounds: Callable[[str, int], tuple[int, int]]
    ) -> None:
        """One message: its copies follow each other, and its end is an acknowledgement or the dead-letter topic."""
        seed, last = self.seed, copies[-1]
        topics = [row.topic for row in copies]
        story = f"seed {seed}: {name}: {[(row.topic, row.queue_offset, row.times) for row in copies]}"
        dead = topics.count(DLQ)
        assert dead <= 1 and (not dead or last.topic == DLQ), f"{story}: dead, and came again"
        retried = copies[:-1] if dead else copies
        expected = [TOPIC] if self.fifo else [TOPIC, *[RETRY] * self.retry_max]
        assert topics[: len(retried)] == expected[: len(retried)], f"{story}: copies of another kind, or too many"
        assert [row.times for row in retried] == list(range(len(retried))), f"{story}: attempts are miscounted"
        deliveries = sum(lives[place_of_row(row)].deliveries for row in retried if place_of_row(row) in lives)
        for row, after in pairwise(copies):
            due = lives[place_of_row(row)].last_due_ms
            assert after.store_ms >= due, f"{story}: given back at {after.store_ms}, too early, held until {due}"
        self.injected["came back"] += len(retried) - 1
        if dead:
            self.injected["dead"] += 1
            assert last.times == self.retry_max + 1, f"{story}: dead after {last.times} attempts"
            assert deliveries >= self.retry_max + 1, f"{story}: dead after {deliveries} deliveries"
        if not self.fifo:
            assert deliveries <= self.retry_max + 1, f"{story}: {deliveries} deliveries"
            for row in copies[:-1]:
                assert place_of_row(row) not in self.acked, f"{story}: came back after it was acknowledged"
        if not dead:
            place = place_of_row(last)
            first = bounds(last.topic, last.queue)[0]
            ended = place in lives and lives[place].ended and place in self.tried
            assert ended or last.queue_offset < first, f"{story}: vanished"


def place_of(message: ReceivedMessage) -> Place:
    """Where a message was read from."""
    receipt = parse_receipt(cast("str", message.receipt))
    return receipt.real_topic(GROUP, TOPIC), receipt.queue_id, receipt.queue_offset


def place_of_row(row: Row) -> Place:
    """Where a row is."""
    return row.topic, row.queue, row.queue_offset
