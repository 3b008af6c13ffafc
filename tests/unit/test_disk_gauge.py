from __future__ import annotations

import pytest

from rmq_spark.clock import ManualClock
from rmq_spark.errors import StorageFullError
from rmq_spark.log.disk_gauge import DiskGauge
from rmq_spark.storage.memory import MemoryStorage

TOTAL = 10_000_000


class Disk(MemoryStorage):
    """A disk whose use is told, and how often it was asked for."""

    def __init__(self, used: int | None) -> None:
        super().__init__()
        self.used = used
        self.asked = 0

    def disk_usage(self) -> tuple[int, int] | None:
        self.asked += 1
        return None if self.used is None else (self.used, TOTAL)


def gauge(disk: Disk, clock: ManualClock | None = None) -> DiskGauge:
    return DiskGauge(disk, 0.9, clock or ManualClock())


def test_a_disk_below_the_ratio_is_written() -> None:
    gauge(Disk(8_999_999)).check()
    gauge(Disk(9_000_000)).check()


def test_a_disk_above_the_ratio_is_refused() -> None:
    with pytest.raises(StorageFullError, match="expire") as refused:
        gauge(Disk(9_000_001)).check()
    assert refused.value.context["used"] == 9_000_001


def test_a_write_that_does_not_fit_below_the_ratio_is_refused() -> None:
    gauge(Disk(8_000_000)).check(1_000_000)
    with pytest.raises(StorageFullError):
        gauge(Disk(8_000_000)).check(1_000_001)


def test_the_system_is_asked_once_a_second() -> None:
    disk, clock = Disk(0), ManualClock()
    found = gauge(disk, clock)
    for _ in range(100):
        found.check(10)
        clock.advance(0.009)
    assert disk.asked == 1
    clock.advance(0.2)
    found.check(10)
    assert disk.asked == 2


def test_a_handle_that_writes_fast_never_overshoots() -> None:
    """Within one second, on a disk that shows each write at once: what a 20 MB disk did not survive."""
    disk = Disk(1_000_000)
    found = gauge(disk)
    with pytest.raises(StorageFullError):
        while True:
            found.check(10_000)
            assert disk.used is not None
            disk.used += 10_000
    assert 8_980_000 <= disk.used <= 9_000_000
    # Far from the end it does not ask for every write.
    assert disk.asked < 400


def test_several_handles_together_hardly_overshoot() -> None:
    disk = Disk(1_000_000)
    handles = [gauge(disk) for _ in range(16)]
    refused = 0
    while refused < 16:
        refused = 0
        for handle in handles:
            try:
                handle.check(10_000)
            except StorageFullError:
                refused += 1
                continue
            assert disk.used is not None
            disk.used += 10_000
    assert disk.used is not None
    assert disk.used <= 9_500_000


def test_room_that_is_made_is_seen_at_once() -> None:
    disk = Disk(9_500_000)
    found = gauge(disk)
    for _ in range(2):
        with pytest.raises(StorageFullError):
            found.check(1)
    disk.used = 1_000
    found.check(1)


def test_a_refused_write_counts_nothing() -> None:
    disk = Disk(0)
    found = gauge(disk)
    with pytest.raises(StorageFullError):
        found.check(TOTAL)
    found.check(1)
    assert disk.asked == 2


def test_a_storage_without_a_disk_refuses_nothing() -> None:
    disk = Disk(None)
    found = gauge(disk)
    for _ in range(3):
        found.check(10**15)
