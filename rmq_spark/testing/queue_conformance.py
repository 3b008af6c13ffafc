"""What every queue must do, as tests that a new one inherits: the embedded clients, a proxy, another store.

Subclass `QueueConformance` in a test module as `TestMyQueue`, and give it a fixture `world`: an empty `QueueWorld` that
the fixture closes. Numbers of rules are those of RocketMQ's rules that are easy to get wrong.
"""

from __future__ import annotations

import itertools
from copy import copy

import pytest

from rmq_spark.model.message import Message
from rmq_spark.rules.transaction import TransactionState
from rmq_spark.testing.queue_checks import (
    LONG,
    acknowledge_in_vain,
    bodies,
    needs,
    note_order,
    nothing,
    receive,
    send,
    send_in_order,
)
from rmq_spark.testing.queue_push_conformance import PushConformance
from rmq_spark.testing.queue_world import Feature, MessageKind, QueueWorld, Received


class QueueConformance(PushConformance):
    """The promises of a queue, one per test."""

    # ------------------------------------------------------------ sending and receiving

    def test_a_message_arrives_as_it_was_sent(self, world: QueueWorld) -> None:
        world.create_topic("t")
        body = bytes(range(256))
        properties = {"region": "eu", "größe": "ü € 日"}
        message = Message("t", body, tags="paid", keys=["k1", "k2"], properties=properties)
        consumer = world.simple_consumer("g", "t")
        sent = world.producer().send(message)
        [got] = receive(world, consumer, 1)
        assert (got.topic, got.body, got.tags, got.keys) == ("t", body, "paid", "k1 k2")
        assert properties.items() <= dict(got.properties).items()
        assert (got.msg_id, got.delivery_attempt) == (sent.msg_id, 1)

    def test_a_message_without_tag_keys_and_properties(self, world: QueueWorld) -> None:
        world.create_topic("t")
        consumer = world.simple_consumer("g", "t")
        world.producer().send(Message("t", b"x"))
        [got] = receive(world, consumer, 1)
        assert (got.body, got.tags or None, got.keys or None) == (b"x", None, None)

    def test_an_acknowledged_message_does_not_come_again(self, world: QueueWorld) -> None:
        world.create_topic("t")
        consumer = world.simple_consumer("g", "t")
        send(world, "t", map(str, range(20)))
        got = receive(world, consumer, 20, world.invisible_seconds, ack=True)
        assert bodies(got) == sorted(map(str, range(20)))
        world.pass_time(2 * world.invisible_seconds)
        assert nothing(world, consumer)

    def test_each_group_gets_every_message(self, world: QueueWorld) -> None:
        world.create_topic("t")
        consumers = [world.simple_consumer(group, "t") for group in ("g1", "g2")]
        send(world, "t", map(str, range(8)))
        for consumer in consumers:
            assert bodies(receive(world, consumer, 8, ack=True)) == sorted(map(str, range(8)))

    def test_consumers_of_a_group_share_a_queue_and_nobody_gets_what_another_holds(self, world: QueueWorld) -> None:
        world.create_topic("t", queues=1)
        consumers = [world.simple_consumer("g", "t") for _ in range(3)]
        send(world, "t", map(str, range(30)))
        got: list[Received] = []
        for consumer in itertools.cycle(consumers):
            got += consumer.receive(4, LONG, 0)
            world.settle()
            if len(got) >= 30:
                break
        assert bodies(got) == sorted(map(str, range(30)))
        assert all(nothing(world, consumer) for consumer in consumers)

    def test_a_receive_returns_no_more_than_was_asked_for(self, world: QueueWorld) -> None:
        world.create_topic("t", queues=1)
        consumer = world.simple_consumer("g", "t")
        send(world, "t", map(str, range(5)))
        seen = 0
        while seen < 5:
            got = consumer.receive(2, LONG, 0)
            assert len(got) <= 2
            seen += len(got)
            world.settle()

    def test_a_batch_arrives_whole(self, world: QueueWorld) -> None:
        needs(world, Feature.BATCH)
        world.create_topic("t")
        consumer = world.simple_consumer("g", "t")
        results = world.producer().send_batch([Message("t", b"%d" % number) for number in range(50)])
        got = receive(world, consumer, 50, ack=True)
        assert bodies(got) == sorted(map(str, range(50)))
        assert {message.msg_id for message in got} == {result.msg_id for result in results}

    # ------------------------------------------------------------ filters

    @pytest.mark.parametrize(
        ("tags", "wanted"),
        [("paid", "b"), ("paid || shipped", "bc"), ("*", "abcd"), ("nobody", "")],
    )
    def test_tags(self, world: QueueWorld, tags: str, wanted: str) -> None:
        world.create_topic("t", queues=1)
        consumer = world.simple_consumer("g", "t", tags=tags)
        producer = world.producer()
        for body, tag in (("a", "new"), ("b", "paid"), ("c", "shipped"), ("d", None)):
            producer.send(Message("t", body.encode(), tags=tag))
        assert bodies(receive(world, consumer, len(wanted))) == list(wanted)
        assert nothing(world, consumer)

    @pytest.mark.parametrize(
        ("sql", "wanted"),
        [
            ("region = 'eu' AND amount > 3", "d"),
            ("amount BETWEEN 1 AND 4", "bc"),
            ("region IS NULL", "e"),
            ("region <> 'eu'", "bc"),
            ("TAGS = 'vip' OR amount = 9", "cd"),
        ],
    )
    def test_sql(self, world: QueueWorld, sql: str, wanted: str) -> None:
        world.create_topic("t", queues=1)
        consumer = world.simple_consumer("g", "t", sql=sql)
        producer = world.producer()
        rows = [("a", "eu", 0, None), ("b", "us", 1, None), ("c", "us", 4, "vip"), ("d", "eu", 9, None)]
        for body, region, amount, tag in rows:
            properties = {"region": region, "amount": str(amount)}
            producer.send(Message("t", body.encode(), tags=tag, properties=properties))
        producer.send(Message("t", b"e"))
        assert bodies(receive(world, consumer, len(wanted))) == list(wanted)
        assert nothing(world, consumer)

    # ------------------------------------------------------------ holding and giving back

    def test_a_message_that_is_not_acknowledged_comes_back_after_its_invisible_time(self, world: QueueWorld) -> None:
        world.create_topic("t")
        consumer = world.simple_consumer("g", "t")
        send(world, "t", ["a"])
        began = world.now()
        [first] = receive(world, consumer, 1, world.invisible_seconds)
        [second] = receive(world, consumer, 1)
        assert world.now() - began >= world.invisible_seconds
        assert (second.msg_id, second.body, second.topic) == (first.msg_id, first.body, "t")
        assert (first.delivery_attempt, second.delivery_attempt) == (1, 2)

    def test_a_longer_invisible_time_keeps_it(self, world: QueueWorld) -> None:
        world.create_topic("t")
        consumer = world.simple_consumer("g", "t")
        send(world, "t", ["a"])
        [held] = receive(world, consumer, 1, world.invisible_seconds)
        held = consumer.change_invisible_duration(held, LONG)
        world.pass_time(2 * world.invisible_seconds)
        assert nothing(world, consumer)
        consumer.ack(held)

    def test_rule_31_a_changed_invisible_time_makes_the_old_receipt_stale(self, world: QueueWorld) -> None:
        world.create_topic("t")
        consumer = world.simple_consumer("g", "t")
        send(world, "t", ["a"])
        [held] = receive(world, consumer, 1, LONG)
        old = copy(held)
        consumer.change_invisible_duration(held, world.invisible_seconds)
        acknowledge_in_vain(consumer, old)
        [again] = receive(world, consumer, 1)
        assert again.delivery_attempt == 2

    def test_a_shorter_invisible_time_gives_it_back_early(self, world: QueueWorld) -> None:
        world.create_topic("t")
        consumer = world.simple_consumer("g", "t")
        send(world, "t", ["a"])
        began = world.now()
        [held] = receive(world, consumer, 1, LONG)
        consumer.change_invisible_duration(held, world.invisible_seconds)
        [again] = receive(world, consumer, 1)
        assert again.delivery_attempt == 2
        assert world.invisible_seconds <= world.now() - began < LONG

    def test_a_receipt_of_an_earlier_delivery_does_not_settle_the_later_one(self, world: QueueWorld) -> None:
        world.create_topic("t")
        consumer = world.simple_consumer("g", "t")
        send(world, "t", ["a"])
        [first] = receive(world, consumer, 1, world.invisible_seconds)
        [second] = receive(world, consumer, 1, world.invisible_seconds)
        acknowledge_in_vain(consumer, first)
        [third] = receive(world, consumer, 1)
        assert [second.delivery_attempt, third.delivery_attempt] == [2, 3]
        consumer.ack(third)

    def test_a_message_that_is_given_back_too_often_is_a_dead_letter(self, world: QueueWorld) -> None:
        world.create_topic("t")
        world.set_group("g", retry_max_times=2)
        consumer = world.simple_consumer("g", "t")
        sent = world.producer().send(Message("t", b"bad"))
        attempts = [receive(world, consumer, 1, world.invisible_seconds)[0].delivery_attempt for _ in range(3)]
        assert attempts == [1, 2, 3]
        world.wait_until(lambda: bool(world.dead_letters("g")), "the dead letter")
        assert [(dead.msg_id, dead.body) for dead in world.dead_letters("g")] == [(sent.msg_id, b"bad")]
        assert nothing(world, consumer)

    # ------------------------------------------------------------ order

    def test_a_fifo_group_receives_the_messages_of_a_key_in_order(self, world: QueueWorld) -> None:
        world.create_topic("t", queues=4, kind=MessageKind.FIFO)
        world.set_group("g", fifo=True)
        consumer = world.simple_consumer("g", "t")
        send_in_order(world, "t", keys="abc", count=6)
        order: dict[str, list[int]] = {}
        for message in receive(world, consumer, 18, LONG, ack=True):
            note_order(order, message)
        assert order == {key: list(range(6)) for key in "abc"}

    def test_a_fifo_queue_waits_for_its_batch_and_repeats_it_in_order(self, world: QueueWorld) -> None:
        world.create_topic("t", queues=1, kind=MessageKind.FIFO)
        world.set_group("g", fifo=True)
        first, second = world.simple_consumer("g", "t"), world.simple_consumer("g", "t")
        send_in_order(world, "t", keys="a", count=4)
        [held] = receive(world, first, 1, world.invisible_seconds, max_messages=1)
        again = receive(world, second, 4, LONG, ack=True, max_messages=1)
        assert [message.body for message in again] == [b"a 0", b"a 1", b"a 2", b"a 3"]
        assert (held.body, again[0].delivery_attempt, again[1].delivery_attempt) == (b"a 0", 2, 1)

    # ------------------------------------------------------------ delay

    def test_a_delayed_message_arrives_after_its_delay_and_never_before(self, world: QueueWorld) -> None:
        world.create_topic("t", kind=MessageKind.DELAY)
        consumer = world.simple_consumer("g", "t")
        began = world.now()
        sent = world.producer().send(Message("t", b"later", delay=world.delay_seconds))
        if world.has(Feature.MANUAL_TIME):
            world.pass_time(world.delay_seconds - 0.001)
            assert nothing(world, consumer)
        [got] = receive(world, consumer, 1)
        assert world.now() - began >= world.delay_seconds
        assert (got.msg_id, got.body, got.topic) == (sent.msg_id, b"later", "t")

    def test_delay_levels(self, world: QueueWorld) -> None:
        needs(world, Feature.DELAY_LEVELS)
        world.create_topic("t", kind=MessageKind.DELAY)
        consumer = world.simple_consumer("g", "t")
        began = world.now()
        world.producer().send(Message("t", b"level 1", delay_level=1))
        receive(world, consumer, 1)
        assert world.now() - began >= 1.0

    def test_rule_14_a_delivery_time_in_the_past_is_now(self, world: QueueWorld) -> None:
        world.create_topic("t", kind=MessageKind.DELAY)
        consumer = world.simple_consumer("g", "t")
        world.producer().send(Message("t", b"now", deliver_at=1_000_000_000_000))
        assert bodies(receive(world, consumer, 1)) == ["now"]

    def test_a_recalled_message_is_never_delivered(self, world: QueueWorld) -> None:
        world.create_topic("t", kind=MessageKind.DELAY)
        consumer = world.simple_consumer("g", "t")
        producer = world.producer()
        recalled = producer.send(Message("t", b"recalled", delay=3 * world.delay_seconds))
        producer.send(Message("t", b"kept", delay=3 * world.delay_seconds))
        producer.recall(recalled)
        world.pass_time(3 * world.delay_seconds)
        assert bodies(receive(world, consumer, 1)) == ["kept"]
        assert nothing(world, consumer)

    # ------------------------------------------------------------ transactions

    def test_a_transactional_message_is_visible_from_its_commit_on(self, world: QueueWorld) -> None:
        world.create_topic("t", kind=MessageKind.TRANSACTION)
        consumer = world.simple_consumer("g", "t")
        producer = world.producer(checker=lambda _: TransactionState.UNKNOWN)
        tx = producer.begin_transaction()
        sent = producer.send(Message("t", b"paid", keys="o-1"), transaction=tx)
        assert nothing(world, consumer)
        tx.commit()
        [got] = receive(world, consumer, 1)
        assert (got.msg_id, got.body, got.topic, got.keys) == (sent.msg_id, b"paid", "t", "o-1")

    def test_a_rolled_back_message_never_appears(self, world: QueueWorld) -> None:
        world.create_topic("t", kind=MessageKind.TRANSACTION)
        consumer = world.simple_consumer("g", "t")
        producer = world.producer(checker=lambda _: TransactionState.COMMIT)
        tx = producer.begin_transaction()
        producer.send(Message("t", b"no"), transaction=tx)
        tx.rollback()
        world.pass_time(2 * world.invisible_seconds)
        assert nothing(world, consumer)

    @pytest.mark.parametrize("outcome", [TransactionState.COMMIT, TransactionState.ROLLBACK])
    def test_the_producer_is_asked_about_a_transaction_that_is_left_open(
        self, world: QueueWorld, outcome: TransactionState
    ) -> None:
        world.create_topic("t", kind=MessageKind.TRANSACTION)
        consumer = world.simple_consumer("g", "t")
        asked: list[bytes] = []

        def check(message: Received) -> TransactionState:
            asked.append(message.body)
            return outcome if len(asked) > 1 else TransactionState.UNKNOWN  # rule 18: asked again

        producer = world.producer(checker=check)
        producer.send(Message("t", b"open"), transaction=producer.begin_transaction())
        world.wait_until(lambda: len(asked) > 1, "the second question")
        assert set(asked) == {b"open"}
        if outcome is TransactionState.COMMIT:
            assert bodies(receive(world, consumer, 1)) == ["open"]
        assert nothing(world, consumer)

    def test_messages_of_one_transaction_appear_together(self, world: QueueWorld) -> None:
        needs(world, Feature.WIDE_TRANSACTIONS)
        for topic in ("t1", "t2"):
            world.create_topic(topic, kind=MessageKind.TRANSACTION)
        consumers = [world.simple_consumer("g", topic) for topic in ("t1", "t2")]
        producer = world.producer(checker=lambda _: TransactionState.UNKNOWN)
        tx = producer.begin_transaction()
        producer.send(Message("t1", b"one"), transaction=tx)
        producer.send(Message("t2", b"two"), transaction=tx)
        assert all(nothing(world, consumer) for consumer in consumers)
        tx.commit()
        assert [bodies(receive(world, consumer, 1)) for consumer in consumers] == [["one"], ["two"]]
