"""Tokens of RocketMQ's SQL92, read one at a time.

Reading is lazy on purpose: RocketMQ stops at the first token that cannot continue the expression, so text
after that token need not even be made of tokens. Longest match wins, as in the generated lexer it copies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rmq_spark.filter.syntax_error import FilterSyntaxError, syntax_error

KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
"""Words that are no property names, in any case."""
END: Final = "end"
"""Kind of the token behind the text; the other kinds are those of the pattern, keywords and operators."""

# A float is tried first: where it matches it is longer than the integer it starts with.
_TOKEN: Final = re.compile(
    r"""(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
      | (?P<integer>0|[1-9][0-9]*[lL]?)
      | (?P<string>'(?:''|[^'])*')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<operator><>|<=|>=|[<>=(),+-])""",
    re.VERBOSE,
)
# A line comment without its line end is two minus signs.
_SKIPPED: Final = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r)|/\*(?s:.*?)\*/)+")
_HINTS: Final = {
    "!": "<> for 'not equal'",
    '"': "single quotes around text",
    "&": "AND",
    "|": "OR",
    "'": "a closing quote",
    "/": "an operator, or a comment that ends in */",
}


@dataclass(frozen=True, slots=True)
class Token:
    """One token."""

    kind: str
    """`float`, `integer`, `string`, `name`, `end`, a keyword in capitals, or the operator itself."""
    text: str
    """As written."""
    position: int
    """Characters before it."""


class Lexer:
    """The tokens of one expression, in order, then `END` for ever."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._position = 0

    def next(self) -> Token:
        """Return the next token.

        Raises:
            FilterSyntaxError: what stands there is no token.
        """
        skipped = _SKIPPED.match(self._expression, self._position)
        start = skipped.end() if skipped else self._position
        if start == len(self._expression):
            return Token(END, "", start)
        match = _TOKEN.match(self._expression, start)
        if match is None:
            raise self._illegal(start)
        self._position = match.end()
        text = match.group()
        kind = str(match.lastgroup)
        if kind == "operator":
            kind = text
        elif kind == "name" and text.upper() in KEYWORDS:
            kind = text.upper()
        return Token(kind, text, start)

    def _illegal(self, start: int) -> FilterSyntaxError:
        character = self._expression[start]
        expected = _HINTS.get(character, "a name, number, text in single quotes, operator or parenthesis")
        return syntax_error(f"{character!r} starts no token", self._expression, start, expected)
