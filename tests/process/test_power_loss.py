"""Power loss at every moment: record the file operations, keep what a disk may have kept, open, check.

The model is the weakest that POSIX allows:
- a file's content is durable up to its last fsync; what was written since may be there in full, in part, not, or as
  zeros;
- a name (create, link, unlink, mkdir) is durable once its directory was fsynced; names changed since may have been
  kept or not, each for itself, in any combination.

Every prefix of the recorded operations is a moment of the crash; for each, all combinations are tried if they are
few, else the extremes and a seeded sample.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.clock import SystemClock
from rmq_spark.errors import RmqError
from rmq_spark.log.collect import collect
from rmq_spark.log.commit_log import AppendResult, CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.recover import recover
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import write_row_file
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.storage.base import Bytes
from rmq_spark.storage.local import TEMP_PREFIX, FileOps, LocalStorage
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.testing.history import AckedMessage, check_log

ROOT = "brokers/b"
BROKER = "b"
COMBINATIONS = 16
"""Up to so many crash states of one moment are all tried."""
SAMPLE = 6


class RecordingOps(FileOps):
    """Carries the calls out and notes them; files are numbered in the order of their creation."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._inode: dict[int, int] = {}
        self._files: dict[str, int] = {}
        self._count = itertools.count()

    def open_new(self, path: str) -> int:
        fd = super().open_new(path)
        inode = self._inode[fd] = self._files[path] = next(self._count)
        self.calls.append(("create", path, inode))
        return fd

    def open_existing(self, path: str) -> int:
        fd = super().open_existing(path)
        self._inode[fd] = self._files[path]
        return fd

    def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
        taken = super().writev(fd, pieces)
        self.calls.append(("write", self._inode[fd], b"".join(pieces)[:taken]))
        return taken

    def fsync(self, fd: int) -> None:
        self.calls.append(("fsync", self._inode[fd]))

    def link(self, source: str, target: str) -> None:
        super().link(source, target)
        self._files[target] = self._files[source]
        self.calls.append(("create", target, self._files[source]))

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.calls.append(("remove", path))

    def mkdir(self, path: str) -> None:
        super().mkdir(path)
        self.calls.append(("create", path, None))

    def fsync_dir(self, path: str) -> None:
        self.calls.append(("fsync_dir", path.rstrip("/")))

    def flush_file_system(self, path: str) -> bool:
        self.calls.append(("flush_all", path))
        return True


@dataclass
class Disk:
    """What is on the medium for certain, and what may be."""

    content: dict[int, bytes] = field(default_factory=dict)
    durable: dict[int, int] = field(default_factory=dict)
    """File -> bytes of it that were fsynced."""
    names: dict[str, dict[str, int | None]] = field(default_factory=dict)
    """Directory -> its durable entries; None stands for a directory."""
    pending: dict[str, list[tuple[str, bool, int | None]]] = field(default_factory=dict)
    """Directory -> changes of names since its last fsync: (name, added, file)."""

    def apply(self, call: tuple[Any, ...]) -> None:
        match call:
            case ("create", path, inode):
                if inode is not None:
                    self.content.setdefault(inode, b"")
                    self.durable.setdefault(inode, 0)
                self._change(path, True, inode)
            case ("remove", path):
                self._change(path, False, None)
            case ("write", inode, data):
                self.content[inode] += data
            case ("fsync", inode):
                self.durable[inode] = len(self.content[inode])
            case ("fsync_dir", path):
                self._keep_names(path)
            case ("flush_all", _):
                self.durable = {inode: len(data) for inode, data in self.content.items()}
                for path in list(self.pending):
                    self._keep_names(path)

    def _keep_names(self, path: str) -> None:
        entries = self.names.setdefault(path, {})
        for change in self.pending.pop(path, []):
            _enter(entries, change)

    def _change(self, path: str, added: bool, inode: int | None) -> None:
        directory, name = os.path.split(path)
        if not name.startswith(TEMP_PREFIX):  # nobody ever looks at a temporary name after a crash
            self.pending.setdefault(directory, []).append((name, added, inode))

    def crashes(self, root: str, rng: random.Random) -> Iterator[dict[str, bytes]]:
        """Possible contents of the tree at `root` after a loss of power now, as path -> bytes."""
        changes = [(directory, index) for directory, made in self.pending.items() for index in range(len(made))]
        torn = [inode for inode, data in self.content.items() if self.durable[inode] < len(data)]
        ways: list[Sequence[int]] = [(0, 1)] * len(changes) + [(0, 1, 3, 2)] * len(torn)
        total = 2 ** len(changes) * 4 ** len(torn)
        if total <= COMBINATIONS:
            picks: Iterator[Sequence[int]] = itertools.product(*ways)
        else:
            extremes = [
                [way[-1] for way in ways],
                [way[0] for way in ways],
                [1] * len(ways),
                [1] * len(changes) + [0] * len(torn),
                [1] * len(changes) + [3] * len(torn),
            ]
            picks = iter(extremes + [[rng.choice(way) for way in ways] for _ in range(SAMPLE)])
        for pick in picks:
            kept = {change for change, yes in zip(changes, pick, strict=False) if yes}
            lengths = dict(zip(torn, pick[len(changes) :], strict=True))
            yield self._tree(root, kept, lengths)

    def _tree(self, root: str, kept: set[tuple[str, int]], lengths: dict[int, int]) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        places = [root]
        while places:
            place = places.pop()
            entries = dict(self.names.get(place, {}))
            for index, change in enumerate(self.pending.get(place, ())):
                if (place, index) in kept:
                    _enter(entries, change)
            for name, inode in entries.items():
                if inode is None:
                    places.append(f"{place}/{name}")
                else:
                    files[f"{place}/{name}"] = self._bytes(inode, lengths.get(inode, 2))
        return files

    def _bytes(self, inode: int, part: int) -> bytes:
        data, sure = self.content[inode], self.durable[inode]
        if part == 2 or sure == len(data):
            return data
        if part == 3:  # its length, and the room that was set aside for it, were kept
            return data[:sure] + bytes(len(data) - sure)
        return data[: sure + (len(data) - sure) // 2 * part]


def _enter(entries: dict[str, int | None], change: tuple[str, bool, int | None]) -> None:
    name, added, inode = change
    if added:
        entries[name] = inode
    else:
        entries.pop(name, None)


class Recording:
    """A log on recorded file operations, and what its user was told at which moment."""

    def __init__(self, place: Path, ops: RecordingOps | None = None, **settings: Any) -> None:
        self.place = place
        self.root = str(place / "store")
        self.ops = ops or RecordingOps()
        self.storage = LocalStorage(self.root, ops=self.ops)
        self.settings = LogSettings(**{"delete_grace_ms": 0, "snapshot_every_commits": 1000, **settings})
        self.log = self.open()
        self.acked: list[tuple[int, list[AckedMessage]]] = []
        """(operations done by then, messages) of each append that was promised to survive."""
        self.attempted: dict[int, list[str]] = {}
        self._lax: list[list[AckedMessage]] = []
        self._sent = 0

    def open(self, flush: Flush | None = None) -> CommitLog:
        settings = self.settings if flush is None else LogSettings(flush=flush, delete_grace_ms=0)
        return CommitLog(self.storage, ROOT, BROKER, settings=settings)

    def batch(self, *queues: int) -> tuple[MessageBatch, list[tuple[int, str, bytes]]]:
        self._sent += 1
        rows = [
            (queue, f"m{self._sent}-{index}", f"body {self._sent} {index}".encode())
            for index, queue in enumerate(queues)
        ]
        self.attempted[self._sent] = [row[1] for row in rows]
        parts = [MessageBatch.of(topic="t", queue_id=q, msg_id=i, body=b, born_timestamp_ms=0) for q, i, b in rows]
        return MessageBatch.merge(parts), rows

    def append(self, *queues: int, log: CommitLog | None = None) -> None:
        batch, rows = self.batch(*queues)
        log = log or self.log
        self.note(rows, log.append(batch), sync=log.settings.flush is Flush.SYNC)

    def append_files(self, *queues: int) -> None:
        batch, rows = self.batch(*queues)
        file = write_row_file(self.storage, ROOT, batch, nonce=os.urandom(8).hex(), block_bytes=1 << 18)
        result = self.log.append_files([file])
        ordered = sorted(rows, key=lambda row: row[0])  # a row file's rows are in the order of its queues
        self.note(ordered, result, sync=True)

    def note(self, rows: list[tuple[int, str, bytes]], result: AppendResult, *, sync: bool) -> None:
        assert result.queue_offsets is not None and result.commit_offsets is not None
        places = zip(rows, result.queue_offsets.tolist(), result.commit_offsets.tolist(), strict=True)
        self._lax.append([AckedMessage("t", q, queue_offset, at, i, b) for (q, i, b), queue_offset, at in places])
        if sync:
            self.flushed()

    def flush(self) -> None:
        self.log.flush()
        self.flushed()

    def flushed(self) -> None:
        """From now on everything so far has to survive."""
        self.acked += [(len(self.ops.calls), messages) for messages in self._lax]
        self._lax = []

    def crash_everywhere(self, seed: int, check: Callable[[MemoryStorage, list[Any]], None]) -> int:
        """Call `check` with each crash state and what had been promised by then; return how many there were."""
        rng = random.Random(seed)
        disk = Disk(names={str(self.place.parent): {self.place.name: None}, str(self.place): {}})
        seen: set[Any] = set()
        for moment in range(len(self.ops.calls) + 1):
            if moment:
                disk.apply(self.ops.calls[moment - 1])
            acked = [("w", messages) for done, messages in self.acked if done <= moment]
            for files in disk.crashes(str(self.place), rng):
                key = (len(acked), frozenset((path, hash(data)) for path, data in files.items()))
                if key in seen:
                    continue
                seen.add(key)
                try:
                    check(self.materialise(files), acked)
                except BaseException as error:
                    names = [f"{path[len(self.root) + 1 :]}:{len(data)}" for path, data in sorted(files.items())]
                    call = self.ops.calls[moment - 1][:2] if moment else "nothing"
                    error.add_note(f"crash after operation {moment} ({call}), seed {seed}; left: {names}")
                    raise
        return len(seen)

    def materialise(self, files: dict[str, bytes]) -> MemoryStorage:
        storage = MemoryStorage()
        for path, data in files.items():
            directory, name = os.path.split(path[len(self.root) + 1 :])
            storage._tree.directories.setdefault(directory, {})[name] = (data, 0)
        return storage


def append_one(storage: MemoryStorage) -> None:
    """The log goes on: a new handle appends, and a third one reads it."""
    with CommitLog(storage, ROOT, BROKER) as log:
        end = log.view.state.offset
        batch = MessageBatch.of(topic="t", queue_id=0, msg_id="after", body=b"x", born_timestamp_ms=0)
        result = log.append(batch)
        assert result.commit_offsets is not None and result.commit_offsets.tolist() == [end]


@pytest.fixture
def seed() -> int:
    seed = int(os.environ.get("RMQ_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    return seed


def check_sync(recording: Recording) -> Callable[[MemoryStorage, list[Any]], None]:
    def check(storage: MemoryStorage, acked: list[Any]) -> None:
        # Nothing has to be repaired after `sync` appends.
        assert recover(storage, ROOT, BROKER, SystemClock()).moved == ()
        append_one(storage)
        check_log(storage, ROOT, BROKER, acked=acked, attempted={**recording.attempted, "after": ["after"]})

    return check


def check_async(recording: Recording) -> Callable[[MemoryStorage, list[Any]], None]:
    def check(storage: MemoryStorage, acked: list[Any]) -> None:
        recover(storage, ROOT, BROKER, SystemClock())
        append_one(storage)
        check_log(storage, ROOT, BROKER, acked=acked, attempted={**recording.attempted, "after": ["after"]})
        assert recover(storage, ROOT, BROKER, SystemClock()).moved == ()

    return check


class Forgetful(RecordingOps):
    """Leaves out one kind of flush."""

    def __init__(self, leave_out: str) -> None:
        super().__init__()
        self._leave_out = leave_out

    def fsync(self, fd: int) -> None:
        if self._leave_out != "fsync":
            super().fsync(fd)

    def fsync_dir(self, path: str) -> None:
        if not path.rstrip("/").endswith(self._leave_out):
            super().fsync_dir(path)


@pytest.mark.parametrize("leave_out", ["fsync", "commitlog", "brokers", "marks", "segments"])
def test_the_model_notices_a_flush_that_is_left_out(quick_path: Path, leave_out: str) -> None:
    """Else the other tests of this file would prove nothing."""
    recording = Recording(quick_path, ops=Forgetful(leave_out))
    for number in range(3):
        recording.append(number)
    roll(recording.log)
    recording.append(0)
    with pytest.raises((AssertionError, RmqError)):
        recording.crash_everywhere(0, check_sync(recording))


def test_sync_appends(quick_path: Path, seed: int) -> None:
    recording = Recording(quick_path)
    for number in range(4):
        recording.append(*range(number % 3 + 1))
    states = recording.crash_everywhere(seed, check_sync(recording))
    print(f"{len(recording.ops.calls)} operations, {states} crash states")
    assert len(recording.acked) == 4 and states > 4


def test_rolls_snapshots_expiry_and_collection(quick_path: Path, seed: int) -> None:
    recording = Recording(quick_path, segment_bytes=3_000)
    log = recording.log
    recording.append(0, 1)
    recording.append(1)
    log.snapshot()
    recording.append(0)
    assert roll(log).deleted >= 3
    recording.append(2, 0)
    recording.append_files(1, 0, 1)
    log.snapshot()
    roll(log)
    collect(log)
    recording.append(0)
    roll(log, min_commits=1)
    recording.append(1)
    gone = expire(log, before_ms=log.clock.now_ms() + 1)
    assert gone.segments
    recording.append(0, 1, 2)
    with recording.open() as second:  # a writer that knows only what the disk says
        recording.append(1, log=second)
    states = recording.crash_everywhere(seed, check_sync(recording))
    print(f"{len(recording.ops.calls)} operations, {states} crash states")
    assert states > 30


def test_async_appends_are_cut_behind_the_first_loss(quick_path: Path, seed: int) -> None:
    recording = Recording(quick_path, flush=Flush.ASYNC, flush_interval_ms=3_600_000)
    recording.append(0, 1)
    recording.append(0)
    recording.flush()
    recording.append(1)
    recording.append(0)
    recording.append(2, 1)
    recording.flush()
    recording.append(0)
    states = recording.crash_everywhere(seed, check_async(recording))
    print(f"{len(recording.ops.calls)} operations, {states} crash states")
    assert states > 30


def test_async_appends_with_rolls_and_snapshots(quick_path: Path, seed: int) -> None:
    """A snapshot may survive although a commit below it did not."""
    recording = Recording(quick_path, flush=Flush.ASYNC, flush_interval_ms=3_600_000)
    recording.append(0, 1)
    recording.append(0)
    recording.append(1)
    recording.log.snapshot()
    recording.append(2)
    roll(recording.log)
    recording.flushed()  # what is in a segment was flushed with it
    recording.append(0)
    recording.append(1)
    recording.log.snapshot()
    recording.append(0)
    recording.flush()
    states = recording.crash_everywhere(seed, check_async(recording))
    print(f"{len(recording.ops.calls)} operations, {states} crash states")
    assert states > 30


def test_a_sync_append_makes_its_predecessors_durable(quick_path: Path, seed: int) -> None:
    recording = Recording(quick_path, flush=Flush.ASYNC, flush_interval_ms=3_600_000)
    recording.append(0, 1)
    recording.append(0)
    with recording.open(Flush.SYNC) as strict:
        recording.append(0, log=strict)  # acknowledged: it and everything below survives
        recording.append(1)
        recording.append(0, log=strict)
    states = recording.crash_everywhere(seed, check_async(recording))
    print(f"{len(recording.ops.calls)} operations, {states} crash states")
    assert len(recording.acked) == 5


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_random_mixes(quick_path: Path, seed: int, part: int) -> None:
    """Any order of appends, rolls, snapshots, expiries and flushes, with handles of both policies."""
    rng = random.Random(seed + part)
    recording = Recording(quick_path, segment_bytes=4_000, flush=Flush.ASYNC, flush_interval_ms=3_600_000)
    strict = recording.open(Flush.SYNC)
    for _ in range(22):
        match rng.choice("aaaaasssrefx"):
            case "a":
                recording.append(*[rng.randrange(3) for _ in range(rng.choice((1, 1, 3)))])
            case "s":
                recording.append(*[rng.randrange(3) for _ in range(rng.choice((1, 1, 3)))], log=strict)
            case "r":
                if roll(recording.log).segments:
                    recording.flushed()
            case "e":
                expire(recording.log, before_ms=recording.log.clock.now_ms() + 1)
            case "f":
                recording.flush()
            case "x":
                strict.refresh()
                strict.snapshot()
    states = recording.crash_everywhere(seed + part, check_async(recording))
    print(f"{len(recording.ops.calls)} operations, {states} crash states")
