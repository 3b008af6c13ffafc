"""Expiry on a full disk: what needs no room goes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty import BROKER, ROOT, ids, message

from rmq_spark.clock import SystemClock
from rmq_spark.errors import StorageFullError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.roll import roll
from rmq_spark.log.verify import verify
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage.local import LocalStorage
from rmq_spark.storage.upkeep import with_reserve
from rmq_spark.testing.small_disk import fill, free_bytes, small_disk

MB = 1_000_000
SETTINGS = LogSettings(
    segment_bytes=1, delete_grace_ms=0, disk_reclaim_ratio=1.0, disk_force_ratio=1.0, disk_full_ratio=1.0
)


def open_log(place: Path, settings: LogSettings = SETTINGS) -> CommitLog:
    return CommitLog(LocalStorage(str(place)), ROOT, BROKER, settings=settings)


def test_segments_expire_although_there_is_no_room_to_roll_what_follows(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 20 * MB) as place, open_log(place) as log:
        for number in range(3):
            log.append(message(f"old{number}", body=bytes(MB)))
        roll(log, min_commits=1)
        for number in range(8):
            log.append(message(f"new{number}", body=bytes(MB)))
        log.storage.keep_reserve()
        fill(place)
        done = with_reserve(log.storage, lambda: expire(log, before_ms=SystemClock().now_ms() + 1))
        assert [segment.first for segment in done.segments] == [0, 1, 2]
        assert ids(log) == ["new7"]
        assert free_bytes(place) > 9 * MB
        assert verify(log.storage, ROOT, BROKER).ok


@pytest.mark.parametrize("rolled", [0, 2])
def test_old_commits_expire_although_there_is_no_room_to_roll_them(tmp_path: Path, rolled: int) -> None:
    with small_disk(tmp_path / "disk", 20 * MB) as place, open_log(place) as log:
        for number in range(rolled):
            log.append(message(f"rolled{number}", body=bytes(MB)))
        roll(log, min_commits=1)
        for number in range(4):
            log.append(message(f"old{number}", body=bytes(2 * MB)))
        limit = SystemClock().now_ms() + 1
        log.wait(log.refresh().state.offset, 0.01)
        for number in range(2):
            log.append(message(f"new{number}", body=bytes(2 * MB)))
        log.storage.keep_reserve()
        fill(place)
        done = with_reserve(log.storage, lambda: expire(log, before_ms=limit))
        assert (done.log_start, done.messages) == (rolled + 4, rolled + 4)
        assert ids(log) == ["new0", "new1"]
        assert free_bytes(place) > 7 * MB
        assert verify(log.storage, ROOT, BROKER).ok
        assert log.append(message("more")).queue_offsets.tolist() == [rolled + 6]
        roll(log, min_commits=1)
        with open_log(place) as fresh:
            assert ids(fresh) == ["new0", "new1", "more"]
            assert verify(fresh.storage, ROOT, BROKER).ok


def test_the_last_commit_stays_on_a_disk_without_room_to_roll(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 12 * MB) as place, open_log(place) as log:
        for number in range(3):
            log.append(message(f"m{number}", body=bytes(2 * MB)))
        log.storage.keep_reserve()
        fill(place)
        with_reserve(log.storage, lambda: expire(log, before_ms=SystemClock().now_ms() + 1))
        assert ids(log) == ["m2"]


def test_files_that_are_rolled_already_are_deleted_without_any_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 20 * MB) as place:
        graceful = LogSettings(segment_bytes=1, delete_grace_ms=3_600_000)
        with open_log(place, graceful) as log:
            for number in range(4):
                log.append(message(f"m{number}", body=bytes(MB)))
            assert roll(log, min_commits=1).deleted == 0, "kept for those who still read them"
        fill(place)
        with open_log(place) as log:
            assert free_bytes(place) == 0
            assert expire(log, before_ms=0).deleted == 4
            assert ids(log) == [f"m{number}" for number in range(4)]
            assert free_bytes(place) > 3 * MB


def test_a_disk_where_nothing_can_go_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 * MB) as place, open_log(place) as log:
        log.append(message("m", body=bytes(MB)))
        fill(place)
        with pytest.raises(StorageFullError):
            expire(log, before_ms=SystemClock().now_ms() + 1)
        assert ids(log) == ["m"]
