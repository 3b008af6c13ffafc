"""Rolling, expiry, deleted topics, collected row files: the old part of a log moves or goes, the rest stays."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from faulty import BROKER, ROOT, Wrapped, forget_files, ids, message, open_log

from rmq_spark.client.store import Store
from rmq_spark.clock import ManualClock
from rmq_spark.errors import DataExpiredError, NotFoundError, PreconditionFailedError
from rmq_spark.log import file_reader, scan
from rmq_spark.log.collect import collect, discard
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.core_folds import RowFiles
from rmq_spark.log.expire import expire
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.marks import SegmentRef
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import RowFile, write_row_file
from rmq_spark.log.scan import Query
from rmq_spark.log.state import LogState
from rmq_spark.log.view import LogView
from rmq_spark.storage.base import Storage
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.testing.history import check_log, read_messages

HOUR_MS = 3_600_000


def names(storage: Storage, place: str) -> list[str]:
    return sorted(info.name for info in storage.list(f"{ROOT}/{place}"))


def fill(log: CommitLog, *msg_ids: str) -> None:
    for number, msg_id in enumerate(msg_ids):
        log.append(message(msg_id, queue=number % 2))


class TestRoll:
    def test_same_messages_fewer_files(self) -> None:
        with open_log() as log:
            batch = MessageBatch.merge([message("a", topic="u", queue=1), message("b"), message("c", queue=1)])
            log.append(batch)
            fill(log, "d", "e", "f")
            before = read_messages(log)
            result = roll(log)
            assert (result.commits, len(result.segments), result.deleted) == (4, 1, 4)
            assert read_messages(log) == before
            assert names(log.storage, "commitlog") == []
            log.append(message("g"))
            assert read_messages(log)[:-1] == before
        with open_log(log.storage) as fresh:
            assert read_messages(fresh)[:-1] == before
        check_log(log.storage, ROOT, BROKER, acked=[])

    def test_too_few_commits(self) -> None:
        with open_log() as log:
            assert roll(log).segments == ()
            fill(log, "a")
            assert roll(log, min_commits=2).segments == ()
            assert roll(log, min_commits=1).commits == 1

    def test_a_small_last_segment_is_merged(self) -> None:
        with open_log() as log:
            for number in range(3):
                fill(log, f"a{number}", f"b{number}")
                roll(log)
            mark = log.refresh().mark
            assert [(segment.first, segment.end) for segment in mark.segments] == [(0, 6)]
            assert len(names(log.storage, "segments")) == 1
            assert ids(log) == ["a0", "b0", "a1", "b1", "a2", "b2"]
        check_log(log.storage, ROOT, BROKER, acked=[])

    def test_large_ones_are_not(self) -> None:
        with open_log(segment_bytes=100) as log:
            for number in range(3):
                fill(log, f"a{number}", f"b{number}")
                roll(log)
            bounds = [(segment.first, segment.end) for segment in log.refresh().mark.segments]
            assert bounds[0][0] == 0 and bounds[-1][1] == 6
            assert all(one[1] == two[0] for one, two in itertools.pairwise(bounds))
            assert len(bounds) > 1
            assert ids(log) == ["a0", "b0", "a1", "b1", "a2", "b2"]
        check_log(log.storage, ROOT, BROKER, acked=[])

    def test_the_span_limits_a_segment(self) -> None:
        clock = ManualClock()
        with open_log(clock=clock, segment_span_ms=HOUR_MS) as log:
            for number in range(4):
                fill(log, f"a{number}")
                clock.advance(2_000)
            roll(log)
            spans = [segment.max_ms - segment.min_ms for segment in log.refresh().mark.segments]
            assert len(spans) == 2 and max(spans) <= HOUR_MS

    def test_grace_keeps_the_files(self) -> None:
        clock = ManualClock()
        storage = MemoryStorage(clock=clock)
        with open_log(storage, clock=clock, delete_grace_ms=60_000) as log:
            fill(log, "a", "b", "c")
            assert roll(log).deleted == 0
            assert len(names(storage, "commitlog")) == 3
            assert ids(log) == ["a", "b", "c"]
            clock.advance(61)
            assert roll(log).deleted == 3
            assert ids(log) == ["a", "b", "c"]

    def test_two_rollers(self) -> None:
        """One wins; the other gives way, and its files do not stay."""
        storage = Wrapped(MemoryStorage())
        with open_log(storage) as one, open_log(storage.inner) as two:
            fill(one, "a", "b", "c")

            def overtake(path: str) -> None:
                if "/marks/" in path:
                    storage.before_create = None
                    assert roll(two).commits == 3

            storage.before_create = overtake
            assert roll(one).segments == ()
            assert len(names(storage, "segments")) == 1
            assert ids(one) == ["a", "b", "c"]
        check_log(storage, ROOT, BROKER, acked=[])

    def test_a_roller_that_died_before_its_mark(self) -> None:
        storage = Wrapped(MemoryStorage())
        with open_log(storage) as log:
            fill(log, "a", "b")

            def die(path: str) -> None:
                if "/marks/" in path:
                    raise KeyboardInterrupt

            storage.before_create = die
            with pytest.raises(KeyboardInterrupt):
                roll(log)
            storage.before_create = None
            assert len(names(storage, "segments")) == 1
            assert ids(log) == ["a", "b"]
            check_log(storage, ROOT, BROKER, acked=[])
            roll(log)
            assert len(names(storage, "segments")) == 1, "the dead roller's file was not deleted"
            assert ids(log) == ["a", "b"]

    def test_a_roller_that_died_before_deleting(self) -> None:
        storage = Wrapped(MemoryStorage())
        with open_log(storage) as log:
            fill(log, "a", "b")

            def die(path: str) -> None:
                if "/marks/" in path:
                    raise KeyboardInterrupt

            storage.after_create = die
            with pytest.raises(KeyboardInterrupt):
                roll(log)
            storage.after_create = None
            assert len(names(storage, "commitlog")) == 2
            log.append(message("c"))
            assert ids(log) == ["a", "b", "c"]
            check_log(storage, ROOT, BROKER, acked=[])
            roll(log, min_commits=1)
            assert names(storage, "commitlog") == []

    def test_rolls_while_others_append(self) -> None:
        storage = MemoryStorage()
        stop = threading.Event()
        failures: list[BaseException] = []

        def keep_rolling() -> None:
            try:
                with open_log(storage) as log:
                    while not stop.is_set():
                        roll(log)
            except BaseException as error:
                failures.append(error)

        rollers = [threading.Thread(target=keep_rolling) for _ in range(2)]
        for roller in rollers:
            roller.start()
        with open_log(storage, append_timeout_ms=10_000) as log:
            for number in range(150):
                log.append(message(f"m{number}", queue=number % 3))
        stop.set()
        for roller in rollers:
            roller.join()
        assert not failures
        done = check_log(storage, ROOT, BROKER, acked=[])
        assert done.messages == 150 and done.segments


class TestExpire:
    def aged(self, clock: ManualClock, storage: Storage | None = None, **settings: object) -> CommitLog:
        """Three segments: a0..a1 of 3 hours ago, b0..b1 of 2 hours ago, c0..c1 of 1 hour ago."""
        log = open_log(
            storage or MemoryStorage(clock=clock),
            clock=clock,
            segment_span_ms=HOUR_MS // 2,
            retention_ms=int(2.5 * HOUR_MS),
            **settings,
        )
        for letter in "abc":
            fill(log, f"{letter}0", f"{letter}1")
            clock.advance(3_600)
        roll(log)
        assert len(log.refresh().mark.segments) == 3
        return log

    def test_by_age(self) -> None:
        with self.aged(ManualClock()) as log:
            result = expire(log)
            assert (len(result.segments), result.log_start, result.forced) == (1, 2, False)
            assert ids(log) == ["b0", "b1", "c0", "c1"]
            assert log.view.state.queues.bounds("t", 0) == (1, 3)
            assert len(names(log.storage, "segments")) == 2
            assert expire(log).segments == ()
            log.append(message("d"))
            assert ids(log)[-1] == "d"
        with open_log(log.storage) as fresh:
            assert ids(fresh) == ["b0", "b1", "c0", "c1", "d"]
            assert fresh.view.state.queues.bounds("t", 0) == (1, 4)
        check_log(log.storage, ROOT, BROKER, acked=[])

    def test_no_other_thread_changes_the_state_while_its_folds_are_counted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with self.aged(ManualClock()) as log:
            real, entered = LogState.folds_in_use, list[bool]()

            def folds_in_use(state: LogState) -> dict[str, tuple[str, ...]]:
                other = threading.Thread(target=lambda: entered.append(log._lock.acquire(blocking=False)))
                other.start()
                other.join()
                return real(state)

            monkeypatch.setattr(LogState, "folds_in_use", folds_in_use)
            assert expire(log).segments
            assert entered and not any(entered)

    def test_one_that_comes_second_looks_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = ManualClock()
        with (
            self.aged(clock) as log,
            open_log(log.storage, clock=clock, retention_ms=log.settings.retention_ms) as other,
        ):
            forget_files(log)
            real, seen = log.files.segment, list[str]()

            def overtaken(segment: SegmentRef) -> FileMeta:
                seen.append(segment.name)
                if len(seen) == 1:
                    assert len(expire(other).segments) == 1
                return real(segment)

            monkeypatch.setattr(log.files, "segment", overtaken)
            assert expire(log).segments == ()
            assert ids(log) == ["b0", "b1", "c0", "c1"]

    def test_a_segment_that_is_missing_is_an_error(self) -> None:
        with self.aged(ManualClock()) as log:
            log.storage.delete(f"{ROOT}/segments/{log.refresh().mark.segments[0].name}")
            with pytest.raises(NotFoundError):
                expire(log)

    def test_never_the_last_segment(self) -> None:
        clock = ManualClock()
        with self.aged(clock) as log:
            clock.advance(1_000_000)
            assert expire(log).log_start == 4
            assert expire(log).segments == ()
            assert ids(log) == ["c0", "c1"]

    def test_old_commits_are_rolled_first(self) -> None:
        clock = ManualClock()
        with open_log(clock=clock, segment_span_ms=1, retention_ms=HOUR_MS) as log:
            fill(log, "a")
            clock.advance(7_200)
            fill(log, "b")
            assert expire(log).log_start == 1
            assert ids(log) == ["b"]

    def test_before_a_given_time(self) -> None:
        clock = ManualClock()
        start = clock.now_ms()
        with self.aged(clock) as log:
            assert expire(log, before_ms=start).segments == ()
            assert len(expire(log, before_ms=start + HOUR_MS + 1).segments) == 2

    def test_by_use_of_the_disk(self) -> None:
        clock = ManualClock()
        storage = Wrapped(MemoryStorage(clock=clock))
        with self.aged(clock, storage, disk_reclaim_ratio=0.5, disk_force_ratio=0.8) as log:
            sizes = [segment.bytes for segment in log.refresh().mark.segments]
            total = 100_000
            storage.usage = (int(0.8 * total) + sizes[0] // 2, total)
            result = expire(log, scheduled=True, before_ms=0)
            assert result.forced
            assert len(result.segments) == 1, "it stops as soon as there is room"
            assert ids(log) == ["b0", "b1", "c0", "c1"]
            storage.usage = (99_999, total)
            expire(log, scheduled=True, before_ms=0)
            assert ids(log) == ["c0", "c1"]

    def test_scheduled_waits_for_the_hour(self) -> None:
        clock = ManualClock()
        storage = Wrapped(MemoryStorage(clock=clock))
        storage.usage = (10, 100)
        with self.aged(clock, storage, delete_when="04;17") as log:
            today = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
            clock.advance((27 - today.hour) * 3_600)  # some hour 3 that lies ahead
            assert datetime.fromtimestamp(clock.now_ms() / 1000, UTC).hour == 3
            assert expire(log, scheduled=True).segments == ()
            clock.advance(3_600)
            assert len(expire(log, scheduled=True).segments) == 2

    def test_scheduled_does_not_wait_when_room_gets_scarce(self) -> None:
        clock = ManualClock()
        storage = Wrapped(MemoryStorage(clock=clock))
        hour = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).hour
        with self.aged(clock, storage, delete_when=f"{(hour + 12) % 24:02d}") as log:
            storage.usage = (70, 100)
            assert expire(log, scheduled=True).segments == ()
            storage.usage = (76, 100)
            result = expire(log, scheduled=True)
            assert len(result.segments) == 1 and not result.forced

    def test_two_at_once(self) -> None:
        clock = ManualClock()
        storage = Wrapped(MemoryStorage(clock=clock))
        with self.aged(clock, storage) as one, open_log(storage.inner, clock=clock, retention_ms=HOUR_MS) as two:

            def overtake(path: str) -> None:
                if "/marks/" in path:
                    storage.before_create = None
                    assert expire(two).log_start == 4

            storage.before_create = overtake
            assert expire(one).log_start == 4
            assert ids(one) == ["c0", "c1"]
        check_log(storage, ROOT, BROKER, acked=[])


class TestScansMeetMaintenance:
    def pull(self, batches: Iterator[pa.RecordBatch]) -> list[str]:
        return [msg_id for batch in batches for msg_id in batch.column(0).to_pylist()]

    def test_expired_under_a_scan(self) -> None:
        with TestExpire().aged(ManualClock()) as log:
            batches = log.scan(Query(columns=("msgId",)))
            expire(log)
            forget_files(log)
            with pytest.raises(DataExpiredError) as caught:
                self.pull(batches)
            assert caught.value.context == {"first": 0, "end": 2}

    def test_expired_under_a_scan_that_skips(self) -> None:
        with TestExpire().aged(ManualClock()) as log:
            batches = log.scan(Query(columns=("msgId",), skip_expired=True))
            expire(log)
            forget_files(log)
            assert sorted(self.pull(batches)) == ["b0", "b1", "c0", "c1"]

    def test_a_new_scan_begins_at_the_start(self) -> None:
        with TestExpire().aged(ManualClock()) as log:
            expire(log)
            assert sorted(self.pull(log.scan(Query(columns=("msgId",), start=0)))) == ["b0", "b1", "c0", "c1"]

    @pytest.mark.parametrize("read", range(6))
    def test_files_move_under_a_scan(self, read: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """After `read` batches the commits become a segment, then that is merged into another one."""
        monkeypatch.setattr(scan, "GROUP_BYTES", 1)  # each commit comes by itself
        storage = MemoryStorage()
        with open_log(storage) as log, open_log(storage) as other:
            fill(log, "a", "b", "c", "d", "e")
            batches = log.scan(Query(columns=("msgId",)))
            seen = [next(batches).column(0).to_pylist() for _ in range(read)]
            roll(other)
            fill(other, "f", "g")
            roll(other)
            assert names(storage, "commitlog") == []
            forget_files(log)
            rest = self.pull(batches)
            assert sorted([*itertools.chain(*seen), *rest]) == ["a", "b", "c", "d", "e"]

    @pytest.mark.parametrize("read", [0, 1, 2, 5])
    def test_a_segment_is_merged_while_it_is_read(self, read: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has many blocks; the same rows are found in the merged one, none twice, none left out."""
        monkeypatch.setattr(file_reader, "STRETCH_ROWS", 1)  # each block comes by itself
        storage = MemoryStorage()
        with open_log(storage, block_bytes=2_000) as log, open_log(storage, block_bytes=3_000) as other:
            for number in range(60):
                log.append(message(f"m{number:02d}", queue=number % 3, body=b"x" * 700))
            roll(log)
            batches = log.scan(Query(columns=("msgId", "body")))
            seen = [next(batches).column(0).to_pylist() for _ in range(read)]
            for number in range(60, 90):
                other.append(message(f"m{number:02d}", queue=number % 3, body=b"x" * 700))
            roll(other)
            found = [*itertools.chain(*seen), *self.pull(batches)]
            assert sorted(found) == [f"m{number:02d}" for number in range(60)]
            for queue in range(3):
                mine = [msg_id for msg_id in found if int(msg_id[1:]) % 3 == queue]
                assert mine == sorted(mine)


class TestDeletedTopics:
    def test_hidden_then_continued(self) -> None:
        with Store.create("memory://deleted-topics") as store:
            store.create_topic("t", queues=2)
            log = store.log()
            log.append(message("a"))
            log.append(message("b"))
            log.append(message("other", topic="u"))
            store.delete_topic("t")
            assert ids(log) == ["other"]
            assert log.refresh().state.queues.bounds("t", 0) == (2, 2)
            store.create_topic("t", queues=4)
            result = log.append(message("c"))
            assert result.queue_offsets is not None and result.queue_offsets.tolist() == [2]
            assert ids(log) == ["other", "c"]
            roll(log)
            assert ids(log) == ["other", "c"]
            with CommitLog(store.storage, log.root, log.broker) as fresh:
                assert ids(fresh) == ["other", "c"]
                assert fresh.view.state.queues.bounds("t", 0) == (2, 3)
            check_log(store.storage, log.root, log.broker, acked=[])
        MemoryStorage.forget("deleted-topics")


class TestCollect:
    def file(self, log: CommitLog, name: str, *msg_ids: str) -> RowFile:
        batch = MessageBatch.merge([message(msg_id) for msg_id in msg_ids])
        return write_row_file(log.storage, ROOT, batch, nonce=name, block_bytes=1 << 18)

    def test_only_what_is_old_and_not_referred_to(self) -> None:
        clock = ManualClock()
        storage = MemoryStorage(clock=clock)
        with open_log(storage, clock=clock) as log:
            log.append_files([self.file(log, "live", "a")])
            self.file(log, "orphan", "b")
            clock.advance(2 * 86_400)
            self.file(log, "young", "c")
            assert collect(log) == 1
            assert names(storage, "data") == ["live.arrow", "young.arrow"]
            assert ids(log) == ["a"]
            assert collect(log) == 0

    def test_rolled_files_go(self) -> None:
        with open_log() as log:
            log.append_files([self.file(log, "f1", "a", "b"), self.file(log, "f2", "c")])
            assert collect(log) == 0
            roll(log, min_commits=1)
            assert ids(log) == ["a", "b", "c"]
            assert collect(log) == 2
            assert names(log.storage, "data") == []
            assert ids(log) == ["a", "b", "c"]
            known = log.refresh().state.fold(RowFiles)
            assert not known.claimed and not known.referenced
        check_log(log.storage, ROOT, BROKER, acked=[])

    def test_claimed_before_deleted(self) -> None:
        """A collector that dies in between has claimed the file: a slow job's commit fails, and nothing is lost."""
        storage = Wrapped(MemoryStorage())
        with open_log(storage) as log, open_log(storage) as job:
            file = self.file(job, "slow", "a")

            def die(path: str) -> None:
                raise KeyboardInterrupt

            storage.delete = die  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                collect(log, orphan_age_ms=-1)
            del storage.delete  # type: ignore[method-assign]
            assert names(storage, "data") == ["slow.arrow"]
            with pytest.raises(PreconditionFailedError, match="orphan"):
                job.append_files([file])
            collect(log, orphan_age_ms=1 << 40)
            assert names(storage, "data") == []

    def test_a_job_that_is_faster_than_the_claim(self) -> None:
        storage = Wrapped(MemoryStorage())
        with open_log(storage) as log, open_log(storage.inner) as job:
            file = self.file(job, "slow", "a")

            def be_faster(path: str) -> None:
                if "commitlog" in path:
                    storage.before_create = None
                    job.append_files([file])

            storage.before_create = be_faster
            assert collect(log, orphan_age_ms=-1) == 0
            assert names(storage, "data") == ["slow.arrow"]
            assert ids(log) == ["a"]

    def test_a_claim_that_another_thread_only_tries_deletes_nothing(self) -> None:
        storage = Wrapped(MemoryStorage())
        with open_log(storage, append_timeout_ms=60_000) as log, open_log(storage.inner) as job:
            file = self.file(job, "slow", "a")
            asked, tried = threading.Event(), threading.Event()
            real, calls = log.refresh, []

            def refresh() -> LogView:
                view = real()
                calls.append(1)
                if len(calls) == 2:  # the collector looks which files are claimed
                    asked.set()
                    tried.wait(1)
                return view

            def be_faster(path: str) -> None:
                if "commitlog" in path:
                    storage.before_create = None
                    job.append_files([file])
                    tried.set()
                    collector.join(1)  # it may have to wait for the one that runs this

            log.refresh = refresh  # type: ignore[method-assign]
            collector = threading.Thread(target=lambda: collect(log))
            collector.start()
            assert asked.wait(60)
            storage.before_create = be_faster
            assert not discard(log, [file.name]), "the log refers to it"
            collector.join()
            assert names(storage, "data") == ["slow.arrow"]
            assert ids(log) == ["a"]

    def test_row_files_are_found_after_the_roll(self) -> None:
        """A scan that was planned before: commit file, row files and all are gone when it gets there."""
        with open_log() as log:
            log.append_files([self.file(log, "f1", "a", "b"), self.file(log, "f2", "c")])
            log.append(message("d"))
            batches = log.scan(Query(columns=("msgId",)))
            seen = next(batches).column(0).to_pylist()
            roll(log)
            collect(log)
            assert names(log.storage, "data") == []
            seen += [msg_id for batch in batches for msg_id in batch.column(0).to_pylist()]
            assert seen == ["a", "b", "c", "d"]
