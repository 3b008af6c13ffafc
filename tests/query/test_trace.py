"""`rmq trace`: what happened to one message, in order, whatever services did with it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmq_spark import Message, Producer, SimpleConsumer, Store
from rmq_spark.client.store import append_records
from rmq_spark.clock import ManualClock
from rmq_spark.query.trace import Step, trace
from rmq_spark.rules.topics import GroupConfigs
from rmq_spark.rules.transaction import CheckSettings, TransactionState
from rmq_spark.services.revive import ReviveService
from rmq_spark.services.timer import TimerService
from rmq_spark.services.transaction_check import TransactionCheckService

NUMBERS = itertools.count()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with Store.create(f"memory://trace-{next(NUMBERS)}", clock=clock) as made:
        made.create_topic("t", queues=1)
        yield made


def stages(steps: list[Step]) -> list[str]:
    return [step.stage for step in steps]


def half(store: Store, **options: Any) -> tuple[str, Any, Producer]:
    producer = Producer(store, group="p", **options)
    tx = producer.begin_transaction()
    sent = producer.send(Message("t", b"x"), transaction=tx)
    return sent.msg_id, tx, producer


def test_a_delayed_message_was_parked_then_delivered(store: Store, clock: ManualClock) -> None:
    msg_id = Producer(store).send(Message("t", b"x", delay_level=1)).msg_id
    assert stages(trace(store, msg_id)) == ["delayed"]
    clock.advance(1)
    TimerService(store).run_once()
    parked, delivered = trace(store, msg_id)
    assert (parked.stage, parked.real_topic, delivered.stage, delivered.topic) == ("delayed", "t", "delivered", "t")
    assert delivered.store_ms - parked.store_ms == 1_000


def test_a_recalled_message_tells_when_it_was(store: Store, clock: ManualClock) -> None:
    producer = Producer(store)
    kept, sent = (producer.send(Message("t", b"x", delay=60)) for _ in range(2))
    clock.advance(5)
    producer.recall(sent)
    clock.advance(60)
    TimerService(store).run_once()
    parked, recalled = trace(store, sent.msg_id)
    assert (parked.stage, recalled.stage, recalled.real_topic) == ("delayed", "recalled", "t")
    assert recalled.store_ms - parked.store_ms == 5_000
    assert stages(trace(store, kept.msg_id)) == ["delayed", "delivered"]


@pytest.mark.parametrize(("end", "told"), [("commit", ["committed", "delivered"]), ("rollback", ["rolled back"])])
def test_a_transaction_was_half_then_settled(store: Store, end: str, told: list[str]) -> None:
    msg_id, tx, producer = half(store)
    with producer:
        assert stages(trace(store, msg_id)) == ["half"]
        getattr(tx, end)()
    assert sorted(stages(trace(store, msg_id))) == sorted(["half", *told])


def test_a_transaction_that_was_asked_about_tells_each_time(store: Store, clock: ManualClock) -> None:
    answers: Callable[[Any], TransactionState] = lambda message: TransactionState.UNKNOWN  # noqa: E731
    msg_id, _, producer = half(store, checker=answers)
    service = TransactionCheckService(store, CheckSettings(checks_max=2))
    with producer:
        for _ in range(4):
            clock.advance(40)
            service.run_once()
    assert stages(trace(store, msg_id)) == ["half", "checked", "checked", "given up"]


def test_a_message_that_nobody_acknowledges_is_held_then_retried_then_dead(store: Store, clock: ManualClock) -> None:
    append_records(store.nameserver, GroupConfigs, {"group": "g", "retryMaxTimes": 1})
    msg_id = Producer(store).send(Message("t", b"x")).msg_id
    consumer, revive = SimpleConsumer(store, "g").subscribe("t"), ReviveService(store)
    assert consumer.receive(1, 10.0, 0)
    (step,) = trace(store, msg_id)
    assert (step.stage, step.held_by, step.consumed_by) == ("delivered", ("g",), ())
    for _ in range(2):
        clock.advance(10)
        revive.run_once()
        consumer.receive(1, 10.0, 0)
    steps = trace(store, msg_id)
    assert stages(steps) == ["delivered", "retried", "dead-lettered"]
    assert [step.reconsume_times for step in steps] == [0, 1, 2]
    assert [step.group for step in steps] == [None, "g", "g"]
    assert steps[0].consumed_by == ("g",)
    assert all(not step.held_by for step in steps)
