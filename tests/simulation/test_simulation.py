"""The seeded simulation as a test: 1,000 seeds in twenty parts, and 20,000 others as a slow test.

A failing seed is in the text of the assertion. Replay one with
`python -m rmq_spark.testing.simulate --first SEED --seeds 1`.
"""

import os

import pytest

from rmq_spark.testing.sim_world import World
from rmq_spark.testing.simulate import Simulation

PARTS = 20
SEEDS = int(os.environ.get("RMQ_SIM_SEEDS", "1000"))
FIRST = int(os.environ.get("RMQ_SIM_FIRST", "0"))


@pytest.mark.simulation
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_on_a_faulty_storage(part):
    for seed in range(FIRST + part, FIRST + SEEDS, PARTS):
        Simulation(seed).run()


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_for_many_more_seeds(part):
    for seed in range(1_000_000 + part, 1_000_000 + 20 * SEEDS, PARTS):
        Simulation(seed).run()


def test_a_seed_gives_the_same_run_twice():
    first, second = Simulation(11), Simulation(11)
    assert first.run() == second.run()
    assert first.history.rows == second.history.rows


def test_the_checks_fail_when_a_writer_does_not_look_at_the_marks(monkeypatch):
    """The guard against freed names (docs/decisions/0003) is what keeps these seeds green."""
    from rmq_spark.log import view

    monkeypatch.setattr(view, "newest_mark", lambda storage, root, known: known)
    with pytest.raises(Exception, match=r"."):  # whichever promise breaks first
        for seed in range(200):
            Simulation(seed).run()


def test_the_checks_fail_when_an_unclear_append_is_simply_repeated(monkeypatch):
    from rmq_spark.log import commit_log

    monkeypatch.setattr(commit_log.CommitLog, "_note", lambda self, request: None)
    with pytest.raises(AssertionError, match=r"twice|was true"):  # a message, or a decision that was repeated
        for seed in range(200):
            Simulation(seed).run()


@pytest.mark.slow
def test_the_checks_fail_when_an_append_builds_on_what_was_not_confirmed(monkeypatch):
    from rmq_spark.log.view import LogView

    monkeypatch.setattr(LogView, "trusted", property(lambda self: self._loaded))
    with pytest.raises(Exception, match=r"."):
        for seed in range(2000):
            Simulation(seed).run()


def test_faults_are_injected_at_all():
    injected = set()
    for seed in range(60):
        simulation = Simulation(seed)
        simulation.run()
        injected |= set(simulation.world.injected)
    assert injected >= {"fail before", "lost reply", "late effect", "stale list", "crash", "nap", "clock jump"}


def test_a_livelock_is_reported_not_waited_for():
    world = World(1)
    world.steps_max = 50

    def forever(process):
        while True:
            world.sleep(0.001)

    world.faults.crash = 0.0
    world.add("spinner", forever)
    with pytest.raises(AssertionError, match="livelock"):
        world.run()
