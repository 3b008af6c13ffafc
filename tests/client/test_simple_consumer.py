"""SimpleConsumer and ReviveService over a store in memory, with time that only moves when a test says so."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from group_store import again, memory_store

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.producer import Producer
from rmq_spark.client.simple_consumer import SimpleConsumer
from rmq_spark.client.store import Store, append_records
from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.errors import (
    ClosedError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
)
from rmq_spark.log.expire import expire
from rmq_spark.log.roll import roll
from rmq_spark.model.message import Message
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules.all_folds import BROKER_FOLDS
from rmq_spark.rules.pop import PopState
from rmq_spark.rules.topics import GroupConfigs
from rmq_spark.services.revive import ReviveService

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with memory_store(clock, retention_ms=72 * HOUR_MS, segment_bytes=1) as opened:
        opened.create_topic("orders", queues=2)
        yield opened


def send(store: Store, count: int = 1, topic: str = "orders", **fields: Any) -> list[str]:
    producer = Producer(store)
    return [producer.send(Message(topic, b"%d" % number, **fields)).msg_id for number in range(count)]


def take(consumer: SimpleConsumer, count: int = 32, seconds: float = 30.0) -> list[ReceivedMessage]:
    return consumer.receive(count, seconds, 0)


def ids(messages: list[ReceivedMessage]) -> list[str]:
    return [message.msg_id for message in messages]


def all_of(consumer: SimpleConsumer) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    while batch := take(consumer):
        messages += batch
    return messages


class TestReceiving:
    def test_every_message_is_received_once_by_the_group_and_once_by_another_group(self, store: Store) -> None:
        sent = send(store, 100)
        one, two = (SimpleConsumer(store, "g").subscribe("orders") for _ in range(2))
        shared = [*take(one), *take(two), *all_of(one), *all_of(two)]
        assert sorted(ids(shared)) == sorted(sent)
        assert sorted(ids(all_of(SimpleConsumer(store, "h").subscribe("orders")))) == sorted(sent)

    def test_a_received_message_has_what_its_sender_gave_it(self, store: Store, clock: ManualClock) -> None:
        producer = Producer(store, compress_over_bytes=10)
        result = producer.send(
            Message("orders", b"x" * 100, tags="paid", keys="o-1", properties={"region": "eu"}, queue_id=1)
        )
        (message,) = take(SimpleConsumer(store, "g").subscribe("orders"))
        assert (message.topic, message.body, message.tags, message.keys) == ("orders", b"x" * 100, "paid", "o-1")
        assert (message.msg_id, message.broker, message.queue_id) == (result.msg_id, "broker-0", 1)
        assert (message.queue_offset, message.commit_offset) == (result.queue_offset, result.commit_offset)
        assert (message.born_ms, message.store_ms) == (clock.wall_ms, clock.wall_ms)
        assert (message.reconsume_times, message.delivery_attempt) == (0, 1)
        assert message.properties["region"] == "eu"
        assert message.receipt is not None and message.receipt.split()[1] == str(clock.wall_ms)

    def test_filters_choose_and_the_rest_is_passed_over(self, store: Store) -> None:
        for number in range(40):
            send(store, tags="ab"[number % 2], properties={"n": str(number)})
        by_tag = SimpleConsumer(store, "g").subscribe("orders", tags="a || c")
        assert {message.tags for message in all_of(by_tag)} == {"a"}
        by_sql = SimpleConsumer(store, "h").subscribe("orders", sql="n > 35")
        assert sorted(int(message.properties["n"]) for message in all_of(by_sql)) == [36, 37, 38, 39]
        assert [lag.lag for lag in GroupOffsets(store).lag("g")] == [0, 0]

    def test_a_rare_match_behind_many_others_is_found_by_one_receive(self, store: Store) -> None:
        send(store, 3000, tags="a", queue_id=0)
        (rare,) = send(store, tags="b", queue_id=0)
        assert ids(take(SimpleConsumer(store, "g").subscribe("orders", tags="b"))) == [rare]

    def test_topics_and_queues_take_turns(self, store: Store) -> None:
        store.create_topic("events", queues=2)
        send(store, 200)
        send(store, 200, topic="events")
        consumer = SimpleConsumer(store, "g").subscribe("orders").subscribe("events")
        first = {(message.topic, message.queue_id) for _ in range(4) for message in take(consumer, 1)}
        assert first == {("orders", 0), ("orders", 1), ("events", 0), ("events", 1)}

    def test_several_brokers_are_received_from(self, store: Store) -> None:
        store.create_topic("wide", queues=1, brokers=("broker-0", "broker-1"))
        sent = send(store, 10, topic="wide")
        consumer = SimpleConsumer(store, "g").subscribe("wide")
        messages = all_of(consumer)
        assert sorted(ids(messages)) == sorted(sent)
        assert {message.broker for message in messages} == {"broker-0", "broker-1"}
        consumer.ack(messages)
        assert not any(lag.lag for lag in GroupOffsets(store).lag("g"))

    def test_a_receive_waits_for_the_first_message(self) -> None:
        with memory_store(SystemClock()) as store:  # type: ignore[arg-type]
            store.create_topic("orders", queues=2)
            consumer = SimpleConsumer(store, "g").subscribe("orders")
            received: list[str] = []
            waiting = threading.Thread(target=lambda: received.extend(ids(consumer.receive(32, 30, 60))))
            waiting.start()
            sent = send(store)
            waiting.join(60)
            assert received == sent

    def test_nothing_is_received_when_nothing_comes_in_time(self) -> None:
        with memory_store(SystemClock()) as store:  # type: ignore[arg-type]
            store.create_topic("orders", queues=2)
            assert SimpleConsumer(store, "g").subscribe("orders").receive(32, 30, timedelta(milliseconds=50)) == []

    def test_sixteen_threads_share_one_consumer_and_no_message_is_received_twice(self, store: Store) -> None:
        producer = Producer(store)
        sent = [r.msg_id for _ in range(4) for r in producer.send_batch([Message("orders", b"x")] * 500)]
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        received: list[str] = []

        def work() -> None:
            while batch := take(consumer):
                consumer.ack(batch)
                received.extend(ids(batch))

        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(received) == sorted(sent)


class TestStart:
    def test_rule_2_a_new_group_starts_at_the_beginning_of_a_young_queue(self, store: Store) -> None:
        sent = send(store, 4)
        assert sorted(ids(all_of(SimpleConsumer(store, "g").subscribe("orders")))) == sorted(sent)

    def test_rule_2_a_new_group_starts_at_the_end_of_an_old_queue_and_not_one_message_before_as_rocketmq(
        self, store: Store, clock: ManualClock
    ) -> None:
        send(store, 4)
        clock.advance(2 * 3600)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        assert take(consumer) == []
        sent = send(store, 4)
        later = SimpleConsumer(again(store), "g").subscribe("orders")
        assert sorted(ids(all_of(later))) == sorted(sent)

    def test_earliest_starts_at_the_beginning_and_a_time_at_the_first_message_then(
        self, store: Store, clock: ManualClock
    ) -> None:
        old = send(store, 4)
        clock.advance(2 * 3600)
        moment = clock.wall_ms
        new = send(store, 4)
        earliest = SimpleConsumer(store, "g", consume_from="earliest").subscribe("orders")
        assert sorted(ids(all_of(earliest))) == sorted(old + new)
        for group, start in (("h", moment), ("i", datetime.fromtimestamp(moment / 1000, UTC))):
            at_time = SimpleConsumer(store, group, consume_from=start).subscribe("orders")
            assert sorted(ids(all_of(at_time))) == sorted(new)


class TestSettling:
    def test_acknowledged_messages_do_not_come_back(self, store: Store, clock: ManualClock) -> None:
        send(store, 3)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        messages = all_of(consumer)
        consumer.ack(messages[0])
        consumer.ack(messages[1:])
        consumer.ack(messages)
        clock.advance(3600)
        service = ReviveService(store)
        service.run_once()
        assert (take(consumer), service.done.retried) == ([], 0)

    def test_rule_30_what_is_not_acknowledged_in_time_comes_back_through_the_retry_topic(
        self, store: Store, clock: ManualClock
    ) -> None:
        sent = send(store, 3, tags="a")
        consumer = SimpleConsumer(store, "g").subscribe("orders", tags="a")
        first = all_of(consumer)
        consumer.ack(first[0])
        service = ReviveService(store)
        clock.advance(29.9)
        assert 0 < service.run_once() <= 0.1
        assert take(consumer) == []
        clock.advance(0.1)
        service.run_once()
        second = all_of(consumer)
        assert sorted(ids(second)) == sorted(set(sent) - {first[0].msg_id})
        assert {(message.topic, message.queue_id, message.delivery_attempt) for message in second} == {("orders", 0, 2)}
        assert store.topic("%RETRY%g+orders").queues == {"broker-0": 1}
        with pytest.raises(PreconditionFailedError, match="expired") as error:
            consumer.ack(first[1:])
        assert sorted(error.value.context["expired"]) == sorted(ids(second))  # type: ignore[call-overload]
        consumer.ack(second)

    def test_rule_32_after_17_deliveries_a_message_is_in_the_dlq(self, store: Store, clock: ManualClock) -> None:
        (sent,) = send(store)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        service = ReviveService(store)
        attempts = []
        while not service.done.dead:
            attempts += [message.delivery_attempt for message in take(consumer)]
            clock.advance(30)
            service.run_once()
        assert attempts == list(range(1, 18))
        (dead,) = take(SimpleConsumer(store, "undertaker", consume_from="earliest").subscribe("%DLQ%g"))
        assert (dead.msg_id, dead.body) == (sent, b"0")

    def test_a_group_has_a_maximum_of_its_own(self, store: Store, clock: ManualClock) -> None:
        append_records(store.nameserver, GroupConfigs, {"group": "g", "retryMaxTimes": 1})
        send(store)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        service = ReviveService(store)
        for _ in range(2):
            assert len(take(consumer)) == 1
            clock.advance(30)
            service.run_once()
        assert (service.done.retried, service.done.dead) == (1, 1)

    def test_rule_31_a_changed_message_has_the_newest_receipt_and_older_ones_are_stale(
        self, store: Store, clock: ManualClock
    ) -> None:
        send(store)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        (message,) = take(consumer)
        old = replace(message)
        clock.advance(1)
        assert consumer.change_invisible_duration(message, timedelta(minutes=2)) is message
        for call in (consumer.ack, lambda received: consumer.change_invisible_duration(received, 1)):
            with pytest.raises(PreconditionFailedError, match="stale"):
                call(old)
        clock.advance(60)
        ReviveService(store).run_once()
        assert take(consumer) == []
        consumer.ack(message)

    def test_ten_revivers_at_once_give_back_each_message_once(self, store: Store, clock: ManualClock) -> None:
        sent = send(store, 50)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        all_of(consumer)
        clock.advance(30)
        services = [ReviveService(again(store)) for _ in range(10)]
        threads = [threading.Thread(target=service.run_once) for service in services]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(service.done.retried for service in services) == 50
        assert sorted(ids(all_of(consumer))) == sorted(sent)

    def test_messages_that_retention_takes_while_they_are_held_do_not_stop_the_others(
        self, store: Store, clock: ManualClock
    ) -> None:
        send(store, 2, queue_id=0)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        take(consumer, seconds=11 * 3600)
        log = store.log("broker-0", *BROKER_FOLDS)
        roll(log, min_commits=1)
        clock.advance(100 * 3600)
        kept = send(store, 2, queue_id=0)
        take(consumer, seconds=1)
        roll(log, min_commits=1)
        assert expire(log).segments
        clock.advance(1)
        service = ReviveService(store)
        service.run_once()
        assert (service.done.lost, service.done.retried) == (2, 2)
        assert ids(all_of(consumer)) == kept

    def test_what_is_in_flight_survives_a_roll_a_snapshot_and_another_process(
        self, store: Store, clock: ManualClock
    ) -> None:
        sent = send(store, 5)
        all_of(SimpleConsumer(store, "g").subscribe("orders"))
        log = store.log("broker-0", *BROKER_FOLDS)
        log.snapshot()
        roll(log, min_commits=1)
        other = again(store)
        clock.advance(30)
        ReviveService(other).run_once()
        assert sorted(ids(all_of(SimpleConsumer(other, "g").subscribe("orders")))) == sorted(sent)

    def test_retry_topics_are_read_first_by_one_receive_in_five(self, store: Store, clock: ManualClock) -> None:
        send(store, 32)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        all_of(consumer)
        clock.advance(30)
        ReviveService(store).run_once()
        send(store, 300)
        attempts = [take(consumer, 1)[0].delivery_attempt for _ in range(50)]
        assert attempts.count(2) == 10


class TestFifo:
    @pytest.fixture
    def consumer(self, store: Store) -> SimpleConsumer:
        append_records(store.nameserver, GroupConfigs, {"group": "g", "consumeMessageOrderly": True})
        return SimpleConsumer(store, "g").subscribe("orders")

    def test_a_batch_that_retention_took_is_not_held_for_ever(
        self, store: Store, clock: ManualClock, consumer: SimpleConsumer
    ) -> None:
        send(store, 3, queue_id=0)
        assert len(take(consumer)) == 3
        log = store.log("broker-0", *BROKER_FOLDS)
        roll(log, min_commits=1)
        clock.advance(100 * 3600)
        send(store, queue_id=1)
        roll(log, min_commits=1)
        assert expire(log).segments
        service = ReviveService(store)
        service.run_once()
        assert service.done.lost == 3
        assert log.look(lambda view: view.state.fold(PopState).dump()) == []

    def test_one_batch_of_a_queue_is_in_flight_and_comes_again_in_order(
        self, store: Store, clock: ManualClock, consumer: SimpleConsumer
    ) -> None:
        sent = send(store, 6, queue_id=0)
        batch = take(consumer, 3)
        assert ids(batch) == sent[:3]
        assert take(SimpleConsumer(store, "g").subscribe("orders")) == []
        consumer.ack(batch[0])
        clock.advance(30)
        ReviveService(store).run_once()
        second = take(consumer, 3)
        assert ids(second) == sent[1:4]
        assert [message.delivery_attempt for message in second] == [2, 2, 1]
        assert [message.queue_offset for message in second] == [1, 2, 3]
        with pytest.raises(PreconditionFailedError, match="stale"):
            consumer.ack(batch[1])
        consumer.ack(second)
        assert ids(take(consumer)) == sent[4:]

    def test_what_a_group_held_before_it_was_fifo_comes_back(self, store: Store, clock: ManualClock) -> None:
        sent = send(store, 4, queue_id=0)
        before = SimpleConsumer(store, "late").subscribe("orders")
        assert len(take(before, 2)) == 2
        append_records(store.nameserver, GroupConfigs, {"group": "late", "consumeMessageOrderly": True})
        clock.advance(31)
        ReviveService(store).run_once()
        received: list[str] = []
        after = SimpleConsumer(store, "late").subscribe("orders")
        while batch := take(after):
            received += ids(batch)
            after.ack(batch)
        assert sorted(received) == sorted(sent)

    def test_queues_do_not_block_each_other(self, store: Store, consumer: SimpleConsumer) -> None:
        send(store, 4)
        assert {message.queue_id for message in [*take(consumer, 1), *take(consumer, 1)]} == {0, 1}

    def test_a_receive_whose_outcome_is_not_known_is_repeated_by_the_next(
        self, store: Store, consumer: SimpleConsumer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent = send(store, 2, queue_id=0)
        log = store.log("broker-0")
        decide = log.decide

        def lose_the_answer(rule: Any) -> Any:
            decide(rule)
            raise OutcomeUnknownError("the answer was lost")

        with monkeypatch.context() as patched:
            patched.setattr(log, "decide", lose_the_answer)
            with pytest.raises(OutcomeUnknownError):
                take(consumer)
        assert ids(take(consumer)) == sent


class TestGroups:
    def test_lag_counts_what_nobody_has_received(self, store: Store) -> None:
        send(store, 10, queue_id=0)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        take(consumer, 4)
        assert [(lag.topic, lag.queue, lag.lag) for lag in GroupOffsets(store).lag("g")] == [
            ("orders", 0, 6),
            ("orders", 1, 0),
        ]
        assert GroupOffsets(store).activity("g").member == consumer.consumer_id

    def test_a_reset_group_receives_from_there_and_old_receipts_do_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        sent = send(store, 4, queue_id=0)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        held = take(consumer)
        GroupOffsets(store).reset("g", "orders", to="earliest", force=True)
        consumer.ack(held)
        clock.advance(1)
        assert ids(take(consumer)) == sent

    def test_a_deleted_group_leaves_nothing_to_revive(self, store: Store, clock: ManualClock) -> None:
        send(store, 4)
        take(SimpleConsumer(store, "g").subscribe("orders"))
        GroupOffsets(store).delete("g", force=True)
        clock.advance(30)
        service = ReviveService(store)
        service.run_once()
        assert service.done.retried == 0


class TestErrors:
    def test_wrong_arguments_are_refused(self, store: Store) -> None:
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        for arguments in ((0,), (33,), (1, 0), (1, -1), (1, 13 * 3600), (1, float("nan")), (1, 1, -1), (1, "1")):
            with pytest.raises(InvalidRequestError):
                consumer.receive(*arguments)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="group"):
            SimpleConsumer(store, "no spaces")
        with pytest.raises(InvalidRequestError, match="consume_from"):
            SimpleConsumer(store, "g", consume_from="soon")
        with pytest.raises(InvalidRequestError, match="not both"):
            consumer.subscribe("orders", tags="a", sql="b = 1")
        with pytest.raises(NotFoundError):
            consumer.subscribe("nowhere")

    def test_a_consumer_without_a_subscription_says_so(self, store: Store) -> None:
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        consumer.unsubscribe("orders")
        with pytest.raises(InvalidRequestError, match="subscribe"):
            consumer.receive(1, 1, 0)

    def test_a_message_without_a_receipt_or_with_a_wrong_one_is_refused(self, store: Store) -> None:
        send(store)
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        (message,) = take(consumer)
        for receipt in (None, "nonsense"):
            with pytest.raises(InvalidRequestError, match="receipt"):
                consumer.ack(replace(message, receipt=receipt))
        with pytest.raises(InvalidRequestError, match="over 0"):
            consumer.change_invisible_duration(message, 0)
        assert message.receipt is not None
        unknown = replace(message, receipt=message.receipt.replace(" 0 0 broker-0", " 0 0 broker-9"))
        with pytest.raises(PreconditionFailedError, match="unknown"):
            consumer.ack(unknown)

    def test_a_closed_consumer_says_so_and_wakes_whoever_waits(self) -> None:
        with memory_store(SystemClock()) as store:  # type: ignore[arg-type]
            store.create_topic("orders", queues=1)
            told: list[BaseException] = []
            with SimpleConsumer(store, "g").subscribe("orders") as consumer:

                def wait() -> None:
                    try:
                        consumer.receive(1, 1, 600)
                    except ClosedError as error:
                        told.append(error)

                waiting = threading.Thread(target=wait)
                waiting.start()
            waiting.join(60)
            assert len(told) == 1
            with pytest.raises(ClosedError, match="closed"):
                consumer.receive()
            with pytest.raises(ClosedError, match="closed"):
                consumer.subscribe("orders")

    def test_a_consumer_that_was_made_before_a_fork_says_what_to_do(self, store: Store) -> None:
        consumer = SimpleConsumer(store, "g").subscribe("orders")
        mine, theirs = multiprocessing.get_context("fork").Pipe()

        def child() -> None:
            try:
                consumer.receive(1, 1, 0)
            except ClosedError as error:
                theirs.send(str(error))

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(60)
        assert mine.poll(0) and "before a fork" in mine.recv()
