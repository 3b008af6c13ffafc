"""Snapshots save time, never decide anything: a wrong one is passed over."""

from __future__ import annotations

import json

import pytest
from counters import Counters, increment, value_of
from faulty import BROKER, ROOT, Wrapped, ids, message, open_log

from rmq_spark.clock import ManualClock
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.queues import Queues
from rmq_spark.log.roll import roll
from rmq_spark.log.snapshot import comparable
from rmq_spark.log.state import HelpedRows, LastAppend, LogState
from rmq_spark.storage import paths
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.testing.history import check_log, read_messages


def snapshots(storage: MemoryStorage) -> list[str]:
    return sorted(info.name for info in storage.list(paths.snapshots(ROOT)))


def replace(storage: MemoryStorage, path: str, data: bytes) -> None:
    storage.delete(path)
    storage.create_if_absent(path, [data])


def essence(state: LogState) -> object:
    queues = {topic: list(state.queues.of_topic(topic)) for topic in state.queues.topics()}
    folds = {fold.name: fold.dump() for fold in state.folds.values()}
    return state.offset, state.digest, state.store_ms, state.writers, queues, folds, state.commits.firsts


def filled(storage: MemoryStorage, count: int = 6) -> CommitLog:
    log = open_log(storage)
    for number in range(count):
        log.append(message(f"m{number}", queue=number % 2), app=("app", number))
    return log


def reopened_commits_folded(storage: MemoryStorage) -> int:
    with open_log(storage) as log:
        return log.view.folded


class TestUse:
    def test_a_reopened_log_folds_only_what_came_later(self) -> None:
        storage = MemoryStorage()
        with filled(storage) as log:
            log.snapshot()
            log.append(message("late"))
        assert reopened_commits_folded(storage) == 1

    def test_same_state_with_and_without(self) -> None:
        storage = MemoryStorage()
        with filled(storage) as log:
            log.snapshot()
            log.append(message("late"))
        with open_log(storage) as quick:
            for name in snapshots(storage):
                storage.delete(f"{paths.snapshots(ROOT)}/{name}")
            with open_log(storage) as slow:
                assert slow.view.folded == 7 and quick.view.folded == 1
                assert essence(slow.view.state) == essence(quick.view.state)
                assert read_messages(slow) == read_messages(quick)

    def test_written_by_itself_and_only_a_few_kept(self) -> None:
        storage = MemoryStorage()
        with open_log(storage, snapshot_every_commits=3) as log:
            for number in range(20):
                log.append(message(f"m{number}"))
        assert [int(name[:20]) for name in snapshots(storage)] == [15, 18]

    def test_what_an_interrupted_append_tried_is_not_in_it(self) -> None:
        weak = Wrapped(MemoryStorage())

        def interrupt(path: str) -> None:
            weak.before_create = None
            raise KeyboardInterrupt

        with open_log(weak, folds=[Counters]) as log:
            log.append(message("a"))
            weak.before_create = interrupt
            with pytest.raises(KeyboardInterrupt):
                log.decide(increment())
            assert log.snapshot() is not None
            assert value_of(open_log(weak, folds=[Counters]).view.state) == 0

    def test_a_reader_that_follows_counts_too(self) -> None:
        storage = MemoryStorage()
        with open_log(storage) as other, open_log(storage, snapshot_every_commits=4) as log:
            for number in range(5):
                other.append(message(f"m{number}"))
            log.append(message("mine"))
        assert len(snapshots(storage)) == 1

    def test_rolling_makes_it_useless_and_deletes_it(self) -> None:
        storage = MemoryStorage()
        with filled(storage) as log:
            log.snapshot()
            log.append(message("late"))
            roll(log)
            assert snapshots(storage) == []
            log.append(message("later"))
        assert reopened_commits_folded(storage) == 1


class TestNotTrusted:
    """Each time: the log opens as if the snapshot were not there."""

    def check(self, storage: MemoryStorage, expected: list[str], folded: int) -> None:
        with open_log(storage) as log:
            assert ids(log) == expected
            assert log.view.folded == folded
        check_log(storage, ROOT, BROKER, acked=[])

    @pytest.mark.parametrize("damage", ["empty", "half", "bit", "foreign"])
    def test_damaged(self, damage: str) -> None:
        storage = MemoryStorage()
        with filled(storage) as log:
            path = log.snapshot()
        assert path is not None
        data = storage.read(path)
        middle = len(data) // 2
        replace(
            storage,
            path,
            {
                "empty": b"",
                "half": data[:middle],
                "bit": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "foreign": b"not an Arrow file at all, but somebody's notes",
            }[damage],
        )
        self.check(storage, [f"m{number}" for number in range(6)], 6)

    def test_every_single_byte(self) -> None:
        """Whatever byte is wrong, the state is right."""
        storage = MemoryStorage()
        with filled(storage, 2) as log:
            path = log.snapshot()
            expected = essence(log.view.state)
        assert path is not None
        data = storage.read(path)
        for at in range(0, len(data), 97):
            replace(storage, path, data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
            with open_log(storage) as log:
                assert essence(log.view.state) == expected, at

    def test_an_older_good_one_is_used(self) -> None:
        storage = MemoryStorage()
        with filled(storage) as log:
            log.snapshot()
            log.append(message("late"))
            newer = log.snapshot()
        assert newer is not None
        replace(storage, newer, b"")
        self.check(storage, ["m0", "m1", "m2", "m3", "m4", "m5", "late"], 1)

    def test_of_another_history(self) -> None:
        """The same offsets, other commits: as after a restore from a backup."""
        storage, other = MemoryStorage(), MemoryStorage()
        with filled(storage), filled(other) as theirs:
            path = theirs.snapshot()
        assert path is not None
        storage.create_if_absent(path, [other.read(path)])
        self.check(storage, [f"m{number}" for number in range(6)], 6)

    def test_ahead_of_the_log(self) -> None:
        storage, other = MemoryStorage(), MemoryStorage()
        with filled(storage), filled(other, 9) as theirs:
            path = theirs.snapshot()
        assert path is not None
        storage.create_if_absent(path, [other.read(path)])
        self.check(storage, [f"m{number}" for number in range(6)], 6)

    def test_another_kind_of_file(self) -> None:
        storage = MemoryStorage()
        with filled(storage) as log:
            path = paths.snapshot(ROOT, log.view.state.offset, "x")
        storage.create_if_absent(path, [storage.read(paths.commit(ROOT, 0))])
        self.check(storage, [f"m{number}" for number in range(6)], 6)

    def test_a_foreign_name(self) -> None:
        storage = MemoryStorage()
        with filled(storage) as log:
            log.snapshot()
        storage.create_if_absent(f"{paths.snapshots(ROOT)}/zzz-notes.txt", [b"hello"])
        storage.create_if_absent(f"{paths.snapshots(ROOT)}/README", [b"hello"])
        self.check(storage, [f"m{number}" for number in range(6)], 0)


def test_opening_after_everything_before_was_expired() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    with open_log(storage, clock=clock, segment_span_ms=1_000, retention_ms=5_000) as log:
        for number in range(5):
            log.append(message(f"m{number}", queue=number % 2), app=("app", number))
            clock.advance(3)
        clock.advance(60)
        assert expire(log).log_start == 4
        log.append(message("new"))
        expected = essence(log.view.state)
    with open_log(storage, clock=clock) as fresh:
        assert essence(fresh.view.state) == expected
        assert ids(fresh) == ["m4", "new"]
        assert fresh.view.state.queues.bounds("t", 0) == (2, 4)
        assert fresh.view.state.queues.bounds("t", 1) == (2, 2)
        assert fresh.append(message("again"), app=("app", 4)).repeated, "sink batches are remembered"
    with open_log(storage, clock=clock) as newer:
        newer.append(message("w2"))
    check_log(storage, ROOT, BROKER, acked=[])


def test_copies_of_older_versions_compare_equal_to_what_is_folded_now() -> None:
    folded = LogState()
    folded.store_ms = 1_000
    folded.helped = {"token": HelpedRows(900, 3, 950, [0], [5])}
    folded.writers = {"handle": LastAppend(4, 950)}
    older = folded.dump()
    core = json.loads(older["core"])
    core["helped"]["token"] = core["helped"]["token"][:4]  # an older version did not note queue offsets,
    core["writers"]["job"] = [2, 9, "other handle", 940]  # and let writers have names
    older["core"] = json.dumps(core).encode()
    loaded, _ = LogState.load(older)
    assert loaded.writers == folded.writers
    assert comparable(loaded, 0, Queues()) == comparable(folded, 0, Queues())
