"""Interleaved rounds, medians, and the table with the aims beside what was seen."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from _settle import settler


@dataclass(kw_only=True)
class Scenario:
    """Something that every peer does with the same messages."""

    name: str
    rows: int
    """How many rows each run reads or writes."""
    runs: dict
    """Peer -> what to call; it raises when the result is wrong."""
    after: dict = field(default_factory=dict)
    """Peer -> what to call after each run, outside the time."""
    aims: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    close: Callable = lambda: None


@dataclass(frozen=True, kw_only=True)
class Aim:
    """`of` has to be at least `least` times as quick as `than`; a peer that was not run is left out."""

    of: str
    than: str
    least: float


WARM = 3
"""Rounds that are not counted: Java goes on compiling a path for the first few of them, some seconds apart."""

FULL_ROWS = 100_000
"""Fewer rows are a trial of the benchmark itself: one round is not counted, and nobody fills the machine's memory."""


def interleave(scenario, rounds):
    """Seconds of every run by peer. Each round takes all peers in turn, every second one backwards."""
    settle, warm = (settler(), WARM) if scenario.rows >= FULL_ROWS else (lambda: None, 1)
    times = {peer: [] for peer in scenario.runs}
    for turn in range(rounds + warm):
        peers = list(scenario.runs)
        for peer in peers if turn % 2 == 0 else reversed(peers):
            settle()
            started = time.perf_counter()
            scenario.runs[peer]()
            if turn >= warm:
                times[peer].append(time.perf_counter() - started)
            scenario.after.get(peer, lambda: None)()
    return times


def show(scenario, times):
    """Print what was seen; returns a line for each aim."""
    print(f"\n{scenario.name}")
    print(f"  {'':<24}{'median s':>10}{'least':>9}{'most':>9}{'thousand rows/s':>18}")
    medians = {peer: statistics.median(values) for peer, values in times.items()}
    for peer, values in times.items():
        rate = scenario.rows / medians[peer] / 1_000
        print(f"  {peer:<24}{medians[peer]:>10.3f}{min(values):>9.3f}{max(values):>9.3f}{rate:>18,.0f}")
    for note in scenario.notes:
        print(f"  {note}")
    lines = []
    for aim in scenario.aims:
        if aim.of in medians and aim.than in medians:
            ratio = medians[aim.than] / medians[aim.of]
            verdict = "reached" if ratio >= aim.least else "MISSED"
            lines.append(f"{scenario.name:<42}{aim.of + ' / ' + aim.than:<34}{ratio:>7.2f}  >= {aim.least:<5}{verdict}")
    for line in lines:
        print(f"  {line[42:]}", flush=True)
    return lines
