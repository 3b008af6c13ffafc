"""First offsets per queue of a stream that starts at given offsets or where a group is: kept in a file of the store.

With ten thousand queues they do not belong into every batch's offset. The file's name is the digest of its content,
so writing it twice is harmless and nothing can change it. It matters until the stream has passed the log's end as it
was when the start was resolved: every later message lies behind all starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rmq_spark.errors import CorruptDataError, ExistsError
from rmq_spark.storage.base import Storage

FOLDER: Final = "spark/starts"


@dataclass(frozen=True, slots=True)
class QueueStarts:
    """First offsets by broker and (topic, queue), and the log positions from which on they say nothing."""

    offsets: Mapping[str, Mapping[tuple[str, int], int]]
    settled: Mapping[str, int]

    def of(self, broker: str) -> Mapping[tuple[str, int], int]:
        """First offsets of one broker's queues."""
        return self.offsets.get(broker, {})


def write_starts(storage: Storage, starts: QueueStarts) -> str:
    """Write the file (durably) and return its name."""
    value = {
        "settled": dict(sorted(starts.settled.items())),
        "offsets": {
            broker: [[topic, queue, offset] for (topic, queue), offset in sorted(offsets.items())]
            for broker, offsets in sorted(starts.offsets.items())
        },
    }
    data = json.dumps(value, separators=(",", ":")).encode()
    name = hashlib.blake2b(data, digest_size=16).hexdigest()
    try:
        storage.create_if_absent(f"{FOLDER}/{name}.json", [data], durable=True)
    except ExistsError:
        return name  # the same content, by its name
    return name


NO_STARTS: Final = QueueStarts({}, {})


def read_starts(storage: Storage, name: str) -> QueueStarts:
    """Read the file of that name.

    Raises:
        NotFoundError: it is gone; the stream cannot tell any more where its queues start.
        CorruptDataError: it is damaged.
    """
    data = storage.read(f"{FOLDER}/{name}.json")
    if hashlib.blake2b(data, digest_size=16).hexdigest() != name:
        raise CorruptDataError("a stream's start file is damaged", file=f"{FOLDER}/{name}.json")
    value = json.loads(data)
    offsets = {
        broker: {(topic, queue): offset for topic, queue, offset in entries}
        for broker, entries in value["offsets"].items()
    }
    return QueueStarts(offsets, value["settled"])


class StartFiles:
    """Reads start files of one store; the last one is kept, as a query asks for its own with every batch."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._last: tuple[str, QueueStarts] | None = None

    def read(self, name: str | None) -> QueueStarts:
        """What the file of that name says; without a name there are no starts.

        Raises:
            NotFoundError, CorruptDataError: as `read_starts` says.
        """
        if name is None:
            return NO_STARTS
        if self._last is None or self._last[0] != name:
            self._last = (name, read_starts(self._storage, name))
        return self._last[1]
