"""How far each service is behind is told by the log, also when nobody runs it and the store is only read."""

from __future__ import annotations

from service_world import ServiceWorld

from rmq_spark.client.simple_consumer import SimpleConsumer
from rmq_spark.client.store import Store
from rmq_spark.model.message import Message
from rmq_spark.services.behind import ServiceLag, services_behind
from rmq_spark.services.revive import ReviveService
from rmq_spark.services.rolling import ROLL_COMMITS
from rmq_spark.services.timer import TimerService


def lag_of(store: Store, service: str, log: str = "broker-0") -> ServiceLag:
    [lag] = [lag for lag in services_behind(store) if (lag.service, lag.log) == (service, log)]
    return lag


def test_delayed_messages(world: ServiceWorld):
    producer = world.producer()
    for delay in (5, 10, 100):
        producer.send(Message("orders", b"x", delay=delay))
    with Store.open(world.store.storage.uri, clock=world.clock, read_only=True) as reader:
        assert (lag_of(reader, "timer").pending, lag_of(reader, "timer").behind_ms) == (3, 0)
        world.clock.advance(12)
        assert (lag_of(reader, "timer").pending, lag_of(reader, "timer").behind_ms) == (3, 7_000)
        TimerService(world.store).run_once()
        assert (lag_of(reader, "timer").pending, lag_of(reader, "timer").behind_ms) == (1, 0)


def test_open_transactions(world: ServiceWorld):
    producer = world.producer(check_immunity=6)
    with producer.begin_transaction() as tx:
        producer.send(Message("orders", b"x"), transaction=tx)
    assert (lag_of(world.store, "transaction-check").pending, lag_of(world.store, "transaction-check").behind_ms) == (
        1,
        0,
    )
    world.clock.advance(8)
    assert lag_of(world.store, "transaction-check").behind_ms == 2_000


def test_messages_that_consumers_hold(world: ServiceWorld):
    world.producer().send(Message("orders", b"x"))
    consumer = SimpleConsumer(world.store, "jobs", consume_from="earliest").subscribe("orders")
    assert len(consumer.receive(invisible_duration=30.0, await_duration=0)) == 1
    assert (lag_of(world.store, "revive").pending, lag_of(world.store, "revive").behind_ms) == (1, 0)
    world.clock.advance(33)
    service = ReviveService(world.store)
    assert lag_of(world.store, "revive").behind_ms == service.behind_ms() == 3_000
    service.run_once()
    assert (lag_of(world.store, "revive").pending, service.behind_ms()) == (0, 0)
    consumer.close()


def test_commits_to_roll(world: ServiceWorld):
    producer = world.producer()
    for _ in range(ROLL_COMMITS - 1):
        producer.send(Message("orders", b"x"))
    assert lag_of(world.store, "roll").behind_ms == 0
    producer.send(Message("orders", b"x"))
    world.clock.advance(4)
    lag = lag_of(world.store, "roll")
    assert lag.pending >= ROLL_COMMITS
    assert lag.behind_ms == 4_000
    assert lag_of(world.store, "roll", "nameserver").behind_ms == 0
