from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmq_spark.clock import SystemClock
from rmq_spark.errors import CorruptDataError, ExistsError, InvalidRequestError, NotFoundError
from rmq_spark.storage.base import Bytes
from rmq_spark.storage.local import TEMP_PREFIX, FileOps, LocalStorage
from rmq_spark.testing.storage_conformance import StorageConformance


class TestLocal(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> LocalStorage:
        return LocalStorage(tmp_path / "store")

    @pytest.fixture
    def second_handle(self, tmp_path: Path) -> LocalStorage:
        return LocalStorage(tmp_path / "store")


class RecordingOps(FileOps):
    """Notes the calls in order, with paths relative to a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[str] = []
        self._names: dict[int, str] = {}

    def _note(self, call: str, *paths: str) -> None:
        names = [os.path.relpath(path, self.root) for path in paths]
        short = [name if TEMP_PREFIX not in name else os.path.dirname(name) + "/TEMP" for name in names]
        self.calls.append(" ".join([call, *short]))

    def open_new(self, path: str) -> int:
        self._note("open", path)
        fd = super().open_new(path)
        self._names[fd] = path
        return fd

    def open_existing(self, path: str) -> int:
        fd = super().open_existing(path)
        self._names[fd] = path
        return fd

    def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
        self._note("write", self._names[fd])
        return super().writev(fd, pieces)

    def fsync(self, fd: int) -> None:
        self._note("fsync", self._names[fd])
        super().fsync(fd)

    def link(self, source: str, target: str) -> None:
        self._note("link", source, target)
        super().link(source, target)

    def unlink(self, path: str) -> None:
        self._note("unlink", path)
        super().unlink(path)

    def mkdir(self, path: str) -> None:
        self._note("mkdir", path)
        super().mkdir(path)

    def fsync_dir(self, path: str) -> None:
        self._note("fsync_dir", path)
        super().fsync_dir(path)


def test_the_order_of_a_durable_create(tmp_path: Path) -> None:
    ops = RecordingOps(tmp_path)
    storage = LocalStorage(tmp_path / "new" / "store", ops=ops)
    storage.create_if_absent("a/b/x", [b"1"])
    assert ops.calls == [
        "mkdir new",
        "mkdir new/store",
        "mkdir new/store/a",
        "mkdir new/store/a/b",
        "open new/store/a/b/TEMP",
        "write new/store/a/b/TEMP",
        "fsync new/store/a/b/TEMP",
        "fsync_dir new/store/a",
        "fsync_dir new/store",
        "fsync_dir new",
        "fsync_dir .",
        "link new/store/a/b/TEMP new/store/a/b/x",
        "unlink new/store/a/b/TEMP",
        "fsync_dir new/store/a/b",
    ]
    ops.calls.clear()
    storage.create_if_absent("a/b/y", [b"2"])
    assert [call.split()[0] for call in ops.calls] == [
        "open",
        "write",
        "fsync",
        "link",
        "unlink",
        "fsync_dir",
    ]


def test_room_is_set_aside_for_large_files_only(tmp_path: Path) -> None:
    sizes = []

    class Noting(FileOps):
        def allocate(self, fd: int, size: int) -> None:
            sizes.append(size)
            super().allocate(fd, size)

    storage = LocalStorage(tmp_path, ops=Noting())
    storage.create_if_absent("a/small", [b"1" * 1000])
    storage.create_if_absent("a/large", [b"1" * 300_000, b"2" * 7])
    storage.create_if_absent("a/large too", [b"1" * 7, b"2" * 300_000])
    assert sizes == [300_007, 300_007]
    assert storage.read("a/large") == b"1" * 300_000 + b"2" * 7
    assert storage.read("a/large too") == b"1" * 7 + b"2" * 300_000


def test_directories_made_by_others_are_flushed_too(tmp_path: Path) -> None:
    LocalStorage(tmp_path).create_if_absent("a/b/x", [b"1"], durable=False)
    ops = RecordingOps(tmp_path)
    LocalStorage(tmp_path, ops=ops).create_if_absent("a/b/y", [b"2"])
    flushed = [call for call in ops.calls if call.startswith("fsync_dir")]
    assert flushed == ["fsync_dir a", "fsync_dir .", "fsync_dir ..", "fsync_dir a/b"]


def test_not_durable_flushes_nothing_until_sync(tmp_path: Path) -> None:
    ops = RecordingOps(tmp_path)
    storage = LocalStorage(tmp_path, ops=ops)
    for path in ("a/x", "a/y", "b/z"):
        storage.create_if_absent(path, [b"1"], durable=False)
    assert not [call for call in ops.calls if "fsync" in call]
    ops.calls.clear()
    storage.sync(["a/x", "a/y", "b/z"])
    assert ops.calls[:3] == ["fsync a/x", "fsync a/y", "fsync b/z"]
    assert [call for call in ops.calls[3:] if call in ("fsync_dir a", "fsync_dir b")] == [
        "fsync_dir a",
        "fsync_dir b",
    ]
    assert "fsync_dir ." in ops.calls


def test_sync_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        LocalStorage(tmp_path).sync(["a/x"])


class ShortWrites(FileOps):
    """Takes at most seven bytes at a time."""

    def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
        return os.write(fd, b"".join(bytes(piece) for piece in pieces)[:7])


def test_short_writes_are_continued(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, ops=ShortWrites())
    wide = memoryview(bytes(range(40))).cast("Q")
    storage.create_if_absent("a/x", [b"0123456789", b"", b"abc", wide, b"end"])
    assert storage.read("a/x") == b"0123456789abc" + bytes(range(40)) + b"end"


def test_a_removed_directory_is_made_again(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create_if_absent("a/b/x", [b"1"])
    (tmp_path / "a/b/x").unlink()
    (tmp_path / "a/b").rmdir()
    ops = RecordingOps(tmp_path)
    storage._ops = ops
    storage.create_if_absent("a/b/y", [b"2"])
    assert storage.read("a/b/y") == b"2"
    assert ops.calls.index("fsync_dir a") < ops.calls.index("link a/b/TEMP a/b/y")


def test_a_directory_on_the_name(tmp_path: Path) -> None:
    (tmp_path / "a/x").mkdir(parents=True)
    with pytest.raises(ExistsError):
        LocalStorage(tmp_path).create_if_absent("a/x", [b"1"])
    assert os.listdir(tmp_path / "a") == ["x"]


def test_a_file_where_a_directory_belongs(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create_if_absent("a", [b"file"])
    with pytest.raises(CorruptDataError):
        storage.create_if_absent("a/x", [b"1"])


@pytest.mark.parametrize("path", ["a/.hidden", ".turn", "a/.rmq-tmp-1", "a//x", "a/", ".a/x", "x" * 300])
def test_names_that_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidRequestError):
        LocalStorage(tmp_path).create_if_absent(path, [b"1"])


def test_sweep_takes_old_temporary_files_only(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create_if_absent("a/b/x", [b"1"])
    for name, age_s in (("old", 7_200), ("new", 10)):
        left = tmp_path / "a/b" / f"{TEMP_PREFIX}{name}"
        left.write_bytes(b"part")
        os.utime(left, (time.time() - age_s,) * 2)
    assert [info.name for info in storage.list("a/b")] == ["x"]
    assert storage.sweep_temp(3_600_000, SystemClock().now_ms()) == 1
    assert sorted(os.listdir(tmp_path / "a/b")) == [f"{TEMP_PREFIX}new", "x"]
    assert LocalStorage(tmp_path / "nowhere").sweep_temp(0, SystemClock().now_ms()) == 0


def test_names_of_temporary_files_left_by_others_are_avoided(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create_if_absent("a/x", [b"1"])
    clash = tmp_path / "a" / f"{TEMP_PREFIX}{storage._token}-{os.getpid()}-1"
    clash.write_bytes(b"somebody's")
    storage.create_if_absent("a/y", [b"2"])
    assert storage.read("a/y") == b"2"
    assert clash.read_bytes() == b"somebody's"


_KILLED = """
import os, sys
from rmq_spark.storage.local import FileOps, LocalStorage
class Die(FileOps):
    def link(self, source, target):
        os.kill(os.getpid(), 9)
LocalStorage(sys.argv[1], ops=Die()).create_if_absent("a/x", [b"1" * 5000])
"""


def test_a_writer_killed_before_the_link_shows_nothing(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert child.returncode == -signal.SIGKILL
    storage = LocalStorage(tmp_path)
    assert not storage.exists("a/x")
    assert list(storage.list("a")) == []
    assert len(os.listdir(tmp_path / "a")) == 1
    storage.create_if_absent("a/x", [b"2"])
    assert storage.sweep_temp(0, SystemClock().now_ms() + 60_000) == 1
    assert os.listdir(tmp_path / "a") == ["x"]


def _race(root: str, writer: int, names: int, start: object, results: object) -> None:
    storage = LocalStorage(root)
    won = []
    start.wait()  # type: ignore[attr-defined]
    for number in range(names):
        try:
            storage.create_if_absent(f"race/{number}", [b"%d" % writer], durable=False)
        except ExistsError:
            continue
        won.append(number)
    results.put((writer, won))  # type: ignore[attr-defined]


def test_one_winner_among_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    racers = [context.Process(target=_race, args=(str(tmp_path), n, 300, start, results)) for n in range(2)]
    for racer in racers:
        racer.start()
    wins = dict(results.get(timeout=60) for _ in racers)
    for racer in racers:
        racer.join()
    assert sorted(wins[0] + wins[1]) == list(range(300))
    storage = LocalStorage(tmp_path)
    for writer, numbers in wins.items():
        assert all(storage.read(f"race/{number}") == b"%d" % writer for number in numbers)
    assert len(os.listdir(tmp_path / "race")) == 300


def test_a_turn_is_passed_on_between_threads(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    inside = 0
    worst = 0

    def take() -> None:
        nonlocal inside, worst
        for _ in range(20):
            with storage.turn("a", 30.0) as mine:
                assert mine
                inside += 1
                worst = max(worst, inside)
                time.sleep(0.0002)
                inside -= 1

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worst == 1


_HOLD = """
import sys, time
from rmq_spark.storage.local import LocalStorage
with LocalStorage(sys.argv[1]).turn("a", 1.0) as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


def test_a_turn_is_between_processes_and_ends_with_them(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "True\n"
        storage = LocalStorage(tmp_path)
        start = time.monotonic()
        with storage.turn("a", 0.05) as mine:
            assert not mine
        assert 0.04 < time.monotonic() - start < 5
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    with storage.turn("a", 5.0) as mine:
        assert mine


class CountingClock(SystemClock):
    """Counts the pauses."""

    def __init__(self) -> None:
        self.pauses = 0

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        super().sleep(seconds)


_HOLD_AGAIN = """
import sys
from rmq_spark.storage.local import LocalStorage
storage = LocalStorage(sys.argv[1])
while True:
    with storage.turn("a", 60.0) as mine:
        print(mine, flush=True)
        sys.stdin.readline()
    print("released", flush=True)
    sys.stdin.readline()
"""


def test_a_stopped_holder_of_the_turn_is_waited_for_once_until_it_moves(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLD_AGAIN, str(tmp_path)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    clock = CountingClock()
    storage = LocalStorage(tmp_path, clock=clock)

    def attempt() -> tuple[bool, bool]:
        """Whether the turn was had, and whether it was waited for."""
        before = clock.pauses
        with storage.turn("a", 0.05) as mine:
            return mine, clock.pauses > before

    def tell() -> str:
        assert child.stdin is not None and child.stdout is not None
        print(file=child.stdin, flush=True)
        return child.stdout.readline()

    try:
        assert child.stdout.readline() == "True\n"
        child.send_signal(signal.SIGSTOP)
        assert attempt() == (False, True)
        assert [attempt() for _ in range(5)] == [(False, False)] * 5
        assert LocalStorage(tmp_path, clock=clock)._passed_over == {}
        child.send_signal(signal.SIGCONT)
        assert tell() == "released\n"
        assert attempt() == (True, False)
        # It holds the turn again, in a new round: that is another holder, worth waiting for.
        assert tell() == "True\n"
        assert attempt() == (False, True)
        assert attempt() == (False, False)
        # It has moved on meanwhile, and nobody has seen it without the turn.
        assert tell() == "released\n"
        assert tell() == "True\n"
        assert attempt() == (False, True)
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    assert attempt() == (True, False)


def test_a_turn_that_moves_between_others_is_waited_for_again(tmp_path: Path) -> None:
    """A queue of many writers is slow, not stopped: nobody in it may be passed over."""
    others = LocalStorage(tmp_path)
    holders = iter([others.turn("a", 1.0), others.turn("a", 1.0)])
    held = next(holders)
    held.__enter__()

    class PassingOn(CountingClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.pauses == 2:
                held.__exit__(None, None, None)
                next(holders).__enter__()

    storage = LocalStorage(tmp_path, clock=PassingOn())
    with storage.turn("a", 0.05) as mine:
        assert not mine
    assert storage._passed_over == {}


@pytest.mark.parametrize("where", ["waiting", "had"])
def test_an_interrupt_while_a_turn_is_taken_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    class Interrupting(SystemClock):
        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    storage, other = LocalStorage(tmp_path, clock=Interrupting()), LocalStorage(tmp_path)
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patched:
        if where == "had":
            patched.setattr(os, "pwrite", interrupt)  # the lock is there, and its holder's name is about to be
            with pytest.raises(KeyboardInterrupt), storage.turn("a", 1.0):
                raise AssertionError("it was interrupted before")
        else:
            with other.turn("a", 1.0), pytest.raises(KeyboardInterrupt), storage.turn("a", 1.0):
                raise AssertionError("it was interrupted before")
    assert os.listdir("/proc/self/fd") == before
    with other.turn("a", 0.0) as mine:
        assert mine


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)

    def use() -> None:
        storage.create_if_absent("a/x", [b"1"])
        with pytest.raises(ExistsError):
            storage.create_if_absent("a/x", [b"2"])
        storage.read("a/x")
        storage.read_tail("a/x", 1)
        with pytest.raises(CorruptDataError):
            storage.read_range("a/x", 0, 9)
        with pytest.raises(NotFoundError):
            storage.read("a")
        list(storage.list("a"))
        storage.sync(["a/x"])
        with storage.turn("a", 0.1), storage.turn("a", 0.01):
            pass
        storage.delete("a/x")

    use()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        use()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_disk_error_while_reading_is_not_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "stat", broken)
    with pytest.raises(Exception, match="refused") as failed:
        storage.exists("a/x")
    assert type(failed.value).__name__ == "UnavailableError"
