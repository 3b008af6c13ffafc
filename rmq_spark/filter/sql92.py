"""RocketMQ's SQL92 filters, with the answers of its own filter module, quirks included.

What surprises most: `NOT a = 1` is `(NOT a) = 1`. The text after a complete expression is ignored. A property
is text, read as the exact type of what it is compared with: `a > 3` throws for "3.5", and whatever throws
makes the message not match, even left of an OR whose other side is true. A missing property is null and null
does not match, but `'x' <> a` does, and `a = b` does when both are missing. A property alone is never true.
`0.0` is refused.

Where this differs from RocketMQ, always by refusing more:

- An expression that does not compile is an error here; RocketMQ's broker lets every message through.
- Expressions over 4096 bytes, with parentheses and prefix operators 200 deep, or with 400 operators on one
  way down the tree (which takes chains like `a = b = c = ...`) are errors here; RocketMQ ends at the stack of
  its thread.
- An expression with half of a surrogate pair in it is an error here: no stored text can contain one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from rmq_spark.filter import arrow, evaluate
from rmq_spark.filter import sql92_ast as ast
from rmq_spark.filter.properties_column import column_of
from rmq_spark.filter.sql92_parser import parse


class SqlFilter:
    """A compiled SQL92 expression; see `Filter` for what its methods promise."""

    __slots__ = ("_mask", "_matches", "columns", "expression")

    def __init__(self, expression: str) -> None:
        root = parse(expression)
        self.expression = expression
        self.columns = ast.fold(root, _columns)
        self._mask = arrow.compile_mask(root)
        self._matches = evaluate.compile_row(root)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        return self._mask(batch)

    def matches(self, properties: Mapping[str, str]) -> bool:
        return self._matches(properties)

    def __reduce__(self) -> tuple[Any, ...]:
        return SqlFilter, (self.expression,)

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"


def compile_sql(expression: str) -> SqlFilter:
    """Compile a SQL92 expression over message properties.

    Raises:
        FilterSyntaxError: it does not compile; the error has the position and what was expected there.
    """
    return SqlFilter(expression)


def _columns(node: ast.Node, operands: list[frozenset[str]]) -> frozenset[str]:
    if isinstance(node, ast.Property):
        return frozenset((column_of(node.name),))
    return frozenset().union(*operands)
