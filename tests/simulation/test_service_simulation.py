"""The seeded simulation of the services as a test: 300 seeds in ten parts; a failing seed is in the assertion's text.

Replay one with `python -m rmq_spark.testing.simulate_services --first SEED --seeds 1`.
"""

import os

import pytest

from rmq_spark.errors import PreconditionFailedError
from rmq_spark.rules import timer, transaction
from rmq_spark.testing.simulate_services import ServiceSimulation

PARTS = 10
SEEDS = int(os.environ.get("RMQ_SERVICE_SEEDS", "300"))
FIRST = int(os.environ.get("RMQ_SERVICE_FIRST", "0"))


@pytest.mark.simulation
@pytest.mark.parametrize("part", range(PARTS))
def test_delays_and_transactions_on_a_faulty_storage(part):
    for seed in range(FIRST + part, FIRST + SEEDS, PARTS):
        ServiceSimulation(seed).run()


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize("part", range(PARTS))
def test_delays_and_transactions_for_many_more_seeds(part):
    for seed in range(1_000_000 + part, 1_000_000 + 10 * SEEDS, PARTS):
        ServiceSimulation(seed).run()


def test_a_seed_gives_the_same_run_twice():
    first, second = ServiceSimulation(7), ServiceSimulation(7)
    assert first.run() == second.run()
    assert first.rows == second.rows


def test_the_checks_fail_when_deliverers_do_not_compare_marks(monkeypatch):
    monkeypatch.setattr(timer, "_check_mark", lambda now, before: None)
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(300):
            ServiceSimulation(seed).run()


def test_the_checks_fail_when_messages_go_out_early(monkeypatch):
    from rmq_spark.services.timer_index import TimerIndex

    due = TimerIndex.due
    monkeypatch.setattr(TimerIndex, "due", lambda self, horizon_ms, limit: due(self, horizon_ms + 50, limit))
    monkeypatch.setattr(TimerIndex, "next_due", lambda self: 0 if self.count else None)
    monkeypatch.setattr(timer, "_check_due", lambda due_ms, log_ms: None)
    with pytest.raises(AssertionError, match="is early"):
        for seed in range(50):
            ServiceSimulation(seed).run()


def test_the_checks_fail_when_retention_carries_nothing_forward(monkeypatch):
    from rmq_spark.services.timer import BrokerTimers

    monkeypatch.setattr(BrokerTimers, "carry_forward", lambda self, before: before)
    with pytest.raises(AssertionError, match="never delivered"):
        for seed in range(300):
            ServiceSimulation(seed).run()


def test_the_checks_fail_when_a_settled_transaction_can_be_settled_again(monkeypatch):
    known = transaction._still_open

    def forgiving(state, tx_id, halves=None):
        try:
            return known(state, tx_id, halves)
        except PreconditionFailedError:
            return transaction.OpenTransaction("shop", 0, 0)

    monkeypatch.setattr(transaction, "_still_open", forgiving)
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(300):
            ServiceSimulation(seed).run()
