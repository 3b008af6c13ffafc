"""What to conclude when a create was refused or its answer was lost: read the name and compare.

Every attempt's bytes hold a nonce nobody else has, so equal bytes mean *our attempt is there*. That turns
"already exists" from a retried request, a lost reply, or a broken connection back into a plain success.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from rmq_spark.errors import ExistsError, NotFoundError
from rmq_spark.storage.base import Bytes


class Occupant(Enum):
    """What stands at a name, from the point of view of one attempt to create it."""

    OWN = "own"
    """Exactly the attempt's bytes."""
    OTHER = "other"
    """Other bytes, or a directory."""
    ABSENT = "absent"
    """Nothing."""


def look(read: Callable[[str], bytes], path: str, data: Bytes) -> Occupant:
    """Read `path` with `read` and compare it with the attempt's bytes.

    Raises:
        RmqError: whatever `read` raises except `NotFoundError`; the question is then still open.
    """
    try:
        there = read(path)
    except NotFoundError:
        return Occupant.ABSENT
    return Occupant.OWN if there == data else Occupant.OTHER


def exists_error(path: str) -> ExistsError:
    """The error for a name that holds somebody else's bytes."""
    return ExistsError("somebody else created that file first; read it and take the next name", path=path)


def join(data: Sequence[Bytes]) -> bytes:
    """The pieces as one object; no copy if there is one piece of type `bytes`."""
    if len(data) == 1 and isinstance(data[0], bytes):
        return data[0]
    return b"".join(data)
