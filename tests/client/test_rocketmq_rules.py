"""RocketMQ's rules that are easy to get wrong, those that no other test of the clients names (facts 16, by number)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from group_store import memory_store
from push_steps import Steps, advance

from rmq_spark import (
    ConsumeResult,
    InvalidRequestError,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    SendStatus,
    SimpleConsumer,
    Store,
)
from rmq_spark.client.store import append_records
from rmq_spark.client.time_search import QueueTimes
from rmq_spark.clock import ManualClock
from rmq_spark.log.expire import expire
from rmq_spark.log.roll import roll
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules.topics import GroupConfigs
from rmq_spark.services.timer import TimerService


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock(), retention_ms=3_600_000, segment_bytes=1) as made:
        made.create_topic("t", queues=1)
        yield made


def fail(_: object) -> ConsumeResult:
    return ConsumeResult.FAILURE


@pytest.mark.parametrize("value", ["", " "])
def test_rule_3_an_empty_property_would_disappear_so_it_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="propert"):
        Message("t", b"x", properties={"a": value})


def test_rules_4_and_5_tags_with_one_hash_are_told_apart_and_retries_are_not_filtered(store: Store) -> None:
    got: list[tuple[str | None, int]] = []

    def listen(message: ReceivedMessage) -> ConsumeResult:
        got.append((message.tags, message.reconsume_times))
        return ConsumeResult.SUCCESS if message.reconsume_times else ConsumeResult.FAILURE

    consumer = Steps(store, listen, subscriptions={"t": {"tags": "Aa"}})
    for tag in ("Aa", "BB"):  # Java's hash of both is 2112
        Producer(store).send(Message("t", b"x", tags=tag))
    consumer.run()
    assert got == [("Aa", 0)]
    advance(store, 10)
    TimerService(store).run_once()
    consumer.run()
    assert got == [("Aa", 0), ("Aa", 1)]
    consumer.leave()


def test_rule_11_no_setting_turns_retries_into_drops(store: Store) -> None:
    append_records(store.nameserver, GroupConfigs, {"group": "g", "retryQueueNums": 0})
    consumer = Steps(store, fail)
    Producer(store).send(Message("t", b"x"))
    consumer.run()
    consumer.leave()
    assert store.read("SCHEDULE_TOPIC_XXXX").num_rows == 1


def test_rule_13_every_status_that_a_send_returns_is_of_a_stored_message() -> None:
    with memory_store(ManualClock(), flush="buffered") as store:
        sent = Producer(store).send(Message("t", b"x"))
        assert sent.status is SendStatus.BUFFERED
        store.flush()
        assert store.read("t")["msgId"].to_pylist() == [sent.msg_id]
    assert {status.name for status in SendStatus} == {"SEND_OK", "BUFFERED"}


def test_rule_21_a_moment_means_the_first_message_stored_then_or_later(store: Store) -> None:
    producer = Producer(store)
    start = store.clock.now_ms()
    for _ in range(3):
        producer.send(Message("t", b"x"))
        advance(store, 10)
    wanted = {start: 0, start + 1: 1, start + 9_999: 1, start + 10_000: 1, start + 20_001: 3}
    assert {ms: QueueTimes(store).search("t", ms)["t", "broker-0", 0] for ms in wanted} == wanted


def test_rule_36_a_topic_that_a_send_creates_has_four_queues(store: Store) -> None:
    Producer(store).send(Message("new", b"x"))
    assert store.topic("new").queues == {"broker-0": 4}


def test_rule_37_consumers_accept_a_gap_in_offsets(store: Store) -> None:
    producer = Producer(store)
    with LitePullConsumer(store, "pull", consume_from="earliest") as pull, SimpleConsumer(store, "pop") as simple:
        pull.assign([("t", "broker-0", 0)])
        simple.subscribe("t")
        producer.send(Message("t", b"one"))
        assert [message.body for message in pull.poll(0)] == [b"one"]
        simple.ack(simple.receive(1, 30, 0))
        for _ in range(3):
            producer.send(Message("t", b"never seen"))
        roll(store.log(), min_commits=1)
        advance(store, 2 * 3600)
        expire(store.log())
        producer.send(Message("t", b"two"))
        polled = [message for _ in range(4) for message in pull.poll(0)]
        received = [message for _ in range(4) for message in simple.receive(1, 30, 0)]
        for messages in (polled, received):
            assert [message.queue_offset for message in messages] == [3, 4]
            assert messages[-1].body == b"two"


def test_rule_39_dead_letters_can_be_consumed(store: Store) -> None:
    consumer = Steps(store, fail, max_reconsume_times=0)
    sent = Producer(store).send(Message("t", b"x"))
    consumer.run()
    consumer.leave()
    with LitePullConsumer(store, "undertaker", consume_from="earliest") as pull:
        pull.subscribe("%DLQ%g")
        assert [message.msg_id for message in pull.poll(0)] == [sent.msg_id]


def test_rule_40_names_with_a_bar_and_a_percent_sign_are_legal_and_one_with_a_dot_is_not(
    store: Store, tmp_path: Path
) -> None:
    store.create_topic("a|b%c", queues=1)
    Producer(store).send(Message("a|b%c", b"x"))
    got: list[bytes] = []
    consumer = Steps(
        store,
        lambda message: got.append(message.body),
        "g|h%i",
        subscriptions={"a|b%c": {}},
        broadcasting=True,
        consume_from="earliest",
        offsets_home=tmp_path,
    )
    consumer.run()
    consumer.leave()
    assert got == [b"x"]
    assert store.read("a|b%c").num_rows == 1
    for name in ("a.b", "g" * 121):
        with pytest.raises(InvalidRequestError):
            PushConsumer(store, name)
    with pytest.raises(InvalidRequestError):
        store.create_topic("a.b")
