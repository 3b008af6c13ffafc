"""Push consumers on POP, step by step with a clock that is moved by hand (facts 8; rules of section 16 by number)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from group_store import again, memory_store
from push_steps import Steps, advance, committed

from rmq_spark import ConsumerSettings, InvalidRequestError, Message, Producer, PushConsumer, Store
from rmq_spark.client.consume_result import ConsumeResult
from rmq_spark.client.pop_receiver import PopReceiver
from rmq_spark.client.store import append_records
from rmq_spark.clock import ManualClock
from rmq_spark.errors import UnavailableError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules import retry
from rmq_spark.rules.pop import PopState
from rmq_spark.rules.topics import GroupConfigs
from rmq_spark.services.revive import ReviveService

WAIT = 120
"""Longer than any machine takes; nothing is expected to take so long."""


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock()) as made:
        made.create_topic("t", queues=1)
        yield made


def send(store: Store, *bodies: str, **options: Any) -> None:
    producer = Producer(store)
    for body in bodies:
        producer.send(Message("t", body.encode(), **options))


def fail(_: object) -> ConsumeResult:
    return ConsumeResult.FAILURE


def collect(into: list[str]) -> Callable[[ReceivedMessage], None]:
    return lambda message: into.append(message.body.decode())


def held(store: Store) -> dict[int, int]:
    """Offset -> milliseconds until it is visible again, of what is in flight in the topic."""

    def look(view: Any) -> dict[int, int]:
        now = store.clock.now_ms()
        claims = view.state.fold(PopState).held.get(("g", "t", 0), {})
        return {offset: claim.due_ms - now for offset, claim in claims.items()}

    return store.log("broker-0", PopState).look(look)


def bodies(store: Store, topic: str) -> list[str]:
    return [body.decode() for body in store.read(topic).column("body").to_pylist()]


class TestSharing:
    def test_consumers_share_one_queue_and_a_slow_one_holds_nobody_up(self, store: Store) -> None:
        got: dict[str, list[str]] = {"slow": [], "quick": []}
        slow = Steps(store, collect(got["slow"]), pop=True, threads=1)
        with again(store) as other:
            quick = Steps(other, collect(got["quick"]), pop=True)
            send(store, *map(str, range(10)))
            slow.engine.fetch("broker-0")  # it received one message, and its listener has not begun
            quick.run()
            assert len(got["quick"]) == 9
            slow.work()
            assert sorted(got["slow"] + got["quick"], key=int) == [str(number) for number in range(10)]
            assert held(store) == {}

    def test_there_is_no_rebalance_when_a_consumer_joins(self, store: Store) -> None:
        got: list[str] = []
        first = Steps(store, collect(got), pop=True)
        with again(store) as other:
            second = Steps(other, collect(got), pop=True)
            send(store, "a")
            second.run()
            send(store, "b")
            first.run()
        assert got == ["a", "b"]
        assert committed(store) == {0: 2}

    def test_broadcasting_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidRequestError, match="leave out broadcasting"):
            PushConsumer(store, "g", pop=True, broadcasting=True)

    def test_filters_choose_and_the_rest_is_passed_over(self, store: Store) -> None:
        got: list[str] = []
        consumer = Steps(store, collect(got), pop=True, subscriptions={"t": {"tags": "a"}})
        send(store, "1", tags="a")
        send(store, "2", tags="b")
        consumer.run()
        assert got == ["1"]
        assert committed(store) == {0: 2}

    def test_nothing_waits_behind_a_slow_listener(self, store: Store) -> None:
        def listen(_: ReceivedMessage) -> None:
            seen.append((consumer.engine.fetch("broker-0").blocked, list(held(store))))

        seen: list[tuple[bool, list[int]]] = []
        consumer = Steps(store, listen, pop=True, threads=1)
        send(store, "a", "b")
        consumer.engine.fetch("broker-0")
        consumer.work()
        assert seen == [(True, [0])]

    def test_no_more_is_received_than_listeners_get(self, store: Store) -> None:
        consumer = Steps(store, lambda messages: None, pop=True, threads=2, batch_size=3)
        send(store, *map(str, range(50)))
        while consumer.engine.fetch("broker-0").grown:
            pass
        assert len(held(store)) == 6
        assert consumer.engine.fetch("broker-0").blocked

    def test_no_more_is_received_when_bodies_fill_the_memory(self, store: Store) -> None:
        settings = ConsumerSettings(cached_bytes_max=1_000)
        consumer = Steps(store, lambda message: None, pop=True, threads=2, settings=settings)
        send(store, *["x" * 2_000] * 5)
        consumer.engine.fetch("broker-0")
        assert consumer.engine.fetch("broker-0").blocked
        assert len(held(store)) == 2

    def test_a_batch_has_messages_of_one_queue(self, store: Store) -> None:
        store.create_topic("wide", queues=3)
        got: list[list[ReceivedMessage]] = []
        consumer = Steps(store, got.append, pop=True, batch_size=4, subscriptions={"wide": {}})
        for number in range(12):
            Producer(store).send(Message("wide", b"x", queue_id=number % 3))
        consumer.run()
        assert sum(map(len, got)) == 12
        assert all(len({message.queue_id for message in batch}) == 1 for batch in got)


class TestRetries:
    def test_rule_06_a_failure_comes_again_after_1_s_5_s_and_10_s(self, store: Store) -> None:
        times: list[int] = []

        def listen(message: ReceivedMessage) -> ConsumeResult:
            times.append(message.reconsume_times)
            return ConsumeResult.FAILURE

        consumer, revive = Steps(store, listen, pop=True), ReviveService(store)
        send(store, "a")
        for number, seconds in enumerate((1, 5, 10)):
            consumer.run()
            assert times == list(range(number + 1))
            advance(store, seconds - 0.001)
            revive.run_once()
            consumer.run()
            assert len(times) == number + 1
            advance(store, 0.001)
            revive.run_once()
        consumer.run()
        assert times == [0, 1, 2, 3]

    def test_rule_30_it_comes_back_through_the_retry_topic_and_shows_its_own(self, store: Store) -> None:
        seen: list[ReceivedMessage] = []

        def listen(message: ReceivedMessage) -> ConsumeResult | None:
            seen.append(message)
            return ConsumeResult.FAILURE if len(seen) == 1 else None

        consumer = Steps(store, listen, pop=True)
        send(store, "other", "a")
        consumer.run()
        advance(store, 1)
        ReviveService(store).run_once()
        consumer.run()
        assert [message.body for message in seen] == [b"other", b"a", b"other"]
        assert (seen[2].topic, seen[2].queue_offset, seen[2].msg_id) == ("t", 0, seen[0].msg_id)
        assert bodies(store, "%RETRY%g+t") == ["other"]

    def test_rule_32_the_listener_that_fails_last_sends_it_to_the_dead_letter_topic(self, store: Store) -> None:
        calls: list[int] = []

        def listen(message: ReceivedMessage) -> None:
            calls.append(message.delivery_attempt)
            raise ValueError("never")

        consumer, revive = Steps(store, listen, pop=True), ReviveService(store)
        send(store, "a" * 5_000)
        for number in range(retry.RETRY_MAX_TIMES + 3):
            consumer.run()
            advance(store, retry.pop_nack_ms(number) / 1000)
            revive.run_once()
        assert calls == list(range(1, 18))
        assert bodies(store, "%DLQ%g") == ["a" * 5_000]
        assert held(store) == {}

    @pytest.mark.parametrize(("asked", "attempts"), [(-1, 3), (1, 2), (0, 1)])
    def test_the_maximum_is_the_groups_or_the_consumers(self, store: Store, asked: int, attempts: int) -> None:
        append_records(store.nameserver, GroupConfigs, {"group": "g", "retryMaxTimes": 2})
        calls: list[str] = []

        def listen(message: ReceivedMessage) -> ConsumeResult:
            calls.append(message.body.decode())
            return ConsumeResult.FAILURE

        consumer, revive = Steps(store, listen, pop=True, max_reconsume_times=asked), ReviveService(store)
        send(store, "a")
        for number in range(5):
            consumer.run()
            advance(store, retry.pop_nack_ms(number) / 1000)
            revive.run_once()
        assert len(calls) == attempts
        assert bodies(store, "%DLQ%g") == ["a"]

    def test_an_outage_when_a_message_is_acknowledged_is_tried_again(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        got: list[str] = []
        consumer = Steps(store, collect(got), pop=True)
        send(store, "a")
        consumer.engine.fetch("broker-0")
        with monkeypatch.context() as broken:

            def refuse(*_: object, **__: object) -> None:
                raise UnavailableError("no storage")

            broken.setattr(CommitLog, "decide", refuse)
            consumer.work()
        assert (got, list(held(store))) == (["a"], [0])
        advance(store, 0.5)
        consumer.run()
        advance(store, 100)
        ReviveService(store).run_once()
        consumer.run()
        assert got == ["a"]


class TestHolding:
    def test_rule_31_a_message_is_renewed_while_its_listener_works(self, store: Store) -> None:
        revive = ReviveService(store)
        left: list[int] = []

        def listen(_: ReceivedMessage) -> None:
            for _ in range(100):  # 500 s
                advance(store, 5)
                consumer.engine.tick()
                revive.run_once()
                left.append(held(store)[0])

        consumer = Steps(store, listen, pop=True)
        send(store, "a")
        consumer.run()
        assert revive.done.retried == 0
        assert held(store) == {}
        assert min(left) > 0
        assert max(left) == 300_000, "1 min, 3 min, 5 min"

    def test_after_three_hours_it_is_not_renewed_any_more(self, store: Store) -> None:
        revive = ReviveService(store)

        def listen(_: ReceivedMessage) -> None:
            for _ in range(6 * 3_600 // 5):
                advance(store, 5)
                consumer.engine.tick()
            revive.run_once()

        consumer = Steps(store, listen, pop=True)
        send(store, "a")
        consumer.engine.fetch("broker-0")
        consumer.work()
        assert revive.done.retried == 1

    def test_what_waited_for_a_listener_until_its_time_was_over_is_not_handed_out(self, store: Store) -> None:
        got: list[str] = []
        consumer = Steps(store, collect(got), pop=True)
        send(store, "a")
        consumer.engine.fetch("broker-0")
        advance(store, 60)  # this process slept
        consumer.work()
        assert got == []
        ReviveService(store).run_once()
        consumer.run()
        assert got == ["a"]

    def test_the_success_of_a_listener_that_slept_does_not_count(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        revive = ReviveService(store)
        other: list[str] = []

        def listen(_: ReceivedMessage) -> None:
            advance(store, 61)
            revive.run_once()
            Steps(store, collect(other), pop=True).run()

        consumer = Steps(store, listen, pop=True)
        send(store, "a")
        with caplog.at_level(logging.WARNING):
            consumer.engine.fetch("broker-0")
            consumer.work()
        assert other == ["a"]
        assert "not this consumer's any more" in caplog.text

    def test_close_hands_back_what_no_listener_got(self, store: Store) -> None:
        got: list[str] = []
        consumer = Steps(store, collect(got), pop=True)
        send(store, "a", "b")
        consumer.engine.fetch("broker-0")
        consumer.leave()
        assert held(store) == {0: 1_000, 1: 1_000}
        advance(store, 1)
        ReviveService(store).run_once()
        Steps(store, collect(got), pop=True).run()
        assert sorted(got) == ["a", "b"]

    def test_a_short_invisible_time_is_renewed_in_time(self, store: Store) -> None:
        def listen(_: ReceivedMessage) -> None:
            for _ in range(20):
                advance(store, 0.1)
                consumer.engine.tick()
                assert min(held(store).values()) > 0

        consumer = Steps(store, listen, pop=True, settings=ConsumerSettings(invisible_ms=400))
        send(store, "a")
        consumer.run()
        assert held(store) == {}

    def test_an_invisible_time_over_12_hours_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="12 hours"):
            ConsumerSettings(invisible_ms=12 * 3_600_000 + 1)


class TestOrder:
    def test_one_batch_of_a_queue_is_in_flight(self, store: Store) -> None:
        got: list[str] = []
        one = Steps(store, collect(got), pop=True, orderly=True)
        two = Steps(store, collect(got), pop=True, orderly=True)
        send(store, "a", "b", "c")
        assert one.engine.fetch("broker-0").grown
        assert not two.engine.fetch("broker-0").grown
        two.run()
        assert got == []
        one.work()
        two.run()
        assert got == ["a", "b", "c"]
        assert committed(store) == {0: 3}

    def test_rule_30_a_failure_holds_the_queue_and_comes_again_in_place(self, store: Store) -> None:
        calls: list[tuple[str, int, int]] = []

        def listen(message: ReceivedMessage) -> ConsumeResult | None:
            calls.append((message.body.decode(), message.queue_offset, message.reconsume_times))
            return ConsumeResult.FAILURE if len(calls) < 3 else None

        consumer = Steps(store, listen, pop=True, orderly=True)
        send(store, "a", "b")
        consumer.run()
        assert calls == [("a", 0, 0)]
        for _ in range(2):
            advance(store, 1)
            consumer.run()
        assert calls == [("a", 0, 0), ("a", 0, 1), ("a", 0, 2), ("b", 1, 0)]
        assert store.find_topic("%RETRY%g+t") is None

    def test_after_the_maximum_it_is_dead_and_the_queue_goes_on(self, store: Store) -> None:
        append_records(store.nameserver, GroupConfigs, {"group": "g", "retryMaxTimes": 1})
        calls: list[str] = []

        def listen(message: ReceivedMessage) -> ConsumeResult | None:
            calls.append(message.body.decode())
            return ConsumeResult.FAILURE if message.body == b"bad" else None

        consumer = Steps(store, listen, pop=True, orderly=True)
        send(store, "bad", "good")
        consumer.run()
        advance(store, 1)
        consumer.run()
        assert calls == ["bad", "bad", "good"]
        assert bodies(store, "%DLQ%g") == ["bad"]

    def test_a_group_whose_settings_say_so_is_consumed_in_order(self, store: Store) -> None:
        append_records(store.nameserver, GroupConfigs, {"group": "g", "consumeMessageOrderly": True})
        consumer = Steps(store, fail, pop=True, batch_size=2)
        send(store, "a", "b", "c")
        consumer.run()
        assert held(store) == {0: 1_000, 1: 1_000}

    def test_a_receive_whose_outcome_is_unknown_gets_the_same_messages_at_once(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        got: list[str] = []
        consumer = Steps(store, collect(got), pop=True, orderly=True)
        send(store, "a")
        decide = CommitLog.decide

        def lose_the_answer(log: CommitLog, rule: Any) -> Any:
            decide(log, rule)
            raise UnavailableError("the answer was lost")

        with monkeypatch.context() as broken:
            broken.setattr(CommitLog, "decide", lose_the_answer)
            with pytest.raises(UnavailableError):
                consumer.engine.fetch("broker-0")
        assert list(held(store)) == [0]
        consumer.run()
        assert got == ["a"]


class TestThreads:
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Store]:
        with Store.create(str(tmp_path / "store")) as made:
            made.create_topic("t", queues=1)
            yield made

    def test_a_started_consumer_gets_every_message_once(self, disk: Store) -> None:
        seen: list[str] = []
        done = threading.Semaphore(0)

        def listen(message: ReceivedMessage) -> None:
            seen.append(message.body.decode())
            done.release()

        with (
            PushConsumer(disk, "g", pop=True, threads=4).subscribe("t").start(listen),
            PushConsumer(disk, "g", pop=True, threads=4).subscribe("t").start(listen),
        ):
            send(disk, *map(str, range(100)))
            for _ in range(100):
                assert done.acquire(timeout=WAIT)
        assert sorted(seen, key=int) == [str(number) for number in range(100)]
        assert held(disk) == {}

    def test_a_coroutine_listener(self, disk: Store) -> None:
        done = threading.Event()

        async def listen(_: ReceivedMessage) -> None:
            await asyncio.sleep(0)
            done.set()

        with PushConsumer(disk, "g", pop=True).subscribe("t").start(listen):
            send(disk, "a")
            assert done.wait(WAIT)
        assert held(disk) == {}

    def test_close_waits_for_listeners_and_acknowledges(self, disk: Store) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def listen(_: object) -> None:
            inside.set()
            go_on.wait(WAIT)

        consumer = PushConsumer(disk, "g", pop=True).subscribe("t").start(listen)
        send(disk, "a")
        assert inside.wait(WAIT)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        go_on.set()
        closing.join()
        assert held(disk) == {}
        assert committed(disk) == {0: 1}

    def test_close_waits_until_the_outcome_of_a_listener_is_written(
        self, disk: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        acknowledging, go_on = threading.Event(), threading.Event()
        ack = PopReceiver.ack

        def slow_ack(receiver: PopReceiver, messages: Any) -> Any:
            acknowledging.set()
            go_on.wait(WAIT)
            return ack(receiver, messages)

        monkeypatch.setattr(PopReceiver, "ack", slow_ack)
        consumer = PushConsumer(disk, "g", pop=True).subscribe("t").start(lambda message: None)
        send(disk, "a")
        assert acknowledging.wait(WAIT)
        assert consumer._engine is not None and not consumer._engine.is_idle
        go_on.set()
        consumer.close()
        assert held(disk) == {}
