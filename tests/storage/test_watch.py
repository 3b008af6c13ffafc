"""Notice of new files: who waits wakes up, nothing is missed, and a fork disturbs nobody."""

from __future__ import annotations

import errno
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from rmq_spark.errors import UnavailableError
from rmq_spark.storage import local_watch
from rmq_spark.storage.base import Storage, Watch
from rmq_spark.storage.local import TEMP_PREFIX, LocalStorage
from rmq_spark.storage.local_watch import LocalWatch
from rmq_spark.storage.memory import MemoryStorage

LONG_S = 60.0
"""Longer than any machine needs; a test that waits so long has failed."""


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return LocalStorage(tmp_path / "store") if request.param == "local" else MemoryStorage()


@pytest.fixture
def watch(storage: Storage) -> Iterator[Watch]:
    watcher = storage.watch("log/commits")
    assert watcher is not None
    yield watcher
    watcher.close()


def test_a_file_that_came_before_the_wait_ends_it_at_once(storage: Storage, watch: Watch) -> None:
    assert not watch.wait(0)
    storage.create_if_absent("log/commits/1", [b"1"], durable=False)
    assert watch.wait(0)
    assert not watch.wait(0)


def test_several_files_are_one_notice(storage: Storage, watch: Watch) -> None:
    for number in range(500):
        storage.create_if_absent(f"log/commits/{number}", [b"1"], durable=False)
    assert watch.wait(0)
    assert not watch.wait(0)


def test_files_of_other_directories_do_not_count(storage: Storage, watch: Watch) -> None:
    storage.create_if_absent("log/commits/deeper/1", [b"1"], durable=False)
    storage.create_if_absent("log/marks/1", [b"1"], durable=False)
    if isinstance(storage, LocalStorage):
        assert watch.wait(0)  # the directory `deeper` is a new name, too
    assert not watch.wait(0)


def test_a_lost_race_is_no_notice(storage: Storage) -> None:
    storage.create_if_absent("log/commits/1", [b"1"], durable=False)
    watch = storage.watch("log/commits")
    assert watch is not None
    with pytest.raises(Exception, match="somebody else"):
        storage.create_if_absent("log/commits/1", [b"2"], durable=False)
    assert not watch.wait(0)
    watch.close()


def test_closing_wakes_who_waits(watch: Watch) -> None:
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(watch.wait(LONG_S)))
    waiter.start()
    time.sleep(0.02)
    watch.close()
    waiter.join(LONG_S / 2)
    assert answers == [False]
    watch.close()
    assert not watch.wait(LONG_S)


def test_no_file_is_missed_while_somebody_writes(storage: Storage, watch: Watch) -> None:
    """The reader looks only after a notice: one that got lost would leave it waiting."""
    count = 400

    def write() -> None:
        for number in range(count):
            storage.create_if_absent(f"log/commits/{number}", [b"1"], durable=False)
            if number % 7 == 0:
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while seen < count:
        assert watch.wait(LONG_S), f"no notice came after {seen} files"
        while storage.exists(f"log/commits/{seen}"):
            seen += 1
    writer.join()


def _answer_each(root: str, pipe: Connection) -> None:
    storage = LocalStorage(root)
    watch = storage.watch("log/commits")
    assert watch is not None
    pipe.send("ready")
    number = 0
    while watch.wait(LONG_S):
        while storage.exists(f"log/commits/{number}"):
            pipe.send((number, time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
            number += 1
        if number == 200:
            return


def test_another_process_wakes_up(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    reader = context.Process(target=_answer_each, args=(str(tmp_path), theirs))
    reader.start()
    assert ours.recv() == "ready"
    storage = LocalStorage(tmp_path)
    took_us = []
    for number in range(200):
        storage.create_if_absent(f"log/commits/{number}", [b"1"], durable=False)
        start = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        answered, at = ours.recv()
        assert answered == number
        took_us.append((at - start) / 1_000)
        time.sleep(0.002)
    reader.join(LONG_S)
    assert reader.exitcode == 0
    print(f"\nfrom the end of a create to the awake reader: median {statistics.median(took_us):.0f} us")


# ---------------------------------------------------------------- the kernel's notices


@pytest.fixture
def local(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


@pytest.fixture
def local_dir(local: LocalStorage, tmp_path: Path) -> Iterator[tuple[Watch, Path]]:
    watcher = local.watch("a")
    assert isinstance(watcher, LocalWatch)
    yield watcher, tmp_path / "a"
    watcher.close()


def test_hidden_names_wake_nobody(local: LocalStorage, local_dir: tuple[Watch, Path]) -> None:
    watch, place = local_dir
    (place / f"{TEMP_PREFIX}1").touch()
    with local.turn("a", 1.0):
        pass
    assert not watch.wait(0.05)
    (place / "moved").write_bytes(b"")
    assert watch.wait(0)
    (place / f"{TEMP_PREFIX}1").rename(place / "shown")
    assert watch.wait(0)


def test_deleting_and_writing_wake_nobody(local: LocalStorage, local_dir: tuple[Watch, Path]) -> None:
    watch, place = local_dir
    local.create_if_absent("a/x", [b"1"])
    assert watch.wait(0)
    (place / "x").write_bytes(b"2")
    local.delete("a/x")
    assert not watch.wait(0)


def test_more_notices_than_the_kernel_keeps_are_a_notice(local_dir: tuple[Watch, Path]) -> None:
    watch, place = local_dir
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if kept > 50_000:
        pytest.skip(f"the kernel keeps {kept} notices, too many for a test")
    names = [f"{place}/.{number % 2}-{number}" for number in range(kept + 10)]
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    assert watch.wait(0)


def test_a_directory_that_is_removed_and_made_again_is_watched_again(
    local: LocalStorage, local_dir: tuple[Watch, Path]
) -> None:
    watch, place = local_dir
    place.rmdir()
    assert watch.wait(LONG_S)
    assert not watch.wait(0.01)
    local.create_if_absent("a/x", [b"1"])
    assert watch.wait(LONG_S)
    assert not watch.wait(0)
    local.create_if_absent("a/y", [b"1"])
    assert watch.wait(0)


def test_no_descriptor_is_left_open(local: LocalStorage) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        watch = local.watch("a")
        assert watch is not None
        watch.wait(0)
        watch.close()
        forgotten = local.watch("a")
        del forgotten
    assert len(os.listdir("/proc/self/fd")) == before


class Refusing:
    """A kernel with no watches left."""

    def __init__(self, real: object, name: str) -> None:
        self._real = real
        self._name = name

    def __getattr__(self, name: str) -> object:
        if name != self._name:
            return getattr(self._real, name)

        def refuse(*_: object) -> int:
            local_watch.ctypes.set_errno(errno.EMFILE)
            return -1

        return refuse


@pytest.mark.parametrize("call", ["inotify_init1", "inotify_add_watch"])
def test_without_a_watch_the_caller_is_told_to_poll(
    local: LocalStorage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(local_watch, "_LIBC", Refusing(local_watch._LIBC, call))
    assert local.watch("a") is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_other_systems_poll(local: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_watch, "_LIBC", None)
    assert local.watch("a") is None


def test_a_network_mount_polls(local: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not local_watch.is_shared(str(tmp_path))
    status = local_watch.ctypes.create_string_buffer(512)
    local_watch._LIBC.statfs(str(tmp_path).encode(), status)
    kind = int.from_bytes(status.raw[:8], "little") & 0xFFFF_FFFF
    monkeypatch.setitem(local_watch._SHARED, kind, "as if it were a network mount")
    assert local.watch("a") is None


# ---------------------------------------------------------------- fork


def in_child(work: object) -> int:
    """Run `work` in a forked child; its exit code, 0 if it returned True."""
    child = os.fork()
    if child == 0:
        try:
            code = 0 if work() else 1  # type: ignore[operator]
        except BaseException:  # must not come back into pytest
            code = 2
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_takes_no_notice_from_its_parent(local: LocalStorage, local_dir: tuple[Watch, Path]) -> None:
    watch, _ = local_dir
    local.create_if_absent("a/x", [b"1"])

    def child() -> bool:
        # The first answer says "look": the child may have missed something. Then it has a watch of its own.
        first = watch.wait(0) and not watch.wait(0)
        local.create_if_absent("a/of the child", [b"1"])
        return first and watch.wait(0)

    assert in_child(child) == 0
    assert watch.wait(0)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it has threads when it forks
def test_a_child_that_closes_does_not_wake_its_parent(local: LocalStorage, local_dir: tuple[Watch, Path]) -> None:
    watch, _ = local_dir
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(watch.wait(LONG_S)))
    waiter.start()
    time.sleep(0.02)

    def child() -> bool:
        watch.close()
        return not watch.wait(LONG_S)

    assert in_child(child) == 0
    waiter.join(0.05)
    assert waiter.is_alive() and not answers
    local.create_if_absent("a/x", [b"1"])
    waiter.join(LONG_S)
    assert answers == [True]


def test_a_child_that_gets_no_watch_says_so(
    local: LocalStorage, local_dir: tuple[Watch, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, _ = local_dir
    monkeypatch.setattr(local_watch, "_LIBC", Refusing(local_watch._LIBC, "inotify_init1"))

    def child() -> bool:
        try:
            watch.wait(0)
        except UnavailableError as error:
            return "max_user_instances" in str(error)
        return False

    assert in_child(child) == 0
