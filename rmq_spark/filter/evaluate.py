"""The row predicate of a SQL92 filter: the syntax tree as nested Python functions, built once.

Each function takes the properties of one message and returns true, false, null (None) or another value, or
raises `EvaluationError` where Java would throw. At run time there is one Python frame per level of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from typing import Any, Final, TypeAlias

from rmq_spark.filter import sql92_ast as ast
from rmq_spark.filter.java_values import EvaluationError, compare, compare_as_doubles

Evaluator: TypeAlias = Callable[[Mapping[str, str]], ast.Value]

ORDERS: Final[Mapping[str, Callable[[int, int], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
"""What each operator asks of the sign of a comparison."""
SEARCHES: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
"""How each search looks at a text."""


def compile_row(root: ast.Node) -> Callable[[Mapping[str, str]], bool]:
    """Return the predicate: does a message with these properties match? It never raises."""
    evaluate = ast.fold(root, build)

    def matches(properties: Mapping[str, str]) -> bool:
        try:
            return evaluate(properties) is True
        except EvaluationError:
            return False

    return matches


def build(node: ast.Node, operands: list[Evaluator]) -> Evaluator:
    """Return the evaluator of `node`, given those of its children."""
    return _BUILDERS[type(node)](node, operands)


def _chain(items: list[Evaluator], *, decisive: bool) -> Evaluator:
    def run(row: Mapping[str, str]) -> ast.Value:
        answer: ast.Value = not decisive
        for item in items:
            value = item(row)
            if value is decisive:
                return decisive
            if value is None:
                answer = None
        return answer

    return run


def _equal(left: Evaluator, right: Evaluator) -> Evaluator:
    def run(row: Mapping[str, str]) -> ast.Value:
        first, second = left(row), right(row)
        if first is None:
            return True if second is None else None
        return second is not None and compare(first, second) == 0

    return run


def _order(operator: str, left: Evaluator, right: Evaluator) -> Evaluator:
    accepts = ORDERS[operator]

    def run(row: Mapping[str, str]) -> ast.Value:
        first = left(row)
        if first is None:
            return None
        second = right(row)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            return accepts(compare_as_doubles(first, second), 0)
        return accepts(compare(first, second), 0)

    return run


def _in(operand: Evaluator, choices: frozenset[str], negated: bool) -> Evaluator:
    def run(row: Mapping[str, str]) -> ast.Value:
        value = operand(row)
        return None if value is None else (value in choices) is not negated

    return run


def _search(node: ast.Search, operand: Evaluator) -> Evaluator:
    search, text, negated = SEARCHES[node.kind], node.text, node.negated
    if not text:
        return lambda row: False

    def run(row: Mapping[str, str]) -> ast.Value:
        value = operand(row)
        return isinstance(value, str) and search(value, text) is not negated

    return run


def _not(operand: Evaluator) -> Evaluator:
    def run(row: Mapping[str, str]) -> ast.Value:
        value = operand(row)
        return None if value is None else not value

    return run


def _negate(operand: Evaluator) -> Evaluator:
    def run(row: Mapping[str, str]) -> ast.Value:
        value = operand(row)
        if value is None or isinstance(value, bool | str):
            return None
        return ast.Long(-value) if isinstance(value, ast.Long) else -value

    return run


def _truth(operand: Evaluator) -> Evaluator:
    def run(row: Mapping[str, str]) -> ast.Value:
        return None if operand(row) is None else False

    return run


_BUILDERS: Final[dict[type[ast.Node], Callable[[Any, list[Evaluator]], Evaluator]]] = {
    ast.Literal: lambda node, _: lambda row: node.value,
    ast.Property: lambda node, _: lambda row: row.get(node.name),
    ast.And: lambda node, operands: _chain(operands, decisive=False),
    ast.Or: lambda node, operands: _chain(operands, decisive=True),
    ast.Equal: lambda node, operands: _equal(operands[0], operands[1]),
    ast.Order: lambda node, operands: _order(node.operator, operands[0], operands[1]),
    ast.In: lambda node, operands: _in(operands[0], node.choices, node.negated),
    ast.Search: lambda node, operands: _search(node, operands[0]),
    ast.Not: lambda node, operands: _not(operands[0]),
    ast.Negate: lambda node, operands: _negate(operands[0]),
    ast.Truth: lambda node, operands: _truth(operands[0]),
}
