"""A store has one list of delay levels, whenever its brokers came."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from service_world import ServiceWorld

from rmq_spark import Admin, Message
from rmq_spark.rules import timer
from rmq_spark.rules.timer import TimerProgress
from rmq_spark.services.timer import TimerService, set_delay_levels


def levels_of(world: ServiceWorld, broker: str) -> tuple[int, ...]:
    return world.store.log(broker, TimerProgress).look(
        lambda view: view.state.fold(TimerProgress).levels()[-1][1].levels_ms
    )


def add(world: ServiceWorld) -> None:
    Admin(world.store).brokers.add("later")
    Admin(world.store).create_topic("t", brokers=("later",))


def create(world: ServiceWorld) -> None:
    world.store.create_topic("t", brokers=("later",))


def create_by_admin(world: ServiceWorld) -> None:
    Admin(world.store).create_topic("t", brokers=("later",))


def extend(world: ServiceWorld) -> None:
    world.store.create_topic("t", queues=1)
    Admin(world.store).update_topic("t", brokers=("later",))
    Admin(world.store).brokers.set_read_only("broker-0")


@pytest.mark.parametrize("come", [add, create, create_by_admin, extend])
def test_a_broker_that_comes_later_has_the_levels_of_the_store(
    world: ServiceWorld, come: Callable[[ServiceWorld], None]
) -> None:
    set_delay_levels(world.store, "7s 1m")
    come(world)
    sent = world.producer().send(Message("t", b"x", delay_level=1))
    assert sent.broker == "later"
    timers = TimerService(world.store)
    world.clock.advance(6.999)
    timers.run_once()
    assert world.bodies("t") == []
    world.clock.advance(0.001)
    timers.run_once()
    assert world.bodies("t") == [b"x"]


def test_the_timer_service_gives_a_broker_the_levels_that_a_call_did_not_reach(world: ServiceWorld) -> None:
    set_delay_levels(world.store, "7s 1m")
    timers = TimerService(world.store)
    for _ in range(2):  # when it starts, and later: two that set them at once may meet
        world.store.log("broker-0", TimerProgress).decide(timer.change_levels([1_000]))
        timers.run_once()
        assert levels_of(world, "broker-0") == (7_000, 60_000)
        world.clock.advance(1)


def test_a_list_that_an_older_version_gave_to_the_broker_alone_counts(world: ServiceWorld) -> None:
    world.store.create_topic("t", queues=1)
    levels = [1_000 * level for level in range(1, 21)]
    world.store.log("broker-0", TimerProgress).decide(timer.change_levels(levels))
    world.producer().send(Message("t", b"x", delay_level=20))
    timers = TimerService(world.store)
    for seconds, due in ((19.999, []), (0.001, [b"x"])):
        world.clock.advance(seconds)
        timers.run_once()
        assert world.bodies("t") == due


def test_without_a_list_of_its_own_a_store_has_rocketmqs_levels(world: ServiceWorld) -> None:
    add(world)
    assert len(levels_of(world, "later")) == 18
    assert world.store.log("later").look(lambda view: view.state.offset) == 0
    assert len(Admin(world.store).settings().delay_levels_ms) == 18


def test_the_settings_tell_the_levels(world: ServiceWorld) -> None:
    set_delay_levels(world.store, "7s 1m")
    assert Admin(world.store).settings().delay_levels_ms == (7_000, 60_000)
