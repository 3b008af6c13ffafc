"""How RocketMQ compares two values: by Java's types, Java's number syntax and Java's order of doubles.

Every function exists for one value; those that a column needs exist for a column too. The column forms read
plain ASCII numbers with Arrow and hand only odd texts (`+3`, `3d`, `0x1p3`, `NaN`, other scripts' digits) to
the form for one value.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.filter.sql92_ast import Long, Value

Bools = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]

INTEGER_BITS: Final = 32
"""Width of Java's Integer."""
LONG_BITS: Final = 64
"""Width of Java's Long."""
BLANKS: Final = "".join(map(chr, range(0x21)))
"""What Java's `trim` takes off."""

_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_WORD: Final = re.compile(r"([+-]?)(NaN|Infinity)")
# Short enough that the cast can neither overflow nor underflow: those texts are left to the scalar form.
_PLAIN_INTEGER: Final = r"^-?[0-9]{1,18}$"
_PLAIN_DOUBLE: Final = r"^-?[0-9]{1,99}(\.[0-9]{1,99})?([eE][+-]?[0-9]{1,2})?$"


class EvaluationError(Exception):
    """What Java would have thrown while it evaluated a row: that row does not match."""


def parse_integer(text: str, bits: int) -> int | None:
    """Return what `Integer.valueOf` or `Long.valueOf` makes of `text`, None where they throw."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java takes any decimal digit that is one UTF-16 unit, and Python knows the same ones.
    if not digits.isdecimal() or max(digits) > "\uffff":
        return None
    if not digits.isascii():
        digits = "".join(str(int(digit)) for digit in digits)
    digits = digits.lstrip("0") or "0"
    if len(digits) > 19:
        return None
    value = -int(digits) if text[0] == "-" else int(digits)
    return value if -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None


def parse_double(text: str) -> float | None:
    """Return what `Double.valueOf` makes of `text`, None where it throws."""
    text = text.strip(BLANKS)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD"))
    if word := _WORD.fullmatch(text):
        return float(word[1] + ("nan" if word[2] == "NaN" else "inf"))
    if hexadecimal := _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(hexadecimal[1])
        except OverflowError:
            return float("-inf") if text[0] == "-" else float("inf")
    return None


def total_order(value: float) -> int:
    """Return a number that sorts as `Double.compare` does: -0.0 before 0.0, NaN after everything."""
    if math.isnan(value):
        return 0x7FF8000000000000
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


def is_true(text: str) -> bool:
    """Return `Boolean.valueOf(text)`."""
    return text.isascii() and text.lower() == "true"


def compare(left: Value, right: Value) -> int:
    """Return the sign of `left.compareTo(right)` after RocketMQ's conversions; neither side is null.

    Text is read as the type of the other side. Kinds that do not go together compare as -1.

    Raises:
        EvaluationError: the text is no such number, or a boolean stands left of a text.
    """
    if type(left) is not type(right):
        if isinstance(left, bool):
            if isinstance(right, str):
                raise EvaluationError("a boolean left of a text cannot be cast")
            return -1
        if isinstance(left, str):
            left = is_true(left) if isinstance(right, bool) else _read_as(left, right)
        elif isinstance(right, str):
            right = _read_as(right, left)
        elif isinstance(right, bool):
            return -1
        elif isinstance(left, float) or isinstance(right, float):
            left, right = float(left or 0), float(right or 0)
    if isinstance(left, float) and isinstance(right, float):
        left, right = total_order(left), total_order(right)
    return (left > right) - (left < right)  # type: ignore[operator]


def compare_as_doubles(left: str, right: str) -> int:
    """Return the sign of comparing two texts as doubles, which is how `<` and its kin see them.

    Raises:
        EvaluationError: one of them is no number.
    """
    return compare(_read_as(left, 0.0), _read_as(right, 0.0))


def _read_as(text: str, like: Value) -> int | float:
    value: int | float | None
    if isinstance(like, float):
        value = parse_double(text)
    else:
        value = parse_integer(text, LONG_BITS if isinstance(like, Long) else INTEGER_BITS)
    if value is None:
        raise EvaluationError("text is no number of that type")
    return value


def parse_integers(texts: pa.Array, bits: int) -> tuple[I64, Bools]:
    """`parse_integer` for a column without nulls: the values, and which texts are no such number."""
    values, bad = _parse(texts, _PLAIN_INTEGER, pa.int64(), lambda text: parse_integer(text, bits))
    limit = 1 << (bits - 1)
    return values, bad | (values < -limit) | (values > limit - 1)


def parse_doubles(texts: pa.Array) -> tuple[I64, Bools]:
    """`parse_double` for a column without nulls: the `total_order` of the values, and which are none."""
    values, bad = _parse(texts, _PLAIN_DOUBLE, pa.float64(), parse_double)
    bits = np.where(np.isnan(values), np.float64("nan"), values).view(np.int64)
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF), bad


def _parse(
    texts: Any, plain_pattern: str, kind: pa.DataType, parse_odd: Callable[[str], int | float | None]
) -> tuple[npt.NDArray[Any], Bools]:
    """Parse plain texts with a cast and the distinct odd ones with `parse_odd`."""
    plain = pc.match_substring_regex(texts, plain_pattern)
    if plain.true_count == len(texts):
        return texts.cast(kind).to_numpy(zero_copy_only=False), np.zeros(len(texts), np.bool_)
    odd = pc.invert(plain)
    encoded = texts.filter(odd).dictionary_encode()
    indices = encoded.indices.to_numpy()
    parsed = [parse_odd(text) for text in encoded.dictionary.to_pylist()]
    values = np.zeros(len(texts), kind.to_pandas_dtype())
    bad = np.zeros(len(texts), np.bool_)
    is_odd = odd.to_numpy(zero_copy_only=False)
    values[~is_odd] = texts.filter(plain).cast(kind).to_numpy(zero_copy_only=False)
    values[is_odd] = np.array([0 if value is None else value for value in parsed], values.dtype)[indices]
    bad[is_odd] = np.array([value is None for value in parsed], np.bool_)[indices]
    return values, bad
