"""What writers announce to each other is landed by whoever has the turn, and does not stay."""

from __future__ import annotations

from pathlib import Path

from faulty import BROKER, ROOT, ids, message, open_log

from rmq_spark.clock import ManualClock
from rmq_spark.log.announce import SWEPT_MS, announce
from rmq_spark.log.offers import GATHER_LOOKS, GATHER_PAUSE_SECONDS
from rmq_spark.log.pace import RIVALS_REMEMBERED
from rmq_spark.log.request import Offer
from rmq_spark.log.roll import roll
from rmq_spark.log.verify import verify
from rmq_spark.storage import paths
from rmq_spark.storage.local import LocalStorage
from rmq_spark.storage.memory import MemoryStorage


def test_whoever_rolls_deletes_announcements_that_nobody_may_land_any_more() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    with open_log(storage, clock=clock) as log:
        log.append(message("a"))
        for _ in range(2):
            assert announce(storage, ROOT, message("dead"), Offer(clock.token(), clock.now_ms()))
            clock.advance(SWEPT_MS / 1000)
        storage.create_if_absent(f"{paths.announced(ROOT)}/foreign", [b"x"])
        clock.advance(0.001)
        assert announce(storage, ROOT, message("young"), Offer(clock.token(), clock.now_ms()))
        roll(log, min_commits=100)
        assert len(list(storage.list(paths.announced(ROOT)))) == 2, "the young one, and what is not the log's"
        assert ids(log) == ["a"]
    assert verify(storage, ROOT, BROKER).ok


def test_a_writer_that_lands_what_others_offer_goes_on_looking_for_offers() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    with open_log(storage, clock=clock) as log:
        for number in range(2 * RIVALS_REMEMBERED):
            assert announce(storage, ROOT, message(f"offered-{number}"), Offer(clock.token(), clock.now_ms()))
            log.append(message(f"own-{number}"))
            assert f"offered-{number}" in ids(log)


def test_whoever_has_the_turn_waits_for_as_many_offers_as_the_last_commit_has_landed(tmp_path: Path) -> None:
    clock = ManualClock()
    storage = LocalStorage(str(tmp_path), clock=clock)
    with open_log(storage, clock=clock) as log:

        def seconds_of_append(offers: int) -> float:
            for _ in range(offers):
                assert announce(storage, ROOT, message("offered"), Offer(clock.token(), clock.now_ms()))
            began = clock.elapsed_ns()
            log.append(message("own"))
            return (clock.elapsed_ns() - began) / 1e9

        assert seconds_of_append(2) == 0, "nobody has offered before"
        assert seconds_of_append(2) == 0, "as many as the last time"
        assert 0 < seconds_of_append(1) <= GATHER_LOOKS * GATHER_PAUSE_SECONDS, "one is missing"
        assert seconds_of_append(0) > 0
        assert seconds_of_append(0) == 0, "nobody has come: nobody is waited for"
