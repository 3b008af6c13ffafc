"""Whoever is far behind reads many commits at a time; files that vanish meanwhile are looked for anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from counters import Arrivals, Counters, adding, arriving, value_of
from faulty import BROKER, ROOT, Wrapped, ids, message, open_log

from rmq_spark.clock import ManualClock
from rmq_spark.errors import CorruptDataError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.files import AHEAD_COMMITS, NEAR_COMMITS
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.verify import verify
from rmq_spark.storage import paths
from rmq_spark.storage.base import Bytes, ObjectInfo, Storage
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.storage.parallel import CALLS_MAX, ParallelStorage

COMMITS = NEAR_COMMITS + 2 * AHEAD_COMMITS + 5


class Networked(ParallelStorage, Wrapped):
    """A storage whose calls take a moment; notes how many were under way at once."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._now = {"read": 0, "delete": 0}
        self.most = {"read": 0, "delete": 0}
        self.alone = 0
        """Commits that were read with nothing else under way."""

    def _slowly(self, kind: str) -> None:
        with self._lock:
            self._now[kind] += 1
            self.most[kind] = max(self.most[kind], self._now[kind])
        time.sleep(0.001)
        with self._lock:
            self.alone += self._now[kind] == 1
            self._now[kind] -= 1

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        self._slowly("read")
        return self.inner.read_tail(path, length)

    def delete(self, path: str) -> None:
        self._slowly("delete")
        self.inner.delete(path)


@pytest.fixture
def storage() -> MemoryStorage:
    """A log of many commits of one or two messages, and of records of two folds."""
    storage = MemoryStorage()
    with open_log(storage, folds=[Counters, Arrivals], snapshot_every_commits=10**9) as log:
        for number in range(COMMITS - 1):  # the first record comes with one that names its fold
            if number % 3 == 0:
                log.append(adding("a", number))
            elif number % 3 == 1:
                log.append(arriving(f"{number}", topic=number % 2))
            else:
                log.append(MessageBatch.merge([message(f"{number}-{part}") for part in range(1 + number % 2)]))
    return storage


def test_a_log_is_opened_with_many_reads_at_once(storage: MemoryStorage) -> None:
    slow = Networked(storage)
    with open_log(slow, folds=[Counters]):
        assert slow.most["read"] == CALLS_MAX
        assert slow.alone < COMMITS // 4


def test_a_roll_reads_and_deletes_many_at_once(storage: MemoryStorage) -> None:
    with open_log(storage, folds=[Counters, Arrivals]) as log:
        log.snapshot()
    slow = Networked(storage)
    with open_log(slow, folds=[Counters, Arrivals]) as log:
        slow.most["read"] = 0
        roll(log)
    assert not list(storage.list(paths.commitlog(ROOT)))
    assert slow.most == {"read": CALLS_MAX, "delete": CALLS_MAX}


class Rounds(Wrapped):
    """Counts how often a caller waits for a storage that works on `at_once` calls at a time."""

    def __init__(self, inner: Storage, at_once: int) -> None:
        super().__init__(inner)
        self._at_once = at_once
        self.rounds = 0

    def read(self, path: str) -> bytes:
        self.rounds += 1
        return super().read(path)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self.rounds += 1
        return super().read_range(path, start, length)

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        self.rounds += 1
        return super().read_tail(path, length)

    def exists(self, path: str) -> bool:
        self.rounds += 1
        return super().exists(path)

    def list(self, directory: str) -> Iterator[ObjectInfo]:
        self.rounds += 1
        return super().list(directory)

    def create_if_absent(self, path: str, data: Sequence[Bytes], *, durable: bool = True) -> None:
        self.rounds += 1
        super().create_if_absent(path, data, durable=durable)

    def read_tails(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, int] | None]:
        self.rounds += -(-len(paths) // self._at_once)
        return self.inner.read_tails(paths, length)

    def delete_many(self, paths: Sequence[str]) -> None:
        self.rounds += -(-len(paths) // self._at_once)
        self.inner.delete_many(paths)


def open_and_close(storage: Storage) -> None:
    open_log(storage, folds=[Counters, Arrivals]).close()


def open_and_roll(storage: Storage) -> None:
    with open_log(storage, folds=[Counters, Arrivals]) as log:
        assert roll(log).commits == COMMITS - 1


def verify_all(storage: Storage) -> None:
    assert verify(storage, ROOT, BROKER, folds=[Counters, Arrivals]).commits == COMMITS - 1


@pytest.mark.parametrize("work", [open_and_close, open_and_roll, verify_all])
def test_reading_ahead_saves_most_of_the_waits_for_a_storage(
    storage: MemoryStorage, work: Callable[[Storage], None]
) -> None:
    rounds = {}
    for at_once in (1, CALLS_MAX):
        counting = Rounds(copy_of(storage), at_once)
        work(counting)
        rounds[at_once] = counting.rounds
    print(f"{work.__name__}: {rounds} rounds; {20 * rounds[1]} ms become {20 * rounds[CALLS_MAX]} ms at 20 ms a call")
    assert rounds[1] >= COMMITS
    assert rounds[CALLS_MAX] < rounds[1] / 7, rounds


def copy_of(storage: MemoryStorage) -> MemoryStorage:
    copy = MemoryStorage()
    for info in storage.list(paths.commitlog(ROOT)):
        path = f"{paths.commitlog(ROOT)}/{info.name}"
        copy.create_if_absent(path, [storage.read(path)])
    return copy


def test_commits_folded_together_give_the_state_that_one_by_one_gives(storage: MemoryStorage) -> None:
    one_by_one = CommitLog(MemoryStorage(), ROOT, BROKER, clock=ManualClock(), folds=[Counters, Arrivals])
    for name in sorted(info.name for info in storage.list(paths.commitlog(ROOT))):
        path = f"{paths.commitlog(ROOT)}/{name}"
        one_by_one.storage.create_if_absent(path, [storage.read(path)])
        one_by_one.refresh()
    with open_log(storage, folds=[Counters, Arrivals]) as log:
        assert log.view.state.dump() == one_by_one.view.state.dump()
        assert value_of(log.view.state, "a") == sum(range(0, COMMITS - 1, 3))


def test_what_stands_before_damage_is_folded_and_the_damaged_commit_named(storage: MemoryStorage) -> None:
    names = sorted(info.name for info in storage.list(paths.commitlog(ROOT)))
    bad = f"{paths.commitlog(ROOT)}/{names[AHEAD_COMMITS]}"
    data = bytearray(storage.read(bad))
    data[len(data) // 2] ^= 1
    storage.delete(bad)
    storage.create_if_absent(bad, [bytes(data)])
    with pytest.raises(CorruptDataError) as caught:
        open_log(storage)
    assert caught.value.context["file"] == bad


class Vanishing(Wrapped):
    """Runs `then` once, just behind the listing of a directory or before a file's blocks are read."""

    def __init__(self, inner: Storage, place: str, then: Callable[[], object]) -> None:
        super().__init__(inner)
        self._place = place
        self._then: Callable[[], object] | None = then

    def _now(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()

    def list(self, directory: str) -> Iterator[ObjectInfo]:
        listed = list(self.inner.list(directory))
        if directory == self._place:
            self._now()
        return iter(listed)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if path.startswith(self._place):
            self._now()
        return super().read_ranges(path, ranges)


def large_record(clock: ManualClock) -> tuple[MemoryStorage, CommitLog]:
    """A log with a commit whose records do not come with its metadata, and a handle on it."""
    storage = MemoryStorage(clock=clock)
    log = open_log(storage, clock=clock, folds=[Counters], block_bytes=1_000)
    log.append(MessageBatch.merge([adding("a", 1), *(message(f"{n}", body=bytes(2_000)) for n in range(60))]))
    log.append(message("last"))
    return storage, log


def test_a_snapshot_that_goes_after_it_was_listed_is_no_error() -> None:
    storage, other = large_record(ManualClock())
    other.snapshot()

    def delete_all() -> None:
        other.append(message("more"))
        roll(other)

    for place in (paths.snapshots(ROOT), paths.marks(ROOT), paths.commitlog(ROOT)):
        with open_log(Vanishing(storage, place, delete_all), folds=[Counters]) as log:
            assert value_of(log.view.state, "a") == 1
            assert ids(log)[60] == "last"


def test_a_commit_that_is_rolled_away_while_its_records_are_read_is_no_error() -> None:
    storage, other = large_record(ManualClock())
    place = paths.commitlog(ROOT)
    with open_log(Vanishing(storage, place, lambda: roll(other)), folds=[Counters]) as log:
        assert value_of(log.view.state, "a") == 1
        assert len(ids(log)) == 61
