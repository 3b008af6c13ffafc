"""Tables that exist go forward by themselves; none is made, and another engine is left alone."""

from __future__ import annotations

from service_world import ServiceWorld

from rmq_spark.model.message import Message
from rmq_spark.services.behind import services_behind
from rmq_spark.services.tables import TablesService
from rmq_spark.tables import engine
from rmq_spark.tables.lease import LEASE_MS, TableLease
from rmq_spark.tables.schemas import TABLES


def test_tables_that_exist_go_forward(world: ServiceWorld):
    service = TablesService(world.store)
    world.producer().send(Message("orders", b"1", keys="a"))
    service.run_once()
    assert service.messages == 0
    assert [lag for lag in services_behind(world.store) if lag.service == "tables"] == []
    engine.reput(world.store)
    world.producer().send(Message("orders", b"2", keys="b"))
    world.clock.advance(3)
    [lag] = [lag for lag in services_behind(world.store) if lag.service == "tables"]
    assert (lag.log, lag.behind_ms) == ("broker-0", 3_000)
    assert lag.pending >= 1
    service.run_once()
    assert engine.read_table(world.store, "consumequeue", ["topic"]).num_rows == 2
    [lag] = [lag for lag in services_behind(world.store) if lag.service == "tables"]
    assert (lag.pending, lag.behind_ms) == (0, 0)


def test_another_engine_is_left_alone(world: ServiceWorld):
    world.producer().send(Message("orders", b"1"))
    engine.reput(world.store)
    world.producer().send(Message("orders", b"2"))
    service = TablesService(world.store)
    with world.again() as other, TableLease.acquire(other, tuple(TABLES), wait_s=0, duration_ms=LEASE_MS):
        service.run_once()
        assert service.messages == 0
        world.clock.advance(2)
        assert service.behind_ms() == 2_000
    service.run_once()
    assert service.messages > 0
    assert service.behind_ms() == 0
