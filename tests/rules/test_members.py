"""Members of groups: heartbeats, expiry by the log's time, leaving, and differing subscriptions (facts 5.5, 5.10)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from rmq_spark import InvalidRequestError, Store
from rmq_spark.client.store import append_records
from rmq_spark.clock import ManualClock
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.undo import Journal
from rmq_spark.rules import members
from rmq_spark.rules.members import EXPIRY_MS, GroupMembers, heartbeat, leave
from rmq_spark.storage.memory import MemoryStorage

ALL = {"t": "tags *"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> Iterator[CommitLog]:
    try:
        with Store.create("memory://members", clock=clock) as store:
            yield store.nameserver
    finally:
        MemoryStorage.forget("members")


def live(log: CommitLog) -> list[str]:
    return log.look(lambda view: list(view.state.fold(GroupMembers).live("g", log.clock.now_ms())))


def test_a_member_learns_who_else_is_there(log: CommitLog) -> None:
    assert log.decide(heartbeat("g", "b", ALL)).answer.members == ("b",)
    assert log.decide(heartbeat("g", "a", ALL)).answer.members == ("a", "b")
    assert log.decide(heartbeat("other", "c", ALL)).answer.members == ("c",)
    assert live(log) == ["a", "b"]


def test_a_member_is_gone_120_seconds_after_its_last_heartbeat(log: CommitLog, clock: ManualClock) -> None:
    assert (members.HEARTBEAT_MS, EXPIRY_MS) == (30_000, 120_000)
    log.decide(heartbeat("g", "a", ALL))
    clock.advance(60)
    log.decide(heartbeat("g", "b", ALL))
    clock.advance(59.999)
    assert live(log) == ["a", "b"]
    clock.advance(0.001)
    assert live(log) == ["b"]
    assert log.decide(heartbeat("g", "b", ALL)).answer.members == ("b",)
    # With the next record of the group it is forgotten.
    assert log.look(lambda view: list(view.state.fold(GroupMembers).members["g"])) == ["b"]


def test_a_heartbeat_keeps_a_member_alive(log: CommitLog, clock: ManualClock) -> None:
    for _ in range(10):
        log.decide(heartbeat("g", "a", ALL))
        clock.advance(30)
    assert live(log) == ["a"]


def test_the_expiry_is_a_setting_of_each_member(log: CommitLog, clock: ManualClock) -> None:
    log.decide(heartbeat("g", "a", ALL, 1_000))
    log.decide(heartbeat("g", "b", ALL))
    clock.advance(1)
    assert live(log) == ["b"]


def test_a_member_that_leaves_is_gone_at_once(log: CommitLog) -> None:
    log.decide(heartbeat("g", "a", ALL))
    assert log.decide(leave("g", "a")).answer
    assert live(log) == []
    end = log.refresh().state.offset
    assert not log.decide(leave("g", "a")).answer
    assert log.refresh().state.offset == end
    assert log.look(lambda view: dict(view.state.fold(GroupMembers).members)) == {}


def test_rule_24_members_that_subscribe_differently_are_told(log: CommitLog) -> None:
    assert log.decide(heartbeat("g", "a", {"t": "tags x", "u": "tags *"})).answer.differing == ()
    assert log.decide(heartbeat("g", "b", {"t": "tags y", "u": "tags *"})).answer.differing == ("t",)
    assert log.decide(heartbeat("g", "b", {"t": "tags x"})).answer.differing == ("u",)
    assert log.decide(heartbeat("g", "b", {"t": "tags x", "u": "tags *"})).answer.differing == ()


def test_the_state_survives_a_snapshot(log: CommitLog) -> None:
    log.decide(heartbeat("g", "a", {"t": "tags x"}))
    fold = log.refresh().state.fold(GroupMembers)
    other = GroupMembers(Journal())
    other.load(json.loads(json.dumps(fold.dump())), GroupMembers.version)
    assert other.members == fold.members


@pytest.mark.parametrize(
    "record",
    [
        {"group": "g"},
        {"group": 1, "member": "m", "left": True},
        {"group": "g", "member": "m", "expiry": 5},
        {"group": "g", "member": "m", "expiry": "5", "subscriptions": {}},
        {"group": "g", "member": "m", "expiry": 5, "subscriptions": {"t": 1}},
    ],
)
def test_a_record_that_could_not_be_read_back_is_refused(log: CommitLog, record: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        append_records(log, GroupMembers, record)
