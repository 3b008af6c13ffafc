"""How full the disk is, known without asking the system before every append."""

from __future__ import annotations

from typing import Final

from rmq_spark.clock import Clock
from rmq_spark.errors import StorageFullError
from rmq_spark.storage.base import Storage

READ_EVERY_NS: Final = 1_000_000_000
"""A reading is good for so long."""

SHARE_OF_ROOM: Final = 16
"""A reading is good until this handle has written one part in so many of the room there was.

So a handle alone cannot overshoot, and 16 handles that fill a disk together hardly can.
"""


class DiskGauge:
    """Refuses writes that would fill the disk beyond a ratio. For one thread at a time.

    Args:
        storage: asked for its `disk_usage`; where that is None, nothing is ever refused.
        full_ratio: the part of the disk that may be used, `LogSettings.disk_full_ratio`.
        clock: for the age of a reading.
    """

    def __init__(self, storage: Storage, full_ratio: float, clock: Clock) -> None:
        self._storage = storage
        self._full_ratio = full_ratio
        self._clock = clock
        self._read_ns = 0
        self._good_for = -1
        """Bytes that may still be written on the last reading; -1: there is none."""

    def check(self, about_to_write_bytes: int = 0) -> None:
        """Count a write of so many bytes that follows, or refuse it.

        Raises:
            StorageFullError: the disk is fuller than `full_ratio`, or would be after this write; nothing is counted.
        """
        now = self._clock.elapsed_ns()
        if about_to_write_bytes > self._good_for or now - self._read_ns >= READ_EVERY_NS:
            self._good_for = -1  # after a refusal the next check looks again: room may be made at any time
            self._good_for = max(self._room(about_to_write_bytes) // SHARE_OF_ROOM, about_to_write_bytes)
            self._read_ns = now
        self._good_for -= about_to_write_bytes

    def _room(self, about_to_write_bytes: int) -> int:
        usage = self._storage.disk_usage()
        if usage is None:
            return about_to_write_bytes
        used, total = usage
        room = int(self._full_ratio * total) - used
        if room < about_to_write_bytes:
            raise StorageFullError(
                "disk is fuller than disk_full_ratio allows; expire old segments or add room",
                used=used,
                total=total,
                ratio=self._full_ratio,
                about_to_write=about_to_write_bytes,
            )
        return room
