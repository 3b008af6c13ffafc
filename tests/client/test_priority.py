"""Priorities are queues of a PRIORITY topic, and every consumer drains high ones before low ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from group_store import memory_store
from push_steps import Steps, leaving

from rmq_spark import LitePullConsumer, Message, Producer, SimpleConsumer, Store
from rmq_spark.client.task_queue import PriorityTasks
from rmq_spark.clock import ManualClock
from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.stored_message import ReceivedMessage

SENT = (0, 2, 1, 3, 0, 3, 2, 1)


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock(1_700_000_000_000), retention_ms=10**9) as made:
        made.create_topic("t", queues=4, message_type="PRIORITY")
        producer = Producer(made)
        for priority in SENT:
            producer.send(Message("t", str(priority).encode(), priority=priority))
        yield made


def drained(messages: list[ReceivedMessage]) -> list[int]:
    return [int(message.body) for message in messages]


@pytest.mark.parametrize("options", [{}, {"pop": True}, {"orderly": True}, {"batch_size": 2}])
def test_a_push_consumer_drains_high_before_low(store: Store, options: dict[str, object]) -> None:
    got: list[ReceivedMessage] = []

    def listen(argument: ReceivedMessage | list[ReceivedMessage]) -> None:
        got.extend(argument if isinstance(argument, list) else [argument])

    consumer = Steps(store, listen, consume_from="earliest", **options)
    with leaving(consumer):
        consumer.run()
    assert drained(got) == sorted(SENT, reverse=True)


def test_a_lite_pull_consumer_drains_high_before_low_whatever_the_size_of_a_poll(store: Store) -> None:
    for size in (1, 3, 100):
        with LitePullConsumer(store, f"g{size}", consume_from="earliest") as consumer:
            consumer.subscribe("t")
            got: list[ReceivedMessage] = []
            while messages := consumer.poll(0, max_messages=size):
                got += messages
        assert drained(got) == sorted(SENT, reverse=True)


def test_a_simple_consumer_drains_high_before_low(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with SimpleConsumer(store, "g", consume_from="earliest") as consumer:
        consumer.subscribe("t")
        got: list[ReceivedMessage] = []
        while messages := consumer.receive(max_messages=3, await_duration=0):
            got += messages
    assert drained(got) == sorted(SENT, reverse=True)


def test_a_priority_needs_a_priority_topic_and_auto_creation_makes_one(store: Store) -> None:
    store.create_topic("plain", queues=4)
    with pytest.raises(InvalidRequestError, match="needs a topic whose queues are priorities"):
        Producer(store).send(Message("plain", b"x", priority=1))
    assert Producer(store).send(Message("new", b"x", priority=99)).queue_id == 3
    assert store.topic("new").has_priorities


def test_tasks_of_one_priority_keep_their_order_and_a_wake_up_goes_first() -> None:
    tasks: PriorityTasks[tuple[int, str]] = PriorityTasks(lambda task: task[0])
    for task in ((0, "a"), (1, "b"), None, (1, "c"), (0, "d")):
        tasks.put(task)
    assert [tasks.get(False) for _ in range(5)] == [None, (1, "b"), (1, "c"), (0, "a"), (0, "d")]
