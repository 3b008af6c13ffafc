"""The seeded simulation of the services as a test: 2,000 seeds in forty parts; an assertion names the seed.

Replay one with `python -m rmq_spark.testing.simulate_services --first SEED --seeds 1`.
"""

import os
from dataclasses import replace

import pytest

from rmq_spark.errors import PreconditionFailedError
from rmq_spark.rules import pop_decisions, retry, timer, transaction
from rmq_spark.rules.pop import Claim, PopState
from rmq_spark.testing.simulate_services import PARTS as PARTS_OF_A_SEED
from rmq_spark.testing.simulate_services import ServiceSimulation

PARTS = 40
SEEDS = int(os.environ.get("RMQ_SERVICE_SEEDS", "2000"))
FIRST = int(os.environ.get("RMQ_SERVICE_FIRST", "0"))


@pytest.mark.simulation
@pytest.mark.parametrize("part", range(PARTS))
def test_every_service_keeps_its_promises_on_a_faulty_storage(part):
    for seed in range(FIRST + part, FIRST + SEEDS, PARTS):
        ServiceSimulation(seed).run()


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize("part", range(PARTS))
def test_every_service_keeps_its_promises_for_many_more_seeds(part):
    for seed in range(1_000_000 + part, 1_000_000 + 5 * SEEDS, PARTS):
        ServiceSimulation(seed).run()


def test_a_seed_gives_the_same_run_twice():
    first, second = ServiceSimulation(7, PARTS_OF_A_SEED), ServiceSimulation(7, PARTS_OF_A_SEED)
    assert first.run() == second.run()
    assert first.rows == second.rows


def test_the_checks_fail_when_deliverers_do_not_compare_marks(monkeypatch):
    monkeypatch.setattr(timer, "_check_mark", lambda now, before: None)
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(300):
            ServiceSimulation(seed, ["delays"]).run()


def test_the_checks_fail_when_messages_go_out_early(monkeypatch):
    from rmq_spark.services.timer_index import TimerIndex

    due = TimerIndex.due
    monkeypatch.setattr(TimerIndex, "due", lambda self, horizon_ms, limit: due(self, horizon_ms + 50, limit))
    monkeypatch.setattr(TimerIndex, "next_due", lambda self: 0 if self.count else None)
    monkeypatch.setattr(timer, "_check_due", lambda due_ms, log_ms: None)
    with pytest.raises(AssertionError, match="is early"):
        for seed in range(50):
            ServiceSimulation(seed, ["delays"]).run()


def test_the_checks_fail_when_retention_carries_nothing_forward(monkeypatch):
    from rmq_spark.services.timer import BrokerTimers

    monkeypatch.setattr(BrokerTimers, "carry_forward", lambda self, before: before)
    with pytest.raises(AssertionError, match="never delivered"):
        for seed in range(300):
            ServiceSimulation(seed, ["delays"]).run()


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
            ServiceSimulation(seed, ["transactions"]).run()


def broken(seeds: int = 300) -> None:
    for seed in range(seeds):
        ServiceSimulation(seed, ["pop"]).run()


def test_the_checks_fail_when_a_message_can_be_received_while_it_is_held(monkeypatch):
    monkeypatch.setattr(pop_decisions, "blocked_ms", lambda state, place, fifo, now_ms: None)
    with pytest.raises(AssertionError, match=r"held twice|dead after"):  # whichever promise breaks first
        broken()


def test_the_checks_fail_when_a_claim_does_not_move_the_offset(monkeypatch):
    monkeypatch.setattr(pop_decisions, "_offsets", lambda group, offsets, extra: [])
    with pytest.raises(AssertionError, match="seed"):
        broken()


def test_the_checks_fail_when_messages_are_given_back_before_their_time_is_over(monkeypatch):
    known = PopState.overdue
    monkeypatch.setattr(PopState, "overdue", lambda self, now_ms, limit: known(self, now_ms + 40, limit))
    monkeypatch.setattr(Claim, "due_ms", property(lambda self: self.pop_ms))
    with pytest.raises(AssertionError, match=r"early|held twice"):
        broken()


def test_the_checks_fail_when_an_acknowledgement_is_not_compared_with_the_claim(monkeypatch):
    """A message is given back though it was acknowledged before."""
    monkeypatch.setattr(PopState, "claim_of", lambda self, place, offset: None)
    with pytest.raises(AssertionError, match="seed"):
        broken()


def test_the_checks_fail_when_attempts_are_not_counted(monkeypatch):
    known = retry.retry_row

    def same_times(message, retry_topic, queue_id=0):
        return known(message, retry_topic, queue_id)._replace(reconsume_times=message.reconsume_times)

    monkeypatch.setattr(retry, "retry_row", same_times)
    with pytest.raises(AssertionError, match=r"miscounted|attempts|too many"):
        broken()


def test_the_checks_fail_when_a_message_is_given_up_too_soon(monkeypatch):
    known = retry.is_given_up
    monkeypatch.setattr(retry, "is_given_up", lambda times, maximum, path, level=0: known(times + 1, maximum, path))
    with pytest.raises(AssertionError, match="dead after"):
        broken()


def test_the_checks_fail_when_a_revived_message_gets_no_copy(monkeypatch):
    known = pop_decisions.revive

    def without_rows(place, overdue, *, retry_max_times):
        rule = known(place, overdue, retry_max_times=retry_max_times)
        return lambda state: replace(rule(state), rows=None)

    monkeypatch.setattr(pop_decisions, "revive", without_rows)
    with pytest.raises(AssertionError, match="vanished"):
        broken()
