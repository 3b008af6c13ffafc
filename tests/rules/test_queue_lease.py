"""Leases of queues: one holder at a time, and a stale one cannot commit (facts 5.8)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from rmq_spark import InvalidRequestError, Store
from rmq_spark.client.store import append_records
from rmq_spark.clock import ManualClock
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.undo import Journal
from rmq_spark.rules import queue_lease
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.rules.queue_lease import Progress, QueueLeases, Taken, commit, renew, take
from rmq_spark.storage.memory import MemoryStorage

Q0, Q1 = ("t", 0), ("t", 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> Iterator[CommitLog]:
    try:
        with Store.create("memory://queue-leases", clock=clock) as store:
            yield store.log("broker-0", QueueLeases, ConsumerOffsets)
    finally:
        MemoryStorage.forget("queue-leases")


def offsets(log: CommitLog) -> dict[int, int]:
    return log.look(lambda view: dict(view.state.fold(ConsumerOffsets).of("g", "t")))


def message() -> MessageBatch:
    return MessageBatch.of(topic="t", queue_id=0, msg_id="m", body=b"x", born_timestamp_ms=0)


def test_a_queue_has_one_holder(log: CommitLog) -> None:
    assert log.decide(take("g", "a", [Q0, Q1])).answer == {Q0: Taken(1, None), Q1: Taken(1, None)}
    assert log.decide(take("g", "b", [Q0, Q1])).answer == {}
    assert log.decide(take("other", "b", [Q0])).answer == {Q0: Taken(1, None)}


def test_a_lease_ends_after_60_seconds_of_log_time_unless_it_is_renewed(log: CommitLog, clock: ManualClock) -> None:
    assert (queue_lease.LEASE_MS, queue_lease.RENEW_MS) == (60_000, 20_000)
    log.decide(take("g", "a", [Q0, Q1]))
    clock.advance(59.999)
    assert log.decide(take("g", "b", [Q0])).answer == {}
    assert log.decide(renew("g", "a", {Q0: 1})).answer == frozenset()
    clock.advance(0.001)
    assert log.decide(take("g", "b", [Q0, Q1])).answer == {Q1: Taken(2, None)}
    assert log.decide(renew("g", "a", {Q0: 1, Q1: 1})).answer == {Q1}


def test_a_lease_that_is_over_cannot_be_renewed_even_if_nobody_took_it(log: CommitLog, clock: ManualClock) -> None:
    log.decide(take("g", "a", [Q0]))
    clock.advance(60)
    assert log.decide(renew("g", "a", {Q0: 1})).answer == {Q0}
    assert log.decide(take("g", "a", [Q0])).answer == {Q0: Taken(2, None)}


def test_the_new_holder_is_told_what_was_committed_last(log: CommitLog) -> None:
    log.decide(take("g", "a", [Q0]))
    assert log.decide(commit("g", "a", {Q0: Progress(1, 7)})).answer == frozenset()
    assert log.decide(commit("g", "a", {Q0: Progress(1, 8)}, release=[Q0])).answer == frozenset()
    assert log.decide(take("g", "b", [Q0])).answer == {Q0: Taken(2, 8)}


def test_a_stale_holder_cannot_commit(log: CommitLog, clock: ManualClock) -> None:
    log.decide(take("g", "a", [Q0, Q1]))
    log.decide(commit("g", "a", {Q0: Progress(1, 3)}))
    clock.advance(60)
    log.decide(take("g", "b", [Q0]))
    log.decide(commit("g", "b", {Q0: Progress(2, 5)}))
    assert log.decide(commit("g", "a", {Q0: Progress(1, 9), Q1: Progress(1, 1)})).answer == {Q0, Q1}
    assert offsets(log) == {0: 5}


def test_a_holder_that_lost_a_lease_and_got_it_back_cannot_use_the_old_one(log: CommitLog, clock: ManualClock) -> None:
    log.decide(take("g", "a", [Q0]))
    clock.advance(60)
    log.decide(take("g", "b", [Q0]))
    clock.advance(60)
    assert log.decide(take("g", "a", [Q0])).answer == {Q0: Taken(3, None)}
    assert log.decide(commit("g", "a", {Q0: Progress(1, 9)})).answer == {Q0}
    assert offsets(log) == {}


def test_messages_land_with_the_offsets_or_not_at_all(log: CommitLog, clock: ManualClock) -> None:
    log.decide(take("g", "a", [Q0, Q1]))
    assert log.decide(commit("g", "a", {Q0: Progress(1, 1)}, rows=message())).answer == frozenset()
    clock.advance(60)
    log.decide(take("g", "b", [Q0]))
    assert log.decide(commit("g", "a", {Q0: Progress(1, 2)}, rows=message())).answer == {Q0}
    assert log.decide(queue_lease.append("g", "a", {Q0: 1}, message())).answer == {Q0}
    assert log.refresh().state.queues.bounds("t", 0) == (0, 1)
    assert offsets(log) == {0: 1}
    assert log.decide(queue_lease.append("g", "b", {Q0: 2}, message())).answer == frozenset()
    assert log.refresh().state.queues.bounds("t", 0) == (0, 2)


def test_what_is_committed_already_is_not_written_again(log: CommitLog) -> None:
    log.decide(take("g", "a", [Q0]))
    log.decide(commit("g", "a", {Q0: Progress(1, 7)}))
    end = log.refresh().state.offset
    log.decide(commit("g", "a", {Q0: Progress(1, 7)}))
    assert log.refresh().state.offset == end


def test_the_state_survives_a_snapshot(log: CommitLog) -> None:
    log.decide(take("g", "a", [Q0, Q1]))
    log.decide(commit("g", "a", {Q0: Progress(1, 7)}, release=[Q0]))
    fold = log.refresh().state.fold(QueueLeases)
    other = QueueLeases(Journal())
    other.load(json.loads(json.dumps(fold.dump())), QueueLeases.version)
    assert other.leases == fold.leases


@pytest.mark.parametrize(
    "record",
    [
        {"group": "g", "holder": "h"},
        {"group": "g", "holder": "h", "until": 1, "queues": []},
        {"group": "g", "holder": "h", "until": 1, "queues": {"t": {"x": 1}}},
        {"group": "g", "holder": "h", "until": 1, "queues": {"t": {"0": "1"}}},
    ],
)
def test_a_record_that_could_not_be_read_back_is_refused(log: CommitLog, record: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        append_records(log, QueueLeases, record)
