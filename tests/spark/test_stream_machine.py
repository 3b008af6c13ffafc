"""Hypothesis drives a stream, its log and its deaths in any order; every message arrives once, in its queue's order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from micro_batches import Checkpoint, Killed, Query
from store_world import Sent, World, in_queues, rows_in_queues

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.model.settings import LogSettings

BROKERS = ("broker-0", "broker-1", "broker-2")
TOPICS = ("orders_0", "orders_1", "orders_2", "other")
PLACES = st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 2)), min_size=1, max_size=5)
STARTS = st.sampled_from(["earliest", "latest", "group", "time", "offsets"])
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "maxOffsetsPerTrigger": st.integers(1, 7),
        "maxBytesPerTrigger": st.sampled_from([1, 5_000]),
        "minPartitions": st.integers(1, 5),
        "maxRecordsPerPartition": st.integers(1, 5),
        "consumerGroup": st.just("g"),
    },
)


class StreamMachine(RuleBasedStateMachine):
    """A stream under test. What it must deliver is known from the moment when it was asked where it starts."""

    @initialize(
        early=st.lists(PLACES, max_size=3),
        start=STARTS,
        limits=LIMITS,
        block_bytes=st.sampled_from([1, 256 * 1024]),
    )
    def start(self, early: list[list[tuple[str, int]]], start: str, limits: dict[str, Any], block_bytes: int) -> None:
        self.clock = ManualClock(SystemClock().now_ms())  # the source commits for its group by the machine's clock
        settings_ = LogSettings(segment_bytes=1, delete_grace_ms=0, block_bytes=block_bytes)
        self.world = World.create(clock=self.clock, settings=settings_)
        self.topics: set[tuple[str, str]] = set()
        self.expected: list[Sent] = []
        self.checkpoint = Checkpoint()
        self.running: Query | None = None
        for places in early:
            self.put("broker-0", places)
        before = [sent for sent in self.world.sent if sent.topic != "other"]
        options = {"subscribePattern": "orders_.*", **limits}
        if start in ("earliest", "latest"):
            options["startingOffsets"] = start
            before = before if start == "earliest" else []
        elif start == "group":
            options |= {"startingOffsets": "group,earliest", "consumerGroup": "g"}
            firsts = {sent.place: 1 for sent in before if sent.queue_offset == 0 and sent.queue == 0}
            GroupOffsets(self.world.store).commit("g", firsts)
            before = [sent for sent in before if sent.queue_offset >= firsts.get(sent.place, 0)]
        elif start == "time":
            options["startingTimestamp"] = self.clock.wall_ms
            before = [sent for sent in before if sent.ms >= self.clock.wall_ms]
        else:
            options["startingOffsets"] = '{"orders_0": {"0": -1}}'
            before = [sent for sent in before if sent.place != ("orders_0", "broker-0", 0)]
        self.options = self.world.options(**options)
        self.expected += before
        self.query().reader.initialOffset()

    def query(self) -> Query:
        if self.running is None:
            self.running = Query(self.options, self.checkpoint)
        return self.running

    def put(self, broker: str, places: list[tuple[str, int]], *, files: bool = False) -> list[Sent]:
        for topic, _ in places:
            self.create(topic)
        messages = [self.world.message(*place) for place in places]
        return self.world.append_files([messages], broker) if files else self.world.append(messages, broker)

    def create(self, topic: str) -> None:
        """A topic comes with its first message; with it comes its broker, for topics are on all three."""
        if self.world.store.find_topic(topic) is None:
            brokers = BROKERS[: 1 + len(self.world.store.topics())]
            self.world.store.create_topic(topic, queues=3, brokers=brokers)

    def brokers(self) -> list[str]:
        return self.world.store.brokers()

    @rule(broker=st.integers(0, 2), places=PLACES, files=st.booleans(), seconds=st.sampled_from([0, 1]))
    def send(self, broker: int, places: list[tuple[str, int]], files: bool, seconds: int) -> None:
        self.clock.advance(seconds)
        known = self.brokers()
        sent = self.put(known[broker % len(known)], places, files=files)
        self.expected += [one for one in sent if one.topic != "other"]

    @rule(broker=st.integers(0, 2), segment_bytes=st.sampled_from([1, 20_000, 10_000_000]))
    def roll(self, broker: int, segment_bytes: int) -> None:
        known = self.brokers()
        self.world.roll(known[broker % len(known)], segment_bytes=segment_bytes)

    @rule(share=st.floats(0, 1))
    def expire_behind_the_reader(self, share: float) -> None:
        """What a batch may still be asked for again is never behind the reader."""
        done = max(self.checkpoint.done, default=None)
        if done is None:
            return
        for broker, (offset, *_) in json.loads(self.checkpoint.ends[done])["brokers"].items():
            self.world.expire_below(int(offset * share), broker)

    @rule(group=st.sampled_from(["g", "h"]), offset=st.integers(0, 3))
    def somebody_commits(self, group: str, offset: int) -> None:
        if self.world.store.find_topic("orders_0") is not None:
            end = self.world.log().refresh().state.queues.bounds("orders_0", 0)[1]
            GroupOffsets(self.world.store).commit(group, {("orders_0", "broker-0", 0): min(end, offset)})

    @rule()
    def run_a_batch(self) -> None:
        self.query().trigger()

    @rule(point=st.sampled_from(["planned", "reading", "sunk"]))
    def die_in_a_batch(self, point: Any) -> None:
        try:
            self.query().trigger(die=point)
        except Killed:
            self.running = None

    @rule()
    def stop(self) -> None:
        if self.checkpoint.ends:  # before that, the query has started nowhere yet
            self.query().stop()
            self.running = None

    @rule()
    def run_all_that_is_available(self) -> None:
        if self.checkpoint.ends:
            self.query().stop()
            self.running = None
            Query(self.options, self.checkpoint, trigger="availableNow").run()
            self.check()

    @rule(topic=st.sampled_from(TOPICS))
    def delete_a_topic_that_was_read(self, topic: str) -> None:
        if self.world.store.find_topic(topic) is not None:
            self.query().run()
            self.world.delete_topic(topic)

    def check(self) -> None:
        assert rows_in_queues(self.checkpoint.delivered()) == in_queues(self.expected)

    def teardown(self) -> None:
        if hasattr(self, "running"):
            self.query().run()
            self.check()


SETTINGS = settings(stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)

TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(SETTINGS, max_examples=60)


@pytest.mark.slow
class TestStreamMachineForLong(StreamMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(SETTINGS, max_examples=1_500)
