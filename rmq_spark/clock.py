"""Time and randomness as a parameter, so that a simulation can decide both.

The log never calls `time`, `random` or `uuid` itself: everything that depends on them takes a `Clock`.
"""

from __future__ import annotations

import os
import time
from typing import Protocol


class Clock(Protocol):
    """What the log needs to know of time, plus unique tokens."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch (UTC). It may jump in both directions."""

    def elapsed_ns(self) -> int:
        """A clock that never goes back and goes on while the machine is suspended."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""

    def token(self) -> str:
        """32 hex digits that nobody else will ever draw."""


class SystemClock:
    """The machine's clocks and its random source."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_ns(self) -> int:
        # CLOCK_MONOTONIC stops while a laptop sleeps; a writer that slept must notice that it did.
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def token(self) -> str:
        return os.urandom(16).hex()


class ManualClock:
    """A clock that only moves when told to; for tests."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.wall_ms = now_ms
        self.boot_ns = 0
        self._drawn = 0

    def now_ms(self) -> int:
        return self.wall_ms

    def elapsed_ns(self) -> int:
        return self.boot_ns

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass on both clocks."""
        self.wall_ms += round(seconds * 1_000)
        self.boot_ns += round(seconds * 1_000_000_000)

    def token(self) -> str:
        self._drawn += 1
        return f"{self._drawn:032x}"
