"""What a fold is: state that is kept as messages, and what you get by reading its topics in order.

A fold is owned by the module whose rule it serves (`rmq_spark/rules/`, one file a subject); this package has a few of
its own. A log is opened with the folds that its user needs and pays for no other. A record is an ordinary message; most
have a JSON body. An unknown field of a record is ignored, so an older reader passes over a newer writer's.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from rmq_spark.errors import CorruptDataError
from rmq_spark.log.undo import Journal, UndoDict

Key = TypeVar("Key")
Value = TypeVar("Value")

UNREADABLE: Final = (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError)
"""What a record raises that is not what its fold reads."""

_scan_json: Final = json.JSONDecoder().scan_once  # type: ignore[attr-defined] # documented for subclasses only

FIELD_OF: Final = {
    "body": "bodies",
    "queueId": "queue_ids",
    "queueOffset": "queue_offsets",
    "msgId": "msg_ids",
    "properties": "properties",
    "bornTimestamp": "born_ms",
}
"""Columns that a fold may ask for, and the field of `Records` of each; the store time comes in any case."""


@dataclass(frozen=True, slots=True)
class Records:
    """State messages of one topic, in the order of the log. Only the columns that the fold names are filled."""

    topic: str
    store_ms: Sequence[int]
    bodies: Sequence[bytes] = ()
    queue_ids: Sequence[int] = ()
    queue_offsets: Sequence[int] = ()
    msg_ids: Sequence[str] = ()
    properties: Sequence[Mapping[str, str]] = ()
    born_ms: Sequence[int] = ()

    @classmethod
    def of_columns(
        cls, topic: str, store_ms: Sequence[int], names: Sequence[str], column: Callable[[str], list[Any]]
    ) -> Records:
        """Records with the columns of these names, whose values `column` returns; properties may be pairs."""
        fields = {FIELD_OF[name]: column(name) for name in names}
        if "properties" in fields:
            fields["properties"] = [dict(pairs) for pairs in fields["properties"]]
        return cls(topic, store_ms, **fields)

    def __len__(self) -> int:
        return len(self.store_ms)

    def values(self) -> Iterator[dict[str, Any]]:
        """The JSON object in each body, each parsed when it is its turn: thousands at once keep the collector busy.

        Raises:
            TypeError, ValueError: a body is no JSON object.
        """
        for body in self.bodies:
            text = body.decode()
            try:
                value, end = _scan_json(text, 0)  # less than half the time of `json.loads`
            except StopIteration:
                end = -1
            if end != len(text):
                value = json.loads(text)  # white space around it, or the error that says what is wrong
            if type(value) is not dict:
                raise TypeError("the body of a record must be a JSON object")
            yield value


class Fold(ABC):
    """State made by the records of some topics. Its changeable parts are dicts made by `table`, and nothing else."""

    name: ClassVar[str]
    """Key in snapshots and in the log's list of folds."""
    version: ClassVar[int] = 1
    """Raised when `dump` changes; a process loads its own version and older ones."""
    topics: ClassVar[tuple[str, ...]]
    """The system topics that it reads. Records of one queue are in order. Those of different queues may come in another
    order than in the log: a segment has all records of one topic before those of the next."""
    columns: ClassVar[tuple[str, ...]] = ("body",)
    """What it needs of each record, of those in `FIELD_OF`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def table(self, values: Mapping[Key, Value] | None = None) -> UndoDict[Key, Value]:
        """A dict for state. Its values must be immutable, or such dicts themselves."""
        return UndoDict(self._journal, values)

    @abstractmethod
    def apply(self, records: Records) -> None:
        """Take in the next records. Must depend on nothing but the records so far.

        Raises:
            One of `UNREADABLE`: a record is not what this fold reads. Before an append this refuses the append; when a
            log is read it is damage.
        """

    @abstractmethod
    def dump(self) -> Any:
        """The state as a JSON value; `load` gives it back."""

    @abstractmethod
    def load(self, value: Any, version: int) -> None:
        """Replace the state by what `dump` of that version returned."""


def unreadable(topic: str, offset: int, error: Exception) -> CorruptDataError:
    """The error of a log whose records a fold cannot read."""
    return CorruptDataError("state message cannot be read", topic=topic, offset=offset, reason=describe(error))


def describe(error: Exception) -> str:
    """An exception as text."""
    return f"{type(error).__name__}: {error}"


def need(value: Any, kind: type, field: str) -> Any:
    """`value` if it is of `kind`; for `apply`, which must refuse what it could not read back.

    Raises:
        TypeError: it is of another.
    """
    if not isinstance(value, kind) or isinstance(value, bool):  # JSON's true is an int in Python
        raise TypeError(f"{field} must be {kind.__name__}, not {type(value).__name__}")
    return value
