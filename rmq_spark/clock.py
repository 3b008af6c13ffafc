"""Time and randomness as a parameter, so that a simulation can decide both.

The log never calls `time`, `random` or `uuid` itself: everything that depends on them takes a `Clock`.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, tzinfo
from typing import Protocol


class Clock(Protocol):
    """What the log needs to know of time, plus unique tokens."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch (UTC). It may jump in both directions."""

    def elapsed_ns(self) -> int:
        """A clock that never goes back and goes on while the machine is suspended."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""

    def local_hour(self) -> int:
        """Hour of the day, 0 to 23, where the machine is: what its people mean by "at four in the morning"."""

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

    def local_hour(self) -> int:
        return time.localtime(self.now_ms() / 1000).tm_hour

    def token(self) -> str:
        return os.urandom(16).hex()


class ManualClock:
    """A clock that only moves when told to; for tests. Its machine is in `zone`."""

    def __init__(self, now_ms: int = 1_700_000_000_000, zone: tzinfo = UTC) -> None:
        self.wall_ms = now_ms
        self.zone = zone
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

    def local_hour(self) -> int:
        return datetime.fromtimestamp(self.wall_ms / 1000, self.zone).hour

    def token(self) -> str:
        self._drawn += 1
        return f"{self._drawn:032x}"
