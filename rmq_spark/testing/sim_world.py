"""A simulated storage shared by simulated processes: every call can fail, be delayed, be lost, or be the last.

Processes are greenlets in one thread. Each storage call hands control to a scheduler that is driven by one seeded
random generator, so a run is a function of its seed: the same seed gives the same interleaving, faults and clocks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import greenlet

from rmq_spark.errors import CorruptDataError, ExistsError, NotFoundError, OutcomeUnknownError, UnavailableError
from rmq_spark.storage.base import Bytes, ObjectInfo, PlainStorage

T = TypeVar("T")
START_MS = 1_700_000_000_000
DAY_MS = 24 * 3_600_000


class Crash(BaseException):
    """The simulated process dies here; nothing in it may catch this."""


@dataclass(slots=True)
class Faults:
    """How likely each mishap is, per storage call; drawn again for every seed."""

    fail_before: float = 0.0
    lost_reply: float = 0.0
    late_effect: float = 0.0
    stale_list: float = 0.0
    crash: float = 0.0
    nap: float = 0.0
    clock_jump: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random) -> Faults:
        """A mix: some seeds are calm, some have one kind of fault, some have all."""
        self = cls()
        for name, most in (
            ("fail_before", 0.06),
            ("lost_reply", 0.08),
            ("late_effect", 0.05),
            ("stale_list", 0.5),
            ("crash", 0.012),
            ("nap", 0.02),
            ("clock_jump", 0.02),
        ):
            setattr(self, name, rng.choice([0.0, 0.0, most * rng.random(), most]))
        return self


@dataclass(slots=True)
class _File:
    data: bytes
    created: int
    """Number of the event that created it, for stale listings."""
    modified_ms: int
    deleted: int | None = None


@dataclass(slots=True, eq=False)
class Process:
    """One simulated process."""

    name: str
    body: Callable[[Process], None]
    wall_skew_ms: int = 0
    wake_step: int = 0
    wake_ms: int = 0
    let: Any = None
    done: bool = False
    restarts: int = 0


@dataclass(slots=True)
class World:
    """Files, time, processes and the dice."""

    seed: int
    rng: random.Random = field(init=False)
    faults: Faults = field(init=False)
    files: dict[str, _File] = field(default_factory=dict)
    gone: dict[str, list[_File]] = field(default_factory=dict)
    late: list[tuple[int, str, bytes]] = field(default_factory=list)
    """Creates that will take effect at a later step: (step, path, data)."""
    processes: list[Process] = field(default_factory=list)
    running: Process | None = None
    now_ms: int = START_MS
    step: int = 0
    event: int = 0
    tokens: int = 0
    injected: dict[str, int] = field(default_factory=dict)
    before_create: Callable[[str], None] | None = None
    """Called before a file is created, outside of all faults."""
    steps_max: int = 60_000

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.faults = Faults.draw(self.rng)

    # -------------------------------------------------------- scheduling

    def add(self, name: str, body: Callable[[Process], None]) -> None:
        """Add a process; it starts when `run` does, and again after each crash."""
        self.processes.append(Process(name, body))

    def run(self) -> None:
        """Run until every process has ended by itself."""
        while alive := [process for process in self.processes if not process.done]:
            ready = [p for p in alive if p.wake_step <= self.step and p.wake_ms <= self.now_ms]
            if not ready:
                self.step = min(max(p.wake_step, self.step) for p in alive)
                self.now_ms = max(self.now_ms, min(p.wake_ms for p in alive if p.wake_step <= self.step))
                continue
            self._resume(self.rng.choice(ready))
            self.step += 1
            self.now_ms += self.rng.randrange(3)
            self._late_effects()
            if self.step > self.steps_max:
                raise AssertionError(f"seed {self.seed}: no end after {self.step} steps: livelock")
        self.late.sort()
        self._late_effects(every=True)

    def _resume(self, process: Process) -> None:
        if process.let is None:
            process.let = greenlet.greenlet(lambda: process.body(process))
        self.running = process
        try:
            process.let.switch()
        except Crash:
            process.let = None
            process.restarts += 1
            process.wake_step = self.step + self.rng.randrange(30)
            return
        if process.let.dead:
            process.done = True

    def pause(self) -> None:
        """Let the others run; may be this process's end, or a long sleep."""
        process = self.running
        if process is None:
            return  # a checker outside of the simulation
        rng = self.rng
        if rng.random() < self.faults.nap:
            self.count("nap")
            process.wake_step = self.step + rng.choice([20, 100, 400, 2000])
            if rng.random() < 0.2:
                process.wake_ms = self.now_ms + rng.choice([3_600_000, DAY_MS])
        if rng.random() < self.faults.clock_jump:
            self.count("clock jump")
            process.wall_skew_ms = rng.choice([0, -DAY_MS, -60_000, 60_000, 3_600_000])
        greenlet.getcurrent().parent.switch()
        self.running = process
        if rng.random() < self.faults.crash and process.restarts < 4:
            self.count("crash")
            raise Crash

    def sleep(self, seconds: float) -> None:
        """The running process sleeps in simulated time."""
        if self.running is not None:
            self.running.wake_ms = max(self.running.wake_ms, self.now_ms + max(1, int(seconds * 1000)))
            self.pause()

    def count(self, fault: str) -> None:
        """Note an injected fault."""
        self.injected[fault] = self.injected.get(fault, 0) + 1

    # -------------------------------------------------------- files

    def create(self, path: str, data: bytes) -> None:
        """Put if absent; the own bytes again count as success."""
        file = self.files.get(path)
        if file is not None:
            if file.data == data:
                return
            raise ExistsError("name is taken", path=path)
        if self.before_create is not None:
            running, self.running = self.running, None
            self.before_create(path)
            self.running = running
        self.event += 1
        self.files[path] = _File(data, self.event, self.now_ms)

    def delete(self, path: str) -> None:
        """Free the name."""
        file = self.files.pop(path, None)
        if file is not None:
            self.event += 1
            file.deleted = self.event
            self.gone.setdefault(path, []).append(file)

    def listing(self, directory: str, as_of: int | None) -> list[ObjectInfo]:
        """The directory now, or as it was at an earlier event."""
        prefix = directory + "/"
        seen: dict[str, _File] = {}
        candidates = list(self.files.items())
        if as_of is not None:
            candidates += [(path, file) for path, old in self.gone.items() for file in old]
        for path, file in candidates:
            if not path.startswith(prefix) or "/" in path[len(prefix) :]:
                continue
            if as_of is None or (file.created <= as_of and (file.deleted is None or file.deleted > as_of)):
                seen[path[len(prefix) :]] = file
        return [ObjectInfo(name=name, size=len(file.data), modified_ms=file.modified_ms) for name, file in seen.items()]

    def _late_effects(self, *, every: bool = False) -> None:
        due = [item for item in self.late if every or item[0] <= self.step]
        self.late = [item for item in self.late if item not in due]
        for _, path, data in due:
            try:
                self.create(path, data)
            except ExistsError:
                continue  # the condition of a late request fails like any other


class SimClock:
    """The clock of one process: wall time with a skew that jumps, elapsed time that does not."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        process = self._world.running
        return self._world.now_ms + (process.wall_skew_ms if process else 0)

    def elapsed_ns(self) -> int:
        return (self._world.now_ms - START_MS) * 1_000_000

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)

    def local_hour(self) -> int:
        return self.now_ms() // 3_600_000 % 24

    def token(self) -> str:
        self._world.tokens += 1
        return f"{self._world.tokens:032x}"


class SimStorage(PlainStorage):
    """The world's files as one process sees them; with `calm`, without any fault or pause."""

    def __init__(self, world: World, *, calm: bool = False) -> None:
        self._world = world
        self._calm = calm

    @property
    def uri(self) -> str:
        return f"sim://{self._world.seed}"

    def read(self, path: str) -> bytes:
        return self._reading(lambda: self._get(path).data)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        def effect() -> bytes:
            data = self._get(path).data[start : start + length]
            if len(data) != length:
                raise CorruptDataError("file is shorter than asked", path=path)
            return data

        return self._reading(effect)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read_range(path, start, length) for start, length in ranges]

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        def effect() -> tuple[bytes, int]:
            data = self._get(path).data
            return data[max(0, len(data) - length) :], len(data)

        return self._reading(effect)

    def exists(self, path: str) -> bool:
        return self._reading(lambda: path in self._world.files)

    def list(self, directory: str) -> Iterator[ObjectInfo]:
        world = self._world

        def effect() -> list[ObjectInfo]:
            as_of = None
            if not self._calm and world.rng.random() < world.faults.stale_list:
                world.count("stale list")
                as_of = world.event - world.rng.randrange(40)
            return world.listing(directory, as_of)

        return iter(self._reading(effect))

    def create_if_absent(self, path: str, data: Sequence[Bytes], *, durable: bool = True) -> None:
        world, joined = self._world, b"".join(data)
        if self._calm:
            world.create(path, joined)
            return
        world.pause()
        dice = world.rng.random()
        if dice < world.faults.fail_before:
            world.count("fail before")
            raise UnavailableError("simulated: refused", path=path)
        dice -= world.faults.fail_before
        if dice < world.faults.late_effect:
            world.count("late effect")
            world.late.append((world.step + world.rng.choice([1, 5, 50, 500, 3000]), path, joined))
            raise OutcomeUnknownError("simulated: no answer", path=path)
        dice -= world.faults.late_effect
        world.create(path, joined)
        if dice < world.faults.lost_reply:
            world.count("lost reply")
            raise OutcomeUnknownError("simulated: reply lost", path=path)
        world.pause()

    def sync(self, paths: Sequence[str]) -> None:
        return None

    def delete(self, path: str) -> None:
        self._reading(lambda: self._world.delete(path))

    def close(self) -> None:
        return None

    def _get(self, path: str) -> _File:
        file = self._world.files.get(path)
        if file is None:
            raise NotFoundError("no such file", path=path)
        return file

    def _reading(self, effect: Callable[[], T]) -> T:
        world = self._world
        if self._calm:
            return effect()
        world.pause()
        if world.rng.random() < world.faults.fail_before:
            world.count("fail before")
            raise UnavailableError("simulated: refused")
        result = effect()
        world.pause()
        return result
