"""The mask of a SQL92 filter: the syntax tree as nested functions over whole columns, built once.

For every row the answer equals the row predicate's, though all rows are computed at once. Two masks do it:

- `live` says for which rows the row predicate would evaluate this node at all. AND and OR that are decided,
  and an order whose left side is null, take rows out of it for what follows.
- `failed` says for which rows Java would have thrown at a node where they were live: they do not match.

A node evaluates to one `Value` for all rows, to the texts of a property, or to three-valued `Flags`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.filter import evaluate, java_values
from rmq_spark.filter import sql92_ast as ast
from rmq_spark.filter.properties_column import TextColumn, text_column, to_numpy

Bools: TypeAlias = npt.NDArray[np.bool_]
Signs: TypeAlias = "npt.NDArray[np.int8] | int"

_SEARCHES: Final = {
    "CONTAINS": pc.match_substring,
    "STARTSWITH": pc.starts_with,
    "ENDSWITH": pc.ends_with,
}


@dataclass(slots=True)
class Flags:
    """A condition's answer for each row."""

    true: Bools
    """Where it is true."""
    null: Bools
    """Where it is null; never where it is true."""


@dataclass(frozen=True, slots=True)
class Same:
    """One value for all rows."""

    value: ast.Value
    """The value."""


Column: TypeAlias = "Flags | Same | TextColumn"


@dataclass(slots=True)
class Rows:
    """The rows of one batch while they are evaluated."""

    batch: pa.RecordBatch
    """Where the properties are."""
    failed: Bools
    """Rows for which the evaluation threw."""
    _texts: dict[str, TextColumn] = field(default_factory=dict)

    def text(self, name: str) -> TextColumn:
        """Return the property `name`, looked up once."""
        if name not in self._texts:
            self._texts[name] = text_column(self.batch, name)
        return self._texts[name]


Run: TypeAlias = Callable[[Rows, Bools], Column]


@dataclass(frozen=True, slots=True)
class _Part:
    """A compiled node."""

    run: Run
    """Evaluates it for the rows that are live."""
    scalar: evaluate.Evaluator
    """Evaluates it for one row."""
    constant: bool
    """Whether no property occurs in it."""


def compile_mask(root: ast.Node) -> Callable[[pa.RecordBatch], Any]:
    """Return the function from a batch to its mask, a boolean Arrow array without nulls.

    The function raises `InvalidRequestError` when the batch lacks a column that the filter reads.
    """
    run = ast.fold(root, _build).run

    def mask(batch: pa.RecordBatch) -> Any:
        rows = Rows(batch, np.zeros(batch.num_rows, np.bool_))
        flags = _flags(run(rows, np.ones(batch.num_rows, np.bool_)), batch.num_rows)
        return pa.array(flags.true & ~rows.failed)

    return mask


def _build(node: ast.Node, parts: list[_Part]) -> _Part:
    scalar = evaluate.build(node, [part.scalar for part in parts])
    if not isinstance(node, ast.Property) and all(part.constant for part in parts):
        return _Part(_constant(scalar), scalar, constant=True)
    run = _COMPILERS[type(node)](node, [part.run for part in parts])
    return _Part(run, scalar, constant=False)


def _constant(scalar: evaluate.Evaluator) -> Run:
    try:
        same = Same(scalar({}))
    except java_values.EvaluationError:
        return _throw
    return lambda rows, live: same


def _throw(rows: Rows, live: Bools) -> Column:
    rows.failed |= live
    return Same(None)


def _chain(runs: list[Run], decisive: bool, rows: Rows, live: Bools) -> Column:
    """AND (false decides) or OR (true decides)."""
    decided = np.zeros(len(live), np.bool_)
    null = np.zeros(len(live), np.bool_)
    for run in runs:
        flags = _flags(run(rows, live), len(live))
        decided |= live & (flags.true if decisive else ~(flags.true | flags.null))
        null |= live & flags.null
        live = live & ~decided & ~rows.failed
        if not live.any():
            break
    null &= ~decided
    return Flags(decided if decisive else ~(decided | null), null)


def _equal(left: Run, right: Run, rows: Rows, live: Bools) -> Column:
    first, second = left(rows, live), right(rows, live)
    count = len(live)
    first_null, second_null = _null(first, count), _null(second, count)
    both = ~(first_null | second_null)
    signs, bad = _compare(first, second)
    rows.failed |= live & both & bad
    return Flags((first_null & second_null) | (both & (np.equal(signs, 0))), first_null & ~second_null)


def _order(accepts: Callable[[Any, int], Any], left: Run, right: Run, rows: Rows, live: Bools) -> Column:
    first = left(rows, live)
    null = _null(first, len(live))
    # Null on the left: the right side is not looked at, so it cannot throw.
    live = live & ~null
    second = right(rows, live)
    null = null | _null(second, len(live))
    texts = isinstance(first, TextColumn) and isinstance(second, TextColumn)
    signs, bad = (_compare_as_doubles if texts else _compare)(first, second)
    rows.failed |= live & ~null & bad
    return Flags(accepts(signs, 0) & ~null, null)


def _in(operand: Run, choices: Any, negated: bool, rows: Rows, live: Bools) -> Column:
    column = operand(rows, live)
    if not isinstance(column, TextColumn):
        raise TypeError("IN looks at properties only")
    matches = to_numpy(pc.is_in(column.array, value_set=choices))
    return Flags((~matches if negated else matches) & ~column.missing, column.missing)


def _search(node: ast.Search, operand: Run, rows: Rows, live: Bools) -> Column:
    if not node.text:
        return Same(False)
    column = operand(rows, live)
    if not isinstance(column, TextColumn):
        return Same(False)
    matches = to_numpy(_SEARCHES[node.kind](column.array, node.text).fill_null(node.negated))
    return Flags(~matches if node.negated else matches, np.zeros(len(live), np.bool_))


def _not(operand: Run, rows: Rows, live: Bools) -> Column:
    flags = _flags(operand(rows, live), len(live))
    return Flags(~(flags.true | flags.null), flags.null)


def _negate(operand: Run, rows: Rows, live: Bools) -> Column:
    # A negative number is a constant and never comes here: this is a property or a condition.
    operand(rows, live)
    return Same(None)


def _truth(operand: Run, rows: Rows, live: Bools) -> Column:
    return Flags(np.zeros(len(live), np.bool_), _null(operand(rows, live), len(live)))


def _flags(column: Column, count: int) -> Flags:
    if isinstance(column, Flags):
        return column
    if isinstance(column, TextColumn):
        raise TypeError("text is no condition")
    return Flags(np.full(count, column.value is True), np.full(count, column.value is None))


def _null(column: Column, count: int) -> Bools:
    if isinstance(column, TextColumn):
        return column.missing
    return column.null if isinstance(column, Flags) else np.full(count, column.value is None)


def _compare(first: Column, second: Column) -> tuple[Signs, Bools | bool]:
    """`java_values.compare` for columns: signs, and where it throws. Undefined where a side is null."""
    if isinstance(first, Same) and isinstance(second, Same):
        return _compare_values(first.value, second.value)
    if isinstance(first, TextColumn) and isinstance(second, TextColumn):
        return _unequal(pc.equal(first.array, second.array)), False
    if isinstance(first, TextColumn) and isinstance(second, Same) and not isinstance(second.value, bool):
        return _compare_text(first, second.value)
    if isinstance(second, TextColumn) and isinstance(first, Same) and not isinstance(first.value, bool):
        signs, bad = _compare_text(second, first.value)
        return np.negative(signs), bad
    # From here on one side is a condition, or a boolean constant beside a text.
    if _is_boolean(second):
        readable = _is_boolean(first) or _is_text(first)
        return ((_truth_of(first) != _truth_of(second)).astype(np.int8) if readable else -1), False
    return -1, _is_text(second)


def _compare_values(first: ast.Value, second: ast.Value) -> tuple[Signs, bool]:
    if first is None or second is None:
        return -1, False
    try:
        return java_values.compare(first, second), False
    except java_values.EvaluationError:
        return -1, True


def _compare_text(column: TextColumn, value: ast.Value) -> tuple[Signs, Bools | bool]:
    if value is None:
        return -1, False
    if isinstance(value, str):
        return _unequal(pc.equal(column.array, value)), False
    if isinstance(value, float):
        keys, bad = column.numbers(None)
        return _signs(keys, java_values.total_order(value)), bad
    wide = isinstance(value, ast.Long)
    keys, bad = column.numbers(java_values.LONG_BITS if wide else java_values.INTEGER_BITS)
    return _signs(keys, int(value)), bad


def _compare_as_doubles(first: Any, second: Any) -> tuple[Signs, Bools | bool]:
    keys, bad = first.numbers(None)
    other_keys, other_bad = second.numbers(None)
    return _signs(keys, other_keys), bad | other_bad


def _signs(keys: npt.NDArray[np.int64], others: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int8]:
    return np.subtract(keys > others, keys < others, dtype=np.int8)


def _unequal(equal: Any) -> npt.NDArray[np.int8]:
    signs: npt.NDArray[np.int8] = to_numpy(pc.invert(equal.fill_null(False))).astype(np.int8)
    return signs


def _is_boolean(column: Column) -> bool:
    return isinstance(column, Flags) or (isinstance(column, Same) and isinstance(column.value, bool))


def _is_text(column: Column) -> bool:
    return isinstance(column, TextColumn) or (isinstance(column, Same) and isinstance(column.value, str))


def _truth_of(column: Column) -> Any:
    if isinstance(column, Flags):
        return column.true
    if isinstance(column, TextColumn):
        return column.truth
    return java_values.is_true(column.value) if isinstance(column.value, str) else column.value is True


_COMPILERS: Final[dict[type[ast.Node], Callable[[Any, list[Run]], Run]]] = {
    ast.Property: lambda node, runs: lambda rows, live: rows.text(node.name),
    ast.And: lambda node, runs: partial(_chain, runs, False),
    ast.Or: lambda node, runs: partial(_chain, runs, True),
    ast.Equal: lambda node, runs: partial(_equal, runs[0], runs[1]),
    ast.Order: lambda node, runs: partial(_order, evaluate.ORDERS[node.operator], runs[0], runs[1]),
    ast.In: lambda node, runs: partial(_in, runs[0], pa.array(sorted(node.choices), pa.string()), node.negated),
    ast.Search: lambda node, runs: partial(_search, node, runs[0]),
    ast.Not: lambda node, runs: partial(_not, runs[0]),
    ast.Negate: lambda node, runs: partial(_negate, runs[0]),
    ast.Truth: lambda node, runs: partial(_truth, runs[0]),
}
