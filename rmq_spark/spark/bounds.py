"""Where a read starts and ends, as the options say it: values only, resolved by the planner.

Offsets and times may name a queue of one broker or, as users of Kafka write it, a queue whatever the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LATEST: Final = -1
"""Stands for the queue's end among offsets."""
EARLIEST: Final = -2
"""Stands for the queue's first message among offsets."""

QueueKey = tuple[str, str | None, int]
"""(topic, broker or None for every broker, queue id)."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first message that is still there."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the queue as of now."""


@dataclass(frozen=True, slots=True)
class Group:
    """What the consumer group has committed."""

    otherwise: Earliest | Latest | None = None
    """Where a group starts that has committed nothing of what is read; None: that is an error."""


@dataclass(frozen=True, slots=True)
class ByTimestamp:
    """The first message stored at `ms` or later, in every queue."""

    ms: int


@dataclass(frozen=True, slots=True)
class ByOffsets:
    """An offset per queue; -1 is the queue's end, -2 its first message."""

    offsets: Mapping[QueueKey, int]

    def find(self, topic: str, broker: str, queue: int) -> int | None:
        """The offset for a queue; one that names its broker goes first. None when the queue is not named."""
        return _find(self.offsets, topic, broker, queue)


@dataclass(frozen=True, slots=True)
class TimestampsByQueue:
    """A time per queue, milliseconds since 1970."""

    times: Mapping[QueueKey, int]

    def find(self, topic: str, broker: str, queue: int) -> int | None:
        """The time for a queue; one that names its broker goes first. None when the queue is not named."""
        return _find(self.times, topic, broker, queue)


Bound = Earliest | Latest | Group | ByTimestamp | ByOffsets | TimestampsByQueue
"""One end of a read."""


def _find(values: Mapping[QueueKey, int], topic: str, broker: str, queue: int) -> int | None:
    return values.get((topic, broker, queue), values.get((topic, None, queue)))
