"""Exit codes of `rmq`, and which error ends with which. docs/cli.md and `rmq --help` show the same table."""

from __future__ import annotations

from typing import Final

from rmq_spark import errors

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
STORAGE: Final = 5
DAMAGE: Final = 6
INTERNAL: Final = 70
"""EX_SOFTWARE of sysexits.h: a bug."""
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it."""
BROKEN_PIPE: Final = 141
"""128 + SIGPIPE: what every filter ends with when its reader has gone."""

MEANINGS: Final = {
    OK: "done",
    FAILED: "failed for a reason that is none of the following",
    USAGE: "wrong arguments or input",
    NOT_FOUND: "no such store, topic, queue, group, broker or file",
    CONFLICT: "exists already, is in use, or another writer was faster",
    STORAGE: "storage unreachable, full, read-only or unsafe, or its answer is unknown",
    DAMAGE: "damaged data was found",
    INTERNAL: "internal error",
    INTERRUPTED: "interrupted",
    BROKEN_PIPE: "the reader of the output has gone",
}
"""What each code means, in the order of the documentation."""

# The first match counts, so a class stands before its bases.
_BY_ERROR: Final[tuple[tuple[type[errors.RmqError], int], ...]] = (
    (errors.InvalidRequestError, USAGE),
    (errors.NotFoundError, NOT_FOUND),
    (errors.ExistsError, CONFLICT),
    (errors.PreconditionFailedError, CONFLICT),
    (errors.LostRaceError, CONFLICT),
    (errors.FencedError, CONFLICT),
    (errors.UnavailableError, STORAGE),
    (errors.ReadOnlyError, STORAGE),
    (errors.UnsafeStorageError, STORAGE),
    (errors.OutcomeUnknownError, STORAGE),
    (errors.CorruptDataError, DAMAGE),
)


def code_of(error: errors.RmqError) -> int:
    """The exit code that `error` ends the command with."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), FAILED)


def table() -> str:
    """The codes and their meanings, one a line."""
    return "\n".join(f"{code:>4}  {meaning}" for code, meaning in MEANINGS.items())
