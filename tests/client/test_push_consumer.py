"""Push consumers, step by step with a clock that is moved by hand (facts 5; rules of section 16 by number)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from group_store import again, memory_store
from push_steps import RetryTimer, Steps, advance, committed, leaving

from rmq_spark import InvalidRequestError, Message, NotFoundError, Producer, Store
from rmq_spark.client.consume_result import ConsumeResult
from rmq_spark.client.consumer_settings import ConsumerSettings
from rmq_spark.client.push_consumer import PushConsumer
from rmq_spark.clock import ManualClock
from rmq_spark.errors import UnavailableError
from rmq_spark.log.expire import expire
from rmq_spark.log.roll import roll
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules import retry
from rmq_spark.rules.delay import LEVELS_MS

HOUR = 3_600


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock(), retention_ms=24 * HOUR * 1000, segment_bytes=1) as made:
        made.create_topic("t", queues=4)
        yield made


def send(store: Store, *bodies: str, **options: Any) -> None:
    producer = Producer(store)
    for body in bodies:
        producer.send(Message("t", body.encode(), **options))


def collect(into: list[str]) -> Callable[[ReceivedMessage], None]:
    return lambda message: into.append(message.body.decode())


def fail(_: object) -> ConsumeResult:
    return ConsumeResult.FAILURE


class TestDelivery:
    def test_every_message_reaches_the_listener_once(self, store: Store) -> None:
        got: list[str] = []
        consumer = Steps(store, collect(got))
        send(store, *map(str, range(20)))
        consumer.run()
        assert sorted(got, key=int) == list(map(str, range(20)))

    def test_only_what_was_subscribed_is_delivered_and_the_offset_passes_the_rest(self, store: Store) -> None:
        got: list[str] = []
        consumer = Steps(store, collect(got), subscriptions={"t": {"sql": "amount > 2"}})
        for amount in range(5):
            send(store, str(amount), properties={"amount": str(amount)}, queue_id=0)
        consumer.run()
        assert got == ["3", "4"]
        advance(store, 5)
        consumer.run()
        assert committed(store)[0] == 5

    def test_a_message_has_what_was_sent(self, store: Store) -> None:
        got: list[ReceivedMessage] = []
        consumer = Steps(store, got.append)
        Producer(store, compress_over_bytes=1).send(
            Message("t", b"body" * 50, tags="a", keys="k1 k2", properties={"p": "q"}, queue_id=2)
        )
        consumer.run()
        (message,) = got
        assert (message.topic, message.body, message.tags, message.keys) == ("t", b"body" * 50, "a", "k1 k2")
        assert (message.queue_id, message.queue_offset, message.reconsume_times, message.delivery_attempt) == (
            2,
            0,
            0,
            1,
        )
        assert dict(message.properties) == {"p": "q"}

    def test_a_batch_size_over_one_gives_lists(self, store: Store) -> None:
        got: list[list[bytes]] = []
        consumer = Steps(store, lambda batch: got.append([message.body for message in batch]), batch_size=3)
        send(store, "a", "b", "c", "d", queue_id=1)
        consumer.run()
        assert got == [[b"a", b"b", b"c"], [b"d"]]

    def test_a_coroutine_function_may_be_the_listener(self, store: Store) -> None:
        got: list[str] = []

        async def listen(message: ReceivedMessage) -> ConsumeResult:
            got.append(message.body.decode())
            return ConsumeResult.SUCCESS

        consumer = Steps(store, listen)
        send(store, "a")
        consumer.run()
        assert got == ["a"]
        consumer.consumer.close()

    def test_messages_that_expired_are_passed_over_with_a_warning(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        send(store, "old", queue_id=0)
        Steps(store, lambda _: None).leave()
        roll(store.log(), min_commits=1)
        advance(store, 48 * HOUR)
        expire(store.log())
        send(store, "new", queue_id=0)
        got: list[str] = []
        Steps(store, collect(got)).run()
        assert got == ["new"]
        assert "messages expired before the group consumed them" in caplog.text


class TestStart:
    def test_rule_2_a_new_group_reads_a_young_queue_whole_and_an_old_one_from_its_end(self, store: Store) -> None:
        send(store, "young", queue_id=0)
        got: list[str] = []
        Steps(store, collect(got), "first").run()
        assert got == ["young"]
        advance(store, HOUR + 1)
        late: list[str] = []
        second = Steps(store, collect(late), "second")
        second.run()
        assert late == []
        send(store, "new", queue_id=0)
        second.run()
        assert late == ["new"]

    def test_earliest_and_a_time(self, store: Store) -> None:
        send(store, "a", queue_id=0)
        advance(store, 2 * HOUR)
        middle = store.clock.now_ms()
        send(store, "b", queue_id=0)
        advance(store, 2 * HOUR)
        first: list[str] = []
        Steps(store, collect(first), "e", consume_from="earliest").run()
        assert first == ["a", "b"]
        second: list[str] = []
        Steps(store, collect(second), "time", consume_from=middle).run()
        assert second == ["b"]

    def test_a_stored_offset_always_wins(self, store: Store) -> None:
        send(store, "a", "b", queue_id=0)
        first = Steps(store, lambda _: None)
        first.run()
        first.leave()
        got: list[str] = []
        send(store, "c", queue_id=0)
        Steps(store, collect(got), consume_from="earliest").run()
        assert got == ["c"]

    def test_where_a_group_starts_is_committed_before_anything_is_consumed(self, store: Store) -> None:
        send(store, "old", queue_id=0)
        advance(store, 2 * HOUR)
        Steps(store, lambda _: None)  # dies at once
        assert committed(store)[0] == 1
        send(store, "new", queue_id=0)
        advance(store, 121)
        got: list[str] = []
        Steps(store, collect(got)).run()
        assert got == ["new"]


class TestOffsets:
    def test_rule_1_a_committed_offset_is_the_next_to_consume(self, store: Store) -> None:
        consumer = Steps(store, lambda _: None)
        send(store, "a", "b", queue_id=3)
        consumer.run()
        assert committed(store)[3] == 0
        advance(store, 5)
        consumer.run()
        assert committed(store)[3] == 2

    def test_an_unfinished_message_holds_the_offset(self, store: Store) -> None:
        inner: list[Steps] = []
        seen: list[str] = []

        def listen(message: ReceivedMessage) -> None:
            if message.body == b"slow":
                inner[0].work()  # everything else is consumed while this one is not finished
                advance(store, 5)
                inner[0].engine.tick()
                seen.append(f"committed {committed(store)[0]}")
            seen.append(message.body.decode())

        inner.append(Steps(store, listen))
        send(store, "a", "slow", "b", "c", queue_id=0)
        inner[0].run()
        assert seen == ["a", "b", "c", "committed 1", "slow"]
        advance(store, 5)
        inner[0].run()
        assert committed(store)[0] == 4

    def test_close_commits(self, store: Store) -> None:
        consumer = Steps(store, lambda _: None)
        send(store, "a", queue_id=0)
        consumer.run()
        consumer.leave()
        assert committed(store)[0] == 1


class TestRetry:
    def test_rules_6_and_7_a_message_is_delivered_17_times_and_then_is_a_dead_letter(self, store: Store) -> None:
        attempts: list[tuple[int, int]] = []
        start = store.clock.now_ms()

        def listen(message: ReceivedMessage) -> ConsumeResult:
            assert (message.topic, message.body, message.tags) == ("t", b"bad" * 50, "x")
            attempts.append((message.reconsume_times, store.clock.now_ms() - start))
            return ConsumeResult.FAILURE

        timer = RetryTimer(store)
        consumer = Steps(store, listen, subscriptions={"t": {"tags": "x"}})
        sent = Producer(store, compress_over_bytes=1).send(Message("t", b"bad" * 50, tags="x", queue_id=0))
        consumer.run()
        waits = LEVELS_MS[retry.FIRST_RETRY_LEVEL - 1 :]
        for times, wait in enumerate(waits):
            assert len(attempts) == times + 1
            for _ in range(wait // 10_000 - 1):  # a live consumer ticks all the time
                advance(store, 10)
                consumer.engine.tick()
            advance(store, 9.999)
            assert timer.run() == 0
            advance(store, 0.001)
            assert timer.run() == 1
            consumer.run()
        assert [times for times, _ in attempts] == list(range(17))
        assert [at for _, at in attempts] == [sum(waits[:times]) for times in range(17)]
        dead = store.read("%DLQ%g").to_pylist()
        assert [(row["msgId"], row["body"], row["reconsumeTimes"]) for row in dead] == [(sent.msg_id, b"bad" * 50, 17)]
        assert dict(dead[0]["properties"])["RETRY_TOPIC"] == "t"
        assert store.read("SCHEDULE_TOPIC_XXXX").num_rows == 16

    def test_rule_10_a_failed_message_does_not_hold_the_offset(self, store: Store) -> None:
        consumer = Steps(store, fail)
        send(store, "a", queue_id=0)
        consumer.run()
        advance(store, 5)
        consumer.run()
        assert committed(store)[0] == 1
        assert store.read("SCHEDULE_TOPIC_XXXX", columns=["queueId"]).to_pylist() == [{"queueId": 2}]

    @pytest.mark.parametrize("result", [ConsumeResult.FAILURE, "wrong", RuntimeError("no"), SystemExit()])
    def test_an_exception_and_a_wrong_answer_are_failures(self, store: Store, result: object) -> None:
        def listen(_: object) -> Any:
            if isinstance(result, BaseException):
                raise result
            return result

        consumer = Steps(store, listen)
        send(store, "a")
        consumer.run()
        assert store.read("SCHEDULE_TOPIC_XXXX").num_rows == 1

    def test_a_maximum_of_the_consumer_counts(self, store: Store) -> None:
        consumer = Steps(store, fail, max_reconsume_times=0)
        send(store, "a")
        consumer.run()
        assert store.read("%DLQ%g").num_rows == 1

    def test_a_message_that_cannot_be_sent_back_is_consumed_again_here(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        got: list[int] = []

        def listen(message: ReceivedMessage) -> ConsumeResult:
            got.append(message.reconsume_times)
            return ConsumeResult.FAILURE if len(got) == 1 else ConsumeResult.SUCCESS

        consumer = Steps(store, listen)
        send(store, "a", queue_id=0)

        def refuse(*_: object) -> bool:
            raise UnavailableError("no")

        monkeypatch.setattr(consumer.engine._groups, "append", refuse)
        consumer.run()
        assert got == [0]
        advance(store, 4.999)
        consumer.run()
        assert got == [0]
        advance(store, 0.001)
        consumer.run()
        assert got == [0, 1]
        assert committed(store)[0] == 0 or committed(store)[0] == 1

    def test_a_listener_that_fails_while_its_message_is_sent_back_does_not_send_it_back_again(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sending, go_on = threading.Event(), threading.Event()
        threads: list[threading.Thread] = []

        def listen(_: object) -> ConsumeResult:
            advance(store, 901)
            threads.append(threading.Thread(target=steps.engine.tick))
            threads[0].start()
            assert sending.wait(60)
            return ConsumeResult.FAILURE

        steps = Steps(store, listen, settings=ConsumerSettings(lease_ms=4_000_000, expiry_ms=4_000_000))
        groups = steps.engine._groups
        append = groups.append

        def slow(*arguments: Any) -> bool:
            if threading.current_thread() in threads:
                sending.set()
                assert go_on.wait(60)
            return append(*arguments)

        monkeypatch.setattr(groups, "append", slow)
        send(store, "a")
        steps.engine.fetch("broker-0")
        steps.engine.work()
        go_on.set()
        threads[0].join()
        assert store.read("SCHEDULE_TOPIC_XXXX").num_rows == 1
        steps.leave()
        assert sum(committed(store).values()) == 1

    def test_a_listener_that_takes_too_long_loses_its_message(self, store: Store) -> None:
        inner: list[Steps] = []

        def listen(message: ReceivedMessage) -> ConsumeResult:
            for _ in range(16 * 6):  # sixteen minutes, while upkeep goes on
                advance(store, 10)
                inner[0].engine.tick()
            return ConsumeResult.FAILURE

        inner.append(Steps(store, listen))
        send(store, "slow", queue_id=0)
        inner[0].run()
        advance(store, 5)
        inner[0].run()
        parked = store.read("SCHEDULE_TOPIC_XXXX", columns=["queueId", "reconsumeTimes"]).to_pylist()
        assert parked == [{"queueId": 2, "reconsumeTimes": 1}]  # once, at level 3
        assert committed(store)[0] == 1


class TestOrder:
    def test_messages_of_a_queue_come_in_order_and_a_failure_suspends_the_queue(self, store: Store) -> None:
        got: list[tuple[str, int]] = []

        def listen(message: ReceivedMessage) -> ConsumeResult:
            got.append((message.body.decode(), message.reconsume_times))
            failed = message.body == b"b" and message.reconsume_times < 2
            return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS

        consumer = Steps(store, listen, orderly=True)
        send(store, "a", "b", "c", queue_id=0)
        send(store, "other", queue_id=1)
        consumer.run()
        assert got == [("a", 0), ("b", 0), ("other", 0)]
        advance(store, 0.999)
        consumer.run()
        assert len(got) == 3
        advance(store, 0.001)
        consumer.run()
        advance(store, 1)
        consumer.run()
        assert got[3:] == [("b", 1), ("b", 2), ("c", 0)]

    def test_rule_8_an_orderly_consumer_never_gives_up_by_default(self, store: Store) -> None:
        times: list[int] = []

        def listen(message: ReceivedMessage) -> ConsumeResult:
            times.append(message.reconsume_times)
            return ConsumeResult.FAILURE

        consumer = Steps(store, listen, orderly=True)
        send(store, "a", queue_id=0)
        for _ in range(40):
            consumer.run()
            advance(store, 1)
        assert times == list(range(40))
        assert store.read("%DLQ%g").num_rows == 0
        assert committed(store)[0] == 0

    def test_with_a_maximum_the_message_becomes_a_dead_letter_and_the_queue_goes_on(self, store: Store) -> None:
        got: list[str] = []

        def listen(message: ReceivedMessage) -> ConsumeResult:
            got.append(message.body.decode())
            return ConsumeResult.FAILURE if message.body == b"bad" else ConsumeResult.SUCCESS

        consumer = Steps(store, listen, orderly=True, max_reconsume_times=2)
        send(store, "bad", "good", queue_id=0)
        for _ in range(4):
            consumer.run()
            advance(store, 1)
        assert got == ["bad", "bad", "bad", "good"]
        assert store.read("%DLQ%g", columns=["body"]).to_pylist() == [{"body": b"bad"}]

    def test_a_consumer_that_slept_through_its_lease_hands_out_nothing_and_cannot_commit(self, store: Store) -> None:
        with again(store) as other_store:
            got: list[str] = []
            sleeper = Steps(store, collect(got), orderly=True)
            send(store, "a", queue_id=0)
            sleeper.engine.fetch("broker-0")  # read, not consumed yet
            advance(store, 121)  # asleep: no renewal, no heartbeat
            taken: list[str] = []
            other = Steps(other_store, collect(taken), orderly=True)
            other.run()
            assert taken == ["a"]
            send(store, "b", queue_id=0)
            sleeper.work()
            assert got == []
            sleeper.engine.commit()
            other.run()
            other.leave()
            assert taken == ["a", "b"]
            assert committed(store)[0] == 2

    def test_a_stale_consumer_that_finishes_a_message_cannot_commit_it(self, store: Store) -> None:
        with again(store) as other_store:
            taken: list[str] = []
            sleeper: list[Steps] = []

            def listen(_: object) -> None:
                advance(store, 121)  # stopped in the middle of the listener
                other = Steps(other_store, collect(taken), orderly=True)
                other.run()

            sleeper.append(Steps(store, listen, orderly=True))
            send(store, "a", queue_id=0)
            sleeper[0].engine.fetch("broker-0")
            sleeper[0].work()
            sleeper[0].engine.commit()
            assert taken == ["a"]
            assert committed(store)[0] == 0


class TestSharing:
    def test_members_share_the_queues_and_nothing_is_delivered_twice(self, store: Store) -> None:
        with again(store) as other_store:
            got: list[str] = []
            first = Steps(store, collect(got))
            assert first.queues() == [0, 1, 2, 3]
            send(store, *map(str, range(40)))
            first.run()
            second = Steps(other_store, collect(got))
            first.engine.share_again()
            first.run()
            advance(store, 0.5)
            second.run()
            assert sorted(first.queues() + second.queues()) == [0, 1, 2, 3]
            assert len(first.queues()) == 2
            send(store, *map(str, range(40, 80)))
            first.run()
            second.run()
            assert sorted(got, key=int) == list(map(str, range(80)))
            first.leave()
            second.engine.share_again()
            second.run()
            assert second.queues() == [0, 1, 2, 3]
            send(store, "80")
            second.run()
            assert got[-1] == "80"
            second.leave()

    def test_a_queue_goes_to_another_consumer_only_when_its_listener_is_done(self, store: Store) -> None:
        with again(store) as other_store:
            inside: list[list[int]] = []
            first: list[Steps] = []

            def listen(_: object) -> None:
                second = Steps(other_store, lambda _: None, orderly=True, strategy="AVG_BY_CIRCLE")
                first[0].engine.share_again()
                first[0].engine.tick()
                advance(store, 0.5)
                second.engine.tick()
                inside.append(second.queues())
                second.leave()

            first.append(Steps(store, listen, orderly=True, strategy="AVG_BY_CIRCLE"))
            send(store, "a", queue_id=0)
            send(store, "b", queue_id=1)
            first[0].engine.fetch("broker-0")
            first[0].engine.work()
            # It would get 0 and 2, or 1 and 3: never the one whose listener runs.
            assert inside in ([[2]], [[1, 3]])

    def test_a_member_that_was_killed_loses_its_queues_after_two_minutes(self, store: Store) -> None:
        with again(store) as other_store:
            Steps(store, lambda _: None)  # dies
            second = Steps(other_store, lambda _: None)
            assert len(second.queues()) < 4
            for _ in range(13):
                advance(store, 10)
                second.run()
            assert second.queues() == [0, 1, 2, 3]

    def test_new_queues_are_taken_with_the_next_rebalance(self, store: Store) -> None:
        got: list[str] = []
        consumer = Steps(store, collect(got))
        store.update_topic("t", queues=6)
        send(store, "a", queue_id=5)
        advance(store, 20)
        consumer.run()
        assert consumer.queues() == [0, 1, 2, 3, 4, 5]
        assert got == ["a"]

    def test_rule_23_queues_are_counted_for_each_broker(self) -> None:
        with memory_store() as store:
            store.create_topic("t", queues=2, brokers=("a", "b"))
            consumer = Steps(store, lambda _: None)
            assert [tuple(queue)[1:] for queue in consumer.engine.queues() if queue.topic == "t"] == [
                ("a", 0),
                ("a", 1),
                ("b", 0),
                ("b", 1),
            ]

    def test_rule_24_members_that_subscribe_differently_cause_a_warning(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        with again(store) as other_store:
            Steps(store, lambda _: None, subscriptions={"t": {"tags": "a"}})
            assert "subscribe differently" not in caplog.text
            Steps(other_store, lambda _: None, subscriptions={"t": {"tags": "b"}})
            assert "members of one group subscribe differently" in caplog.text


class TestFlowControl:
    def read(self, store: Store, **limits: int) -> int:
        consumer = Steps(store, lambda _: None, settings=ConsumerSettings(**limits))
        for _ in range(20):
            consumer.engine.fetch("broker-0")
        return sum(len(held._unfinished) for held in consumer.engine._all())

    @pytest.fixture
    def full(self, store: Store) -> Store:
        store.create_topic("u", queues=1)
        Producer(store).send_batch([Message("t", b"x" * 1000, queue_id=0) for _ in range(3000)])
        return store

    def test_messages_in_memory_are_limited(self, full: Store) -> None:
        assert self.read(full, cached_messages_max=600) == 1024

    def test_bytes_in_memory_are_limited(self, full: Store) -> None:
        assert self.read(full, cached_bytes_max=100_000) == 512

    def test_the_span_of_unfinished_messages_is_limited(self, full: Store) -> None:
        assert self.read(full, cached_messages_max=10_000, span_max=1_200) == 1_536


class TestBroadcasting:
    def test_every_consumer_gets_every_message_and_keeps_its_offsets_in_a_file(
        self, store: Store, tmp_path: Path
    ) -> None:
        got: dict[str, list[str]] = {"a": [], "b": []}
        options = {"broadcasting": True, "offsets_home": tmp_path}
        both = [Steps(store, collect(got[name]), instance=name, **options) for name in got]
        with leaving(*both):
            send(store, "1", "2", "3")
            for consumer in both:
                consumer.run()
        assert {name: sorted(bodies) for name, bodies in got.items()} == {name: ["1", "2", "3"] for name in got}
        assert committed(store) == {}
        send(store, "4")
        restarted = Steps(store, collect(got["a"]), instance="a", **options)
        restarted.run()
        assert got["a"][3:] == ["4"]

    def test_rule_9_a_message_that_fails_is_dropped_with_a_line_in_the_log(
        self, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = Steps(store, fail, broadcasting=True, offsets_home=tmp_path)
        send(store, "a")
        consumer.run()
        assert "message dropped" in caplog.text
        assert store.read("SCHEDULE_TOPIC_XXXX").num_rows == 0
        assert store.read("%DLQ%g").num_rows == 0


class TestErrors:
    def test_wrong_arguments_are_refused(self, store: Store) -> None:
        with pytest.raises(InvalidRequestError, match="threads"):
            PushConsumer(store, "g", threads=0)
        with pytest.raises(InvalidRequestError, match="strategy"):
            PushConsumer(store, "g", strategy="NONE")
        with pytest.raises(InvalidRequestError, match="consume_from"):
            PushConsumer(store, "g", consume_from="sometime")
        with pytest.raises(InvalidRequestError, match="expire between"):
            ConsumerSettings(heartbeat_ms=10, expiry_ms=10)
        consumer = PushConsumer(store, "g")
        with pytest.raises(InvalidRequestError, match="nothing is subscribed"):
            consumer.start(fail)
        with pytest.raises(NotFoundError, match="no such topic"):
            consumer.subscribe("unknown")
        with pytest.raises(InvalidRequestError, match="either tags or sql"):
            consumer.subscribe("t", tags="a", sql="b = 1")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"max_reconsume_times": "3"},
            {"max_reconsume_times": 2.5},
            {"max_reconsume_times": -2},
            {"settings": None},
            {"strategy": 3},
            {"instance": "../x", "broadcasting": True},
        ],
    )
    def test_a_wrong_argument_is_refused_before_a_thread_stumbles_over_it(
        self, store: Store, wrong: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
            PushConsumer(store, "g", **wrong)

    @pytest.mark.parametrize("wrong", [None, "print", 5])
    def test_what_cannot_be_called_is_no_listener(self, store: Store, wrong: Any) -> None:
        send(store, "a")
        consumer = PushConsumer(store, "g").subscribe("t")
        with pytest.raises(InvalidRequestError, match="start takes a function"):
            consumer.start(wrong)
        assert committed(store) == {}

    @pytest.mark.parametrize("wrong", [{"tags": 5}, {"sql": 5}, {"topic": None}])
    def test_a_subscription_is_a_text(self, store: Store, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequestError, match="must be a text"):
            PushConsumer(store, "g").subscribe(**{"topic": "t", **wrong})

    def test_an_upkeep_step_that_fails_does_not_hold_up_the_others(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        consumer = Steps(store, lambda _: None)
        send(store, "a", queue_id=0)
        consumer.run()

        def refuse(*_: object) -> None:
            raise UnavailableError("no")

        monkeypatch.setattr(consumer.engine._groups, "beat", refuse)
        advance(store, 29.9)
        consumer.engine.tick()
        advance(store, 0.1)
        with pytest.raises(UnavailableError):
            consumer.engine.tick()
        assert committed(store)[0] == 1
