"""Settings of a log handle: plain data, validated once, unknown keys are errors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from rmq_spark.errors import InvalidRequestError

HOUR_MS = 3_600_000

_POSITIVE = frozenset({"group_rows_max", "group_bytes_max", "block_bytes", "snapshot_every_commits", "segment_bytes"})


class Flush(StrEnum):
    """When an append is acknowledged, as RocketMQ's flush policies."""

    SYNC = "sync"
    """After fsync: an acknowledged message survives power loss."""
    ASYNC = "async"
    """Once visible; fsynced within `flush_interval_ms`. Survives `kill -9`, not power loss."""
    BUFFERED = "buffered"
    """In memory; committed within `linger_ms`. Lost with the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How one handle writes and keeps a log. Readers need none of it."""

    flush: Flush = Flush.SYNC
    """Flush policy of this handle's appends."""
    flush_interval_ms: int = 500
    """Longest time an `async` commit stays without fsync."""
    linger_ms: float = 2.0
    """Longest time a group commit waits for the callers it expects, and a `buffered` one for more."""
    group_rows_max: int = 100_000
    """Rows after which a group commit waits no longer and takes no more."""
    group_bytes_max: int = 32 * 1024 * 1024
    """Body bytes after which a group commit takes no more."""
    append_timeout_ms: int = 30_000
    """How long an append tries before it gives up (lost race, unclear answer)."""
    block_bytes: int = 256 * 1024
    """Aim of a block, the unit of reading and of checksums."""
    snapshot_every_commits: int = 10_000
    """A writer that has folded so many commits since the last snapshot writes one."""
    segment_bytes: int = 64 * 1024 * 1024
    """Aim of a rolled segment file."""
    segment_span_ms: int = 6 * HOUR_MS
    """A segment holds at most this much time, so that retention can drop it whole."""
    retention_ms: int = 72 * HOUR_MS
    """Age after which a segment may be deleted."""
    delete_when: str = "04"
    """Hours of the day (of the machine that deletes, `;`-separated) at which `rmq serve` and scheduled expiry delete by
    age."""
    disk_reclaim_ratio: float = 0.75
    """Above this use of the disk, expired segments go at any hour."""
    disk_force_ratio: float = 0.85
    """Above this, the oldest segments go whatever their age."""
    disk_full_ratio: float = 0.90
    """Above this, appends are refused."""
    delete_grace_ms: int = 60_000
    """Files that are no longer needed are kept this long for readers that still hold them."""
    timer_max_delay_ms: int = 0
    """How far ahead a delivery time may be (RocketMQ: 3 days, 259200000); 0: as far as one likes."""
    clock_ahead_max_ms: int = 5 * 60_000
    """How far a writer's clock may be ahead of its storage's clock or of its own past pace."""

    def __post_init__(self) -> None:
        try:
            # A plain text, which no type checker saw, must not pass for a policy: nothing would be flushed.
            object.__setattr__(self, "flush", Flush(self.flush))
        except ValueError as error:
            raise InvalidRequestError("setting has a bad value", setting="flush", value=self.flush) from error
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name in _POSITIVE else 0
            if isinstance(value, int | float) and value < least:
                raise InvalidRequestError(f"setting must be at least {least}", setting=field.name, value=value)
        if not 0 < self.disk_reclaim_ratio <= self.disk_force_ratio <= self.disk_full_ratio <= 1:
            raise InvalidRequestError(
                "disk ratios must rise: 0 < reclaim <= force <= full <= 1",
                reclaim=self.disk_reclaim_ratio,
                force=self.disk_force_ratio,
                full=self.disk_full_ratio,
            )
        for hour in self.delete_when.split(";"):
            if not hour.isdigit() or int(hour) > 23:
                raise InvalidRequestError("delete_when lists hours 00 to 23 by ';'", value=self.delete_when)

    @property
    def deletion_hours(self) -> frozenset[int]:
        """The hours of `delete_when`."""
        return frozenset(map(int, self.delete_when.split(";")))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> LogSettings:
        """Build settings from text or numbers, as a conf file gives them.

        Raises:
            InvalidRequestError: an unknown name (the nearest is named) or a value of the wrong kind.
        """
        known = {field.name: field for field in fields(cls)}
        built: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise InvalidRequestError(f"unknown setting{hint}", setting=name)
            kind = {"Flush": Flush, "int": int, "float": float, "str": str}[str(known[name].type)]
            try:
                built[name] = kind(value)
            except (TypeError, ValueError) as error:
                raise InvalidRequestError("setting has a bad value", setting=name, value=value) from error
            if isinstance(value, float) and kind is int and built[name] != value:
                raise InvalidRequestError("setting is a whole number", setting=name, value=value)
        return cls(**built)
