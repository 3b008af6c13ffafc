"""Folds are declared: a process without one loses nothing of it, pays nothing for it, and must not expire over it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from counters import Arrivals, Counters, adding, arriving, increment, value_of
from faulty import BROKER, ROOT, Wrapped, ids, message, open_log

from rmq_spark.clock import ManualClock
from rmq_spark.errors import CorruptDataError, InvalidRequestError, UnsupportedVersionError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.core_folds import FoldList, SinkBatches
from rmq_spark.log.expire import expire
from rmq_spark.log.fold import Fold, Records
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision
from rmq_spark.log.roll import roll
from rmq_spark.log.state import LogState
from rmq_spark.log.undo import Journal
from rmq_spark.log.verify import verify
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage
from rmq_spark.storage.memory import MemoryStorage

BOTH: tuple[type[Fold], ...] = (Counters, Arrivals)


def fold_dump(state: LogState, kind: type[Fold]) -> Any:
    return state.fold(kind).dump()


def snapshots(storage: Storage) -> list[str]:
    return sorted(info.name for info in storage.list(paths.snapshots(ROOT)))


def forget_snapshots(storage: Storage) -> None:
    """Delete those that are no part of the log."""
    for name in snapshots(storage):
        storage.delete(f"{paths.snapshots(ROOT)}/{name}")


class TestAnOlderVersion:
    """A handle without a fold stands for a process of an older version, which does not have it."""

    def make(self, **settings: Any) -> tuple[MemoryStorage, ManualClock, CommitLog, CommitLog]:
        clock = ManualClock()
        storage = MemoryStorage(None, clock=clock)
        given = {"clock": clock, "segment_bytes": 1, **settings}
        return storage, clock, open_log(storage, folds=[Counters], **given), open_log(storage, **given)

    def test_what_it_rolls_and_copies_loses_nothing(self) -> None:
        storage, clock, full, older = self.make()
        full.decide(increment())
        roll(full, min_commits=1)  # a snapshot that holds the fold
        for number in range(4):
            clock.advance(1)
            full.decide(increment())
            older.append(message(f"m{number}"))
            older.snapshot()
            if number % 2:
                roll(older)
        for _ in range(5):
            older.append(message("x"))
            older.snapshot()
        fresh = open_log(storage, folds=[Counters], clock=clock)
        assert value_of(fresh.view.state) == value_of(full.refresh().state) == 5
        assert verify(storage, ROOT, BROKER, folds=[Counters]).ok
        assert verify(storage, ROOT, BROKER).ok

    def test_nothing_is_lost_when_it_rolled_all_records_there_are(self) -> None:
        storage, clock, full, older = self.make(segment_bytes=1 << 20)
        for _ in range(3):
            full.decide(increment())
        roll(older)
        assert [named.folds for named in older.refresh().mark.snapshots] == [
            tuple(sorted(older.view.state.folds)),
        ], "it knows of none that holds the fold"
        assert value_of(open_log(storage, folds=[Counters], clock=clock).view.state) == 3
        assert value_of(full.refresh().state) == 3

    def test_an_expiry_by_a_full_process_keeps_the_state_that_only_old_messages_told(self) -> None:
        storage, clock, full, older = self.make()
        for _ in range(3):
            full.decide(increment())
            clock.advance(10)
        older.append(message("young"))
        roll(older)
        older.append(message("younger"))
        roll(older, min_commits=1)
        gone = expire(full, before_ms=clock.now_ms() - 5)
        assert gone.log_start == full.refresh().mark.log_start >= 3
        fresh = open_log(storage, folds=[Counters], clock=clock)
        assert value_of(fresh.view.state) == value_of(full.refresh().state) == 3
        older.append(message("last"))
        roll(older)
        roll(older, min_commits=1)
        assert value_of(open_log(storage, folds=[Counters], clock=clock).view.state) == 3
        assert verify(storage, ROOT, BROKER, folds=[Counters]).ok

    def test_it_refuses_to_expire_and_names_the_fold(self) -> None:
        storage, clock, full, older = self.make()
        for _ in range(3):
            full.decide(increment())
            clock.advance(10)
        full.append(message("young"))
        with pytest.raises(InvalidRequestError, match="test_counters"):
            expire(older, before_ms=clock.now_ms())
        assert older.refresh().mark.log_start == 0
        older.use(Counters)  # upgraded
        assert expire(older, before_ms=clock.now_ms()).log_start > 0
        assert value_of(open_log(storage, folds=[Counters], clock=clock).view.state) == 3

    def test_it_refuses_for_state_of_stores_that_do_not_list_their_folds_yet(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Format version 1 had no list; what was in use is told by the topics."""
        clock = ManualClock()
        storage = MemoryStorage(None, clock=clock)
        log = open_log(storage, folds=[ConsumerOffsets], clock=clock, segment_bytes=1)
        monkeypatch.setattr(log._appender._asker, "new_folds", lambda state: None)
        body = json.dumps({"group": "g", "topic": "t", "offsets": {"0": 3}}).encode()
        log.append(message("o", topic=ConsumerOffsets.topics[0], body=body))
        clock.advance(10)
        log.append(message("m"))
        plain = open_log(storage, clock=clock, segment_bytes=1)
        assert not plain.view.state.fold(FoldList).topics_of
        with pytest.raises(InvalidRequestError, match="rmq_sys_consumer_offset"):
            expire(plain, before_ms=clock.now_ms() + 1)
        assert expire(log, before_ms=clock.now_ms() + 1).log_start == 1
        fresh = open_log(storage, folds=[ConsumerOffsets], clock=clock)
        assert fresh.view.state.fold(ConsumerOffsets).of("g", "t") == {0: 3}

    def test_a_state_that_nobody_holds_any_more_is_an_error_not_empty(self) -> None:
        storage, clock, full, older = self.make()
        for _ in range(3):
            full.decide(increment())
            clock.advance(10)
        full.append(message("young"))
        assert expire(full, before_ms=clock.now_ms()).log_start
        older.append(message("x"))
        forget_snapshots(storage)
        for info in list(storage.list(paths.floors(ROOT))):
            storage.delete(f"{paths.floors(ROOT)}/{info.name}")
        with pytest.raises(CorruptDataError, match=r"missing; restore it.*/floors/"):
            open_log(storage, folds=[Counters], clock=clock)
        with pytest.raises(CorruptDataError, match=r"missing; restore it.*/floors/"):
            older.use(Counters)
        older.append(message("y"))  # the handle works on without it

    def test_a_newer_version_of_the_state_is_refused_not_misread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        storage, clock, full, _ = self.make()
        monkeypatch.setattr(Counters, "version", 2)
        full.decide(increment())
        roll(full, min_commits=1)
        monkeypatch.setattr(Counters, "version", 1)
        with pytest.raises(UnsupportedVersionError, match=r"upgrade.*test_counters"):
            open_log(storage, folds=[Counters], clock=clock)
        assert ids(open_log(storage, clock=clock)) == []


class TestUse:
    @pytest.mark.parametrize("rolled", [False, True])
    @pytest.mark.parametrize("copied", [False, True])
    def test_later_gives_the_same_state_as_at_open(self, rolled: bool, copied: bool) -> None:
        storage = MemoryStorage()
        log = open_log(storage, folds=BOTH)
        early = open_log(storage)
        for number in range(6):
            log.append(MessageBatch.merge([adding("n"), arriving(f"A{number}", queue=number % 2), message("m")]))
            log.append(arriving(f"B{number}", topic=1, properties=(("k", str(number)),)))
            if number == 2 and copied:
                log.snapshot()
            if number == 3 and rolled:
                roll(log)
        early.use(Counters)
        early.use(*BOTH)
        declared = open_log(storage, folds=BOTH)
        for kind in BOTH:
            assert fold_dump(early.view.state, kind) == fold_dump(declared.view.state, kind)
            assert fold_dump(declared.view.state, kind) == fold_dump(log.view.state, kind)
        log.decide(increment())
        assert value_of(early.refresh().state) == 7
        assert early.decide(increment()).answer == 7

    def test_of_a_fold_without_records_is_empty_and_costs_no_read(self) -> None:
        storage = Reads(MemoryStorage())
        log = open_log(storage)
        log.append(message("m"))
        storage.paths_read = []
        log.use(Counters)
        assert [path for path in storage.paths_read if "commitlog" in path] == [paths.commit(ROOT, 1)]
        assert log.decide(increment()).answer == 0

    def test_twice_changes_nothing(self) -> None:
        log = open_log(folds=[Counters])
        log.decide(increment())
        log.use(Counters)
        assert value_of(log.view.state) == 1

    def test_by_a_handle_that_another_rolls_away_from_under(self) -> None:
        storage = MemoryStorage()
        log = open_log(storage, folds=[Counters])
        for _ in range(4):
            log.decide(increment())
        early = open_log(storage)
        early.files._kept.clear()
        roll(log)
        early.use(Counters)
        assert value_of(early.view.state) == 4


class Reads(Wrapped):
    """Notes which files are read."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.paths_read: list[str] = []
        self.ranges: list[str] = []

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        self.paths_read.append(path)
        return super().read_tail(path, length)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self.ranges.append(path)
        return super().read_range(path, start, length)


class TestCost:
    def test_a_handle_without_folds_reads_no_bodies_of_state_topics(self, monkeypatch: pytest.MonkeyPatch) -> None:
        storage = Reads(MemoryStorage())
        log = open_log(storage, folds=[Counters])
        log.append(adding("n" * 100))  # lists the fold
        large = [adding("n" * 100) for _ in range(3_000)]
        log.append(MessageBatch.merge(large))
        storage.ranges = []
        parsed: list[int] = []
        values = Records.values
        monkeypatch.setattr(Records, "values", lambda self: parsed.append(len(self)) or values(self))
        plain = open_log(storage)
        assert plain.view.state.offset == 3_002
        assert storage.ranges == [] and sum(parsed) == 1, "only the record that lists the fold"
        full = open_log(storage, folds=[Counters])
        assert storage.ranges and sum(parsed) == 1 + 1 + 3_001
        assert value_of(full.view.state, "n" * 100) == 3_001

    def test_a_writer_does_not_parse_its_own_commit_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = open_log(folds=[Counters])
        log.decide(increment())
        parsed: list[int] = []
        values = Records.values
        monkeypatch.setattr(Records, "values", lambda self: parsed.append(len(self)) or values(self))
        log.decide(increment())
        assert parsed == [1]


class TestSnapshots:
    def test_one_without_the_fold_does_not_hide_an_older_one_that_has_it(self) -> None:
        storage = MemoryStorage()
        full, older = open_log(storage, folds=[Counters]), open_log(storage)
        full.decide(increment())
        full.snapshot()
        for number in range(4):
            older.append(message(f"m{number}"))
            older.snapshot()
        held = [name for name in snapshots(storage) if name.startswith(f"{2:020d}")]
        assert held, "it alone holds the fold"
        applied: list[int] = []
        apply = Counters.apply

        def counted(self: Counters, records: Records) -> None:
            applied.append(len(records))
            apply(self, records)

        try:
            Counters.apply = counted  # type: ignore[method-assign]
            assert value_of(open_log(storage, folds=[Counters]).view.state) == 1
        finally:
            Counters.apply = apply  # type: ignore[method-assign]
        assert applied == [], "it was taken from the snapshot"

    def test_names_the_folds_that_it_holds(self) -> None:
        log = open_log(folds=[Counters])
        log.decide(increment())
        roll(log, min_commits=1)
        (named,) = log.refresh().mark.snapshots
        assert set(named.folds) == set(log.view.state.folds) >= {"test_counters", "sink_batches"}
        assert log.view.state.fold(FoldList).topics_of == {"test_counters": Counters.topics}

    def test_one_that_a_roller_is_about_to_name_is_not_dropped(self) -> None:
        storage = MemoryStorage()
        weak = Wrapped(storage)
        roller, writer = open_log(weak), open_log(storage)
        for number in range(3):
            writer.append(message(f"m{number}"), app=("app", number))

        def meanwhile(path: str) -> None:
            if "/marks/" in path:
                weak.before_create = None
                for number in range(4):
                    writer.append(message(f"n{number}"))
                    writer.snapshot()

        weak.before_create = meanwhile
        assert roll(roller).commits == 3
        forget_snapshots(storage)
        fresh = open_log(storage)
        assert fresh.view.state.fold(SinkBatches).last == {"app": 2}
        assert len(ids(fresh)) == 7

    def test_one_that_a_mark_names_is_not_dropped_by_a_handle_that_does_not_know_the_mark(self) -> None:
        storage, clock = MemoryStorage(), ManualClock()  # whose names rise
        stale, other = open_log(storage, clock=clock), open_log(storage, clock=clock)
        other.append(message("a"), app=("app", 1))
        stale.refresh()
        roll(other, min_commits=1)
        state = stale.view.state
        for _ in range(4):
            stale.snapshot()  # of what it knows: it has not looked since
        assert stale.view.state is state
        forget_snapshots(storage)
        assert open_log(storage).view.state.fold(SinkBatches).last == {"app": 1}

    def test_a_named_one_that_is_missing_is_damage(self) -> None:
        storage = MemoryStorage()
        full = open_log(storage, folds=[Counters])
        full.decide(increment())
        roll(full, min_commits=1)
        older = open_log(storage)
        older.append(message("m"))
        roll(older, min_commits=1)
        mark = older.refresh().mark
        assert len(mark.snapshots) == 2, "the one at the floor, and the one that holds the counters"
        gone = f"{paths.floors(ROOT)}/{mark.snapshots[1].name}"
        storage.delete(gone)
        findings = verify(storage, ROOT, BROKER).findings
        assert [finding.path for finding in findings if finding.damage] == [gone]


@pytest.mark.parametrize("seed", range(60))
def test_any_interleaving_by_handles_with_different_folds_gives_the_same_state(seed: int) -> None:
    rng = random.Random(seed)
    clock = ManualClock()
    storage = MemoryStorage(None, clock=clock)
    given = {"clock": clock, "segment_bytes": rng.choice([1, 4_000, 1 << 20]), "retention_ms": 50_000}
    every = rng.choice([1, 3, 1000])
    sets: list[tuple[type[Fold], ...]] = [(), (Counters,), (Arrivals,), BOTH]
    handles = [(set(kinds), open_log(storage, folds=kinds, snapshot_every_commits=every, **given)) for kinds in sets]
    counters: dict[str, int] = {}
    arrivals = expired = 0
    for step in range(rng.randrange(10, 60)):
        clock.advance(rng.choice([0, 1, 20]))
        kinds, log = rng.choice(handles)
        act = rng.choice(["count", "count", "arrive", "plain", "snapshot", "roll", "expire", "use", "reopen"])
        if act == "count" and Counters in kinds:
            name = rng.choice("ab")
            assert log.decide(increment(name)).answer == counters.get(name, 0)
            counters[name] = counters.get(name, 0) + 1
        elif act == "arrive" and Arrivals in kinds:
            log.append(MessageBatch.merge([arriving(f"{step}-{n}", topic=n % 2, queue=n % 3) for n in range(4)]))
            arrivals += 4
        elif act == "snapshot":
            log.snapshot()
        elif act == "roll":
            roll(log, min_commits=rng.choice([1, 2]))
        elif act == "expire":
            used = {Counters} if counters else set()
            used |= {Arrivals} if arrivals else set()
            before = log.refresh().mark.log_start
            try:
                expire(log)
            except InvalidRequestError as error:
                assert used - kinds, "it knows all folds that are in use"
                assert set(error.context["folds"]) == {kind.name for kind in used - kinds}
                assert log.refresh().mark.log_start == before
            else:
                expired += log.refresh().mark.log_start > before
                assert not (log.refresh().mark.log_start > before and used - kinds)
        elif act == "use" and rng.random() < 0.2:
            kind = rng.choice(BOTH)
            log.use(kind)
            kinds.add(kind)
        elif act == "reopen":
            at = rng.randrange(len(handles))
            kinds = set(sets[at])
            handles[at] = (kinds, open_log(storage, folds=sets[at], snapshot_every_commits=every, **given))
        else:
            log.append(message(f"m{step}"))
    views = [(kinds, log.refresh().state) for kinds, log in handles]
    views.append((set(BOTH), open_log(storage, folds=BOTH, **given).view.state))
    late = open_log(storage, **given)
    late.use(*BOTH)
    views.append((set(BOTH), late.view.state))
    arrived = fold_dump(late.view.state, Arrivals)
    assert len(arrived) == arrivals
    for kinds, state in views:
        if Counters in kinds:
            assert fold_dump(state, Counters) == counters
        if Arrivals in kinds:
            assert fold_dump(state, Arrivals) == arrived
    report = verify(storage, ROOT, BROKER, folds=BOTH)
    assert report.ok, report.findings
    assert verify(storage, ROOT, BROKER).ok


def test_a_fold_is_made_of_dicts_that_can_be_undone() -> None:
    for kind in (*BOTH, ConsumerOffsets, SinkBatches, FoldList):
        fold = kind(Journal())
        for value in vars(fold).values():
            assert not isinstance(value, (list, set)), "a change of it in place could not be undone"


def test_a_fold_whose_first_record_came_after_an_expiry_is_learned() -> None:
    clock = ManualClock()
    log = open_log(segment_bytes=1, clock=clock)
    for number in range(4):
        clock.advance(3600)
        log.append(message(f"m{number}"))
    roll(log)
    assert expire(log, before_ms=clock.wall_ms - 5_000_000).segments
    other = open_log(log.storage, clock=clock)
    other.use(ConsumerOffsets)
    record = {"group": "g", "topic": "t", "offsets": {"0": 3}}
    other.decide(lambda _: Decision(None, records=[(ConsumerOffsets.topics[0], record)]))
    late = open_log(log.storage, clock=clock)
    late.use(ConsumerOffsets)
    assert late.view.state.fold(ConsumerOffsets).of("g", "t") == {0: 3}
