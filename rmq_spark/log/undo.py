"""Dictionaries whose changes can be undone: the ground that folds stand on while decisions are tried.

The leader of a group commit asks each caller's rule on the state as the rules before it will have left it. Until the
commit has landed these changes are on trial. If the race for the slot is lost they are undone, newest first, which
costs as much as was changed, not as much as there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_ABSENT: Final = object()


class Journal:
    """What to put back, in the order of the changes. One for each log state; off unless a trial is open."""

    def __init__(self) -> None:
        self.is_open = False
        self.entries: list[tuple[dict[Any, Any], Any, Any]] = []
        """Dict, key, and what stood there before; noted before it changes."""

    def open(self) -> None:
        """From here on, note what each change replaces."""
        self.entries.clear()
        self.is_open = True

    def position(self) -> int:
        """A point to go back to."""
        return len(self.entries)

    def undo(self, position: int = 0) -> None:
        """Take back every change after `position`, newest first."""
        entries = self.entries
        while len(entries) > position:
            table, key, value = entries[-1]
            if value is _ABSENT:
                dict.pop(table, key, None)
            else:
                dict.__setitem__(table, key, value)
            entries.pop()  # last: whoever is interrupted before it puts the same value back again

    def close(self) -> None:
        """Keep what is left of the changes."""
        self.is_open = False
        self.entries.clear()


class UndoDict(dict[Key, Value]):
    """A dict that notes its changes while a trial is open. Its values must not be changed in place.

    Nested state is an `UndoDict` of `UndoDict`s; a set is one whose values are None.
    """

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal, values: Mapping[Key, Value] | None = None) -> None:
        super().__init__(values or {})
        self._journal = journal

    # Both in one step each, and not by `super`: folding a record is a few of these calls.

    def __setitem__(self, key: Key, value: Value) -> None:
        if self._journal.is_open:
            self._journal.entries.append((self, key, self.get(key, _ABSENT)))
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: Key) -> None:
        if self._journal.is_open:
            self._journal.entries.append((self, key, self.get(key, _ABSENT)))
        dict.__delitem__(self, key)

    def discard(self, key: Key) -> None:
        """Remove the entry, if there is one."""
        if key in self:
            del self[key]

    def child(self, key: Key) -> Any:
        """The nested dict under `key`, made if it is not there."""
        nested: Any = self.get(key)
        if nested is None:
            nested = self[key] = UndoDict(self._journal)  # type: ignore[assignment] # values are such dicts, then
        return nested

    def _refuse(self, *arguments: object, **named: object) -> Any:
        raise TypeError("use item assignment, del, discard or child: other changes are not noted")

    pop = _refuse
    popitem = _refuse
    clear = _refuse
    update = _refuse
    setdefault = _refuse
    __ior__ = _refuse
