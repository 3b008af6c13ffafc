"""The syntax tree of a SQL92 filter: what the parser builds and both evaluators read.

It has fewer node kinds than the grammar: `<>`, `IS [NOT] NULL` and `[NOT] BETWEEN` are spelled with `Equal`,
`Not`, `Order`, `And` and `Or`, exactly as RocketMQ does, because their odd answers follow from that.
A chain of AND (or OR) is one node. `fold` walks the tree without recursion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")


class Long(int):
    """Java's 64-bit Long; a plain `int` is Java's 32-bit Integer. They read text differently."""

    __slots__ = ()


Value: TypeAlias = "bool | int | float | str | None"
"""What an expression evaluates to. Mind that a bool is an int in Python: test for it first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """Any expression."""

    position: int
    """Where it starts in the text."""
    depth: int = 0
    """Operators on the longest way down."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Literal(Node):
    """A constant."""

    value: Value
    """Its value; `Long` when it does not fit 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Property(Node):
    """The text of a message property, null when the message has none of that name."""

    name: str
    """The property's name, case-sensitive."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Negate(Node):
    """`-x`: of a number its negative, of anything else null."""

    operand: Node
    """What is negated."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truth(Node):
    """A property used as a condition: null when missing, else false, for text is never TRUE."""

    operand: Property
    """The property."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Not(Node):
    """`NOT x`; null stays null."""

    operand: Node
    """A condition."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class And(Node):
    """Left to right until one is false."""

    items: tuple[Node, ...]
    """Two or more conditions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Or(Node):
    """Left to right until one is true."""

    items: tuple[Node, ...]
    """Two or more conditions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Equal(Node):
    """`left = right`. Two nulls are equal; null = x is null; x = null is false."""

    left: Node
    """Evaluated first."""
    right: Node
    """Always evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order(Node):
    """`left < right` and its kin. Null when a side is null; two texts compare as doubles."""

    operator: str
    """One of `<`, `<=`, `>`, `>=`."""
    left: Node
    """Evaluated first."""
    right: Node
    """Evaluated when the left side is not null."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class In(Node):
    """`property [NOT] IN ('x', ...)`; null when the property is missing."""

    operand: Property
    """The property."""
    choices: frozenset[str]
    """The texts."""
    negated: bool
    """Whether NOT was written."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Search(Node):
    """`x [NOT] CONTAINS 's'` and its kin; false for null, for anything but text and for an empty `s`."""

    kind: str
    """`CONTAINS`, `STARTSWITH` or `ENDSWITH`."""
    operand: Node
    """Where to look; not evaluated when the search text is empty."""
    text: str
    """What to look for, literally."""
    negated: bool
    """Whether NOT was written."""


def children(node: Node) -> tuple[Node, ...]:
    """Return the operands of `node` in the order of evaluation."""
    match node:
        case And(items=items) | Or(items=items):
            return items
        case Equal(left=left, right=right) | Order(left=left, right=right):
            return left, right
        case Negate() | Truth() | Not() | In() | Search():
            return (node.operand,)
        case _:
            return ()


def fold(root: Node, build: Callable[[Node, list[T]], T]) -> T:
    """Return `build(root, results for its children)`, children first, without recursion."""
    pending = [(root, False)]
    done: list[T] = []
    while pending:
        node, expanded = pending.pop()
        operands = children(node)
        if operands and not expanded:
            pending.append((node, True))
            pending += [(child, False) for child in reversed(operands)]
            continue
        first = len(done) - len(operands)
        done[first:] = [build(node, done[first:])]
    return done[0]


def is_condition(node: Node) -> bool:
    """Whether `node` is a condition by its form, as TRUE or a comparison is."""
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, Property | Negate)
