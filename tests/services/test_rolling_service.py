"""Small commits are rolled early and often, by one copy at a time; their files are kept a while for readers."""

from __future__ import annotations

from dataclasses import replace

from service_world import ServiceWorld

from rmq_spark.client.store import Store
from rmq_spark.log.roll import roll
from rmq_spark.log.verify import verify
from rmq_spark.model.message import Message
from rmq_spark.rules.all_folds import ALL_FOLDS
from rmq_spark.rules.service_lease import LEASE_MS
from rmq_spark.services.rolling import OLD_COMMITS, OLD_MS, ROLL_COMMITS, RollService, SnapshotService
from rmq_spark.storage import paths


def send(world: ServiceWorld, count: int, first: int = 0) -> list[bytes]:
    producer = world.producer()
    bodies = [b"%d" % number for number in range(first, first + count)]
    for body in bodies:
        producer.send(Message("orders", body))
    return bodies


def commits(world: ServiceWorld) -> int:
    return len(world.store.log().refresh().state.commits.firsts)


def commit_files(world: ServiceWorld) -> int:
    return len(list(world.store.storage.list(paths.commitlog(world.store.log().root))))


def test_commits_are_rolled_when_there_are_enough_of_them():
    world = ServiceWorld.create()
    service = RollService(world.store)
    bodies = send(world, ROLL_COMMITS - 1)
    service.run_once()
    assert commits(world) >= ROLL_COMMITS - 1
    bodies += send(world, 1, first=ROLL_COMMITS - 1)
    service.run_once()
    assert commits(world) == 0
    assert service.behind_ms() == 0
    assert service.rolled >= ROLL_COMMITS
    assert world.bodies("orders") == bodies
    world.store.close()


def test_fewer_commits_are_rolled_after_a_while_and_a_handful_never():
    world = ServiceWorld.create()
    service = RollService(world.store)
    send(world, OLD_COMMITS // 2)
    world.clock.advance(10 * OLD_MS / 1000)
    service.run_once()
    assert commits(world) == OLD_COMMITS // 2
    send(world, OLD_COMMITS)
    service.run_once()
    assert commits(world) == 0
    world.store.close()


def test_files_of_rolled_commits_stay_for_the_grace_period():
    world = ServiceWorld.create(delete_grace_ms=60_000)
    service = RollService(world.store, roll_commits=10)
    send(world, 10)
    service.run_once()
    assert commits(world) == 0
    assert commit_files(world) >= 10
    world.clock.advance(59)
    service.run_once()
    assert commit_files(world) >= 10
    world.clock.advance(1)
    service.run_once()
    assert commit_files(world) == 0
    world.store.close()


def test_segments_are_merged_in_tiers():
    world = ServiceWorld.create()
    log = world.store.log()
    written = 0
    bodies: list[bytes] = []
    for number in range(32):
        bodies += send(world, 4, first=4 * number)
        done = roll(log, tiered=True, tidy=False)
        written += sum(segment.end - segment.first for segment in done.segments)
        sizes = [segment.end - segment.first for segment in log.refresh().mark.segments]
        assert sizes == sorted(sizes, reverse=True)
        assert len(sizes) <= 6
        assert verify(log.storage, log.root, log.broker).ok
    assert written <= 6 * len(bodies)  # log2(32) + 1 times each; by every roll it would be 16 times
    assert world.bodies("orders") == bodies
    # By hand, small segments become one, however many there are.
    bodies += send(world, 2, first=len(bodies))
    roll(log)
    assert len(log.refresh().mark.segments) == 1
    assert world.bodies("orders") == bodies
    assert verify(log.storage, log.root, log.broker, folds=ALL_FOLDS).ok
    world.store.close()


def test_a_roll_is_left_to_the_copy_that_rolls_until_its_lease_has_ended():
    world = ServiceWorld.create()
    with world.again() as other:
        first, second = RollService(world.store, roll_commits=10), RollService(other, roll_commits=10)
        send(world, 10)
        first.run_once()
        assert first.rolled
        send(world, 10)
        second.run_once()
        assert not second.rolled
        assert second.behind_ms() == 0
        world.clock.advance(LEASE_MS / 1000)  # the first one is dead, say
        second.run_once()
        assert second.rolled
        assert len(world.bodies("orders")) == 20
    world.store.close()


def test_an_embedded_roller_rests_longer_than_it_works():
    world = ServiceWorld.create()
    service = RollService(world.store, rest=9.0, roll_commits=10)
    send(world, 10)
    tick = world.clock.elapsed_ns
    times = iter([0, 2_000_000_000])
    world.clock.elapsed_ns = lambda: next(times, 2_000_000_000)  # type: ignore[method-assign]
    assert service.run_once() == 18.0
    world.clock.elapsed_ns = tick  # type: ignore[method-assign]
    assert service.run_once() == 1.0
    world.store.close()


def test_a_process_that_only_follows_writes_snapshots():
    world = ServiceWorld.create()
    settings = replace(world.store.settings, snapshot_every_commits=10)
    with Store.open(world.store.storage.uri, clock=world.clock, settings=settings) as follower:
        service, place = SnapshotService(follower), paths.snapshots(follower.log().root)
        send(world, 9)
        service.run_once()
        assert list(follower.storage.list(place)) == []
        send(world, 1)
        service.run_once()
        assert len(list(follower.storage.list(place))) == 1
        service.run_once()
        assert len(list(follower.storage.list(place))) == 1
    world.store.close()
