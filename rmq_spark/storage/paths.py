"""Every path of a store, in one place. Numbers are zero-padded to 20 digits so that names sort as numbers."""

from __future__ import annotations

import re
from typing import Final

STORE_FILE: Final = "store.json"
"""Format version and immutable settings; created once."""

TABLES: Final = "tables"
"""The Delta tables that are derived from the log."""

NAMESERVER: Final = "nameserver"
"""Root of the cluster-wide log (topics, groups, members)."""

_NUMBERED: Final = re.compile(r"([0-9]{20})\.arrow")
_SEGMENT: Final = re.compile(r"([0-9]{20})-([0-9]{20})-[^-./\n]+\.arrow")
_SNAPSHOT: Final = re.compile(r"([0-9]{20})-[^-./\n]+\.arrow")


def broker_root(broker: str) -> str:
    """Root directory of a broker's log."""
    return f"brokers/{broker}"


def commitlog(root: str) -> str:
    """Directory of the chain: one file, one commit."""
    return f"{root}/commitlog"


def commit(root: str, first: int) -> str:
    """File of the commit whose first message has offset `first`."""
    return f"{root}/commitlog/{first:020d}.arrow"


def marks(root: str) -> str:
    """Directory of the marks: the chain of maintenance decisions."""
    return f"{root}/marks"


def mark(root: str, epoch: int) -> str:
    """File of the mark number `epoch`."""
    return f"{root}/marks/{epoch:020d}.arrow"


def segments(root: str) -> str:
    """Directory of the segment files."""
    return f"{root}/segments"


def segment(root: str, first: int, end: int, nonce: str) -> str:
    """File of a segment of [first, end); the nonce keeps two rollers out of each other's way."""
    return f"{root}/segments/{first:020d}-{end:020d}-{nonce}.arrow"


def data(root: str) -> str:
    """Directory of row files that a commit may refer to."""
    return f"{root}/data"


def data_file(root: str, name: str) -> str:
    """A row file; `name` is `<uuid>.arrow`."""
    return f"{root}/data/{name}"


def announced(root: str) -> str:
    """Directory of what waiting writers offer to whoever has the turn."""
    return f"{root}/announced"


def snapshots(root: str) -> str:
    """Directory of the snapshots of the folded state."""
    return f"{root}/snapshots"


def snapshot(root: str, offset: int, nonce: str) -> str:
    """File of a snapshot of the state before offset `offset`."""
    return f"{root}/snapshots/{offset:020d}-{nonce}.arrow"


def floors(root: str) -> str:
    """Directory of the snapshots that marks name."""
    return f"{root}/floors"


def floor(root: str, offset: int, nonce: str) -> str:
    """File of the state at a floor, before offset `offset`."""
    return f"{root}/floors/{offset:020d}-{nonce}.arrow"


def timers(root: str) -> str:
    """Directory of the timer index, which can be deleted at any time."""
    return f"{root}/timers"


def file_number(name: str) -> int | None:
    """The number of a commit or mark file, or None for a name that is not exactly one of theirs (a copy, say)."""
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match else None


def segment_range(name: str) -> tuple[int, int] | None:
    """First offset and exclusive end of a segment file, or None for a foreign name."""
    match = _SEGMENT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def snapshot_offset(name: str) -> int | None:
    """The offset of a snapshot file, or None for a foreign name."""
    match = _SNAPSHOT.fullmatch(name)
    return int(match[1]) if match else None
