"""Ways to send: asynchronous, one way, tables; retries over brokers, and hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from group_store import memory_store

from rmq_spark import (
    InvalidRequestError,
    Message,
    OutcomeUnknownError,
    Producer,
    SendResult,
    SendStatus,
    Store,
    UnavailableError,
)
from rmq_spark.clock import ManualClock
from rmq_spark.log.commit_log import AppendResult, CommitLog
from rmq_spark.log.message_batch import MessageBatch


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock()) as made:
        made.create_topic("t", queues=4)
        yield made


@pytest.fixture
def two_brokers() -> Iterator[Store]:
    with memory_store(ManualClock()) as made:
        made.create_topic("t", queues=2, brokers=("a", "b"))
        yield made


def break_broker(monkeypatch: pytest.MonkeyPatch, store: Store, broker: str, error: Exception) -> list[MessageBatch]:
    """Let appends to a broker's log fail; returns what they are given."""
    asked: list[MessageBatch] = []

    def refuse(batch: MessageBatch) -> AppendResult:
        asked.append(batch)
        raise error

    monkeypatch.setattr(store.log(broker), "append", refuse)
    return asked


def test_send_says_where_the_message_is(store: Store) -> None:
    sent = Producer(store, group="web").send(Message("t", b"x", queue_id=2))
    assert (sent.status, sent.broker, sent.queue_id, sent.queue_offset) == (SendStatus.SEND_OK, "broker-0", 2, 0)
    assert store.read("t")["msgId"].to_pylist() == [sent.msg_id]


@pytest.mark.parametrize("wrong", ["text", None, b"bytes", {"body": b"x"}])
def test_what_is_no_message_is_refused_by_every_way_to_send(store: Store, wrong: Any) -> None:
    producer = Producer(store)
    for send in (
        producer.send,
        lambda one: producer.send_batch([Message("t", b"x"), one]),
        lambda one: producer.send_async(one).result(),
    ):
        with pytest.raises(InvalidRequestError, match=f"only a Message can be sent.*type='{type(wrong).__name__}'"):
            send(wrong)
    producer.close()
    assert store.read("t").num_rows == 0


def test_one_message_is_no_batch(store: Store) -> None:
    one: Any = Message("t", b"x")
    with pytest.raises(InvalidRequestError, match="a batch is a list of messages; use send for a single one"):
        Producer(store).send_batch(one)


def test_send_async_gives_a_future_and_keeps_the_order(store: Store) -> None:
    with Producer(store) as producer:
        futures = [producer.send_async(Message("t", b"%d" % number, queue_id=0)) for number in range(500)]
        assert [future.result(60).queue_offset for future in futures] == list(range(500))
    assert store.read("t")["body"].to_pylist() == [b"%d" % number for number in range(500)]


def test_one_wrong_message_does_not_fail_the_others_that_are_sent_with_it(store: Store) -> None:
    with Producer(store) as producer:
        good = [producer.send_async(Message("t", b"x")) for _ in range(10)]
        bad = producer.send_async(Message("t", b"x", queue_id=99))
        good += [producer.send_async(Message("t", b"x")) for _ in range(10)]
        with pytest.raises(InvalidRequestError, match="no such queue"):
            bad.result(60)
        assert all(future.result(60) for future in good)
    assert store.read("t").num_rows == 20


def test_asend_and_oneway(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[SendResult]:
        return await asyncio.gather(*[producer.asend(Message("t", b"x")) for _ in range(5)])

    with Producer(store) as producer:
        assert len(asyncio.run(main())) == 5
        producer.send_oneway(Message("t", b"y"))
        producer.send_oneway(Message("t", b"z", queue_id=99))
    assert store.read("t").num_rows == 6
    assert "sent one way is lost" in caplog.text


class TestTables:
    def test_rows_become_messages(self, store: Store) -> None:
        table = pa.table(
            {
                "body": [b"a", b"b", b"c"],
                "tags": ["x", None, "y"],
                "keys": ["k", None, None],
                "queueId": [1, 1, 3],
                "properties": pa.array([[("p", "1")], [], None], pa.map_(pa.string(), pa.string())),
            }
        )
        assert Producer(store).send_table("t", table) == 3
        got = store.read("t").to_pylist()
        assert [(row["body"], row["tags"], row["keys"], row["queueId"], row["queueOffset"]) for row in got] == [
            (b"a", "x", "k", 1, 0),
            (b"b", None, None, 1, 1),
            (b"c", "y", None, 3, 0),
        ]
        assert len({row["msgId"] for row in got}) == 3
        assert store.read("t", sql="p = 1").num_rows == 1

    def test_rows_without_a_queue_are_dealt_out_evenly(self, store: Store) -> None:
        Producer(store).send_table("t", pa.table({"body": pa.array([b"x"] * 42)}))
        counts = store.read("t").group_by("queueId").aggregate([("body", "count")])["body_count"].to_pylist()
        assert sorted(counts) == [10, 10, 11, 11]

    def test_a_text_column_is_encoded_and_a_large_table_is_sent_in_parts(self, store: Store) -> None:
        count = 150_000
        assert Producer(store).send_table("t", pa.table({"body": pa.array(["é"] * count)})) == count
        assert store.read("t", columns=["queueId"]).num_rows == count

    @pytest.mark.parametrize(
        ("table", "problem"),
        [
            (pa.table({"bodi": [b"x"]}), r"unknown column.*nearest='body'"),
            (pa.table({"tags": ["x"]}), "required column is missing"),
            (pa.table({"body": [b"x"], "queueId": [9]}), "no such queue"),
            (pa.table({"body": pa.array([None], pa.binary())}), "body is null"),
        ],
    )
    def test_what_no_message_can_be_is_refused(self, store: Store, table: pa.Table, problem: str) -> None:
        with pytest.raises(InvalidRequestError, match=problem):
            Producer(store).send_table("t", table)
        assert store.read("t").num_rows == 0


class TestRetries:
    def test_a_send_that_fails_goes_to_another_broker_with_the_same_id(
        self, two_brokers: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = break_broker(monkeypatch, two_brokers, "a", UnavailableError("no"))
        producer = Producer(two_brokers)
        results = [producer.send(Message("t", b"x", msg_id=f"id-{number}")) for number in range(8)]
        assert {result.broker for result in results} == {"b"}
        assert [result.msg_id for result in results] == [f"id-{number}" for number in range(8)]
        assert 0 < len(asked) <= 8

    def test_a_message_for_one_queue_is_tried_there_three_times(
        self, two_brokers: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = break_broker(monkeypatch, two_brokers, "a", UnavailableError("no"))
        with pytest.raises(UnavailableError):
            Producer(two_brokers).send(Message("t", b"x", queue_id=0))
        assert len(asked) == 3

    def test_rule_12_the_time_out_covers_all_attempts(
        self, two_brokers: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = two_brokers.clock
        assert isinstance(clock, ManualClock)
        asked = []

        def stall(self: CommitLog, batch: MessageBatch) -> AppendResult:
            asked.append(batch)
            clock.advance(3)
            raise UnavailableError("no")

        monkeypatch.setattr(CommitLog, "append", stall)
        with pytest.raises(UnavailableError):
            Producer(two_brokers).send(Message("t", b"x"))
        assert len(asked) == 1

    def test_an_unclear_send_is_repeated_as_it_was_on_the_same_broker(
        self, two_brokers: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = {
            broker: break_broker(monkeypatch, two_brokers, broker, OutcomeUnknownError("no answer")) for broker in "ab"
        }
        with pytest.raises(OutcomeUnknownError):
            Producer(two_brokers).send(Message("t", b"x"))
        (batches,) = [each for each in asked.values() if each]
        assert len(batches) == 3
        assert len({id(batch) for batch in batches}) == 1

    def test_a_slow_broker_is_left_out_for_a_while(self, two_brokers: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = two_brokers.clock
        assert isinstance(clock, ManualClock)
        log = two_brokers.log("a")
        append = log.append

        def slow(batch: MessageBatch) -> AppendResult:
            clock.advance(0.6)  # 550 ms and more: left out for 2 s
            return append(batch)

        monkeypatch.setattr(log, "append", slow)
        producer = Producer(two_brokers, avoid_slow=True)
        brokers = [producer.send(Message("t", b"x")).broker for _ in range(12)]
        assert brokers.count("a") == 1
        clock.advance(2)
        assert "a" in [producer.send(Message("t", b"x")).broker for _ in range(4)]


@pytest.mark.parametrize("wrong", [-1, "2", True, 1.5])
def test_a_number_of_retries_is_checked(store: Store, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="retries"):
        Producer(store, retries=wrong)


def test_send_table_takes_a_table(store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="send_table takes a pyarrow Table"):
        Producer(store).send_table("t", [{"body": b"x"}])  # type: ignore[arg-type]


class TestSlowBrokers:
    """The table of RocketMQ's latency fault tolerance over three brokers."""

    @pytest.fixture
    def three(self) -> Iterator[Store]:
        with memory_store(ManualClock()) as made:
            made.create_topic("t", queues=2, brokers=("a", "b", "c"))
            yield made

    def slow_down(self, monkeypatch: pytest.MonkeyPatch, store: Store, **seconds: float) -> dict[str, float]:
        """Let appends to brokers take so long; the values may be changed."""
        clock = store.clock
        assert isinstance(clock, ManualClock)
        for broker in "abc":
            append = store.log(broker).append

            def slow(batch: MessageBatch, broker: str = broker, append: Any = append) -> AppendResult:
                clock.advance(seconds.get(broker, 0))
                return append(batch)  # type: ignore[no-any-return]

            monkeypatch.setattr(store.log(broker), "append", slow)
        return seconds

    @pytest.mark.parametrize(
        ("took", "left_out"), [(0.09, 0), (0.1, 0), (0.55, 2), (1.8, 5), (3.0, 6), (5.0, 10), (15.0, 30)]
    )
    def test_a_broker_is_left_out_as_long_as_the_table_says(
        self, three: Store, monkeypatch: pytest.MonkeyPatch, took: float, left_out: float
    ) -> None:
        seconds = self.slow_down(monkeypatch, three, a=took)
        producer = Producer(three, avoid_slow=True)
        while producer.send(Message("t", b"x")).broker != "a":
            pass
        seconds["a"] = 0.0
        clock = three.clock
        assert isinstance(clock, ManualClock)
        if left_out:
            clock.advance(left_out - 0.001)
            assert {producer.send(Message("t", b"x")).broker for _ in range(12)} == {"b", "c"}
            clock.advance(0.001)
        assert {producer.send(Message("t", b"x")).broker for _ in range(12)} == {"a", "b", "c"}

    def test_a_failed_send_goes_elsewhere_and_its_broker_is_left_out_for_ten_seconds(
        self, three: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = break_broker(monkeypatch, three, "a", UnavailableError("no"))
        producer = Producer(three, avoid_slow=True)
        assert {producer.send(Message("t", b"x")).broker for _ in range(30)} == {"b", "c"}
        assert len(asked) == 1
        clock = three.clock
        assert isinstance(clock, ManualClock)
        clock.advance(10)
        assert {producer.send(Message("t", b"x")).broker for _ in range(30)} == {"b", "c"}
        assert len(asked) == 2, "it is tried again when its time is over"

    def test_when_all_are_slow_the_one_that_comes_back_first_is_used(
        self, three: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seconds = self.slow_down(monkeypatch, three, a=15.0, b=0.6, c=15.0)
        producer = Producer(three, avoid_slow=True, timeout=60)
        first = {producer.send(Message("t", b"x")).broker for _ in range(3)}
        assert first == {"a", "b", "c"}
        seconds.update(a=0.001, b=0.001, c=0.001)
        for _ in range(6):
            until = dict(producer._latency.until())  # type: ignore[union-attr]
            now = three.clock.elapsed_ns() / 1e6
            free = [broker for broker in until if until[broker] <= now] or [min(until, key=lambda each: until[each])]
            assert producer.send(Message("t", b"x")).broker in free

    def test_an_order_goes_before_a_slow_broker(self, three: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        producer = Producer(three, avoid_slow=True)
        home = producer.send(Message("t", b"x", sharding_key="k"))
        self.slow_down(monkeypatch, three, **{home.broker: 5.0})
        for _ in range(3):
            sent = producer.send(Message("t", b"x", sharding_key="k"))
            assert (sent.broker, sent.queue_id) == (home.broker, home.queue_id)


def test_hooks_see_every_send(store: Store) -> None:
    seen: list[tuple[str, object]] = []

    class Hook:
        def before(self, messages: Sequence[Message]) -> None:
            seen.append(("before", len(messages)))

        def after(
            self, messages: Sequence[Message], results: Sequence[SendResult] | None, error: BaseException | None
        ) -> None:
            seen.append(("after", type(error).__name__ if results is None else results[0].queue_id))

    producer = Producer(store, hooks=[Hook()])
    producer.send(Message("t", b"x", queue_id=3))
    with pytest.raises(InvalidRequestError):
        producer.send_batch([Message("t", b"x", queue_id=77), Message("t", b"x")])
    assert seen == [("before", 1), ("after", 3), ("before", 2), ("after", "InvalidRequestError")]
