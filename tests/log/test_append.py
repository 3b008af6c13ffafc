"""Appending: group commit, conditions, the kinds of failure, retries, flush policies, clocks, full disks."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from faulty import BROKER, ROOT, FailingOps, Wrapped, append_if, ids, message, open_log

from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.errors import (
    ClockSkewError,
    ClosedError,
    FencedError,
    InvalidRequestError,
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    ReadOnlyError,
    RmqError,
    StorageFullError,
    UnavailableError,
)
from rmq_spark.log import append as append_module
from rmq_spark.log.collect import collect
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.group_commit import GroupCommit
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Request
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import RowFile, write_row_file
from rmq_spark.log.state import LogState
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.storage import paths
from rmq_spark.storage.local import LocalStorage
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.testing.history import check_log, read_messages


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []
    gate = threading.Barrier(count)

    def run(index: int) -> None:
        try:
            gate.wait()
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class TestGroupCommit:
    def test_sixteen_threads_share_commits(self, tmp_path: Path) -> None:
        ops = FailingOps()
        slow = ops.fsync
        ops.fsync = lambda fd: (time.sleep(0.002), slow(fd))[1]  # type: ignore[method-assign,func-returns-value]
        with open_log(LocalStorage(tmp_path, ops=ops), append_timeout_ms=20_000) as log:

            def work(index: int) -> None:
                for n in range(10):
                    log.append(message(f"{index}-{n}"))

            in_threads(16, work)
            commits = len(log.refresh().state.commits.firsts)
            assert log.view.state.offset == 160
            assert commits < 60, "callers do not share commits"
            found = ids(log)
        for index in range(16):
            mine = [msg_id for msg_id in found if msg_id.startswith(f"{index}-")]
            assert mine == [f"{index}-{n}" for n in range(10)]

    def test_every_caller_learns_its_own_offsets(self) -> None:
        offsets: dict[str, tuple[int, int]] = {}
        with open_log() as log:

            def work(index: int) -> None:
                for n in range(10):
                    batch = MessageBatch.merge(
                        [message(f"{index}-{n}-{k}", topic=f"t{k}", queue=index % 3) for k in (1, 0)]
                    )
                    result = log.append(batch)
                    assert result.queue_offsets is not None and result.commit_offsets is not None
                    for row, k in enumerate((1, 0)):
                        place = int(result.queue_offsets[row]), int(result.commit_offsets[row])
                        offsets[f"{index}-{n}-{k}"] = place

            in_threads(8, work)
            there = {m.msg_id: (m.queue_offset, m.commit_offset) for m in read_messages(log)}
        assert offsets == there

    @pytest.mark.parametrize("limit", [{"group_rows_max": 4}, {"group_bytes_max": 400}])
    def test_limits(self, limit: dict[str, int]) -> None:
        """Each message has 100 bytes, so both limits mean four messages a commit."""
        storage = Wrapped(MemoryStorage())
        with open_log(storage, **limit) as log:
            gate = threading.Event()
            storage.before_create = lambda path: gate.wait(5) and None
            threads = [
                threading.Thread(target=lambda n=n: log.append(message(f"m{n}", body=b"x" * 100))) for n in range(13)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.1)  # one leads and waits, twelve queue up
            gate.set()
            for thread in threads:
                thread.join()
            firsts = log.refresh().state.commits.firsts.tolist()
            assert firsts == [0, 1, 5, 9]

    def test_one_larger_than_the_limit_still_goes(self) -> None:
        with open_log(group_rows_max=2) as log:
            result = log.append(MessageBatch.merge([message(f"m{n}") for n in range(5)]))
            assert result.commit_offsets is not None and result.commit_offsets.tolist() == [0, 1, 2, 3, 4]

    def test_a_failing_condition_fails_only_its_caller(self) -> None:
        refused = []
        with open_log() as log:

            def work(index: int) -> None:
                for n in range(5):
                    if index == 0:
                        with pytest.raises(PreconditionFailedError):
                            append_if(log, message(f"bad{n}"), lambda state: "no")
                        refused.append(n)
                    else:
                        log.append(message(f"{index}-{n}"))

            in_threads(4, work)
            assert len(refused) == 5
            assert log.refresh().state.offset == 15

    def test_an_empty_batch_is_refused(self) -> None:
        with open_log() as log, pytest.raises(InvalidRequestError):
            log.append(MessageBatch([]))

    def test_closed_and_read_only_handles(self) -> None:
        storage = MemoryStorage()
        log = open_log(storage)
        log.close()
        log.close()
        with pytest.raises(ClosedError):
            log.append(message("a"))
        reader = CommitLog(storage, ROOT, BROKER, read_only=True)
        with pytest.raises(ReadOnlyError):
            reader.append(message("a"))
        assert ids(reader) == []


class TestConditions:
    def test_asked_again_at_each_new_position(self) -> None:
        storage = MemoryStorage()
        asked: list[int] = []
        with open_log(storage) as one, open_log(storage) as two:
            two.append(message("a"))

            def expect(state: LogState) -> str | None:
                asked.append(state.offset)
                return None

            result = append_if(one, message("b"), expect)
            assert asked == [0, 1]
            assert result.commit_offsets is not None and result.commit_offsets.tolist() == [1]

    def test_no_longer_holds_at_the_new_position(self) -> None:
        storage = MemoryStorage()
        with open_log(storage) as one, open_log(storage) as two:

            def still_empty(state: LogState) -> str | None:
                return None if state.offset == 0 else "somebody was here"

            append_if(two, message("a"), still_empty)
            with pytest.raises(PreconditionFailedError, match="somebody was here"):
                append_if(one, message("b"), still_empty)
            assert ids(one) == ["a"]

    def test_exactly_one_of_many_wins(self) -> None:
        storage = MemoryStorage()
        won: list[int] = []

        def work(index: int) -> None:
            with open_log(storage, append_timeout_ms=10_000) as log:
                try:
                    append_if(log, message(f"m{index}"), lambda state: "taken" if state.offset else None)
                except PreconditionFailedError:
                    return
                won.append(index)

        in_threads(8, work)
        assert len(won) == 1
        with open_log(storage) as log:
            assert ids(log) == [f"m{won[0]}"]


class TestKindsOfFailure:
    """Each means something else for the caller, so none is a kind of another."""

    def test_they_are_distinct(self) -> None:
        kinds: list[type[RmqError]] = [LostRaceError, PreconditionFailedError, FencedError, OutcomeUnknownError]
        for kind in kinds:
            assert [other for other in kinds if issubclass(kind, other)] == [kind]
        assert [kind.retriable for kind in kinds] == [True, False, False, True]

    def test_lost_race(self) -> None:
        storage = Wrapped(MemoryStorage())
        with open_log(storage, append_timeout_ms=50) as slow, open_log(storage.inner, append_timeout_ms=5_000) as quick:
            numbers = iter(range(1 << 20))

            def be_quicker(path: str) -> None:
                if "commitlog" in path:
                    time.sleep(0.01)
                    quick.append(message(f"q{next(numbers)}"))

            storage.before_create = be_quicker
            with pytest.raises(LostRaceError):
                append_if(slow, message("s"), lambda state: None)  # a decision, which nobody else may land
            storage.before_create = None
            assert "s" not in ids(slow)
            slow.append(message("s"))
            assert ids(slow)[-1] == "s"

    def test_a_race_is_lost_at_the_deadline_also_if_each_slot_was_taken_before_a_try(self) -> None:
        """Whoever has the turn looks first; those whose turn it is not may be faster each time."""
        storage = Wrapped(MemoryStorage())
        storage.turn = lambda directory, timeout: nullcontext(True)  # type: ignore[method-assign]
        with open_log(storage, append_timeout_ms=0) as slow, open_log(storage.inner, append_timeout_ms=5_000) as quick:
            left = 100

            def taken(path: str) -> bool:
                nonlocal left
                if "commitlog" in path and left:
                    left -= 1
                    quick.append(message(f"q{left}"))
                return storage.inner.exists(path)

            storage.exists = taken  # type: ignore[method-assign]
            with pytest.raises(LostRaceError):
                append_if(slow, message("s"), lambda state: None)
            assert left

    def test_a_loser_is_landed_by_the_winner(self) -> None:
        storage = Wrapped(MemoryStorage())
        with open_log(storage, append_timeout_ms=60_000) as slow, open_log(storage.inner) as quick:
            quick.append(message("first"))  # each knows of the other
            slow.append(message("second"))
            numbers = iter(range(1 << 20))

            def be_quicker(path: str) -> None:
                if "commitlog" in path:
                    quick.append(message(f"q{next(numbers)}"))

            storage.before_create = be_quicker
            result = slow.append(message("s"))
            storage.before_create = None
            assert result.commit_offsets is not None and result.queue_offsets is not None
            rows = {m.msg_id: (m.commit_offset, m.queue_offset) for m in read_messages(open_log(storage.inner))}
            assert rows["s"] == (result.commit_offsets[0], result.queue_offsets[0])
            assert list(storage.list(paths.announced(ROOT))) == []
        check_log(storage, ROOT, BROKER, acked=[])

    def test_unavailable_means_nothing_was_written(self) -> None:
        storage = Wrapped(MemoryStorage())

        def refuse(path: str) -> None:
            raise UnavailableError("not now")

        with open_log(storage) as log:
            storage.before_create = refuse
            with pytest.raises(UnavailableError):
                log.append(message("a"))
            storage.before_create = None
            log.append(message("a"))
            assert ids(log) == ["a"]


class LostReplies:
    """Makes creates of commits end unclear: landed or not, as the test wants."""

    def __init__(self, *, landed: bool) -> None:
        self.storage = Wrapped(MemoryStorage())
        self.landed = landed

    def start(self) -> None:
        def lose(path: str) -> None:
            if "commitlog" in path:
                raise OutcomeUnknownError("no reply")

        if self.landed:
            self.storage.after_create = lose
        self.storage.before_create = None if self.landed else lose
        if self.landed:
            # The reply of every create is lost, also of the repeated one.
            self.storage.before_create = lambda path: lose(path) if self.storage.exists(path) else None

    def stop(self) -> None:
        self.storage.before_create = self.storage.after_create = None


@pytest.mark.parametrize("landed", [True, False])
class TestUnclearAnswers:
    def test_retry_lands_once(self, landed: bool) -> None:
        lost = LostReplies(landed=landed)
        with open_log(lost.storage, append_timeout_ms=30) as log:
            log.append(message("before"))
            batch = message("a")
            lost.start()
            with pytest.raises(OutcomeUnknownError):
                log.append(batch)
            if not landed:
                with pytest.raises(OutcomeUnknownError):
                    log.append(batch)
            lost.stop()
            result = log.append(batch)
            log.append(message("after"))
            assert ids(log) == ["before", "a", "after"]
            assert result.commit_offsets is not None and result.commit_offsets.tolist() == [1]
        check_log(lost.storage, ROOT, BROKER, acked=[])

    def test_retry_reports_the_place(self, landed: bool) -> None:
        lost = LostReplies(landed=landed)
        with open_log(lost.storage, append_timeout_ms=30) as log:
            batch = MessageBatch.merge([message("b", queue=2), message("a", queue=1)])
            lost.start()
            with pytest.raises(OutcomeUnknownError):
                log.append(batch)
            lost.stop()
            result = log.append(batch)
            assert result.repeated is landed
            assert result.commit_offsets is not None and result.commit_offsets.tolist() == [1, 0]
            assert result.queue_offsets is not None and result.queue_offsets.tolist() == [0, 0]

    def test_another_append_comes_between(self, landed: bool) -> None:
        lost = LostReplies(landed=landed)
        with open_log(lost.storage, append_timeout_ms=30) as log, open_log(lost.storage.inner) as other:
            batch = message("a")
            lost.start()
            with pytest.raises(OutcomeUnknownError):
                log.append(batch)
            lost.stop()
            other.append(message("b"))
            log.append(message("c"))
            log.append(batch)
            assert sorted(ids(log)) == ["a", "b", "c"]
            assert ids(log)[0] == ("a" if landed else "b")

    def test_everything_is_rolled_between(self, landed: bool) -> None:
        lost = LostReplies(landed=landed)
        with open_log(lost.storage, append_timeout_ms=30) as log, open_log(lost.storage.inner) as other:
            batch = message("a")
            lost.start()
            with pytest.raises(OutcomeUnknownError):
                log.append(batch)
            lost.stop()
            for n in range(3):
                other.append(message(f"b{n}"))
            roll(other)
            result = log.append(batch)
            assert result.repeated is landed
            assert sorted(ids(log)) == ["a", "b0", "b1", "b2"]

    def test_a_retry_that_is_refused_forgets_nothing(self, landed: bool) -> None:
        """The storage refuses the second try for certain; that says nothing about the first."""
        lost = LostReplies(landed=landed)

        def refuse(path: str) -> None:
            raise UnavailableError("not now")

        with open_log(lost.storage, append_timeout_ms=30) as log:
            batch = message("a")
            lost.start()
            with pytest.raises(OutcomeUnknownError):
                log.append(batch)
            lost.stop()
            lost.storage.before_create = refuse
            if landed:
                log.append(batch)  # reading is enough to find out
            else:
                with pytest.raises(OutcomeUnknownError):
                    log.append(batch)
                lost.stop()
                log.append(batch)
            assert ids(log) == ["a"]

    def test_a_retry_on_a_full_disk_forgets_nothing(self, landed: bool) -> None:
        lost = LostReplies(landed=landed)
        clock = ManualClock()
        with open_log(lost.storage, append_timeout_ms=30, clock=clock) as log:
            batch = message("a")
            lost.start()
            with pytest.raises(OutcomeUnknownError):
                log.append(batch)
            lost.stop()
            clock.advance(5)
            lost.storage.usage = (99, 100)
            if landed:
                log.append(batch)
            else:
                with pytest.raises(OutcomeUnknownError):
                    log.append(batch)
                lost.storage.usage = None
                log.append(batch)
            assert ids(log) == ["a"]

    def test_a_group_of_callers(self, landed: bool) -> None:
        """All of them hear that it is unclear, each tries again, each is there once."""
        lost = LostReplies(landed=landed)
        with open_log(lost.storage, append_timeout_ms=40, linger_ms=50) as log:
            batches = [message(f"m{n}", queue=n % 2) for n in range(6)]
            unclear: list[int] = []
            lost.start()

            def work(index: int) -> None:
                try:
                    log.append(batches[index])
                except OutcomeUnknownError:
                    unclear.append(index)

            in_threads(6, work)
            lost.stop()
            results = {index: log.append(batches[index]) for index in unclear}
            there = {m.msg_id: m for m in read_messages(log)}
            assert sorted(ids(log)) == [f"m{n}" for n in range(6)]
            for index, result in results.items():
                assert result.commit_offsets is not None and result.queue_offsets is not None
                assert result.commit_offsets.tolist() == [there[f"m{index}"].commit_offset]
                assert result.queue_offsets.tolist() == [there[f"m{index}"].queue_offset]
        check_log(lost.storage, ROOT, BROKER, acked=[])

    def test_a_group_whose_first_retry_fails_for_certain(self, landed: bool) -> None:
        """One caller is told that nothing was written: then another's retry must not write it after all."""
        lost = LostReplies(landed=landed)
        gate = threading.Event()
        with open_log(lost.storage, append_timeout_ms=40) as log, open_log(lost.storage.inner) as other:
            head, batches = message("head"), [message("a"), message("b")]
            lost.storage.before_create = lambda path: gate.wait(5) and None
            threads = [threading.Thread(target=_swallow, args=(log, batch)) for batch in (head, *batches)]
            threads[0].start()
            time.sleep(0.05)
            for thread in threads[1:]:
                thread.start()
            time.sleep(0.05)

            def first_passes(path: str) -> None:
                lost.start()  # the head's commit passes, the group behind it ends unclear

            lost.storage.after_create = first_passes
            gate.set()
            for thread in threads:
                thread.join()
            lost.stop()
            other.append(message("other"))  # settles the slot, if it was not taken

            def refuse(path: str) -> None:
                raise UnavailableError("not now")

            if not landed:
                lost.storage.before_create = refuse
                with pytest.raises(UnavailableError):
                    log.append(batches[0])
                lost.stop()
            log.append(batches[1])
            expected = ["a", "b", "head", "other"] if landed else ["b", "head", "other"]
            assert sorted(ids(log)) == expected
            log.append(batches[0])
            assert sorted(ids(log)) == ["a", "b", "head", "other"]


def _swallow(log: CommitLog, batch: MessageBatch) -> None:
    try:
        log.append(batch)
    except OutcomeUnknownError:
        return


class TestDurabilityOfRetries:
    def test_a_failed_flush_is_never_acknowledged(self, tmp_path: Path) -> None:
        """The commit is visible, but its directory could not be flushed: a retry may not call that success."""
        ops = FailingOps()
        with open_log(LocalStorage(tmp_path, ops=ops), append_timeout_ms=30) as log:
            log.append(message("before"))
            batch = message("a")
            ops.failing, ops.error = "fsync_dir", OSError(errno.EIO, "broken disk")
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError):
                    log.append(batch)
        with open_log(LocalStorage(tmp_path)) as log:
            assert ids(log) == ["before", "a"]

    def test_an_async_commit_that_ended_unclear_is_flushed_too(self, tmp_path: Path) -> None:
        ops = FailingOps()
        storage = Wrapped(LocalStorage(tmp_path, ops=ops))
        with open_log(storage, append_timeout_ms=30, flush=Flush.ASYNC) as log:
            batch = message("a")

            def lose(path: str) -> None:
                if "commitlog" in path:
                    raise OutcomeUnknownError("no reply")

            storage.after_create = lose
            storage.before_create = lambda path: lose(path) if storage.exists(path) else None
            with pytest.raises(OutcomeUnknownError):
                log.append(batch)
            storage.after_create = storage.before_create = None
            log.append(batch)
            log.flush()
            assert f"{0:020d}.arrow" in ops.synced

    def test_a_snapshot_that_fails_is_no_failed_append(self) -> None:
        storage = Wrapped(MemoryStorage())

        def lose(path: str) -> None:
            if "snapshots" in path:
                raise OutcomeUnknownError("no reply")

        storage.after_create = lose
        with open_log(storage, snapshot_every_commits=1) as log:
            for n in range(3):
                log.append(message(f"m{n}"))
            assert ids(log) == ["m0", "m1", "m2"]


class TestBuffered:
    def test_visible_within_the_linger(self) -> None:
        storage = MemoryStorage()
        with open_log(storage, flush=Flush.BUFFERED, linger_ms=20) as log, open_log(storage) as reader:
            result = log.append(message("a"))
            assert result.commit_offsets is None
            deadline = time.monotonic() + 3
            while not ids(reader):
                assert time.monotonic() < deadline
                time.sleep(0.005)

    def test_order_is_kept_and_close_flushes(self, tmp_path: Path) -> None:
        ops = FailingOps()
        with open_log(LocalStorage(tmp_path, ops=ops), flush=Flush.BUFFERED, linger_ms=1) as log:
            for n in range(200):
                log.append(message(f"m{n:03d}"))
        with open_log(LocalStorage(tmp_path)) as reader:
            assert ids(reader) == [f"m{n:03d}" for n in range(200)]
            commits = reader.view.state.commits.firsts
            assert len(commits) < 100
            assert {f"{first:020d}.arrow" for first in commits} <= set(ops.synced)

    def test_close_right_after_the_first_append_flushes(self, tmp_path: Path) -> None:
        ops = FailingOps()
        log = open_log(LocalStorage(tmp_path, ops=ops), flush=Flush.BUFFERED, linger_ms=10_000)
        log.append(message("a"))
        closer = threading.Thread(target=log.close)
        closer.start()
        closer.join(20)
        assert not closer.is_alive()
        assert f"{0:020d}.arrow" in ops.synced

    def test_an_append_with_a_condition_does_not_overtake(self) -> None:
        with open_log(flush=Flush.BUFFERED, linger_ms=200) as log:
            log.append(message("a"))
            append_if(log, message("b"), lambda state: None)
            log.append(message("c"))
            log.append(message("d"), app=("app", 1))
            log.flush()
            assert ids(log) == ["a", "b", "c", "d"]

    def test_errors_surface_and_nothing_is_lost(self) -> None:
        storage = Wrapped(MemoryStorage())

        def refuse(path: str) -> None:
            raise UnavailableError("not now")

        log = open_log(storage, flush=Flush.BUFFERED, linger_ms=1)
        storage.before_create = refuse
        log.append(message("a"))
        time.sleep(0.1)
        with pytest.raises(UnavailableError):
            log.append(message("lost to its caller's knowledge"))
        with pytest.raises(UnavailableError):
            log.flush()
        storage.before_create = None
        log.append(message("b"))
        log.flush()
        assert ids(log) == ["a", "b"]
        storage.before_create = refuse
        log.append(message("c"))
        with pytest.raises(UnavailableError):
            log.close()

    def test_the_size_limit_commits_at_once(self) -> None:
        with open_log(flush=Flush.BUFFERED, linger_ms=10_000, group_bytes_max=1_000) as log:
            log.append(message("a", body=b"x" * 2_000))
            assert log.refresh().state.offset == 1


class TestAsync:
    def test_fsynced_within_the_interval(self, tmp_path: Path) -> None:
        ops = FailingOps()
        with open_log(LocalStorage(tmp_path, ops=ops), flush=Flush.ASYNC, flush_interval_ms=100) as log:
            for n in range(3):
                log.append(message(f"m{n}"))
            assert not [name for name in ops.synced if name.endswith(".arrow")]
            wanted = {f"{n:020d}.arrow" for n in range(3)}
            deadline = time.monotonic() + 3
            while not wanted <= set(ops.synced):
                assert time.monotonic() < deadline, ops.synced
                time.sleep(0.01)

    def test_a_failed_flush_surfaces(self, tmp_path: Path) -> None:
        ops = FailingOps()
        log = open_log(LocalStorage(tmp_path, ops=ops), flush=Flush.ASYNC, flush_interval_ms=60_000)
        log.append(message("a"))
        ops.failing, ops.error = "fsync", OSError(errno.EIO, "broken disk")
        for _ in range(2):  # it is not forgotten by being told
            with pytest.raises(OutcomeUnknownError):
                log.flush()

    def test_close_flushes(self, tmp_path: Path) -> None:
        ops = FailingOps()
        with open_log(LocalStorage(tmp_path, ops=ops), flush=Flush.ASYNC, flush_interval_ms=50) as log:
            log.append(message("a"))
        assert f"{0:020d}.arrow" in ops.synced


class TestClocks:
    def times(self, log: CommitLog) -> list[int]:
        return [m.store_ms for m in read_messages(log)]

    def test_time_never_goes_back(self) -> None:
        storage, clock = MemoryStorage(), ManualClock(1_000_000_000_000)
        with open_log(storage, clock=clock) as log:
            for jump in (0, -3_600_000, 60_000, -1, -86_400_000, 200_000, 5, 0, 99_000):
                clock.wall_ms += jump
                log.append(message(f"m{jump}"))
            times = self.times(log)
        assert times == sorted(times)
        assert times[0] == 1_000_000_000_000 == times[1]

    def test_two_clocks(self) -> None:
        storage = MemoryStorage()
        fast, slow = ManualClock(1_000_000_100_000), ManualClock(1_000_000_000_000)
        with open_log(storage, clock=fast) as one, open_log(storage, clock=slow) as two:
            for n in range(4):
                (one, two)[n % 2].append(message(f"m{n}"))
                fast.advance(1)
                slow.advance(1)
            times = self.times(one)
        assert times == sorted(times)

    @pytest.mark.parametrize("opened", ["before", "while it was back"])
    def test_a_clock_that_was_a_day_back_and_is_corrected_is_no_jump_ahead(self, opened: str) -> None:
        storage, clock, day_ms = MemoryStorage(), ManualClock(1_000_000_000_000), 86_400_000
        with open_log(storage, clock=clock) as before:
            before.append(message("a"))
            clock.wall_ms -= day_ms
            with open_log(storage, clock=clock) as between:
                log = before if opened == "before" else between
                log.append(message("b"))
                clock.wall_ms += day_ms
                clock.advance(1)
                log.append(message("c"))
                clock.wall_ms += day_ms
                with pytest.raises(ClockSkewError):
                    log.append(message("d"))
            assert self.times(before) == [1_000_000_000_000, 1_000_000_000_000, 1_000_000_001_000]

    def test_a_jump_ahead_is_refused(self) -> None:
        clock = ManualClock(1_000_000_000_000)
        with open_log(clock=clock, clock_ahead_max_ms=10_000) as log:
            log.append(message("a"))
            clock.wall_ms += 86_400_000
            with pytest.raises(ClockSkewError) as caught:
                log.append(message("b"))
            assert caught.value.context["clock_ms"] == 1_000_086_400_000
            assert caught.value.context["expected_ms"] == 1_000_000_000_000
            clock.wall_ms -= 86_400_000
            log.append(message("b"))
            clock.advance(86_400)  # a day that really passed
            log.append(message("c"))
            assert ids(log) == ["a", "b", "c"]


class TestSinkBatches:
    def test_a_repeated_batch_is_written_once(self) -> None:
        storage = MemoryStorage()
        with open_log(storage) as one, open_log(storage) as two:
            first = one.append(message("a"), app=("query", 0))
            again = one.append(message("a2"), app=("query", 0))
            elsewhere = two.append(message("a3"), app=("query", 0))
            assert (first.repeated, again.repeated, elsewhere.repeated) == (False, True, True)
            two.append(message("b"), app=("query", 1))
            assert one.append(message("late"), app=("query", 0)).repeated
            one.append(message("c"), app=("other", 0))
            assert ids(one) == ["a", "b", "c"]


class TestRowFiles:
    def file(self, log: CommitLog, name: str, *batches: MessageBatch) -> RowFile:
        return write_row_file(log.storage, ROOT, MessageBatch.merge(batches), nonce=name, block_bytes=1 << 18)

    def test_several_files_are_one_commit(self) -> None:
        with open_log() as log:
            log.append(message("before", queue=1))
            files = [
                self.file(log, "f1", message("a", queue=1), message("b", queue=0)),
                self.file(log, "f2", message("c", queue=1)),
            ]
            result = log.append_files(files)
            assert result.commit_offsets is not None and result.commit_offsets.tolist() == [1, 2, 3]
            there = {m.msg_id: (m.queue, m.queue_offset) for m in read_messages(log)}
            assert there == {"before": (1, 0), "b": (0, 0), "a": (1, 1), "c": (1, 2)}
        check_log(log.storage, ROOT, BROKER, acked=[])

    def test_offsets_are_worked_out_only_for_those_who_ask(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A sink's commit may have very many rows, and nobody asks where each of them is."""

        def refuse(*arguments: object) -> None:
            raise AssertionError("worked out")

        monkeypatch.setattr(append_module, "offsets_of", refuse)
        with open_log() as log:
            result = log.append_files([self.file(log, "f1", message("a"))])
            with pytest.raises(AssertionError, match="worked out"):
                _ = result.commit_offsets

    def test_the_same_file_twice(self) -> None:
        with open_log() as log:
            file = self.file(log, "f1", message("a"))
            log.append_files([file])
            with pytest.raises(PreconditionFailedError, match="already"):
                log.append_files([file])
            assert ids(log) == ["a"]

    def test_a_file_that_is_not_there_or_another(self) -> None:
        with open_log() as log:
            file = self.file(log, "f1", message("a"))
            log.storage.delete(paths.data_file(ROOT, file.name))
            with pytest.raises(NotFoundError):
                log.append_files([file])
            with pytest.raises(InvalidRequestError):
                log.append_files([])

    def test_collected_before_the_commit(self) -> None:
        with open_log() as log:
            file = self.file(log, "f1", message("a"))
            assert collect(log, orphan_age_ms=-1) == 1
            with pytest.raises((PreconditionFailedError, NotFoundError)):
                log.append_files([file])

    def test_collected_between_reading_the_file_and_landing(self) -> None:
        """Claimed, deleted and signed off while the job waits for its slot: the commit would have no rows."""
        storage = MemoryStorage()
        slow = Wrapped(storage)
        with open_log(slow) as job, open_log(storage) as collector:
            file = self.file(job, "f1", message("a"))
            collected: list[int] = []

            def collect_first(path: str) -> None:
                if not collected:
                    collected.append(collect(collector, orphan_age_ms=-1))

            slow.before_create = collect_first
            with pytest.raises(PreconditionFailedError):
                job.append_files([file])
            assert collected == [1]
            assert ids(job) == []
        check_log(storage, ROOT, BROKER, acked=[])


class TestFullAndReadOnly:
    @pytest.mark.parametrize("call", ["open_new", "writev", "fsync", "link"])
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_no_room(self, tmp_path: Path, call: str, number: int) -> None:
        ops = FailingOps()
        with open_log(LocalStorage(tmp_path, ops=ops)) as log:
            log.append(message("a"))
            ops.failing, ops.error = call, OSError(number, "full")
            with pytest.raises(StorageFullError):
                log.append(message("b"))
            ops.error = None
            log.append(message("b"))
            assert ids(log) == ["a", "b"]
        check_log(LocalStorage(tmp_path), ROOT, BROKER, acked=[])
        assert not [name for name in (tmp_path / ROOT / "commitlog").iterdir() if name.name.startswith(".rmq-tmp")]

    @pytest.mark.parametrize("call", ["mkdir", "open_new", "link"])
    @pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
    def test_read_only(self, tmp_path: Path, call: str, number: int) -> None:
        ops = FailingOps()
        with open_log(LocalStorage(tmp_path / "store", ops=ops)) as log:
            ops.failing, ops.error = call, OSError(number, "read-only")
            with pytest.raises(ReadOnlyError):
                log.append(message("a"))
            ops.error = None
            log.append(message("a"))
            assert ids(log) == ["a"]

    def test_a_short_write_is_not_a_short_file(self, tmp_path: Path) -> None:
        ops = FailingOps()
        whole = ops.writev
        ops.writev = lambda fd, pieces: whole(fd, [memoryview(pieces[0])[:7]])  # type: ignore[method-assign]
        with open_log(LocalStorage(tmp_path, ops=ops)) as log:
            log.append(message("a", body=b"y" * 10_000))
        done = check_log(LocalStorage(tmp_path), ROOT, BROKER, acked=[])
        assert done.messages == 1

    def test_disk_full_ratio(self) -> None:
        storage, clock = Wrapped(MemoryStorage()), ManualClock()
        with open_log(storage, clock=clock, disk_full_ratio=0.9) as log:
            storage.usage = (91, 100)
            with pytest.raises(StorageFullError) as caught:
                log.append(message("a"))
            assert caught.value.context["ratio"] == 0.9
            storage.usage = (89, 100)
            log.append(message("a"))
            storage.usage = (95, 100)
            clock.advance(2)  # it is looked at once a second
            with pytest.raises(StorageFullError):
                log.append(message("b"))
            assert ids(log) == ["a"]


class InterruptedLock:
    """A lock at which a caller is interrupted once, before it has it."""

    def __init__(self, lock: threading.Lock, at: int) -> None:
        self._lock = lock
        self._left = at

    def __enter__(self) -> bool:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class TestInterruptedCallers:
    """Ctrl-C in one thread must not leave the others without somebody who commits for them."""

    @pytest.mark.parametrize("at", [1, 2, 3], ids=["entering", "leading", "leaving"])
    def test_one_that_is_interrupted_at_the_lock_leaves_a_group_that_works(self, at: int) -> None:
        def commit(group: list[Request]) -> None:
            for request in group:
                request.error = ValueError("done")

        commits = GroupCommit(commit, LogSettings(), SystemClock())
        commits._lock = cast("Any", InterruptedLock(commits._lock, at))
        with pytest.raises(KeyboardInterrupt):
            commits.submit(Request(one_message()))
        later = Request(one_message())
        thread = threading.Thread(target=lambda: commits.submit(later), daemon=True)
        thread.start()
        thread.join(10)
        assert later.done, "nobody leads: the next caller waits for ever"

    def test_a_waiting_caller_that_is_interrupted_leaves_the_queue_intact(self) -> None:

        entered, go_on = threading.Event(), threading.Event()
        groups: list[int] = []
        active = 0

        def commit(group: list[Request]) -> None:
            nonlocal active
            active += 1
            assert active == 1, "two leaders at once"
            groups.append(len(group))
            entered.set()
            go_on.wait(5)
            for request in group:
                request.error = ValueError("done")
            active -= 1

        commits = GroupCommit(commit, LogSettings(), SystemClock())
        first = threading.Thread(target=lambda: commits.submit(Request(one_message())))
        first.start()
        assert entered.wait(5)
        interrupted = Request(one_message())
        others = [threading.Thread(target=lambda: commits.submit(Request(one_message()))) for _ in range(2)]

        def interrupt() -> None:
            commits.submit(interrupted)

        victim = threading.Thread(target=interrupt)
        victim.start()
        while not commits._queue:
            time.sleep(0.001)
        for thread in others:
            thread.start()
        while len(commits._queue) < 3:
            time.sleep(0.001)
        commits._leave(interrupted)  # what an interrupt in `submit` ends with
        go_on.set()
        for thread in (first, *others):
            thread.join(5)
            assert not thread.is_alive()
        assert sum(groups) == 3
        interrupted.error = ValueError("interrupted")
        interrupted.wake()
        victim.join(5)

    @pytest.mark.parametrize("victim", [1, 2, 3])
    def test_one_that_is_interrupted_while_its_group_commits_keeps_nobody_asleep(self, victim: int) -> None:
        """Callers of a commit wake each other in turn; one that has gone is passed over."""
        entered, go_on = threading.Event(), threading.Event()
        rounds = 0

        def commit(group: list[Request]) -> None:
            nonlocal rounds
            rounds += 1
            entered.set()
            go_on.wait(5)
            if rounds == 2:
                assert len(group) == len(members)
                commits._leave(members[victim])  # what an interrupt of a caller that waits ends with
            for request in group:
                request.error = ValueError("done")

        commits = GroupCommit(commit, LogSettings(), SystemClock())
        first = threading.Thread(target=lambda: commits.submit(Request(one_message())))
        first.start()
        assert entered.wait(5)
        members = [Request(one_message()) for _ in range(4)]
        awake = []
        for number, member in enumerate(members):
            if number == victim:
                commits._enter(member)  # and nobody waits: its caller is about to be interrupted
            else:
                awake.append(threading.Thread(target=commits.submit, args=(member,), daemon=True))
                awake[-1].start()
            while len(commits._queue) <= number:
                time.sleep(0.001)
        go_on.set()
        for thread in (first, *awake):
            thread.join(5)
            assert not thread.is_alive()


def one_message() -> MessageBatch:
    return MessageBatch.of(topic="t", queue_id=0, msg_id="m", body=b"b", born_timestamp_ms=0)


_LATE = """
import sys, threading, time
import pyarrow as pa
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.storage.local import LocalStorage

count = 50_000
table = pa.table({
    "topic": ["t"] * count, "queueId": pa.array([number % 2 for number in range(count)], pa.int32()),
    "msgId": [f"{number:032X}" for number in range(count)], "body": [b"x"] * count,
    "bornTimestamp": pa.array([0] * count).cast(pa.timestamp("ms", "UTC")),
})
log = CommitLog(LocalStorage(sys.argv[1]), "brokers/b", "b")

def late():
    threading.main_thread().join()
    print(len(log.append(MessageBatch.from_arrow(table)).queue_offsets))

threading.Thread(target=late).start()
"""


def test_a_large_append_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    """Python starts no more work in other threads then; the caller's own has to do."""
    done = subprocess.run([sys.executable, "-c", _LATE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "50000", done.stderr


def test_a_buffered_append_that_fails_for_want_of_a_thread_was_not_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    batch = message("once")
    with open_log(MemoryStorage(), flush="buffered") as log:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", fail)
            with pytest.raises(RuntimeError):
                log.append(batch)
        log.append(batch)
        log.flush()
        assert log.refresh().state.offset == 1
