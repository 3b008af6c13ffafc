"""Time search is exact, whatever was rolled, expired or deleted, and reads next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from group_store import QUEUES, SETTINGS, STEPS, TOPICS, act, again, batch, end_of, held, memory_store, send
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rmq_spark.client.store import DEFAULT_BROKER, Store
from rmq_spark.client.time_search import QueueTimes
from rmq_spark.clock import ManualClock
from rmq_spark.errors import CorruptDataError, NotFoundError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.roll import roll
from rmq_spark.log.time_search import Boundary, TimeSearch
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage import paths
from rmq_spark.storage.base import tail_or_none

Rows = list[tuple[int, int]]


def lower(rows: Rows, end: int, ms: int) -> int:
    return next((offset for offset, stored in rows if stored >= ms), end)


def upper(rows: Rows, ms: int) -> int:
    return max((offset for offset, stored in rows if stored <= ms), default=0)


def moments(rows: list[Rows], clock: ManualClock) -> list[int]:
    """Every time around which the answer may change, and some far off."""
    stored = {time for queue in rows for _, time in queue}
    return sorted({time + step for time in stored for step in (-1, 0, 1)} | {0, clock.now_ms(), clock.now_ms() + 10**6})


def check_all(store: Store, times: QueueTimes) -> None:
    log = store.log()
    assert isinstance(store.clock, ManualClock)
    for topic in TOPICS:
        rows = [held(log, topic, queue) for queue in range(QUEUES)]
        for ms in moments(rows, store.clock):
            first, last = times.search(topic, ms), times.search(topic, ms, Boundary.UPPER)
            for queue in range(QUEUES):
                key = (topic, DEFAULT_BROKER, queue)
                assert first[key] == lower(rows[queue], end_of(log, topic, queue), ms), (key, ms)
                assert last[key] == upper(rows[queue], ms), (key, ms)
        for span in times.spans(topic):
            mine = rows[span.queue]
            ends = (mine[0][1], mine[-1][1]) if mine else (None, None)
            assert (span.first_ms, span.last_ms) == ends
            if mine:
                assert (span.first, span.end) == (mine[0][0], mine[-1][0] + 1)
            for offset, stored in mine[:: max(1, len(mine) // 6)]:
                key = (topic, DEFAULT_BROKER, span.queue)
                assert times.backlogs({key: offset})[key].oldest_ms == stored


def check_history(steps: list[Any], later: list[Any], given_settings: dict[str, int]) -> None:
    """The same object asks before and after: what it remembers never makes it wrong."""
    with memory_store(**given_settings) as store:
        for topic in TOPICS:
            store.create_topic(topic, queues=QUEUES)
        times = QueueTimes(store)
        for part in (steps, later):
            for step in part:
                act(store, step)
            check_all(store, times)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, later=STEPS, given_settings=SETTINGS)
@example(
    # a queue that is in two row files of one commit, and whose neighbours have none of it
    steps=[("send", [("b", 0, 1)]), ("wait", 1), ("files", [[("a", 1, 2)], [("a", 1, 2)]]), ("wait", 1)],
    later=[("send", [("b", 0, 1)])],
    given_settings={"block_bytes": 500, "segment_bytes": 1, "segment_span_ms": 5},
)
def test_search_spans_and_backlogs_equal_a_scan(
    steps: list[Any], later: list[Any], given_settings: dict[str, int]
) -> None:
    check_history(steps, later, given_settings)


@pytest.mark.slow
@settings(max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, later=STEPS, given_settings=SETTINGS)
def test_search_spans_and_backlogs_equal_a_scan_for_long(
    steps: list[Any], later: list[Any], given_settings: dict[str, int]
) -> None:
    check_history(steps, later, given_settings)


class TestTable:
    """The cases of RocketMQ 5.1.1's table, one by one. Messages at 100, 200, 200 and 300, in every form of the log."""

    @pytest.fixture(params=["commits", "segment", "segments", "both"])
    def times(self, request: pytest.FixtureRequest) -> Any:
        clock = ManualClock(100)
        with memory_store(clock, segment_span_ms=0 if request.param == "segments" else 10_000) as store:
            store.create_topic("t", queues=2)
            for number, ms in enumerate((100, 200, 200, 300)):
                clock.advance((ms - clock.now_ms()) / 1000)
                send(store, "t", 1)
                if request.param == "both" and number == 1:
                    roll(store.log())
            if request.param.startswith("segment"):
                roll(store.log())
                assert len(store.log().refresh().mark.segments) == (1 if request.param == "segment" else 3)
            yield QueueTimes(store)

    @pytest.mark.parametrize(
        ("ms", "first", "last"),
        [
            (200, 1, 2),  # equal times exist: first and last of them
            (250, 3, 2),  # a gap: first after, last before
            (150, 1, 0),
            (300, 3, 3),
            (301, 4, 3),  # later than everything: the end; the last
            (99, 0, 0),  # earlier than everything: the first; 0
            (100, 0, 0),
            (0, 0, 0),
        ],
    )
    def test_both_boundaries(self, times: QueueTimes, ms: int, first: int, last: int) -> None:
        assert times.search("t", ms)["t", DEFAULT_BROKER, 1] == first
        assert times.search("t", ms, Boundary.UPPER)["t", DEFAULT_BROKER, 1] == last

    def test_an_empty_queue(self, times: QueueTimes) -> None:
        for boundary in Boundary:
            assert times.search("t", 200, boundary)["t", DEFAULT_BROKER, 0] == 0
        empty = times.spans("t")[0]
        assert (empty.first, empty.end, empty.first_ms, empty.last_ms) == (0, 0, None, None)

    def test_an_unknown_topic(self, times: QueueTimes) -> None:
        with pytest.raises(NotFoundError, match="no such topic"):
            times.search("nothing", 0)
        with pytest.raises(NotFoundError, match="no such topic"):
            times.spans("nothing")


def test_what_expired_is_not_found() -> None:
    clock = ManualClock(1_000)
    with memory_store(clock, segment_span_ms=1, retention_ms=1_000) as store:
        store.create_topic("t", queues=1)
        for _ in range(5):
            send(store, "t", 0)
            clock.advance(1)
        clock.advance(0.5)
        expire(store.log())
        assert held(store.log(), "t", 0) == [(4, 5_000)]
        times = QueueTimes(store)
        assert times.search("t", 2_000) == {("t", DEFAULT_BROKER, 0): 4}
        assert times.search("t", 2_000, Boundary.UPPER) == {("t", DEFAULT_BROKER, 0): 0}
        assert [(span.first, span.first_ms) for span in times.spans("t")] == [(4, 5_000)]


class Counting:
    """A storage that counts what is read through it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.reads: list[tuple[str, int]] = []
        self.before_read: Callable[[str], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _note(self, path: str, size: int) -> None:
        self.reads.append((path, size))

    def _ahead(self, path: str) -> None:
        if self.before_read is not None:
            self.before_read(path)

    def read(self, path: str) -> bytes:
        self._ahead(path)
        data: bytes = self.inner.read(path)
        self._note(path, len(data))
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self._ahead(path)
        self._note(path, length)
        return bytes(self.inner.read_range(path, start, length))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read_range(path, start, length) for start, length in ranges]

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        self._ahead(path)
        data, size = self.inner.read_tail(path, length)
        self._note(path, len(data))
        return data, size

    def read_tails(self, paths: Sequence[str], length: int) -> list[tuple[bytes, int] | None]:
        return [tail_or_none(self.read_tail, path, length) for path in paths]

    def rows_read(self) -> int:
        """Bytes that were read of segments' rows."""
        return sum(size for path, size in self.reads if "/segments/" in path)


def open_counting(store: Store) -> tuple[CommitLog, Counting]:
    storage = Counting(store.log().storage)
    root = paths.broker_root(DEFAULT_BROKER)
    log = CommitLog(storage, root, DEFAULT_BROKER, settings=store.settings, clock=store.clock)  # type: ignore[arg-type]
    return log, storage


def test_one_segment_and_one_block_are_read() -> None:
    """Of many segments and blocks; a second search of the same part reads one block again and no metadata."""
    clock = ManualClock(0)
    with memory_store(clock, block_bytes=20_000, segment_bytes=300_000) as store:
        store.create_topic("t", queues=4)
        for _ in range(40):
            store.log().append(batch([("t", queue) for queue in range(4)] * 50, 100))
            clock.advance(0.010)
        roll(store.log())
        log, storage = open_counting(store)
        assert len(log.refresh().mark.segments) >= 3
        search = TimeSearch(log)
        offset, stored = held(store.log(), "t", 2)[21 * 50]
        storage.reads.clear()
        assert search.search([("t", 2)], stored - 1) == {("t", 2): offset}
        assert len({path for path, _ in storage.reads if "/segments/" in path}) == 1
        storage.reads.clear()
        assert search.search([("t", 2)], stored) == {("t", 2): offset}
        assert storage.rows_read() <= 20_000, "at most the time column of a block"


def test_idle_queues_in_a_long_tail_are_found_without_a_walk() -> None:
    """Floor and end tell that there is nothing in between, and a walk stops at the nearest commit with the queue."""
    clock = ManualClock(0)
    with memory_store(clock) as store:
        store.create_topic("t", queues=3)
        send(store, "t", 0, 5)
        roll(store.log(), min_commits=1)
        for _ in range(100):
            clock.advance(0.010)
            send(store, "t", 1)
        clock.advance(0.010)
        send(store, "t", 2)
        log, storage = open_counting(store)
        search = TimeSearch(log)
        offset_1, middle = held(log, "t", 1)[50]
        last = held(log, "t", 2)[0][1]
        for queue, ms, offset, most in ((0, middle, 5, 0), (1, middle, offset_1, 2), (2, last - 1, 0, 2)):
            storage.reads.clear()
            assert search.search([("t", queue)], ms) == {("t", queue): offset}
            assert len({path for path, _ in storage.reads if paths.commitlog(log.root) in path}) <= most


def test_a_segment_that_is_merged_during_a_search_is_found_again() -> None:
    clock = ManualClock(0)
    with memory_store(clock) as store:
        store.create_topic("t", queues=2)
        for _ in range(10):
            send(store, "t", 0)
            clock.advance(0.010)
        roll(store.log())
        log, storage = open_counting(store)
        [segment] = log.refresh().mark.segments
        merged: list[str] = []

        def merge(path: str) -> None:
            if not merged and path.endswith(segment.name):
                merged.append(path)
                send(store, "t", 0)
                roll(store.log(), min_commits=1)
                assert not store.storage.exists(path)

        storage.before_read = merge
        log.files._kept.clear()
        assert TimeSearch(log).search([("t", 0)], held(store.log(), "t", 0)[5][1]) == {("t", 0): 5}
        assert merged


def test_a_missing_segment_is_damage_and_no_answer() -> None:
    with memory_store(ManualClock(0)) as store:
        store.create_topic("t", queues=1)
        send(store, "t", 0)
        roll(store.log(), min_commits=1)
        log = store.log()
        times = QueueTimes(store)
        segment = f"{paths.segments(log.root)}/{log.refresh().mark.segments[0].name}"
        data = store.storage.read(segment)
        store.storage.delete(segment)
        with pytest.raises(CorruptDataError, match="missing"):
            times.search("t", 0)
        store.storage.create_if_absent(segment, [data])
        assert times.search("t", 0) == {("t", DEFAULT_BROKER, 0): 0}


def test_a_bit_flip_in_the_times_is_noticed() -> None:
    clock = ManualClock(0)
    with memory_store(clock, block_bytes=200_000) as store:
        store.create_topic("t", queues=1)
        for _ in range(300):
            send(store, "t", 0)
            clock.advance(0.010)
        roll(store.log())
        log = store.log()
        path = f"{paths.segments(log.root)}/{log.refresh().mark.segments[0].name}"
        data = bytearray(store.storage.read(path))
        stamp = (1_500).to_bytes(8, "little")
        at = data.index(stamp)
        data[at] ^= 1
        store.storage.delete(path)
        store.storage.create_if_absent(path, [bytes(data)])
        with pytest.raises(CorruptDataError, match="check-sum"):
            QueueTimes(store).search("t", 1_500)


def test_brokers_are_searched_each_in_its_own_log() -> None:
    clock = ManualClock(0)
    with memory_store(clock) as store:
        store.create_topic("t", queues=2, brokers=("x", "y"))
        for count, broker in enumerate(("x", "y", "y")):
            clock.advance(1)
            send(store, "t", 1, count + 1, broker)
        times = QueueTimes(store)
        offsets = times.search("t", 2_500)
        assert offsets == {("t", "x", 0): 0, ("t", "x", 1): 1, ("t", "y", 0): 0, ("t", "y", 1): 2}
        spans = [(span.broker, span.queue, span.first_ms, span.last_ms) for span in times.spans("t")]
        assert spans == [("x", 0, None, None), ("x", 1, 1_000, 1_000), ("y", 0, None, None), ("y", 1, 2_000, 3_000)]


@settings(max_examples=30, deadline=None)
@given(waits=st.lists(st.integers(0, 3), min_size=1, max_size=400), rolls=st.sets(st.integers(0, 399)))
def test_long_runs_with_equal_times(waits: list[int], rolls: set[int]) -> None:
    """One queue, many blocks, ties across block and segment borders."""
    clock = ManualClock(0)
    small = LogSettings(block_bytes=400, segment_bytes=15_000)
    with memory_store(clock, block_bytes=small.block_bytes, segment_bytes=small.segment_bytes) as store:
        store.create_topic("t", queues=1)
        stored = []
        for number, wait in enumerate(waits):
            clock.advance(wait / 1000)
            stored.append(clock.now_ms())
            store.log().append(batch([("t", 0)]))
            if number in rolls and len(rolls) < 20:
                roll(store.log(), min_commits=1)
        roll(store.log())
        times = QueueTimes(store)
        for ms in range(-1, stored[-1] + 2):
            expected = next((number for number, time in enumerate(stored) if time >= ms), len(stored))
            assert times.search("t", ms) == {("t", DEFAULT_BROKER, 0): expected}


def test_a_block_that_two_queues_share_misleads_nobody() -> None:
    """The first block holds a late message of queue 0 and early ones of queue 1, the last one the other way round."""
    clock = ManualClock(0)
    with memory_store(clock, block_bytes=2_000) as store:
        store.create_topic("t", queues=3)
        send(store, "t", 2)
        for _ in range(300):
            send(store, "t", 1)
            clock.advance(0.010)
        send(store, "t", 0)
        roll(store.log())
        log = store.log()
        times = QueueTimes(store)
        rows = [held(log, "t", queue) for queue in range(3)]
        for ms in moments(rows, clock):
            offsets = times.search("t", ms)
            for queue in range(3):
                assert offsets["t", DEFAULT_BROKER, queue] == lower(rows[queue], end_of(log, "t", queue), ms)


def test_a_reader_that_opened_before_sees_what_came_later() -> None:
    clock = ManualClock(0)
    with memory_store(clock) as store:
        store.create_topic("t", queues=1)
        with again(store, read_only=True) as reader:
            times = QueueTimes(reader)
            assert times.search("t", 0) == {("t", DEFAULT_BROKER, 0): 0}
            clock.advance(1)
            send(store, "t", 0)
            assert times.search("t", 1_001) == {("t", DEFAULT_BROKER, 0): 1}
            assert times.spans("t")[0].first_ms == 1_000
