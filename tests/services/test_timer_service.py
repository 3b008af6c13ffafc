"""Delayed messages from send to delivery, with a clock that only moves when told to."""

from __future__ import annotations

import itertools
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from service_world import ServiceWorld

from rmq_spark.client.producer import Producer
from rmq_spark.client.simple_consumer import SimpleConsumer
from rmq_spark.client.time_search import QueueTimes
from rmq_spark.errors import InvalidRequestError, PreconditionFailedError, UnavailableError
from rmq_spark.log.expire import expire
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.recover import recover
from rmq_spark.log.roll import roll
from rmq_spark.model.message import Message
from rmq_spark.rules.delay import ROCKETMQ_DELAY_MAX_MS
from rmq_spark.rules.service_lease import TAKEOVER_MS
from rmq_spark.rules.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_spark.services import timer, timer_index
from rmq_spark.services.retention import expire_safely
from rmq_spark.services.timer import TimerService, set_delay_levels
from rmq_spark.storage import paths

DAY_MS = 86_400_000


def test_a_message_is_delivered_when_it_is_due_and_not_a_millisecond_before(world):
    world.producer().send(Message("orders", b"x", delay=5))
    timers = TimerService(world.store)
    timers.run_once()
    world.clock.advance(4.999)
    timers.run_once()
    assert world.bodies("orders") == []
    world.clock.advance(0.001)
    timers.run_once()
    assert world.bodies("orders") == [b"x"]
    world.clock.advance(100)
    timers.run_once()
    assert world.bodies("orders") == [b"x"]


@pytest.mark.parametrize(
    "asked",
    [
        {"delay": 2},
        {"delay": timedelta(seconds=2)},
        {"deliver_at": datetime(2023, 11, 14, 22, 13, 22, tzinfo=UTC)},
        {"deliver_at": "2023-11-14T22:13:22Z"},
        {"deliver_at": 1_700_000_002_000},
    ],
)
def test_times_come_in_every_form(world, asked):
    world.producer().send(Message("orders", b"x", **asked))
    timers = TimerService(world.store)
    world.clock.advance(1.999)
    timers.run_once()
    assert world.bodies("orders") == []
    world.clock.advance(0.001)
    timers.run_once()
    assert world.bodies("orders") == [b"x"]


def test_rule_14_a_time_that_has_passed_is_now_and_one_too_far_ahead_is_an_error():
    world = ServiceWorld.create(timer_max_delay_ms=ROCKETMQ_DELAY_MAX_MS)
    producer = world.producer()
    result = producer.send(Message("orders", b"past", deliver_at=5))
    assert result.queue_offset == 0
    assert world.bodies("orders") == [b"past"]
    producer.send(Message("orders", b"far", delay=timedelta(days=3)))
    with pytest.raises(InvalidRequestError, match="too far ahead"):
        producer.send(Message("orders", b"farther", delay=timedelta(days=3, milliseconds=1)))
    assert ServiceWorld.create().producer().send(Message("orders", b"x", delay=timedelta(days=999))).recall_handle


def test_rule_05_the_tag_of_a_delayed_message_is_judged_when_it_is_delivered(world):
    for tag in ("a", "b"):
        world.producer().send(Message("orders", tag.encode(), tags=tag, delay_level=1))
    consumer = SimpleConsumer(world.store, "g", consume_from="earliest").subscribe("orders", tags="a")
    assert consumer.receive(32, 30, 0) == []
    world.clock.advance(1)
    TimerService(world.store).run_once()
    assert sorted(world.bodies("orders")) == [b"a", b"b"]
    assert [message.body for message in consumer.receive(32, 30, 0)] == [b"a"]


def test_rule_20_a_search_by_time_finds_a_delayed_message_at_its_delivery(world):
    sent = world.producer().send(Message("orders", b"late", delay=10, queue_id=0))
    world.clock.advance(5)
    world.producer().send(Message("orders", b"between", queue_id=0))
    moment = world.clock.wall_ms + 1
    world.clock.advance(5)
    TimerService(world.store).run_once()
    first, second = world.messages("orders")
    assert (first.body, second.body, second.msg_id) == (b"between", b"late", sent.msg_id)
    assert second.store_ms - second.born_ms == 10_000
    assert QueueTimes(world.store).search("orders", moment)["orders", "broker-0", 0] == second.queue_offset


def test_rule_15_a_level_goes_before_a_time_and_above_18_it_is_18(world):
    producer = world.producer()
    producer.send(Message("orders", b"level", delay_level=1, delay=3600))
    producer.send(Message("orders", b"high", delay_level=99))
    producer.send(Message("orders", b"none", delay_level=-1))
    timers = TimerService(world.store)
    timers.run_once()
    assert world.bodies("orders") == [b"none"]
    world.clock.advance(1)
    timers.run_once()
    assert world.bodies("orders") == [b"none", b"level"]
    world.clock.advance(7198.999)
    timers.run_once()
    assert world.bodies("orders") == [b"none", b"level"]
    world.clock.advance(0.001)
    timers.run_once()
    assert world.bodies("orders") == [b"none", b"level", b"high"]


def test_rules_16_and_20_only_places_and_the_store_time_of_a_delivered_copy_differ(world):
    producer = world.producer()
    producer.send(Message("orders", b"x", tags="t", keys="k", properties={"p": "v"}, delay=5, queue_id=2))
    producer.send(Message("orders", b"y", delay_level=2))
    before = {message.msg_id: message for message in world.messages(SCHEDULE_TOPIC, TIMER_TOPIC)}
    world.clock.advance(5)
    TimerService(world.store).run_once()
    for message in world.messages("orders"):
        parked = before[message.msg_id]
        assert message.properties == parked.properties
        assert {"REAL_TOPIC", "REAL_QID"} < message.properties.keys()
        assert (message.born_ms, message.tags, message.keys, message.body) == (
            parked.born_ms,
            parked.tags,
            parked.keys,
            parked.body,
        )
        assert message.store_ms == parked.store_ms + 5_000
        assert message.queue_id == int(parked.properties["REAL_QID"])
    assert len(before) == 2


def test_rule_38_each_message_of_a_batch_has_its_own_time(world):
    results = world.producer().send_batch(
        [Message("orders", b"now"), Message("orders", b"2", delay=2), Message("orders", b"1", delay_level=1)]
    )
    assert [result.recall_handle is not None for result in results] == [False, True, False]
    timers = TimerService(world.store)
    for second in range(3):
        timers.run_once()
        assert sorted(world.bodies("orders")) == sorted([b"now", b"1", b"2"][: second + 1])
        world.clock.advance(1)


def test_a_message_that_is_due_before_the_mark_is_delivered_too(world):
    """The mark has passed a time, and then a message for that time comes from a producer whose clock is behind.

    It has not looked at the log for a while, so it does not know the log's time either.
    """
    producer, timers = world.producer(), TimerService(world.store)
    other = Producer(world.again())
    other.send(Message("events", b"opens the log"))
    producer.send(Message("orders", b"first", delay=50))
    producer.send(Message("orders", b"late", delay=50))
    world.clock.advance(60)
    timers.run_once()
    world.clock.advance(-30)
    other.send(Message("orders", b"behind", delay=10))
    assert [message.body for message in world.messages(TIMER_TOPIC)][-1] == b"behind"
    timers.run_once()
    assert sorted(world.bodies("orders")) == [b"behind", b"first", b"late"]


class TestRecall:
    def test_a_recalled_message_is_never_delivered(self, world):
        producer = world.producer()
        kept, gone = (producer.send(Message("orders", body, delay=5)) for body in (b"kept", b"gone"))
        producer.recall(gone)
        producer.recall(gone.recall_handle)
        timers = TimerService(world.store)
        world.clock.advance(6)
        timers.run_once()
        assert world.bodies("orders") == [b"kept"]
        assert timers.pending == 0
        with pytest.raises(PreconditionFailedError, match="is due"):
            producer.recall(kept)

    def test_what_cannot_be_recalled_says_so(self, world):
        producer = world.producer()
        for message in (Message("orders", b"x"), Message("orders", b"x", delay_level=3)):
            with pytest.raises(InvalidRequestError, match="cannot be recalled"):
                producer.recall(producer.send(message))
        with pytest.raises(InvalidRequestError, match="not a recall handle"):
            producer.recall("nonsense")


class TestCopies:
    def test_many_copies_deliver_each_message_once(self, world):
        producer = world.producer()
        copies = [TimerService(world.again()) for _ in range(3)]
        for number in range(30):
            producer.send(Message("orders", b"%d" % number, delay=1 + number % 5))
        for _ in range(8):
            world.clock.advance(0.9)
            for copy in copies:
                copy.run_once()
        assert sorted(map(int, world.bodies("orders"))) == list(range(30))

    def test_the_lease_leaves_the_work_to_one_copy_until_it_waits_too_long(self, world):
        producer = world.producer()
        first, second = TimerService(world.store), TimerService(world.again())
        for delay in (1, 2):
            producer.send(Message("orders", b"%d" % delay, delay=delay))
        world.clock.advance(1)
        first.run_once()
        world.clock.advance(1)
        second.run_once()
        assert world.bodies("orders") == [b"1"], "the other copy is preferred"
        assert second.behind_ms() == 0
        world.clock.advance(TAKEOVER_MS / 1000)
        second.run_once()
        assert world.bodies("orders") == [b"1", b"2"], "it seems to be dead"

    def test_a_copy_that_starts_later_goes_on_where_the_others_were(self, world):
        producer = world.producer()
        for delay in (1, 2, 3, 3):
            producer.send(Message("orders", b"%d" % delay, delay=delay))
        world.clock.advance(2)
        TimerService(world.store).run_once()
        world.clock.advance(1)
        later = TimerService(world.again())
        world.clock.advance(TAKEOVER_MS / 1000)
        later.run_once()
        assert world.bodies("orders") == [b"1", b"2", b"3", b"3"]


class TestManyAtOnce:
    def test_a_second_with_many_goes_out_in_few_commits(self, world):
        producer, timers = world.producer(), TimerService(world.store)
        messages = [Message("orders", b"%d" % number, delay=1) for number in range(5_000)]
        producer.send_batch(messages)
        timers.run_once()
        before = world.store.log().refresh().state.commits.firsts
        commits = len(before)
        world.clock.advance(1)
        timers.run_once()
        after = len(world.store.log().refresh().state.commits.firsts)
        assert sorted(map(int, world.bodies("orders"))) == list(range(5_000))
        assert after - commits <= 4, "256, 1024, 4096: the first ones tell how large messages are"

    def test_equal_due_times_are_split_anywhere(self, world, monkeypatch):
        monkeypatch.setattr("rmq_spark.services.timer.ROWS_FIRST", 3)
        monkeypatch.setattr("rmq_spark.services.timer.ROWS_MAX", 3)
        producer, timers = world.producer(), TimerService(world.store)
        for _ in range(2):
            producer.send_batch([Message("orders", b"x", delay=1) for _ in range(10)])
            world.clock.advance(1)
            timers.run_once()
            world.clock.advance(-1)  # the second ten are due before the mark
        world.clock.advance(2)
        timers.run_once()
        assert len(world.bodies("orders")) == 20


class TestIndex:
    def test_a_look_touches_only_what_is_due(self, world, monkeypatch):
        producer, timers = world.producer(), TimerService(world.store)
        producer.send_batch([Message("orders", b"x", delay=1000 + number) for number in range(500)])
        producer.send(Message("orders", b"now", delay=1))
        fetch, fetched = timer.fetch_messages, []
        monkeypatch.setattr(
            timer, "fetch_messages", lambda log, at: fetched.append(at.commit.tolist()) or fetch(log, at)
        )
        timers.run_once()
        world.clock.advance(1)
        timers.run_once()
        assert world.bodies("orders") == [b"now"]
        assert fetched == [[500]]
        timers.run_once()
        assert fetched == [[500]], "nothing is read while nothing is due"

    def test_the_next_process_reads_files_instead_of_the_log(self, world, monkeypatch):
        monkeypatch.setattr(timer_index, "RUN_ROWS", 10)
        producer, timers = world.producer(), TimerService(world.store)
        for _ in range(5):
            producer.send_batch([Message("orders", b"x", delay=10) for _ in range(12)])
            timers.run_once()
        directory = paths.timers(paths.broker_root("broker-0"))
        names = [info.name for info in world.store.storage.list(directory)]
        assert names
        later = TimerService(world.again())
        scanned = []
        log = later.timers("broker-0").log
        scan = log.scan
        monkeypatch.setattr(log, "scan", lambda query, *more: scanned.append(query.start) or scan(query, *more))
        later.run_once()
        assert later.pending == 60
        assert all(start > 0 for start in scanned), "only what came after the files is read from the log"
        world.clock.advance(20)
        timers.run_once()
        assert len(world.bodies("orders")) == 60
        assert not list(world.store.storage.list(directory)), "files without a pending message go"

    @pytest.mark.parametrize("damage", ["delete", "garbage", "lies"])
    def test_files_that_are_gone_or_wrong_cost_time_only(self, world, monkeypatch, damage):
        monkeypatch.setattr(timer_index, "RUN_ROWS", 10)
        world.producer().send_batch([Message("orders", b"%d" % number, delay=10) for number in range(12)])
        TimerService(world.store).run_once()
        storage, directory = world.store.storage, paths.timers(paths.broker_root("broker-0"))
        [name] = [info.name for info in storage.list(directory)]
        data = storage.read(f"{directory}/{name}")
        storage.delete(f"{directory}/{name}")
        if damage == "garbage":
            storage.create_if_absent(f"{directory}/{name}", [b"garbage"])
        elif damage == "lies":
            due = (world.clock.now_ms() + 10_000).to_bytes(8, "little")
            storage.create_if_absent(f"{directory}/{name}", [data.replace(due, (5).to_bytes(8, "little"))])
        later = TimerService(world.again())
        for _ in range(3):
            world.clock.advance(5)
            try:
                later.run_once()
            except Exception as error:
                assert "rebuilt" in str(error)
                later.run_once()
        assert sorted(map(int, world.bodies("orders"))) == list(range(12))
        assert all(message.store_ms >= world.clock.now_ms() - 5_000 for message in world.messages("orders"))

    def test_a_parked_message_that_names_no_queue_holds_nobody_up(self, world):
        world.store.log().append(
            MessageBatch.of(
                topic=TIMER_TOPIC, queue_id=0, msg_id="bad", body=b"x", born_timestamp_ms=0, properties=[("a", "b")]
            )
        )
        world.producer().send(Message("orders", b"good", delay=1))
        timers = TimerService(world.store)
        world.clock.advance(1)
        timers.run_once()
        assert world.bodies("orders") == [b"good"]
        assert timers.timers("broker-0").index.unreadable == 1


class TestRetention:
    def fill(self, world: ServiceWorld, producer: Producer) -> None:
        """Other messages and a roll, so that what was sent before lies in segments that can go."""
        for _ in range(3):
            producer.send(Message("other", b"x"))
            roll(world.store.log(), min_commits=1)
            world.clock.advance(1)

    def test_pending_messages_survive_it_with_the_same_due_time(self, world):
        producer = world.producer()
        producer.send(Message("orders", b"timer", delay=timedelta(days=5)))
        producer.send(Message("orders", b"level", delay_level=18))
        gone = producer.send(Message("orders", b"recalled", delay=timedelta(days=5)))
        producer.recall(gone)
        due = world.clock.now_ms() + 5 * DAY_MS
        due_level = world.clock.now_ms() + 7_200_000
        timers = TimerService(world.store)
        self.fill(world, producer)
        result = expire_safely(world.store.log(), before_ms=world.clock.now_ms() + 1)
        assert result.segments
        assert world.store.log().refresh().state.queues.bounds(SCHEDULE_TOPIC, 17)[0] == 1, "the first copy is gone"
        timers.run_once()
        assert timers.pending == 2
        world.clock.wall_ms = due_level - 1
        world.clock.boot_ns += 10 * DAY_MS * 1_000_000
        timers.run_once()
        assert world.bodies("orders") == []
        world.clock.wall_ms = due_level
        timers.run_once()
        assert world.bodies("orders") == [b"level"]
        world.clock.wall_ms = due - 1
        timers.run_once()
        assert world.bodies("orders") == [b"level"]
        world.clock.wall_ms = due
        timers.run_once()
        assert world.bodies("orders") == [b"level", b"timer"]

    def test_nothing_is_written_when_nothing_is_pending(self, world):
        producer = world.producer()
        producer.send(Message("orders", b"x", delay=1))
        world.clock.advance(1)
        TimerService(world.store).run_once()
        self.fill(world, producer)
        end = world.store.log().refresh().state.offset
        assert expire_safely(world.store.log(), before_ms=world.clock.now_ms() + 1).segments
        assert world.store.log().refresh().state.offset == end

    def test_a_hold_keeps_segments(self, world):
        self.fill(world, world.producer())
        log = world.store.log()
        first = log.refresh().mark.segments[0]
        done = expire(log, before_ms=world.clock.now_ms() + 1, hold=lambda start: first.end)
        assert [segment.end for segment in done.segments] == [first.end]
        assert not expire(log, before_ms=world.clock.now_ms() + 1, hold=lambda start: 0).segments


def test_changed_delay_levels_count_for_later_messages_only(world):
    producer, timers = world.producer(), TimerService(world.store)
    producer.send(Message("orders", b"old", delay_level=1))
    set_delay_levels(world.store, "10s 1m")
    producer.send(Message("orders", b"new", delay_level=1))
    world.clock.advance(1)
    timers.run_once()
    assert world.bodies("orders") == [b"old"]
    world.clock.advance(9)
    timers.run_once()
    assert world.bodies("orders") == [b"old", b"new"]


def test_who_waits_is_told_when_to_look_again(world):
    timers = TimerService(world.store)
    assert timers.run_once() == 1.0
    world.producer().send(Message("orders", b"x", delay=0.25))
    assert timers.run_once() == 0.25
    assert timers.behind_ms() == 0


class TestClocks:
    def test_a_delay_counts_from_the_logs_time_when_the_clock_was_set_back(self, world):
        producer = world.producer()
        producer.send(Message("orders", b"now"))
        log_ms = world.clock.now_ms()
        world.clock.wall_ms -= 120_000
        producer.send(Message("orders", b"later", delay=60))
        with producer.begin_transaction() as tx:
            producer.send(Message("orders", b"whole", delay=60), transaction=tx)
            tx.commit()
        timers = TimerService(world.store)
        timers.run_once()
        assert world.bodies("orders") == [b"now"]
        world.clock.wall_ms = log_ms + 59_999
        timers.run_once()
        assert world.bodies("orders") == [b"now"]
        world.clock.wall_ms = log_ms + 60_000
        timers.run_once()
        assert world.bodies("orders") == [b"now", b"later", b"whole"]


def test_a_longer_list_of_levels_counts_above_18(world):
    set_delay_levels(world.store, " ".join(f"{number}s" for number in range(1, 25)))
    producer = world.producer()
    producer.send_batch([Message("orders", b"24", delay_level=24), Message("orders", b"99", delay_level=99)])
    timers = TimerService(world.store)
    world.clock.advance(23.999)
    timers.run_once()
    assert world.bodies("orders") == []
    world.clock.advance(0.001)
    timers.run_once()
    assert [message.properties["DELAY"] for message in world.messages("orders")] == ["24", "24"]


class TestLargeMessages:
    def test_messages_that_are_larger_than_those_before_go_out_in_several_commits(self, world, monkeypatch):
        monkeypatch.setattr(timer, "BYTES_AIM", 100_000)
        producer = world.producer()
        timers = TimerService(world.store)
        producer.send_batch([Message("small", b"s", delay=1) for _ in range(600)])
        world.clock.advance(1)
        timers.run_once()
        producer.send_batch([Message("large", b"l" * 20_000, delay=1) for _ in range(60)])
        world.clock.advance(1)
        timers.run_once()
        assert len(world.bodies("small")) == 600
        places = [message.commit_offset for message in world.messages("large")]
        assert len(places) == 60
        gaps = sum(after - one > 1 for one, after in itertools.pairwise(places))
        assert gaps >= 5, "the mark of each commit lies between"

    def test_what_cannot_be_read_at_once_is_read_in_smaller_parts(self, world, monkeypatch):
        fetch = timer.fetch_messages

        def limited(log, places):
            if len(places.commit) > 10:
                raise pa.ArrowCapacityError("too large")
            return fetch(log, places)

        monkeypatch.setattr(timer, "fetch_messages", limited)
        world.producer().send_batch([Message("orders", b"%d" % number, delay=1) for number in range(100)])
        timers = TimerService(world.store)
        world.clock.advance(1)
        for _ in range(200):
            with suppress(UnavailableError):
                timers.run_once()
        assert len(world.bodies("orders")) == 100


def test_a_part_of_the_index_that_a_power_loss_may_belie_is_not_kept(monkeypatch):
    monkeypatch.setattr(timer_index, "RUN_ROWS", 4)
    world = ServiceWorld.create(delete_grace_ms=0, flush="async")
    log = world.store.log()

    def files() -> int:
        return len(list(world.store.storage.list(paths.timers(log.root))))

    timers = TimerService(world.store)
    for _ in range(5):
        world.producer().send(Message("orders", b"x", delay=10))
    timers.run_once()
    assert not files(), "the log may forget these messages"
    roll(log, min_commits=1)
    for _ in range(20):
        world.producer().send(Message("orders", b"x", delay=10))
    roll(log, min_commits=1)
    TimerService(world.store).run_once()
    assert files(), "what was rolled is durable"
    recover(world.store.storage, log.root, log.broker, world.clock)
    assert not files()
    world.store.close()
