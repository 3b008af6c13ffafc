"""A full disk: the reserve, what it is for, and what works without a single free block."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_spark.clock import SystemClock
from rmq_spark.errors import StorageFullError
from rmq_spark.storage import local_reserve
from rmq_spark.storage.local import FileOps, LocalStorage
from rmq_spark.storage.open import probe
from rmq_spark.storage.upkeep import with_reserve
from rmq_spark.testing.small_disk import fill, free_bytes, small_disk

DISK_BYTES = 20 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", DISK_BYTES) as place:
        yield place


def test_the_reserve_is_four_megabytes(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    kept = storage.keep_reserve()
    assert kept >= local_reserve.RESERVE_BYTES
    assert (tmp_path / ".reserve").stat().st_blocks * 512 == kept
    assert storage.release_reserve() == kept
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_not_there_gets_none(tmp_path: Path) -> None:
    assert LocalStorage(tmp_path / "nowhere").keep_reserve() == 0
    assert os.listdir(tmp_path) == []


class NoAllocation(FileOps):
    """A file system that takes the call and does nothing, as some do."""

    def allocate(self, fd: int, size: int) -> None:
        del fd, size


def test_where_room_cannot_be_set_aside_it_is_written(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, ops=NoAllocation())
    assert storage.keep_reserve() >= local_reserve.RESERVE_BYTES


class Full(FileOps):
    def allocate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_reserve_that_finds_no_room_leaves_nothing(tmp_path: Path) -> None:
    assert LocalStorage(tmp_path, ops=Full()).keep_reserve() == 0
    assert os.listdir(tmp_path) == []


def test_work_that_finds_room_leaves_the_reserve(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.keep_reserve()
    assert with_reserve(storage, lambda: 7) == 7
    assert (tmp_path / ".reserve").exists()


def test_work_on_a_full_disk_is_done_once_more_with_the_room_of_the_reserve(disk: Path) -> None:
    storage = LocalStorage(disk)
    kept = storage.keep_reserve()
    assert kept == DISK_BYTES // local_reserve.SMALL_PART
    fill(disk)
    assert free_bytes(disk) == 0
    with pytest.raises(StorageFullError):
        storage.create_if_absent("a/x", [bytes(kept // 2)])

    def work() -> None:
        storage.create_if_absent("a/mark", [bytes(kept // 2)])
        (disk / "junk").unlink()

    with_reserve(storage, work)
    assert storage.exists("a/mark")
    assert storage.release_reserve() == kept  # made again, now that there is room


def test_without_a_reserve_or_with_too_little_the_error_is_told(disk: Path) -> None:
    storage = LocalStorage(disk)
    kept = storage.keep_reserve()
    fill(disk)
    tries = []

    def work() -> None:
        tries.append(1)
        storage.create_if_absent("a/x", [bytes(2 * kept)])

    with pytest.raises(StorageFullError):
        with_reserve(storage, work)
    assert len(tries) == 2
    assert storage.keep_reserve() == 0  # there is not enough room to make it again
    with pytest.raises(StorageFullError):
        with_reserve(storage, work)
    assert len(tries) == 3


def test_a_full_disk_can_be_read_deleted_from_and_swept(disk: Path) -> None:
    storage = LocalStorage(disk)
    storage.create_if_absent("a/x", [b"1"])
    (disk / "a/.rmq-tmp-left").write_bytes(bytes(100_000))
    fill(disk)
    with pytest.raises(StorageFullError):
        probe(storage, SystemClock())
    with storage.turn("a", 0.1) as mine:
        assert mine
    assert storage.read("a/x") == b"1"
    assert storage.sweep_temp(0, SystemClock().now_ms() + 60_000) == 1
    storage.delete("a/x")
    assert free_bytes(disk) > 0
