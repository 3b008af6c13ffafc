"""A consumer that was closed has left: its group is not active any more, and can be reset and deleted at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from group_store import again, memory_store
from push_steps import Steps

from rmq_spark import Admin, LitePullConsumer, Message, PreconditionFailedError, Producer, SimpleConsumer, Store
from rmq_spark.clock import ManualClock


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock(1_700_000_000_000), retention_ms=10**9) as made:
        made.create_topic("t", queues=2, brokers=("a", "b"))
        for broker in ("a", "b"):
            Producer(made).send_batch(
                [Message("t", b"x", queue_id=queue) for queue in range(2)] if broker == "a" else [Message("t", b"y")]
            )
        yield made


def push(store: Store, **options: Any) -> Callable[[], None]:
    consumer = Steps(store, lambda message: None, consume_from="earliest", **options)
    consumer.run()
    return consumer.leave


def push_pop(store: Store) -> Callable[[], None]:
    return push(store, pop=True)


def push_orderly(store: Store) -> Callable[[], None]:
    return push(store, orderly=True)


def pull(store: Store) -> Callable[[], None]:
    consumer = LitePullConsumer(store, "g", consume_from="earliest").subscribe("t")
    assert consumer.poll(0)
    consumer.commit()
    return consumer.close


def assigned(store: Store) -> Callable[[], None]:
    consumer = LitePullConsumer(store, "g", consume_from="earliest").assign([("t", "a", 0), ("t", "b", 0)])
    consumer.poll(0)
    consumer.commit()
    return consumer.close


def simple(store: Store) -> Callable[[], None]:
    consumer = SimpleConsumer(store, "g", consume_from="earliest").subscribe("t")
    for _ in range(2):
        consumer.ack(consumer.receive(await_duration=0))
    return consumer.close


@pytest.mark.parametrize("consume", [push, push_pop, push_orderly, pull, assigned, simple])
def test_a_group_whose_consumer_was_closed_is_not_active(store: Store, consume: Callable[[Store], Any]) -> None:
    admin = Admin(store)
    close = consume(store)
    assert admin.offsets.activity("g").active
    with pytest.raises(PreconditionFailedError, match="active"):
        admin.delete_group("g")
    close()
    activity = admin.offsets.activity("g")
    assert (activity.active, activity.member_ms) == (False, store.clock.now_ms())
    assert not admin.members("g").members
    with again(store) as other:
        assert not Admin(other).offsets.activity("g").active, "the log says so, not this process"
    admin.offsets.reset("g", "t", to="latest")
    admin.delete_group("g")


def test_the_group_stays_active_while_another_member_is_there(store: Store) -> None:
    stays, leaves = Steps(store, print, consume_from="earliest"), Steps(store, print, consume_from="earliest")
    stays.run()
    leaves.run()
    leaves.leave()
    admin = Admin(store)
    assert list(admin.members("g").members) == [stays.consumer.client_id]
    assert admin.offsets.activity("g").active
    with pytest.raises(PreconditionFailedError, match="active"):
        admin.offsets.reset("g", "t", to="earliest")
    stays.leave()
    assert not admin.offsets.activity("g").active


def test_a_commit_after_that_makes_it_active_again(store: Store) -> None:
    push(store)()
    Admin(store).offsets.commit("g", {("t", "a", 0): 0}, member="spark")
    assert Admin(store).offsets.activity("g").active


def test_one_that_died_is_waited_for(store: Store) -> None:
    consumer = Steps(store, lambda message: None, consume_from="earliest")
    consumer.run()
    clock = store.clock
    assert isinstance(clock, ManualClock)
    clock.advance(119.999)
    assert Admin(store).offsets.activity("g").active
    clock.advance(0.001)
    assert not Admin(store).offsets.activity("g").active


def test_that_it_has_left_survives_a_snapshot(store: Store) -> None:
    push(store)()
    for broker in ("a", "b"):
        store.log(broker).snapshot()
    with again(store) as other:
        assert not Admin(other).offsets.activity("g").active
