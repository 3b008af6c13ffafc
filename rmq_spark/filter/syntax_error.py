"""What a filter expression is refused with, and the limits that every expression has to keep."""

from __future__ import annotations

from typing import Final

from rmq_spark.errors import InvalidRequestError

EXPRESSION_BYTES_MAX: Final = 4096
"""Longest expression, in UTF-8 bytes."""
_EXCERPT_CHARACTERS: Final = 24


class FilterSyntaxError(InvalidRequestError):
    """A filter expression that cannot be compiled; nothing was subscribed or read."""

    def __init__(
        self, problem: str, /, *, position: int = 0, expected: str = "an expression", **context: object
    ) -> None:
        super().__init__(problem, position=position, expected=expected, **context)
        self.position = position
        """Where the expression goes wrong: characters before that place."""
        self.expected = expected
        """What could have stood there."""


def syntax_error(problem: str, expression: str, position: int, expected: str) -> FilterSyntaxError:
    """Build the error for `expression` at `position`, with the text that stands there."""
    near = expression[position : position + _EXCERPT_CHARACTERS]
    return FilterSyntaxError(
        f"filter expression is wrong at character {position}: {problem}; expected {expected}",
        position=position,
        expected=expected,
        near=near,
    )


def check_length(expression: str) -> None:
    """Refuse what is too long, or is no text.

    Raises:
        FilterSyntaxError: over `EXPRESSION_BYTES_MAX` bytes, or half of a surrogate pair.
    """
    try:
        size = len(expression.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise syntax_error(
            "half of a surrogate pair", expression[: error.start], error.start, "text that UTF-8 can hold"
        ) from error
    if size > EXPRESSION_BYTES_MAX:
        expected = f"at most {EXPRESSION_BYTES_MAX} bytes"
        raise FilterSyntaxError(
            f"filter expression is too long; expected {expected}",
            position=0,
            expected=expected,
            bytes=size,
        )
