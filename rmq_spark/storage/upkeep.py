"""What keeps a storage itself in order, whatever is stored in it: leftovers of killed writers, work on a full disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from rmq_spark.clock import Clock
from rmq_spark.errors import StorageFullError
from rmq_spark.storage.base import Storage

TEMP_AGE_MS: Final = 3_600_000
"""A temporary file of this age belongs to nobody: no create takes an hour."""

T = TypeVar("T")


def sweep_leftovers(storage: Storage, clock: Clock) -> int:
    """Remove temporary files of killed writers; return how many there were. Any process may do it at any time."""
    return storage.sweep_temp(TEMP_AGE_MS, clock.now_ms())


def with_reserve(storage: Storage, work: Callable[[], T]) -> T:
    """Do `work`; if the disk is too full for that, release the reserve and do it once more.

    `work` must be safe to repeat, and is meant to free room. Afterwards a reserve is kept again if there is room.

    Raises:
        StorageFullError: the disk is full, and there is no reserve or it was not enough.
    """
    try:
        return work()
    except StorageFullError:
        if not storage.release_reserve():
            raise
        return work()
    finally:
        storage.keep_reserve()
