"""Undoing changes of dicts gives exactly what was there before, whatever was changed and nested."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.log.undo import Journal, UndoDict

KEYS = st.sampled_from("abc")
CHANGES = st.one_of(
    st.tuples(st.just("set"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("discard"), KEYS, st.none()),
    st.tuples(st.just("nest"), KEYS, st.tuples(KEYS, st.integers(0, 9))),
    st.tuples(st.just("nest_discard"), KEYS, KEYS),
    st.tuples(st.just("replace"), KEYS, st.dictionaries(KEYS, st.integers(0, 9))),
    st.tuples(st.just("savepoint"), st.none(), st.none()),
    st.tuples(st.just("back"), st.none(), st.none()),
)


def plain(table: dict[Any, Any]) -> dict[Any, Any]:
    return {key: plain(value) if isinstance(value, dict) else value for key, value in table.items()}


def change(table: UndoDict[Any, Any], journal: Journal, kind: str, key: str, value: Any) -> None:
    if kind == "set":
        table[key] = value
    elif kind == "discard":
        table.discard(key)
    elif kind == "replace":
        table[key] = UndoDict(journal, value)
    else:
        if not isinstance(table.get(key), dict):
            table.discard(key)
        if kind == "nest":
            table.child(key).child(value[0])["leaf"] = value[1]
        else:
            table.child(key).discard(value)


def model_change(table: dict[Any, Any], kind: str, key: str, value: Any) -> None:
    if kind == "set":
        table[key] = value
    elif kind == "discard":
        table.pop(key, None)
    elif kind == "replace":
        table[key] = dict(value)
    else:
        if not isinstance(table.get(key), dict):
            table[key] = {}
        if kind == "nest":
            if not isinstance(table[key].get(value[0]), dict):
                table[key][value[0]] = {}
            table[key][value[0]]["leaf"] = value[1]
        else:
            table[key].pop(value, None)


def leafless(kind: str, key: str, value: Any, model: dict[Any, Any]) -> bool:
    """`child` of a key that holds a number is not a nested dict: not a change that a fold makes."""
    nested = model.get(key)
    return kind == "nest" and isinstance(nested, dict) and isinstance(nested.get(value[0], {}), int)


@given(before=st.lists(CHANGES, max_size=15), during=st.lists(CHANGES, max_size=30), keep=st.booleans())
def test_undo_gives_back_what_a_copy_holds(before: list[Any], during: list[Any], keep: bool) -> None:
    journal = Journal()
    table: UndoDict[Any, Any] = UndoDict(journal)
    model: dict[Any, Any] = {}
    for kind, key, value in before:
        if kind not in ("savepoint", "back") and not leafless(kind, key, value, model):
            change(table, journal, kind, key, value)
            model_change(model, kind, key, value)
    start = copy.deepcopy(model)
    journal.open()
    savepoints: list[tuple[int, dict[Any, Any]]] = []
    for kind, key, value in during:
        if kind == "savepoint":
            savepoints.append((journal.position(), copy.deepcopy(model)))
        elif kind == "back":
            if savepoints:
                position, model = savepoints.pop()
                journal.undo(position)
        elif not leafless(kind, key, value, model):
            change(table, journal, kind, key, value)
            model_change(model, kind, key, value)
        assert plain(table) == model
    if not keep:
        journal.undo()
        model = start
    journal.close()
    assert plain(table) == model
    table["after"] = 1
    assert journal.position() == 0, "nothing is noted outside of a trial"


def test_a_change_that_would_not_be_noted_is_refused() -> None:
    table: UndoDict[str, int] = UndoDict(Journal(), {"a": 1})
    for call in (
        lambda: table.pop("a"),
        table.popitem,
        table.clear,
        lambda: table.update(b=2),
        lambda: table.setdefault("b", 2),
        lambda: table.__ior__({"b": 2}),
    ):
        with pytest.raises(TypeError, match="not noted"):
            call()
    assert table == {"a": 1}


def test_an_undo_that_is_interrupted_may_be_repeated() -> None:
    journal = Journal()
    table: UndoDict[str, int] = UndoDict(journal, {"a": 1, "b": 2})
    journal.open()
    table["a"] = 5
    del table["b"]
    table["c"] = 6
    dict.pop(table, "c")  # the newest change was put back, and its note is still there
    journal.undo()
    assert table == {"a": 1, "b": 2}
