"""What dead writers left behind goes, and nothing else."""

from __future__ import annotations

from service_world import ServiceWorld

from rmq_spark.log.collect import ORPHAN_AGE_MS
from rmq_spark.log.offers import SWEPT_MS
from rmq_spark.model.message import Message
from rmq_spark.services.sweep import SWEEP_SECONDS, SweepService
from rmq_spark.storage import paths


def names(world: ServiceWorld, directory: str) -> list[str]:
    return sorted(info.name for info in world.store.storage.list(directory))


def test_announcements_of_dead_writers_go_when_nobody_may_land_them(world: ServiceWorld):
    world.producer().send(Message("orders", b"x"))
    place = paths.announced(world.store.log().root)
    mine = f"{world.clock.now_ms():015d}-{world.clock.token()}.arrow"
    for name in (mine, "somebody's.txt"):
        world.store.storage.create_if_absent(f"{place}/{name}", [b"rows"])
    service = SweepService(world.store)
    world.clock.advance(SWEPT_MS / 1000)
    service.run_once()
    assert mine in names(world, place)
    world.clock.advance(2 * SWEPT_MS / 1000)
    service.run_once()
    assert names(world, place) == ["somebody's.txt"]
    assert world.bodies("orders") == [b"x"]


def test_row_files_that_nobody_committed_go_after_a_day(world: ServiceWorld):
    world.producer().send(Message("orders", b"x"))
    root = world.store.log().root
    world.store.storage.create_if_absent(paths.data_file(root, "orphan.arrow"), [b"rows"])
    service = SweepService(world.store)
    service.run_once()
    assert names(world, paths.data(root)) == ["orphan.arrow"]
    world.clock.advance(ORPHAN_AGE_MS / 1000 + 1)
    service.run_once()
    assert names(world, paths.data(root)) == []


def test_an_embedded_sweeper_begins_with_a_pause(world: ServiceWorld):
    place = paths.announced(world.store.log().root)
    world.store.storage.create_if_absent(f"{place}/{0:015d}-{world.clock.token()}.arrow", [b"rows"])
    service = SweepService(world.store, at_once=False)
    assert service.run_once() == SWEEP_SECONDS
    assert len(names(world, place)) == 1
    service.run_once()
    assert names(world, place) == []
