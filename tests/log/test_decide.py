"""Decisions: each is true at the position where it lands, they share commits, and none disturbs another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from counters import Arrivals, Counters, adding, arriving, increment, look, value_of
from faulty import BROKER, ROOT, Wrapped, ids, message, open_log

from rmq_spark.errors import (
    ExistsError,
    InvalidRequestError,
    LostRaceError,
    OutcomeUnknownError,
    PreconditionFailedError,
    RmqError,
    StorageFullError,
    UnavailableError,
)
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.core_folds import FoldList, Truncations
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision, Request
from rmq_spark.log.roll import roll
from rmq_spark.log.state import LogState
from rmq_spark.log.verify import verify
from rmq_spark.storage.base import Storage
from rmq_spark.storage.local import LocalStorage
from rmq_spark.storage.memory import MemoryStorage


def open_counting(storage: Storage | None = None, **settings: Any) -> CommitLog:
    return open_log(storage, folds=[Counters], **settings)


def together(log: CommitLog, *requests: Request) -> None:
    """Commit requests as one group, as a leader would."""
    log._commit_group(list(requests))


def lose(path: str) -> None:
    raise OutcomeUnknownError("no answer")


def once(storage: Wrapped, hook: str, act: Callable[[], None]) -> None:
    """Let `act` happen at the next create of a commit."""

    def run(path: str) -> None:
        if "/commitlog/" in path:
            setattr(storage, hook, None)
            act()

    setattr(storage, hook, run)


class TestSharing:
    def test_decisions_of_many_threads_share_commits(self, tmp_path: Any) -> None:
        storage = LocalStorage(tmp_path)
        log = open_counting(storage, linger_ms=20)
        answers: list[int] = []
        start = threading.Barrier(8)

        def work() -> None:
            start.wait()
            for _ in range(20):
                answers.append(log.decide(increment()).answer)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == list(range(160)), "each saw what the ones before it left"
        assert len(log.view.state.commits.firsts) < 160
        assert value_of(open_counting(storage).view.state) == 160

    def test_a_group_of_appends_and_decisions_is_one_commit(self) -> None:
        log = open_counting()
        requests = [
            Request(message("a")),
            Request(rule=increment()),
            Request(adding("n", 5)),
            Request(rule=increment()),
            Request(message("b", queue=1), app=("app", 3)),
            Request(rule=look()),
        ]
        together(log, *requests)
        assert [request.error for request in requests] == [None] * 6
        assert [request.answer for request in requests] == [None, 0, None, 6, None, 7]
        assert len(log.view.state.commits.firsts) == 1
        fresh = open_counting(log.storage).view.state
        assert value_of(fresh) == value_of(log.view.state) == 7
        assert sorted(ids(log)) == ["a", "b"]

    def test_each_rule_sees_what_the_ones_before_it_left(self) -> None:
        log = open_counting()
        requests = [Request(rule=increment(below=2)) for _ in range(4)]
        together(log, *requests)
        assert [request.answer for request in requests[:2]] == [0, 1]
        assert [type(request.error) for request in requests[2:]] == [PreconditionFailedError] * 2
        assert value_of(open_counting(log.storage).view.state) == 2

    def test_offsets_are_those_of_the_rules_rows_then_its_records(self) -> None:
        log = open_counting()
        log.append(message("before"))

        def rule(state: LogState) -> Decision[str]:
            rows = MessageBatch.merge([message("y", topic="z"), message("x")])
            return Decision("done", rows, [(Counters.topics[0], {"name": "n", "add": 1})])

        request = Request(rule=rule)
        together(log, Request(message("first")), request)
        assert request.attempt is not None
        decided = log.decide(lambda state: rule(state))
        assert decided.answer == "done"
        assert decided.result.queue_offsets is not None and decided.result.commit_offsets is not None
        assert decided.result.queue_offsets.tolist() == [1, 3, 1]
        places = {}
        for batch in log.scan():
            for row in batch.to_pylist():
                places[row["commitOffset"]] = (row["topic"], row["queueOffset"])
        assert [places[offset] for offset in decided.result.commit_offsets.tolist()] == [
            ("z", 1),
            ("t", 3),
            (Counters.topics[0], 1),
        ]

    def test_a_record_is_told_its_queue_offset_before_it_lands(self) -> None:
        log = open_log(folds=[Arrivals])
        log.append(arriving("A"))
        together(
            log,
            Request(MessageBatch.merge([arriving("B", queue=1), arriving("C"), arriving("D", topic=1)])),
            Request(arriving("E", properties=(("k", "v"), ("j", "w")))),
        )
        mine = log.view.state.fold(Arrivals).dump()
        assert mine == open_log(log.storage, folds=[Arrivals]).view.state.fold(Arrivals).dump()
        assert sorted(mine) == [
            "rmq_sys_test_here/0/0",
            "rmq_sys_test_here/0/1",
            "rmq_sys_test_here/0/2",
            "rmq_sys_test_here/1/0",
            "rmq_sys_test_there/0/0",
        ]


class TestRefusals:
    def test_a_refused_rule_writes_nothing_and_does_not_disturb_the_others(self) -> None:
        log = open_counting()
        good, bad, last = Request(message("good")), Request(rule=increment(only_at=9)), Request(rule=increment())
        together(log, good, bad, last)
        assert good.settled and last.settled and last.answer == 0
        assert isinstance(bad.error, PreconditionFailedError)
        with pytest.raises(PreconditionFailedError):
            log.decide(increment(only_at=9))
        assert len(log.view.state.commits.firsts) == 1
        assert value_of(open_counting(log.storage).view.state) == 1

    def test_a_rules_own_exception_reaches_only_its_caller(self) -> None:
        log = open_counting()

        def broken(state: LogState) -> Decision[None]:
            raise ZeroDivisionError("a bug")

        good, bad = Request(rule=increment()), Request(rule=broken)
        together(log, bad, good)
        assert good.settled and isinstance(bad.error, ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            log.decide(broken)
        assert log.decide(increment()).answer == 1

    def test_a_decision_without_rows_writes_nothing(self) -> None:
        storage = Wrapped(MemoryStorage())
        log = open_counting(storage)
        log.decide(increment())
        created = list(storage.created)
        decided = log.decide(look())
        assert (decided.answer, decided.result.store_ms, decided.result.offsets) == (1, None, None)
        assert storage.created == created

    @pytest.mark.parametrize("turns", [1, 200])
    def test_a_decision_without_rows_is_asked_at_the_logs_end_not_on_an_old_state(self, turns: int) -> None:
        base = MemoryStorage()
        log, other = open_counting(base), open_counting(base)
        for _ in range(turns):  # however long nobody else was seen to append
            log.decide(look())
        other.decide(increment())
        assert log.decide(look()).answer == 1
        other.decide(increment())
        with pytest.raises(PreconditionFailedError, match="value=2"):
            log.decide(increment(only_at=1))
        assert log.decide(increment(only_at=2)).answer == 2

    def test_records_of_a_fold_that_is_not_declared_are_refused(self) -> None:
        base = MemoryStorage()
        open_counting(base).decide(increment())
        plain = open_log(base)
        with pytest.raises(InvalidRequestError, match="no fold of this handle reads the topic"):
            plain.append(adding("n"))
        with pytest.raises(InvalidRequestError, match="no fold of this handle reads the topic"):
            plain.decide(lambda state: Decision(None, records=[(Counters.topics[0], {"name": "n", "add": 1})]))
        for topic in ("rmq_sys_consumer_offset", "rmq_sys_table_lease"):  # of this package, and not listed yet
            with pytest.raises(InvalidRequestError, match="declare it"):
                plain.append(message("x", topic=topic, body=b"{}"))
        plain.append(message("fine"))
        assert value_of(open_counting(base).view.state) == 1

    def test_a_rule_that_asks_for_a_fold_that_is_not_declared_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match=r"declare it with `use`.*test_counters"):
            open_log().decide(look())

    def test_a_refused_batch_leaves_no_trace_in_the_state(self) -> None:
        """Its good records come before the bad one: they are taken back, whatever else the commit holds."""
        base = MemoryStorage()
        log = open_log(base, folds=[Counters, Arrivals])
        log.append(message("kept"))
        truncate = message("cut", topic=Truncations.topics[0], body=b'{"topic": "t"}')
        bad = Request(
            MessageBatch.merge([adding("n", 3), arriving("A"), truncate, message("x", topic=Counters.topics[0])])
        )
        good = Request(arriving("B"))
        together(log, bad, good)
        assert isinstance(bad.error, InvalidRequestError) and good.settled
        fresh = open_log(base, folds=[Counters, Arrivals])
        for state in (log.view.state, fresh.view.state):
            assert value_of(state) == 0
            assert list(state.fold(Arrivals).seen) == ["rmq_sys_test_here/0/0"]
            assert state.queues.bounds("t", 0) == (0, 1), "the topic was not truncated"
            assert list(state.fold(FoldList).topics_of) == ["test_arrivals"], "a fold without records is not listed"
        assert ids(log) == ids(fresh) == ["kept"]
        assert verify(base, ROOT, BROKER, folds=[Counters, Arrivals]).ok


class TestLostRaces:
    def test_a_rule_is_asked_again_on_what_won(self) -> None:
        base = MemoryStorage()
        weak = Wrapped(base)
        log, other = open_counting(weak), open_counting(base)
        once(weak, "before_create", lambda: other.decide(increment()))
        assert log.decide(increment()).answer == 1
        once(weak, "before_create", lambda: other.decide(increment()))
        with pytest.raises(PreconditionFailedError, match="value=3"):
            log.decide(increment(only_at=2))
        assert value_of(log.view.state) == value_of(open_counting(base).view.state) == 3

    def test_a_refusal_that_stood_on_rows_that_lost_is_asked_again(self) -> None:
        """The second is refused on the first one's rows; then the first is refused, and the second agrees."""
        base = MemoryStorage()
        weak = Wrapped(base)
        log, other = open_counting(weak), open_counting(base)
        first, second = Request(rule=increment("a", only_at=0)), Request(rule=both("a", "b"))
        once(weak, "before_create", lambda: other.append(adding("a", -1)))
        together(log, first, second)
        assert isinstance(first.error, PreconditionFailedError)
        assert second.error is None and second.answer == -1
        assert value_of(open_counting(base).view.state, "b") == 1

    def test_what_was_agreed_before_a_race_was_lost_is_not_reported_when_it_is_refused_after(self) -> None:
        base = MemoryStorage()
        weak = Wrapped(base)
        log, other = open_counting(weak), open_counting(base)

        def answer_once_full(state: LogState) -> Decision[str]:
            if value_of(state) == 0:
                return Decision("took", records=[(Counters.topics[0], {"name": "n", "add": 1})])
            return Decision("full")

        once(weak, "before_create", lambda: other.decide(increment()))
        decided = log.decide(answer_once_full)
        assert decided.answer == "full"
        assert (decided.result.store_ms, decided.result.commit_offsets) == (None, None), "nothing landed for it"

    def test_a_refusal_is_not_reported_when_the_race_is_lost_for_good(self) -> None:
        base = MemoryStorage()
        weak = Wrapped(base)
        log, other = open_counting(weak, append_timeout_ms=1), open_counting(base)

        def always_first(path: str) -> None:
            if "/commitlog/" in path:
                log.clock.sleep(0.003)
                other.append(message("winner"))

        weak.before_create = always_first
        first, second = Request(rule=increment(only_at=0)), Request(rule=increment(only_at=0))
        together(log, first, second)
        assert isinstance(first.error, LostRaceError)
        assert not isinstance(second.error, PreconditionFailedError), "it stood on rows that are not in the log"
        assert isinstance(second.error, RmqError)


def both(guard: str, name: str) -> Callable[[LogState], Decision[int]]:
    """Add to `name` if `guard` is not above zero."""

    def rule(state: LogState) -> Decision[int]:
        value = value_of(state, guard)
        if value > 0:
            raise PreconditionFailedError("guarded")
        return Decision(value, records=[(Counters.topics[0], {"name": name, "add": 1})])

    return rule


class TestFailures:
    @pytest.mark.parametrize("failure", [UnavailableError, StorageFullError])
    def test_a_refusal_that_stood_on_rows_that_did_not_land_is_not_reported(self, failure: type[RmqError]) -> None:
        weak = Wrapped(MemoryStorage())
        log = open_counting(weak, append_timeout_ms=1)

        def down(path: str) -> None:
            raise failure("down")

        weak.before_create = down
        first, second, third = Request(rule=increment()), Request(rule=increment(only_at=0)), Request(rule=look())
        together(log, first, second, third)
        assert isinstance(first.error, failure)
        assert isinstance(second.error, UnavailableError)
        assert isinstance(third.error, UnavailableError), "its answer would have been 1"
        weak.before_create = None
        assert log.decide(increment(only_at=0)).answer == 0

    def test_nor_when_it_is_unclear_whether_they_landed(self) -> None:
        weak = Wrapped(MemoryStorage())
        log = open_counting(weak, append_timeout_ms=1)
        weak.after_create = lose
        first, second, third = Request(rule=increment()), Request(rule=increment(only_at=0)), Request(rule=look())
        together(log, first, second, third)
        assert isinstance(first.error, OutcomeUnknownError)
        assert isinstance(second.error, UnavailableError) and isinstance(third.error, UnavailableError)

    def test_nor_when_the_one_who_commits_for_it_is_interrupted(self) -> None:
        weak = Wrapped(MemoryStorage())
        log = open_counting(weak)
        first, second = Request(rule=increment(below=1)), Request(rule=increment(below=1))

        def interrupt() -> None:
            raise KeyboardInterrupt

        once(weak, "before_create", interrupt)
        with pytest.raises(KeyboardInterrupt):
            together(log, first, second)
        assert not isinstance(second.error, PreconditionFailedError), "the first one has not landed"
        assert value_of(open_counting(weak).view.state) == 0

    @pytest.mark.parametrize("arrived", [True, False])
    def test_the_same_rule_again_after_an_unclear_answer_lands_once_with_the_same_answer(self, arrived: bool) -> None:
        base = MemoryStorage()
        weak = Wrapped(base)
        log = open_counting(weak, append_timeout_ms=1)
        log.decide(increment())
        rule = increment()
        hook = "after_create" if arrived else "before_create"
        setattr(weak, hook, lose)
        with pytest.raises(OutcomeUnknownError):
            log.decide(rule)
        setattr(weak, hook, None)
        if arrived:
            open_counting(base).decide(increment())  # others go on meanwhile
        decided = log.decide(rule)
        assert decided.answer == 1
        assert decided.result.repeated is arrived
        assert decided.result.queue_offsets is not None
        assert decided.result.queue_offsets.tolist() == [1]
        assert value_of(open_counting(base).view.state) == (3 if arrived else 2)

    def test_a_rule_whose_unclear_commit_lost_its_place_is_asked_again(self) -> None:
        base = MemoryStorage()
        weak = Wrapped(base)
        log = open_counting(weak, append_timeout_ms=1)
        rule = increment(below=1)
        weak.before_create = lose
        with pytest.raises(OutcomeUnknownError):
            log.decide(rule)
        weak.before_create = None
        open_counting(base).decide(increment())
        with pytest.raises(PreconditionFailedError):
            log.decide(rule)

    def test_an_interrupted_decision_lands_once_when_repeated(self) -> None:
        base = MemoryStorage()
        weak = Wrapped(base)
        log = open_counting(weak)

        def interrupt() -> None:
            raise KeyboardInterrupt

        rule = increment()
        once(weak, "after_create", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.decide(rule)
        assert log.decide(rule).answer == 0
        assert value_of(log.view.state) == value_of(open_counting(base).view.state) == 1

    @pytest.mark.parametrize("repeated", [False, True])
    def test_an_append_may_have_landed_while_the_log_cannot_be_read_is_unclear(self, repeated: bool) -> None:
        """The reply is lost, the name is taken, by us or another, and whose it is cannot be read."""
        base = MemoryStorage()
        blind = Blind(base)
        log = open_counting(blind, append_timeout_ms=1 if repeated else 60_000)
        log.decide(increment())
        rule = increment()

        def reply_lost_then_blind(path: str) -> None:
            blind.after_create, blind.before_create = None, taken
            raise OutcomeUnknownError("no answer")

        def taken(path: str) -> None:
            blind.down = True
            raise ExistsError("name is taken", path=path)

        if repeated:
            blind.before_create = lose
            with pytest.raises(OutcomeUnknownError):
                log.decide(rule)
            blind.before_create = taken
        else:
            blind.after_create = reply_lost_then_blind
        with pytest.raises(OutcomeUnknownError):
            log.decide(rule)
        blind.before_create, blind.down = None, False
        assert log.decide(rule).answer == 1
        assert value_of(open_counting(base).view.state) == 2


class Blind(Wrapped):
    """Files cannot be read while `down`."""

    down = False

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        if self.down:
            raise UnavailableError("no read")
        return super().read_tail(path, length)


class TestAsyncFlush:
    def test_every_commit_of_a_group_is_flushed_those_that_came_again_too(self) -> None:
        """A batch that comes again was in an earlier commit; the new one beside it is not to be forgotten for it."""
        base = MemoryStorage()
        weak = Synced(base)
        log = open_counting(weak, flush="async", append_timeout_ms=1, flush_interval_ms=3_600_000)
        unclear = message("A")
        weak.after_create = lose
        with pytest.raises(OutcomeUnknownError):
            log.append(unclear)
        weak.after_create = None
        again = Request(unclear, earlier=log._unclear[id(unclear)])
        new = Request(message("B"))
        together(log, new, again)
        assert new.settled and again.repeated
        log.flush()
        assert {path.rsplit("/", 1)[1] for path in weak.synced} == {f"{slot:020d}.arrow" for slot in (0, 1)}

    def test_a_decision_without_rows_at_the_end_of_a_group_does_not_hide_its_commit(self) -> None:
        base = MemoryStorage()
        weak = Synced(base)
        log, other = (
            open_counting(weak, flush="async", flush_interval_ms=3_600_000),
            open_counting(base),
        )

        def take_or_look(state: LogState) -> Decision[None]:
            if state.offset == 0:
                return Decision(None, message("mine"))
            return Decision(None)

        once(weak, "before_create", lambda: other.append(message("theirs")))
        together(log, Request(message("A")), Request(rule=take_or_look))
        log.flush()
        assert [path.rsplit("/", 1)[1] for path in weak.synced] == [f"{1:020d}.arrow"]


class Synced(Wrapped):
    """Notes what is made durable."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.synced: list[str] = []

    def sync(self, paths: Any) -> None:
        self.synced += paths
        super().sync(paths)


def test_a_decision_on_the_state_of_a_rolled_log() -> None:
    log = open_counting()
    for _ in range(3):
        log.decide(increment())
    roll(log)
    assert log.decide(increment()).answer == 3
    assert open_counting(log.storage).decide(increment()).answer == 4
