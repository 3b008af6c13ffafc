"""Announcements of writers that died do not stay."""

from __future__ import annotations

from faulty import BROKER, ROOT, ids, message, open_log

from rmq_spark.clock import ManualClock
from rmq_spark.log.announce import SWEPT_MS, announce
from rmq_spark.log.request import Offer
from rmq_spark.log.roll import roll
from rmq_spark.log.verify import verify
from rmq_spark.storage import paths
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
