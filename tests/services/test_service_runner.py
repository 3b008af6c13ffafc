"""Running services: they go on whatever fails, tell how they are doing, and stop when told to."""

from __future__ import annotations

import threading

import pytest

from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.clock import SystemClock
from rmq_spark.errors import ClosedError, UnavailableError
from rmq_spark.log.scan import Query
from rmq_spark.log.state import LogState
from rmq_spark.model.message import Message
from rmq_spark.rules import service_lease
from rmq_spark.rules.lease import Lease
from rmq_spark.rules.service_lease import LEASE_MS, TAKEOVER_MS, ServiceLeases
from rmq_spark.services import parts
from rmq_spark.services import runner as runner_module
from rmq_spark.services.runner import ServiceRunner
from rmq_spark.services.timer import TimerService
from rmq_spark.services.transaction_check import TransactionCheckService


class Counting:
    name = "counting"

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.ran = threading.Semaphore(0)

    def run_once(self) -> float:
        self.ran.release()
        error = self.outcomes.pop(0) if self.outcomes else None
        if error is not None:
            raise error
        return 0.001

    def behind_ms(self) -> int:
        return 7


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(parts, "BACK_OFF_SECONDS_MIN", 0.001)


def test_a_failure_is_noted_and_tried_again():
    service = Counting(None, UnavailableError("gone"), ValueError("a bug"))
    with ServiceRunner([service], SystemClock()) as runner:
        for _ in range(5):
            assert service.ran.acquire(timeout=30)
    [status] = runner.status()
    assert (status.name, status.failures, status.last_error, status.behind_ms) == ("counting", 0, None, 7)
    assert status.runs >= 2
    assert status.last_run_ms is not None


def test_the_status_names_the_last_failure():
    service = Counting(*[UnavailableError("gone")] * 1000)
    runner = ServiceRunner([service], SystemClock())
    runner.start()
    for _ in range(3):
        assert service.ran.acquire(timeout=30)
    runner.stop()
    [status] = runner.status()
    assert status.failures >= 2
    assert status.last_error == "UnavailableError: gone"
    assert status.last_run_ms is None


def test_a_closed_store_ends_the_thread():
    service = Counting(ClosedError("closed"))
    runner = ServiceRunner([service], SystemClock())
    runner.start()
    assert service.ran.acquire(timeout=30)
    runner._threads[0].join(30)
    assert not runner._threads[0].is_alive()
    runner.stop()
    runner.stop()


def test_a_delayed_message_arrives_by_itself(tmp_path):
    with Store.create(str(tmp_path / "store"), services="off") as store:
        services = [TimerService(store), TransactionCheckService(store)]
        with ServiceRunner(services, store.clock):
            sent = Producer(store).send(Message("orders", b"x", delay=0.2))
            log = store.log()
            for _ in range(600):
                bodies = [batch for batch in log.scan(Query(topics=frozenset({"orders"}))) if batch.num_rows]
                if bodies:
                    break
                log.wait(log.view.state.offset, 0.1)
        [batch] = bodies
        assert batch.column("msgId").to_pylist() == [sent.msg_id]


class TestLease:
    def state(self, *leases: Lease) -> LogState:
        state = LogState([ServiceLeases])
        state.now_ms = 100_000
        for lease in leases:
            state.fold(ServiceLeases).leases["timer"] = lease
        return state

    def test_work_is_left_to_the_holder_until_the_lease_ends_or_the_work_waits_too_long(self):
        state = self.state(Lease("other", 1, 100_500))
        assert not service_lease.is_mine(state, "timer", "me", 100_000, 0)
        assert service_lease.is_mine(state, "timer", "other", 100_000, 0)
        assert service_lease.is_mine(state, "timer", "me", 100_500, 0)
        assert service_lease.is_mine(state, "timer", "me", 100_000, TAKEOVER_MS)
        assert service_lease.is_mine(self.state(), "timer", "me", 100_000, 0)

    def test_it_is_renewed_when_half_of_it_is_over(self):
        assert service_lease.renewal(self.state(Lease("me", 1, 100_000 + LEASE_MS)), "timer", "me") == []
        [(topic, value)] = service_lease.renewal(self.state(Lease("me", 1, 101_000)), "timer", "me")
        assert (topic, value["epoch"], value["until"]) == (ServiceLeases.topics[0], 1, 100_000 + LEASE_MS)
        [(_, value)] = service_lease.renewal(self.state(Lease("other", 4, 200_000)), "timer", "me")
        assert (value["holder"], value["epoch"]) == ("me", 5)


class Waking(Counting):
    """Waits for a notice."""

    name = "waking"

    def __init__(self) -> None:
        super().__init__()
        self.notice = threading.Event()

    def run_once(self) -> float:
        super().run_once()
        return 3600.0

    def wait(self, seconds: float) -> None:
        self.notice.wait(seconds)
        self.notice.clear()

    def wake(self) -> None:
        self.notice.set()


class TestLanes:
    def test_services_of_a_lane_share_a_thread_and_each_has_a_status(self):
        first, second = Counting(), Counting(UnavailableError("gone"))
        second.name = "second"
        with ServiceRunner([], SystemClock(), lanes=[[first, second]]) as runner:
            for service in (first, second):
                for _ in range(3):
                    assert service.ran.acquire(timeout=30)
            assert len(runner._threads) == 1
        by_name = {status.name: status for status in runner.status()}
        assert by_name["counting"].failures_total == 0
        assert by_name["second"].failures_total == 1

    def test_one_that_wakes_up_runs_again_before_its_time(self):
        service = Waking()
        with ServiceRunner([service], SystemClock()):
            assert service.ran.acquire(timeout=30)
            service.wake()
            assert service.ran.acquire(timeout=30)

    def test_a_stop_does_not_wait_for_the_next_round(self):
        service = Waking()
        runner = ServiceRunner([service], SystemClock())
        runner.start()
        assert service.ran.acquire(timeout=30)
        runner.stop()  # would take an hour
        assert not runner._threads[0].is_alive()


def test_an_error_that_may_pass_is_told_in_one_line_and_its_end_too(caplog):
    service = Counting(UnavailableError("gone"))
    with ServiceRunner([service], SystemClock()):
        for _ in range(3):
            assert service.ran.acquire(timeout=30)
    told = [record for record in caplog.records if record.name == runner_module.__name__]
    assert [record.exc_info for record in told] == [None, None]
    assert "failed, 1 in a row" in told[0].getMessage()
    assert "works again" in told[1].getMessage()
