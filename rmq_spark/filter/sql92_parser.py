"""From the text of a SQL92 filter to its syntax tree, with RocketMQ's grammar and its checks.

Loosest to tightest: OR; AND; `=` `<>` `IS [NOT] NULL`; `<` `<=` `>` `>=` `[NOT] BETWEEN` `[NOT] IN`
`[NOT] CONTAINS` and its kin; prefix `+ - NOT`. All associate to the left. So `NOT a = 1` is `(NOT a) = 1`,
and the expression ends at the first token that cannot continue it: the rest is ignored.

The parser keeps its own stack of unfinished constructs, so no input can exhaust Python's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from rmq_spark.filter import java_values
from rmq_spark.filter import sql92_ast as ast
from rmq_spark.filter.sql92_lexer import END, Lexer, Token
from rmq_spark.filter.syntax_error import FilterSyntaxError, check_length, syntax_error

NESTING_MAX: Final = 199
"""Deepest nesting of parentheses and prefix operators."""
DEPTH_MAX: Final = 399
"""Most operators on one way down the tree; evaluation needs one Python frame for each."""

_PARENTHESIS: Final = 0
_OR: Final = 1
_AND: Final = 2
_EQUALITY: Final = 3
_COMPARISON: Final = 4
_PREFIX: Final = 5
_NEVER: Final = 6
_INFIX: Final = {"OR": _OR, "AND": _AND, "=": _EQUALITY, "<>": _EQUALITY} | dict.fromkeys(
    ("<", "<=", ">", ">=", "BETWEEN"), _COMPARISON
)
_SEARCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_POSTFIX: Final = {"IS": _EQUALITY} | dict.fromkeys(("IN", "NOT", *_SEARCHES), _COMPARISON)
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_OPERAND: Final = "a property name, a literal, '(', NOT, '+' or '-'"


@dataclass(slots=True)
class _Open:
    """A construct that still waits for its last operand."""

    token: Token
    """The operator, prefix or parenthesis; its kind says which."""
    level: int
    """How tightly it binds; a parenthesis least of all, so nothing is closed across it."""
    operands: list[ast.Node] = field(default_factory=list)
    """Those read so far."""
    negated: bool = False
    """NOT BETWEEN."""


def parse(expression: str) -> ast.Node:
    """Return the syntax tree of `expression`, a condition.

    Raises:
        FilterSyntaxError: RocketMQ would not compile it, or it is too long or nested too deep.
    """
    check_length(expression)
    return _Parser(expression).parse()


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._lexer = Lexer(expression)
        self._token = self._lexer.next()
        self._open: list[_Open] = []
        self._nesting = 0

    def parse(self) -> ast.Node:
        while True:
            finished = self._continue(self._operand())
            if finished is not None:
                return self._condition(finished)

    def _operand(self) -> ast.Node:
        """Read prefixes and opening parentheses, then one literal or name."""
        while self._token.kind in ("NOT", "+", "-", "("):
            self._nesting += 1
            if self._nesting > NESTING_MAX:
                raise self._too_deep(self._token.position)
            level = _PARENTHESIS if self._token.kind == "(" else _PREFIX
            self._open.append(_Open(self._advance(), level))
        token = self._token
        if token.kind == "name":
            self._advance()
            return ast.Property(position=token.position, name=token.text)
        if token.kind not in ("integer", "float", "string", *_CONSTANTS):
            raise self._unexpected(_OPERAND)
        self._advance()
        return ast.Literal(position=token.position, value=self._value(token))

    def _continue(self, node: ast.Node) -> ast.Node | None:
        """Take operators after an operand until another one is needed; return the node at the end of it."""
        tightest = _COMPARISON
        while True:
            # Prefixes and comparisons take exactly the operand before us, whatever comes next.
            node = self._reduce(node, _COMPARISON)
            if self._open and self._open[-1].token.kind == "BETWEEN":
                between = self._open[-1]
                between.operands.append(node)
                if len(between.operands) == 2:
                    self._expect("AND", "AND and the upper bound")
                    return None
                self._open.pop()
                node = self._between(between)
                continue
            kind = self._token.kind
            if _POSTFIX.get(kind, _NEVER) <= tightest:
                # After IS NULL the grammar is past comparisons: `a IS NULL < 3` ends before `<`.
                tightest = _POSTFIX[kind]
                applied = self._postfix(self._reduce(node, _POSTFIX[kind]))
                if applied is None:
                    return None
                node = applied
            elif _INFIX.get(kind, _NEVER) <= tightest:
                self._infix(node)
                return None
            else:
                node = self._reduce(node, _OR)
                if not self._open:
                    return node
                self._expect(")", "')' or an operator")
                self._open.pop()
                self._nesting -= 1
                tightest = _COMPARISON

    def _reduce(self, node: ast.Node, level: int) -> ast.Node:
        """Close the constructs on top of the stack that bind at least as tightly as `level`."""
        while self._open and self._open[-1].level >= level and self._open[-1].token.kind != "BETWEEN":
            closed = self._open.pop()
            if closed.level == _PREFIX:
                self._nesting -= 1
                node = self._prefix(closed.token, node)
            elif closed.level in (_OR, _AND):
                items = (*closed.operands, self._condition(node))
                kind = ast.Or if closed.level == _OR else ast.And
                node = kind(position=items[0].position, depth=self._above(*items), items=items)
            else:
                node = self._compare(closed.token, closed.operands[0], node)
        return node

    def _infix(self, node: ast.Node) -> None:
        token = self._advance()
        level = _INFIX[token.kind]
        if level in (_OR, _AND):
            node = self._condition(self._reduce(node, level + 1))
            if self._open and self._open[-1].level == level:
                self._open[-1].operands.append(node)
                return
        else:
            node = self._reduce(node, level)
        self._open.append(_Open(token, level, [node]))

    def _postfix(self, node: ast.Node) -> ast.Node | None:
        """Apply what needs no further operand; NOT BETWEEN does, and gives None."""
        token = self._advance()
        if token.kind == "IS":
            negated = self._token.kind == "NOT"
            if negated:
                self._advance()
            self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
            null = ast.Literal(position=token.position, value=None)
            equal = ast.Equal(position=node.position, depth=self._above(node), left=node, right=null)
            return self._not(node.position, equal) if negated else equal
        negated = token.kind == "NOT"
        if negated:
            if self._token.kind not in ("BETWEEN", "IN", *_SEARCHES):
                raise self._unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after this NOT")
            token = self._advance()
        if token.kind == "IN":
            return self._in(node, negated)
        if token.kind == "BETWEEN":
            self._open.append(_Open(token, _COMPARISON, [node], negated=negated))
            return None
        return ast.Search(
            position=node.position,
            depth=self._above(node),
            kind=token.kind,
            operand=node,
            text=self._string(),
            negated=negated,
        )

    def _in(self, node: ast.Node, negated: bool) -> ast.Node:
        self._expect("(", "'('")
        choices = [self._string()]
        while self._token.kind == ",":
            self._advance()
            choices.append(self._string())
        self._expect(")", "',' or ')'")
        if not isinstance(node, ast.Property):
            raise self._error("IN needs a property on its left", node.position, "a property name")
        return ast.In(position=node.position, depth=1, operand=node, choices=frozenset(choices), negated=negated)

    def _prefix(self, token: Token, node: ast.Node) -> ast.Node:
        if token.kind == "NOT":
            return self._not(token.position, self._condition(node))
        if token.kind == "-":
            return ast.Negate(position=token.position, depth=self._above(node), operand=node)
        return node

    def _not(self, position: int, node: ast.Node) -> ast.Node:
        return ast.Not(position=position, depth=self._above(node), operand=node)

    def _compare(self, token: Token, left: ast.Node, right: ast.Node) -> ast.Node:
        if token.kind not in ("=", "<>"):
            return self._order(token.kind, left, right)
        for side in (left, right):
            if isinstance(side, ast.Literal) and side.value is None:
                raise self._error("NULL cannot be compared", side.position, "IS NULL or IS NOT NULL")
        literals = isinstance(left, ast.Literal) and isinstance(right, ast.Literal)
        if literals and ast.is_condition(left) and not ast.is_condition(right):
            raise self._error("TRUE and FALSE equal no number or text", right.position, "TRUE or FALSE")
        equal = ast.Equal(position=left.position, depth=self._above(left, right), left=left, right=right)
        return equal if token.kind == "=" else self._not(left.position, equal)

    def _order(self, operator: str, left: ast.Node, right: ast.Node) -> ast.Node:
        for side in (left, right):
            if ast.is_condition(side) or (isinstance(side, ast.Literal) and isinstance(side.value, str)):
                raise self._error(
                    "only numbers and properties have an order", side.position, "a number or a property name"
                )
        return ast.Order(
            position=left.position,
            depth=self._above(left, right),
            operator=operator,
            left=left,
            right=right,
        )

    def _between(self, closed: _Open) -> ast.Node:
        value, low, high = closed.operands
        operators = ("<", ">") if closed.negated else (">=", "<=")
        items = (self._order(operators[0], value, low), self._order(operators[1], value, high))
        if closed.negated:
            return ast.Or(position=value.position, depth=self._above(*items), items=items)
        # A negative bound is a Negate, not a Literal, so RocketMQ does not check it; neither do we.
        bounds = [bound.value for bound in (high, low) if isinstance(bound, ast.Literal)]
        if len(bounds) == 2 and java_values.compare(*bounds) < 0:
            raise self._error("the bounds of BETWEEN are in the wrong order", low.position, "the lower bound first")
        return ast.And(position=value.position, depth=self._above(*items), items=items)

    def _condition(self, node: ast.Node) -> ast.Node:
        if ast.is_condition(node):
            return node
        if isinstance(node, ast.Property):
            return ast.Truth(position=node.position, depth=1, operand=node)
        raise self._error("this value is no condition", node.position, "a comparison")

    def _value(self, token: Token) -> ast.Value:
        if token.kind in _CONSTANTS:
            return _CONSTANTS[token.kind]
        if token.kind == "string":
            return _unquote(token.text)
        return self._integer(token) if token.kind == "integer" else self._float(token)

    def _integer(self, token: Token) -> ast.Value:
        value = java_values.parse_integer(token.text.rstrip("lL"), java_values.LONG_BITS)
        if value is None:
            raise self._error("integer does not fit 64 bits", token.position, "at most 9223372036854775807")
        return value if value < 1 << (java_values.INTEGER_BITS - 1) else ast.Long(value)

    def _float(self, token: Token) -> ast.Value:
        value = float(token.text)
        if math.isinf(value):
            raise self._error("number is too large", token.position, "at most 1.7976931348623157E308")
        if value == 0:
            raise self._error("RocketMQ knows no floating-point zero", token.position, "0, or at least 4.9E-324")
        return value

    def _string(self) -> str:
        if self._token.kind != "string":
            raise self._unexpected("text in single quotes")
        return _unquote(self._advance().text)

    def _advance(self) -> Token:
        token = self._token
        self._token = self._lexer.next()
        return token

    def _expect(self, kind: str, expected: str) -> None:
        if self._token.kind != kind:
            raise self._unexpected(expected)
        self._advance()

    def _above(self, *operands: ast.Node) -> int:
        depth = 1 + max(operand.depth for operand in operands)
        if depth > DEPTH_MAX:
            raise self._too_deep(operands[-1].position)
        return depth

    def _too_deep(self, position: int) -> FilterSyntaxError:
        return self._error("nested too deep", position, f"less than {NESTING_MAX + 1} levels of nesting")

    def _unexpected(self, expected: str) -> FilterSyntaxError:
        actual = "the end of the text" if self._token.kind == END else repr(self._token.text)
        return self._error(f"found {actual}", self._token.position, expected)

    def _error(self, problem: str, position: int, expected: str) -> FilterSyntaxError:
        return syntax_error(problem, self._expression, position, expected)


def _unquote(text: str) -> str:
    return text[1:-1].replace("''", "'")
