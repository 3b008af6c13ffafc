"""Every error that rmq-spark raises on purpose: one tree, coarse by what the caller must do.

A message says the problem, then what to do; facts follow as `key=value`. The class and its fields
are the interface, the text is not. Every error survives pickling, because Spark moves them.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RmqError(Exception):
    """Base of every error that rmq-spark raises on purpose."""

    retriable: ClassVar[bool] = False
    """True when the same call may succeed later without anybody changing anything."""

    def __init__(self, problem: str, /, **context: object) -> None:
        super().__init__(problem)
        self.context = context

    def __str__(self) -> str:
        facts = ", ".join(f"{key}={value!r}" for key, value in self.context.items())
        return f"{self.args[0]} ({facts})" if facts else str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0], self.context)


def _rebuild(kind: type[RmqError], problem: str, context: dict[str, object]) -> RmqError:
    return kind(problem, **context)


class InvalidRequestError(RmqError, ValueError):
    """The input is wrong (a name, size, option or expression); nothing was changed."""


class NotFoundError(RmqError):
    """The store, topic, file or offset that was asked for does not exist."""


class ExistsError(RmqError):
    """Somebody else's object has that name already; nothing was written."""


class LostRaceError(RmqError):
    """Other writers took every slot this append tried until its deadline; nothing was written."""

    retriable = True


class PreconditionFailedError(RmqError):
    """The condition of a compare-and-append no longer holds at the log's end; nothing was written."""


class FencedError(RmqError):
    """Somebody else has taken over the lease on a table; what this one had committed stays. Take the lease again."""


class OutcomeUnknownError(RmqError):
    """The storage did not say whether the write happened; retry with the same handle, it lands once."""

    retriable = True


class UnavailableError(RmqError):
    """The storage refused or could not be reached; nothing was written."""

    retriable = True


class StorageFullError(UnavailableError):
    """The storage has no room (disk full, quota); nothing was written."""


class BackPressureError(RmqError):
    """Consumers of the topic are too far behind; send again when they have caught up. Nothing was written."""

    retriable = True


class UnsafeStorageError(RmqError):
    """The storage cannot create a name exclusively, so appending to it would lose messages."""


class ReadOnlyError(RmqError):
    """This handle or the directory beneath it may not be written; nothing was written."""


class CorruptDataError(RmqError):
    """A file is damaged, foreign or out of its place; its content was not returned as data."""


class DataExpiredError(RmqError):
    """The range was deleted by retention (or with its topic) before it was read."""


class UnsupportedVersionError(RmqError):
    """The file was written by a newer format version; upgrade rmq-spark to read it."""


class ClockSkewError(RmqError):
    """The writer's clock is too far ahead; appending would freeze the log's time for everyone."""


class ClosedError(RmqError):
    """The handle was closed before the call."""


class MissingExtraError(RmqError, ImportError):
    """An optional dependency is not installed; the message names the install command."""
