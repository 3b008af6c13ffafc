"""Consumers that are killed and stopped: every message is consumed, queues in order, one process inside a queue."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rmq_spark import Message, Producer, Store

WORKER = Path(__file__).with_name("consumer_worker.py")
QUEUES = 4
SETTINGS = {
    "heartbeat_ms": 1_000,
    "expiry_ms": 4_000,
    "rebalance_ms": 1_000,
    "lease_ms": 6_000,
    "renew_ms": 1_000,
    "commit_ms": 300,
}
TRUSTED_SECONDS = SETTINGS["lease_ms"] / 2000
STUCK_SECONDS = 300
"""The run is stuck if nothing is consumed for so long; how long the run takes is the machine's affair."""


@dataclass
class Visit:
    """One call of a listener."""

    process: int
    queue: int
    offset: int
    msg_id: str
    enter: float
    exit: float | None = None


@dataclass
class Crowd:
    """The processes of a run, and what was done to them."""

    folder: Path
    orderly: bool
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    started: int = 0
    woken: list[tuple[int, float]] = field(default_factory=list)
    """Number of a process, and when it was allowed to go on."""

    def start(self) -> None:
        number = self.started
        job = {
            "store": str(self.folder / "store"),
            "report": str(self.folder / f"report-{number}"),
            "orderly": self.orderly,
            "pause": 0.01,
            "settings": SETTINGS,
        }
        process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(job)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        process.number = number  # type: ignore[attr-defined]
        self.started += 1
        self.running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"

    def kill(self, rng: random.Random) -> None:
        process = self.running.pop(rng.randrange(len(self.running)))
        process.kill()
        self._bury(process)

    def stop_for_a_while(self, rng: random.Random) -> None:
        process = rng.choice(self.running)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(SETTINGS["lease_ms"] / 1000 + 1)
        self.woken.append((process.number, time.clock_gettime(time.CLOCK_BOOTTIME)))  # type: ignore[attr-defined]
        os.kill(process.pid, signal.SIGCONT)

    def end(self) -> list[int]:
        """Let all processes close their consumers; returns their exit codes."""
        for process in self.running:
            assert process.stdin is not None
            process.stdin.close()
        codes = [process.wait() for process in self.running]
        for process in self.running:
            self._bury(process)
        self.running.clear()
        return codes

    def kill_all(self) -> None:
        for process in self.running:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
            self._bury(process)

    def _bury(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def visits(self) -> list[Visit]:
        found: list[Visit] = []
        for number in range(self.started):
            inside: dict[tuple[int, int], Visit] = {}
            path = self.folder / f"report-{number}"
            lines: list[list[Any]] = (
                [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []
            )
            for kind, at, queue, offset, msg_id in lines:
                if kind == "enter":
                    inside[queue, offset] = Visit(number, queue, offset, msg_id, at)
                    found.append(inside[queue, offset])
                else:
                    inside[queue, offset].exit = at
        return sorted(found, key=lambda visit: visit.enter)

    def consumed(self) -> set[str]:
        return {visit.msg_id for visit in self.visits() if visit.exit is not None}


def check_order(visits: list[Visit]) -> None:
    """A message is first seen when all messages before it in its queue have been consumed."""
    done: dict[int, int] = {}
    events = sorted(
        [(visit.enter, 1, visit) for visit in visits]
        + [(visit.exit, 0, visit) for visit in visits if visit.exit is not None],
        key=lambda event: event[:2],
    )
    for _, is_enter, visit in events:
        if is_enter:
            assert visit.offset <= done.get(visit.queue, 0), f"before its predecessor was consumed: {visit}"
        else:
            done[visit.queue] = max(done.get(visit.queue, 0), visit.offset + 1)


def check_alone(visits: list[Visit], woken: list[tuple[int, float]]) -> None:
    """Nobody enters a queue while a listener of another process is inside, unless that one outlived its lease."""
    last: dict[int, Visit] = {}
    resumed = {number: [at for each, at in woken if each == number] for number, _ in woken}
    for visit in visits:
        other = last.get(visit.queue)
        if other is not None and other.process != visit.process and other.exit is not None and other.exit > visit.enter:
            # A process that was stopped between the check of its lease and its first report enters without a right.
            late = any(at <= other.enter for at in resumed.get(other.process, []))
            assert late or visit.enter - other.enter > TRUSTED_SECONDS, f"two inside: {other} and {visit}"
        last[visit.queue] = visit


def run(folder: Path, *, orderly: bool, messages: int, rounds: int) -> None:
    rng = random.Random(rounds)
    crowd = Crowd(folder, orderly)
    with Store.create(str(folder / "store")) as store:
        store.create_topic("t", queues=QUEUES)
        producer = Producer(store)
        sent: set[str] = set()
        try:
            for _ in range(2):
                crowd.start()
            for number in range(rounds):
                sent |= {producer.send(Message("t", b"x")).msg_id for _ in range(messages)}
                crowd.kill(rng) if number % 2 == 0 else crowd.stop_for_a_while(rng)
                crowd.start()
            sent |= {producer.send(Message("t", b"x")).msg_id for _ in range(messages)}
            consumed, since = set[str](), time.monotonic()
            while not sent <= consumed:
                now = crowd.consumed()
                if len(now) > len(consumed):
                    consumed, since = now, time.monotonic()
                assert time.monotonic() - since < STUCK_SECONDS, f"{len(sent - consumed)} messages are not consumed"
                time.sleep(0.2)
            assert crowd.end() == [0] * (2 + rounds - (rounds + 1) // 2)
        finally:
            crowd.kill_all()
    visits = crowd.visits()
    assert {visit.msg_id for visit in visits} == sent
    if orderly:
        check_order(visits)
        check_alone(visits, crowd.woken)


def test_the_checks_can_fail() -> None:
    early = [Visit(0, 0, 0, "a", 1.0, 2.0), Visit(0, 0, 2, "c", 3.0, 4.0)]
    with pytest.raises(AssertionError, match="before its predecessor"):
        check_order(early)
    both = [Visit(0, 0, 0, "a", 1.0, 2.0), Visit(1, 0, 0, "a", 1.5, 3.0)]
    with pytest.raises(AssertionError, match="two inside"):
        check_alone(both, [])
    check_order([Visit(0, 0, 0, "a", 1.0, 2.0), Visit(1, 0, 0, "a", 3.0, 4.0), Visit(1, 0, 1, "b", 5.0, 6.0)])
    check_alone([Visit(0, 0, 0, "a", 1.0, 20.0), Visit(1, 0, 0, "a", 10.0, 11.0)], [])  # it outlived its lease


def test_orderly_consumers_that_are_killed_and_stopped(tmp_path: Path) -> None:
    run(tmp_path, orderly=True, messages=60, rounds=2)


def test_concurrent_consumers_of_which_one_is_killed(tmp_path: Path) -> None:
    run(tmp_path, orderly=False, messages=100, rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [True, False])
def test_many_kills_and_stops(tmp_path: Path, orderly: bool) -> None:
    run(tmp_path, orderly=orderly, messages=200, rounds=16)
