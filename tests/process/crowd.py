"""Processes that come, go, are killed and are stopped; what they reported, and the checks of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("consumer_worker.py")
SETTINGS = {
    "heartbeat_ms": 1_000,
    "expiry_ms": 4_000,
    "rebalance_ms": 1_000,
    "lease_ms": 6_000,
    "renew_ms": 1_000,
    "commit_ms": 300,
}
TRUSTED_SECONDS = SETTINGS["lease_ms"] / 2000
STOPPED_SECONDS = SETTINGS["lease_ms"] / 1000 + 1
ATTEMPTS = 17
"""Deliveries of a message that always fails."""


@dataclass
class Visit:
    """One call of a listener."""

    process: int
    queue: int
    offset: int
    msg_id: str
    enter: float
    exit: float | None = None
    times: int = 0
    """`reconsume_times`."""
    succeeded: bool = True


@dataclass
class Member:
    """A process of the crowd."""

    number: int
    role: str
    group: str
    process: subprocess.Popen[str]


@dataclass
class Crowd:
    """The processes of a run, and what was done to them."""

    folder: Path
    members: list[Member] = field(default_factory=list)
    groups: dict[int, str] = field(default_factory=dict)
    """Group of each consumer, by its number."""
    disturbed: list[tuple[int, float]] = field(default_factory=list)
    """Number of a process, and when it was killed or stopped."""
    woken: list[tuple[int, float]] = field(default_factory=list)
    """Number of a process, and when it was allowed to go on."""
    started: int = 0

    # ------------------------------------------------------------ life

    def start(self, role: str, *, group: str = "", **options: Any) -> None:
        number = self.started
        self.started += 1
        job = {
            "role": role,
            "group": group,
            "store": str(self.folder / "store"),
            "report": str(self.folder / f"report-{number}"),
            "orderly": False,
            "fails": False,
            "failing": 0.0,
            "pause": 0.01,
            "settings": SETTINGS,
            **options,
        }
        process = subprocess.Popen(
            [sys.executable, str(WORKER), json.dumps(job)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.members.append(Member(number, role, group, process))
        if role == "consume":
            self.groups[number] = group
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"

    def of(self, role: str, group: str = "") -> list[Member]:
        return [each for each in self.members if each.role == role and each.group == group]

    def kill(self, member: Member) -> None:
        self._signal(member, signal.SIGKILL)
        self._bury(member)

    def stop_for_a_while(self, member: Member) -> None:
        self._signal(member, signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        self.woken.append((member.number, _now()))
        os.kill(member.process.pid, signal.SIGCONT)

    def _signal(self, member: Member, number: int) -> None:
        # Noted before and after: on a busy machine the process may enter a listener between the note and the signal.
        self.disturbed.append((member.number, _now()))
        os.kill(member.process.pid, number)
        self.disturbed.append((member.number, _now()))

    def leave(self, *members: Member) -> None:
        """Let processes end by themselves, which must succeed."""
        for member in members:
            assert member.process.stdin is not None
            member.process.stdin.close()
        for member in members:
            assert member.process.wait() == 0, f"a {member.role} process failed"
            self._bury(member)

    def kill_all(self) -> None:
        for member in list(self.members):
            os.kill(member.process.pid, signal.SIGCONT)
            member.process.kill()
            self._bury(member)

    def _bury(self, member: Member) -> None:
        member.process.wait()
        self.members.remove(member)
        for pipe in (member.process.stdin, member.process.stdout):
            if pipe is not None:
                pipe.close()

    # ------------------------------------------------------------ reports

    def _lines(self, number: int) -> list[list[Any]]:
        path = self.folder / f"report-{number}"
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []

    def sent(self) -> set[str]:
        """Ids of messages that producers were told are in the log."""
        return {line[2] for number in range(self.started) for line in self._lines(number) if line[0] == "sent"}

    def visits(self, group: str) -> list[Visit]:
        found: list[Visit] = []
        for number, its_group in self.groups.items():
            inside: dict[tuple[object, ...], Visit] = {}
            for kind, at, *values in self._lines(number) if its_group == group else ():
                if kind == "enter":
                    queue, offset, msg_id, times = values
                    inside[tuple(values)] = Visit(number, queue, offset, msg_id, at, times=times)
                    found.append(inside[tuple(values)])
                elif kind == "exit":
                    visit = inside[tuple(values[:4])]
                    visit.exit, visit.succeeded = at, values[4]
        return sorted(found, key=lambda visit: visit.enter)

    def disturbances(self) -> list[tuple[int, float]]:
        """Kills, stops, and leases that a process lost because the machine was too busy."""
        lost = [(number, line[1]) for number in self.groups for line in self._lines(number) if line[0] == "lost"]
        return [*self.disturbed, *lost]


def consumed(visits: Iterable[Visit]) -> set[str]:
    return {visit.msg_id for visit in visits if visit.exit is not None and visit.succeeded}


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


def check_duplicates(visits: list[Visit], disturbances: Iterable[tuple[int, float]]) -> int:
    """A delivery that is repeated follows a kill or a stop of the process that had it before; returns how many are.

    A process that is killed between sending a failed message back and its commit leaves a message that is sent back
    again: from then on there are two copies, and each goes its way. No attempt has more copies than the one before it
    had deliveries.
    """
    times: dict[int, list[float]] = {}
    for number, at in disturbances:
        times.setdefault(number, []).append(at)
    last: dict[tuple[str, int, int, int], Visit] = {}
    deliveries: Counter[tuple[str, int]] = Counter()
    copies: Counter[tuple[str, int]] = Counter()
    for visit in visits:
        place = (visit.msg_id, visit.times, visit.queue, visit.offset)
        before = last.get(place)
        if before is not None:
            disturbed = any(before.enter <= at <= visit.enter for at in times.get(before.process, []))
            assert disturbed, f"again without a kill: {before} and {visit}"
        else:
            copies[visit.msg_id, visit.times] += 1
            allowed = deliveries[visit.msg_id, visit.times - 1] if visit.times else 1
            assert copies[visit.msg_id, visit.times] <= allowed, f"a copy from nowhere: {visit}"
        deliveries[visit.msg_id, visit.times] += 1
        last[place] = visit
    return sum(count - 1 for count in deliveries.values())


def check_dead_letters(visits: list[Visit], failing: set[str], dead: set[str]) -> None:
    """The dead letters are exactly the messages that failed 17 times."""
    attempts: dict[str, set[int]] = {}
    for visit in visits:
        if not visit.succeeded:
            attempts.setdefault(visit.msg_id, set()).add(visit.times)
    assert dead == failing
    for msg_id in dead:
        assert attempts[msg_id] == set(range(ATTEMPTS)), f"{msg_id} failed {sorted(attempts[msg_id])}"


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def pick(members: list[Member], rng: random.Random) -> Member:
    return rng.choice(sorted(members, key=lambda member: member.number))
