"""A broker or a group for which a service fails holds up no other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from service_world import ServiceWorld

from rmq_spark import Admin, Message, SimpleConsumer, UnavailableError
from rmq_spark.client.store import Store
from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.errors import ClosedError, CorruptDataError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.rules.pop import PopState
from rmq_spark.rules.transaction import Transactions
from rmq_spark.services import parts as parts_module
from rmq_spark.services import transaction_check
from rmq_spark.services.parts import Parts
from rmq_spark.services.retention import RetentionService
from rmq_spark.services.revive import ReviveService
from rmq_spark.services.rolling import RollService, SnapshotService
from rmq_spark.services.runner import ServiceRunner
from rmq_spark.services.sweep import SweepService
from rmq_spark.services.timer import TimerService
from rmq_spark.services.transaction_check import CheckSettings, TransactionCheckService

BAD = "a-bad"
"""Comes before the broker that works, in every order."""


class Work:
    """Fails for some, and counts."""

    def __init__(self, *bad: str) -> None:
        self.bad = set(bad)
        self.did: list[str] = []

    def __call__(self, name: str) -> str:
        self.did.append(name)
        if name in self.bad:
            raise UnavailableError("gone")
        return name.upper()

    def each(self, parts: Parts, *names: str, **options: bool) -> dict[str, str]:
        return parts.each("broker", {name: partial(self, name) for name in names}, **options)


class TestParts:
    def test_one_that_fails_is_named_and_the_others_go_on(self, caplog: pytest.LogCaptureFixture) -> None:
        work, parts = Work("a"), Parts("timer", ManualClock())
        assert work.each(parts, "a", "b", or_raise=True) == {"b": "B"}
        assert "service timer failed for broker a, 1 in a row" in caplog.text
        assert list(parts.failures()) == ["broker a"]
        assert not parts.works("broker", "a")
        assert parts.works("broker", "b")
        assert (parts.take_failed(), parts.take_failed()) == (1, 0)

    def test_only_the_one_that_fails_pauses_twice_as_long_each_time(self) -> None:
        clock = ManualClock()
        work, parts = Work("a"), Parts("timer", clock)
        tried = []
        for tick in range(16):
            work.did.clear()
            work.each(parts, "a", "b")
            assert "b" in work.did
            tried += [tick] if "a" in work.did else []
            clock.advance(0.1)
        assert tried == [0, 1, 3, 7, 15]

    def test_one_that_works_again_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = ManualClock()
        work, parts = Work("a"), Parts("timer", clock)
        work.each(parts, "a", "b")
        work.bad.clear()
        clock.advance(0.1)
        assert work.each(parts, "a", "b") == {"a": "A", "b": "B"}
        assert "service timer works again for broker a, after 1 failures" in caplog.text
        assert not parts.failures()

    def test_when_all_fail_it_is_raised_and_nobody_pauses_by_itself(self, caplog: pytest.LogCaptureFixture) -> None:
        work, parts = Work("a", "b"), Parts("timer", ManualClock())
        for _ in range(2):
            with pytest.raises(UnavailableError):
                work.each(parts, "a", "b", or_raise=True)
        assert work.did == ["a", "b"] * 2
        assert not caplog.records, "whoever runs the service tells it"

    def test_one_that_pauses_is_not_forgotten_when_the_others_fail(self) -> None:
        work, parts = Work("a"), Parts("timer", ManualClock())
        work.each(parts, "a", "b", or_raise=True)
        work.bad.add("b")
        assert work.each(parts, "a", "b", or_raise=True) == {}
        assert work.did == ["a", "b", "b"]
        assert {part: failure.count for part, failure in parts.failures().items()} == {"broker a": 1, "broker b": 1}

    def test_one_that_is_gone_fails_no_more(self) -> None:
        work, parts = Work("a"), Parts("timer", ManualClock())
        work.each(parts, "a", "b")
        work.each(parts, "b")
        assert not parts.failures()

    def test_a_closed_store_ends_it(self) -> None:
        def closed() -> None:
            raise ClosedError("closed")

        with pytest.raises(ClosedError):
            Parts("timer", ManualClock()).each("broker", {"a": closed, "b": closed})

    def test_a_bug_is_told_with_its_traceback(self, caplog: pytest.LogCaptureFixture) -> None:
        Parts("timer", ManualClock()).each("broker", {"a": lambda: 1 // 0, "b": lambda: 1})
        [record] = caplog.records
        assert record.levelno == logging.ERROR
        assert record.exc_info


def break_broker(monkeypatch: pytest.MonkeyPatch, world: ServiceWorld) -> None:
    """Make a broker whose log cannot be opened."""
    Admin(world.store).brokers.add(BAD)
    opened = Store.log

    def log(self: Store, broker: str = "broker-0", *folds: Any) -> CommitLog:
        if broker == BAD:
            raise CorruptDataError("a file is missing")
        return opened(self, broker, *folds)

    monkeypatch.setattr(Store, "log", log)


@pytest.mark.parametrize(
    "make",
    [
        TimerService,
        TransactionCheckService,
        ReviveService,
        RollService,
        SnapshotService,
        SweepService,
        RetentionService,
    ],
)
def test_every_service_goes_on_for_the_other_brokers(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make: Callable[[Store], Any]
) -> None:
    break_broker(monkeypatch, world)
    service = make(world.store)
    for _ in range(2):
        assert service.run_once() >= 0.01
        service.behind_ms()
    assert list(service.parts.failures()) == [f"broker {BAD}"]
    told = [record.getMessage() for record in caplog.records]
    assert [f"service {service.name} failed for broker {BAD}" in text for text in told] == [True]


def test_delayed_messages_of_the_other_brokers_are_delivered(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_broker(monkeypatch, world)
    timers = TimerService(world.store)
    for number in range(3):
        world.producer().send(Message("orders", b"%d" % number, delay=1))
        world.clock.advance(1)
        timers.run_once()
    monkeypatch.undo()
    assert world.bodies("orders") == [b"0", b"1", b"2"]


def test_a_group_whose_messages_cannot_be_given_back_holds_up_no_other(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.store.create_topic("t", queues=1)
    world.producer().send(Message("t", b"x"))
    for group in ("bad", "good"):
        with SimpleConsumer(world.store, group, consume_from="earliest").subscribe("t") as consumer:
            assert len(consumer.receive(invisible_duration=1, await_duration=0)) == 1
    revive = ReviveService(world.store)
    able = revive._revive

    def give_back(broker: str, log: CommitLog, place: tuple[str, str, int], held: Any) -> int:
        if place[0] == "bad":
            raise CorruptDataError("a file is missing")
        return able(broker, log, place, held)

    monkeypatch.setattr(revive, "_revive", give_back)
    world.clock.advance(1)
    assert revive.run_once() == 1.0, "what fails is not tried again without a pause"
    held = world.store.log("broker-0", PopState).look(
        lambda view: {place[0] for place in view.state.fold(PopState).held}
    )
    assert held == {"bad"}
    assert list(revive.parts.failures()) == ["broker broker-0 group bad topic t queue 0"]
    assert "group bad topic t queue 0" in caplog.text


def test_a_group_whose_transactions_cannot_be_given_up_holds_up_no_other(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for group in ("bad", "good"):
        producer = world.producer(group=group)
        producer.send(Message("t", b"x"), transaction=producer.begin_transaction())
    able = transaction_check.read_halves

    def read(log: CommitLog, transaction: Any) -> Any:
        if transaction.group == "bad":
            raise CorruptDataError("a file is missing")
        return able(log, transaction)

    monkeypatch.setattr(transaction_check, "read_halves", read)
    world.clock.advance(10)
    service = TransactionCheckService(world.store, CheckSettings(checks_max=0))
    service.run_once()
    left = world.store.log("broker-0").look(lambda view: view.state.fold(Transactions).open.values())
    assert [each.group for each in left] == ["bad"]
    assert "failed for broker broker-0 group bad" in caplog.text


class Failing:
    """Works for one part, not for the other."""

    name = "failing"

    def __init__(self) -> None:
        self.parts = Parts(self.name, SystemClock())
        self.work = Work("a")

    def run_once(self) -> float:
        self.work.each(self.parts, "a", "b", or_raise=True)
        return 0.001

    def behind_ms(self) -> int:
        return 0


def test_the_status_names_what_fails_while_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "BACK_OFF_SECONDS_MIN", 30.0)
    service = Failing()
    runner = ServiceRunner([service], SystemClock())
    for _ in range(3):
        assert runner._round(service) == 0.001
    [status] = runner.status()
    assert (status.runs, status.failures, status.failures_total) == (3, 1, 1)
    assert status.last_error is not None
    assert status.last_error.startswith("broker a: UnavailableError: gone")
    assert service.work.did == ["a", "b", "b", "b"]
