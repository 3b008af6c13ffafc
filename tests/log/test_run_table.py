"""Run tables: what planning knows of a log range is exactly what the log holds there, whatever files it lies in."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from faulty import BROKER, ROOT, Wrapped, message, open_log
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmq_spark.clock import ManualClock
from rmq_spark.errors import CorruptDataError
from rmq_spark.log import files, run_table
from rmq_spark.log.collect import collect
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.core_folds import Truncations
from rmq_spark.log.expire import expire
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import write_row_file
from rmq_spark.log.run_table import RunIndex, RunTable
from rmq_spark.log.scan import Query
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage.base import Storage
from rmq_spark.storage.memory import MemoryStorage

TOPICS = ("a", "b", "c")
PLACES = st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 3)), min_size=1, max_size=8)
WANTED = st.sets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 3)), min_size=1)
BIG = 1 << 50


def selecting(wanted: set[tuple[str, int]]) -> run_table.Select:
    def select(topic: str, queues: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return np.isin(queues, [queue for name, queue in wanted if name == topic])

    return select


def expand(table: RunTable) -> list[tuple[int, str, int, int]]:
    """Every row that a table names: number of its source, topic, queue, queue offset."""
    return [
        (source, table.topics[topic], queue, base + row)
        for source, topic, queue, base, rows in zip(
            *(column.tolist() for column in (table.source, table.topic, table.queue, table.base, table.rows)),
            strict=True,
        )
        for row in range(rows)
    ]


class RunTableMachine(RuleBasedStateMachine):
    """A log that grows, is rolled, merged, expired and truncated, beside a plain list of what is in it."""

    @initialize(
        segment_bytes=st.sampled_from([1, 30_000, 10_000_000]),
        block_bytes=st.sampled_from([1, 2_000, 256 * 1024]),
    )
    def start(self, segment_bytes: int, block_bytes: int) -> None:
        self.clock = ManualClock()
        self.storage = MemoryStorage(None, clock=self.clock)
        self.settings = LogSettings(
            segment_bytes=segment_bytes, block_bytes=block_bytes, delete_grace_ms=0, retention_ms=60_000
        )
        self.log = CommitLog(self.storage, ROOT, BROKER, settings=self.settings, clock=self.clock)
        self.reader = CommitLog(self.storage, ROOT, BROKER, read_only=True)
        self.index = RunIndex(self.reader)
        self.rows: dict[int, tuple[str, int, int, int]] = {}
        self.times: dict[int, int] = {}  # log offset: time of every row, those of deleted topics and records too
        self.log_start = 0
        self.count = 0

    @property
    def end(self) -> int:
        return self.log.refresh().state.offset

    def batch(self, places: list[tuple[str, int]]) -> MessageBatch:
        parts = []
        for topic, queue in places:
            self.count += 1
            parts.append(message(f"{self.count:032d}", topic=topic, queue=queue))
        return MessageBatch.merge(parts)

    def note(self, places: list[tuple[str, int]], offsets: list[int], queue_offsets: list[int], ms: int) -> None:
        for (topic, queue), offset, queue_offset in zip(places, offsets, queue_offsets, strict=True):
            self.rows[offset] = (topic, queue, queue_offset, ms)

    def expected(self, wanted: set[tuple[str, int]], start: int, end: int) -> list[int]:
        low = max(start, self.log_start)
        return sorted(offset for offset, row in self.rows.items() if low <= offset < end and row[:2] in wanted)

    @invariant()
    def note_times(self) -> None:
        for rows in self.log.scan(Query(start=len(self.times))):
            times = rows["storeTimestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            self.times.update(zip(rows["commitOffset"].to_pylist(), times.to_pylist(), strict=True))

    @rule(places=PLACES, seconds=st.sampled_from([0, 1, 20]))
    def append(self, places: list[tuple[str, int]], seconds: int) -> None:
        self.clock.advance(seconds)
        done = self.log.append(self.batch(places))
        assert done.commit_offsets is not None and done.queue_offsets is not None and done.store_ms is not None
        self.note(places, done.commit_offsets.tolist(), done.queue_offsets.tolist(), done.store_ms)

    @rule(parts=st.lists(PLACES, min_size=1, max_size=3))
    def append_row_files(self, parts: list[list[tuple[str, int]]]) -> None:
        files = [
            write_row_file(self.storage, ROOT, self.batch(places), nonce=self.clock.token(), block_bytes=1)
            for places in parts
        ]
        done = self.log.append_files(files)
        given = [place for places in parts for place in sorted(places)]  # a row file is sorted by topic and queue
        assert done.commit_offsets is not None and done.queue_offsets is not None and done.store_ms is not None
        self.note(given, done.commit_offsets.tolist(), done.queue_offsets.tolist(), done.store_ms)

    @rule(topic=st.sampled_from(TOPICS))
    def delete_a_topic(self, topic: str) -> None:
        self.log.append(
            MessageBatch.of(
                topic=Truncations.topics[0],
                queue_id=0,
                msg_id=self.clock.token(),
                body=b'{"topic":"%s"}' % topic.encode(),
                born_timestamp_ms=0,
            )
        )

    @rule(minimum=st.integers(1, 3))
    def roll(self, minimum: int) -> None:
        roll(self.log, min_commits=minimum)

    @rule(seconds=st.sampled_from([0, 30, 120]))
    def expire(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.log_start = expire(self.log).log_start

    @rule()
    def collect(self) -> None:
        collect(self.log, orphan_age_ms=0)

    @precondition(lambda self: self.rows)
    @rule(wanted=WANTED, data=st.data())
    def every_row_of_a_range_is_in_one_run(self, wanted: set[tuple[str, int]], data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.end))
        end = data.draw(st.integers(start, self.end))
        table = self.index.list_runs(Query(start=start, end=end), selecting(wanted))
        found = expand(table)
        expected = self.expected(wanted, start, end)
        assert table.total == len(found) == len(expected)
        assert sorted(row[1:] for row in found) == sorted(self.rows[offset][:3] for offset in expected)
        where = {self.rows[offset][:3]: offset for offset in expected}
        for source, topic, queue, queue_offset in found:
            place = table.sources[source]
            assert place.first <= where[topic, queue, queue_offset] < place.end, "a run names the file that holds it"
        assert all(one.end <= after.first for one, after in pairwise(table.sources)), "sources are in log order"

    @precondition(lambda self: self.rows)
    @rule(wanted=WANTED, limit=st.integers(1, 12), data=st.data())
    def cutting_by_rows_is_exact(self, wanted: set[tuple[str, int]], limit: int, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.end))
        end = data.draw(st.integers(start, self.end))
        cut, rows = self.index.cut_after(Query(start=start, end=end), selecting(wanted), limit, BIG)
        expected = self.expected(wanted, start, end)
        assert rows == min(limit, len(expected))
        assert len(self.expected(wanted, start, cut)) == rows
        assert start <= cut <= end

    @precondition(lambda self: self.rows)
    @rule(wanted=WANTED, limit=st.sampled_from([1, 300, 3_000, 30_000]), data=st.data())
    def cutting_by_bytes_moves_on(self, wanted: set[tuple[str, int]], limit: int, data: st.DataObject) -> None:
        """Cuts follow each other without a gap, hold at least a row each, and smaller limits never hold more."""
        at = data.draw(st.integers(0, self.end))
        taken: list[int] = []
        whole = self.expected(wanted, at, self.end)
        while at < self.end:
            cut, rows = self.index.cut_after(Query(start=at, end=self.end), selecting(wanted), BIG, limit)
            half, fewer = self.index.cut_after(Query(start=at, end=self.end), selecting(wanted), BIG, limit // 2)
            here = self.expected(wanted, at, cut)
            assert len(here) == rows and (rows or cut == self.end)
            assert cut > at and half <= cut and fewer <= rows
            taken += here
            at = cut
        assert taken == whole

    @precondition(lambda self: self.rows)
    @rule(wanted=WANTED, data=st.data())
    def times_prune_files_and_never_a_row_that_matches(self, wanted: set[tuple[str, int]], data: st.DataObject) -> None:
        times = sorted({row[3] for row in self.rows.values()})
        low, high = data.draw(st.sampled_from(times)), data.draw(st.sampled_from([*times, times[-1] + 1]))
        table = self.index.list_runs(Query(from_ms=low, to_ms=high), selecting(wanted))
        found = {row[1:] for row in expand(table)}
        matching = {
            self.rows[offset][:3] for offset in self.expected(wanted, 0, self.end) if low <= self.rows[offset][3] < high
        }
        assert matching <= found
        if high <= low:
            assert not matching
        for source in table.sources:
            held = [self.times[offset] for offset in range(source.first, source.end)]
            assert max(held) >= low and min(held) < high, "a file of another time is planned"


TestRunTableMachine = RunTableMachine.TestCase
TestRunTableMachine.settings = settings(
    max_examples=80, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


def everything(topic: str, queues: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    del topic
    return np.ones(len(queues), np.bool_)


class RollsBetween(Wrapped):
    """A storage where somebody rolls the log just before a commit file is looked at, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(MemoryStorage(None, clock=ManualClock()))
        self.times = times
        self.writer: CommitLog | None = None

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        if self.writer is not None and self.times and "/commitlog/" in path and self.exists(path):
            self.times -= 1
            writer, self.writer = self.writer, None
            writer.append(message(f"more{self.times}"))
            roll(writer, min_commits=1)
            self.writer = writer
        return super().read_tail(path, length)


class TestFilesThatMove:
    @pytest.fixture(autouse=True)
    def nothing_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As of a log that was opened by a snapshot: no commit was walked along, each has to be read."""
        monkeypatch.setattr(files, "CACHED_BYTES", 0)

    def make(self, times: int) -> tuple[RollsBetween, RunIndex]:
        storage = RollsBetween(times)
        log = open_log(storage, segment_bytes=1, clock=ManualClock())
        for number in range(4):
            log.append(message(f"m{number}", queue=number % 2))
        index = RunIndex(CommitLog(storage, ROOT, BROKER, read_only=True))
        storage.writer = log
        return storage, index

    def test_a_roll_between_the_mark_and_the_file_is_planned_anew(self) -> None:
        _, index = self.make(2)
        table = index.list_runs(Query(end=4), everything)
        assert {source.kind for source in table.sources} == {"segment"}
        assert sorted(row[1:] for row in expand(table)) == [
            ("t", queue, offset) for queue in (0, 1) for offset in (0, 1)
        ]

    def test_a_file_that_is_missing_for_good_is_an_error(self) -> None:
        storage, index = self.make(0)
        storage.delete(f"{ROOT}/commitlog/{2:020d}.arrow")
        with pytest.raises(CorruptDataError, match="missing"):
            index.list_runs(Query(end=4), everything)


class TestCommitsThatWereWalkedAlong:
    def make(self) -> tuple[MemoryStorage, CommitLog]:
        storage = MemoryStorage()
        log = open_log(storage, clock=ManualClock())
        for number in range(6):
            log.append(message(f"m{number}", queue=number % 2))
        return storage, CommitLog(storage, ROOT, BROKER, read_only=True)

    def test_are_not_read_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _, reader = self.make()
        asked: list[str] = []
        real = files.read_meta

        def read_meta(storage: Storage, path: str, kind: str, tail: tuple[bytes, int] | None = None) -> FileMeta:
            asked.append(path)
            return real(storage, path, kind, tail)

        monkeypatch.setattr(files, "read_meta", read_meta)
        rows = expand(RunIndex(reader).list_runs(Query(end=6), everything))
        assert asked == [f"{ROOT}/commitlog/{6:020d}.arrow"], "only whether there is a next one"
        assert sorted(row[1:] for row in rows) == [("t", queue, offset) for queue in (0, 1) for offset in range(3)]

    def test_are_kept_up_to_a_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        storage, _ = self.make()
        one = len(storage.read(f"{ROOT}/commitlog/{0:020d}.arrow"))
        monkeypatch.setattr(files, "CACHED_BYTES", 3 * one)
        _, reader = self.make()
        known = [path for path, _ in reader.files._kept]
        assert known == [f"{ROOT}/commitlog/{first:020d}.arrow" for first in (3, 4, 5)]


def test_a_plan_is_made_while_nobody_changes_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append of another thread waits: it would change the arrays that the plan is made from, or fail for them."""
    log = open_log(MemoryStorage())
    log.append(message("first"))
    plan = run_table.scan.plan
    others = []

    def slowly(*given: Any) -> Any:
        others.append(threading.Thread(target=log.append, args=(message("second"),)))
        others[0].start()
        others[0].join(0.2)
        assert others[0].is_alive(), "the append did not wait"
        return plan(*given)

    monkeypatch.setattr(run_table.scan, "plan", slowly)
    assert len(expand(RunIndex(log).list_runs(Query(), everything))) == 1
    others[0].join(5)
    assert log.refresh().state.offset == 2
