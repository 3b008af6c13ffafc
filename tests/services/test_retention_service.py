"""Old messages go at the hour of the settings or when the disk fills, and what is pending stays."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from service_world import ServiceWorld

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.clock import SystemClock
from rmq_spark.errors import StorageFullError
from rmq_spark.log.roll import roll
from rmq_spark.log.verify import verify
from rmq_spark.model.message import Message
from rmq_spark.model.settings import HOUR_MS
from rmq_spark.rules.all_folds import ALL_FOLDS
from rmq_spark.rules.transaction import Transactions
from rmq_spark.services.retention import RetentionService
from rmq_spark.services.timer import TimerService
from rmq_spark.storage import paths


@pytest.fixture
def old() -> ServiceWorld:
    """Two segments of messages, four days old, at noon."""
    world = ServiceWorld.create(delete_grace_ms=0, segment_bytes=1)
    world.clock.wall_ms = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
    producer = world.producer()
    for body in (b"1", b"2", b"3"):
        producer.send(Message("orders", body))
        roll(world.store.log(), min_commits=1)
    world.clock.advance(96 * 3600)
    return world


@pytest.mark.parametrize(("zone", "hour_utc"), [("Asia/Shanghai", 20), ("America/New_York", 9), ("UTC", 4)])
def test_four_o_clock_is_that_of_the_machine(old: ServiceWorld, zone: str, hour_utc: int):
    old.clock.zone = ZoneInfo(zone)
    service = RetentionService(old.store)
    at_hour(old, hour_utc - 1)
    service.run_once()
    assert len(old.bodies("orders")) == 3
    at_hour(old, hour_utc)
    service.run_once()
    assert old.bodies("orders") == [b"3"]
    old.store.close()


def test_the_systems_clock_knows_the_zone_of_its_machine(monkeypatch):
    clock = SystemClock()
    monkeypatch.setattr(clock, "now_ms", lambda: int(datetime(2026, 3, 1, 20, 30, tzinfo=UTC).timestamp() * 1000))
    for zone, hour in (("Asia/Shanghai", 4), ("UTC", 20)):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert clock.local_hour() == hour
    monkeypatch.undo()
    time.tzset()


def test_rule_34_age_counts_for_all_topics_and_no_consumer_holds_messages_back(old: ServiceWorld):
    old.producer().send(Message("events", b"young"))
    GroupOffsets(old.store).commit("slow", {("orders", "broker-0", 0): 0})
    at_hour(old, 4)
    RetentionService(old.store).run_once()
    assert old.bodies("orders", "events") == [b"3", b"young"]
    old.store.close()


def at_hour(world: ServiceWorld, hour: int) -> None:
    while datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC).hour != hour:
        world.clock.advance(HOUR_MS / 1000)


def test_old_messages_go_at_four_and_at_no_other_hour(old: ServiceWorld):
    service = RetentionService(old.store)
    service.run_once()
    assert old.bodies("orders") == [b"1", b"2", b"3"]
    assert service.behind_ms() == 24 * HOUR_MS
    at_hour(old, 4)
    service.run_once()
    assert old.bodies("orders") == [b"3"]  # the last segment always stays
    assert service.segments >= 2
    assert service.behind_ms() == 0
    assert old.store.topic("orders")  # the cluster-wide log keeps what it says
    old.store.close()


def test_old_messages_go_at_any_hour_when_the_disk_fills(old: ServiceWorld, monkeypatch):
    service = RetentionService(old.store)
    monkeypatch.setattr(old.store.storage, "disk_usage", lambda: (74 << 30, 100 << 30), raising=False)
    service.run_once()
    assert len(old.bodies("orders")) == 3
    monkeypatch.setattr(old.store.storage, "disk_usage", lambda: (76 << 30, 100 << 30), raising=False)
    service.run_once()
    assert old.bodies("orders") == [b"3"]
    old.store.close()


def test_rule_34_young_messages_go_only_when_the_disk_is_nearly_full_and_no_more_than_it_needs(monkeypatch):
    world = ServiceWorld.create(delete_grace_ms=0, segment_bytes=1)
    producer = world.producer()
    for body in (b"1", b"2", b"3"):
        producer.send(Message("orders", body))
        roll(world.store.log(), min_commits=1)
    service = RetentionService(world.store)
    for used, left in ((840_000, 3), (850_001, 2)):
        monkeypatch.setattr(world.store.storage, "disk_usage", lambda used=used: (used, 1_000_000), raising=False)
        service.run_once()
        assert len(world.bodies("orders")) == left
    world.store.close()


def test_a_delayed_message_outlives_the_segment_it_was_sent_in():
    world = ServiceWorld.create(delete_grace_ms=0, segment_bytes=1)
    world.producer().send(Message("orders", b"later", delay=10 * 24 * 3600))
    roll(world.store.log(), min_commits=1)
    world.producer().send(Message("orders", b"now"))
    world.clock.advance(96 * 3600)
    at_hour(world, 4)
    service = RetentionService(world.store)
    service.run_once()
    assert service.segments
    world.clock.advance(10 * 24 * 3600)
    TimerService(world.store).run_once()
    assert b"later" in world.bodies("orders")
    world.store.close()


def test_what_is_pending_stays_although_there_is_no_room_to_roll(monkeypatch):
    def no_room(*given, **options):
        raise StorageFullError("the disk is full")

    world = ServiceWorld.create(delete_grace_ms=0)
    producer = world.producer(check_immunity=6)
    producer.send(Message("orders", b"later", delay=10 * 24 * 3600))
    producer.send(Message("orders", b"half"), transaction=producer.begin_transaction())
    world.clock.advance(96 * 3600)
    producer.send(Message("orders", b"now"))
    at_hour(world, 4)
    monkeypatch.setattr("rmq_spark.log.expire.roll", no_room)
    RetentionService(world.store).run_once()
    log = world.store.log("broker-0", Transactions)
    assert log.look(lambda view: view.mark.log_start) == 3  # both messages, and the record of the transaction
    assert not log.look(lambda view: dict(view.state.fold(Transactions).open)), "given up, as its half message is gone"
    assert world.bodies("orders") == [b"now"]
    world.clock.advance(10 * 24 * 3600)
    TimerService(world.store).run_once()
    assert world.bodies("orders") == [b"now", b"later"]
    assert verify(world.store.storage, paths.broker_root("broker-0"), "broker-0", folds=ALL_FOLDS).ok
    world.store.close()


def test_a_disk_that_takes_no_more_messages_is_freed_although_some_are_pending(monkeypatch):
    world = ServiceWorld.create(delete_grace_ms=0, segment_bytes=1)
    producer = world.producer()
    producer.send(Message("orders", b"later", delay=60))
    with producer.begin_transaction() as tx:
        producer.send(Message("orders", b"open"), transaction=tx)
    for body in (b"1", b"2"):
        producer.send(Message("orders", body))
        roll(world.store.log(), min_commits=1)
    monkeypatch.setattr(world.store.storage, "disk_usage", lambda: (950_000, 1_000_000), raising=False)
    world.clock.advance(10)
    with pytest.raises(StorageFullError):
        producer.send(Message("orders", b"refused"))
    RetentionService(world.store).run_once()
    assert b"1" not in world.bodies("orders")
    assert not world.store.log("broker-0", Transactions).look(lambda view: dict(view.state.fold(Transactions).open))
    monkeypatch.setattr(world.store.storage, "disk_usage", lambda: (500_000, 1_000_000), raising=False)
    world.clock.advance(60)
    TimerService(world.store).run_once()
    assert b"later" in world.bodies("orders")
    world.store.close()
