"""Random SQL92 expressions and message properties, made to disagree about, for differential tests.

Everything draws from the `random.Random` it is given, so a seed (or hypothesis, for which a draw of 0 is the
simplest choice) decides the case. Names and values come from small pools of awkward texts, so that
comparisons hit, miss, convert and throw about equally often.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

NAMES: Final = ("a", "b", "c", "A", "TAGS", "KEYS", "UNIQ_KEY", "_x$1", "now")
"""Property names that occur in expressions."""

# The pools below are read by the row, not by the line.
# fmt: off
NUMBERS: Final = (
    "0", "1", "2", "3", "-1", "-3", "+3", "03", "-0", "+0", "10", "100", "3.5", "3.0", "-2.5", "5.", ".5",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "10000000000", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "123456789012345678901234567890",
    "0.0", "-0.0", "1e3", "1E-3", "1e400", "-1e400", "1e-400", "4.9E-324", "1.7976931348623157E308", "3d",
    "3f", "3L", "NaN", "-NaN", "nan", "Infinity", "-Infinity", "inf", "0x10", "0x1p3", "-0x1.8p1d", "0x.8p0",
    "0x1p99999999999", "0x1p-99999999999", "0x0p99999999999", " 3", "3 ", "\t3\n", "\u00a03", "\u20033",
    "1_0", "1e", "+", "-", ".", "--1", "\u0663", "\uff13", "-\u0663\u0664", "\U0001d7d1", "\u00b2",
    "0" * 40 + "7",
)
"""Property values that are numbers, or look like it."""

TEXTS: Final = (
    "x", "abc", "axbc", "ab", "bc", "c", " ", "it's", "''", "true", "TRUE", "tRuE", "false", "TRUE ", "null",
    "\u4e2d\u6587", "\u00e9", "e\u0301", "\U0001f600", "a\U0001f600b", "\\", ".", "%", "a.c", "\u0130",
    "\u017f", "",
)
"""Other property values."""

_LITERAL_NUMBERS: Final = (
    "0", "1", "2", "3", "10", "100", "3L", "3l", "3.5", "3.0", "5.", ".5", "2147483647", "2147483648", "1e3",
    "10000000000", "9223372036854775807", "4.9E-324", "1E-3", "1.7976931348623157E308",
)
_BAD_NUMBERS: Final = (
    "0.0", "0e5", "1e400", "1e-400", "9223372036854775808", "007", "0x1", "0L", "5E", "1_0",
)
_BLANKS: Final = ("  ", "\t", "\n", "\r\n", "\f", "/**/", "/* a = */", "-- x\n", "/***/ ", "--\r")
_JUNK: Final = (
    "'", '"', "!", ";", "(", ")", ",", "=", "<", ">", "<>", "<=", ">=", "!=", "==", "+", "-", "--", "/*",
    "NOT", "AND", "OR", "IS", "NULL", "IN", "BETWEEN", "CONTAINS", "ENDSWITH", "TRUE", "a", "1", "0.5", "'x'",
    "&&", "\u00e9", "\u212a", "\u0131", "\x00", "\x0b", "\u00a0", "\U0001f600", "#", "%", ".", "$", "_", "`",
    "*/", "a.b",
)
# fmt: on
_SEARCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_ORDERS: Final = ("<", "<=", ">", ">=")


def properties(random: Random) -> dict[str, str]:
    """Return the properties of one message; some of `NAMES` are missing."""
    return {name: value(random) for name in NAMES if random.random() > 0.25}


def value(random: Random) -> str:
    """Return one property value."""
    return random.choice(NUMBERS if random.random() < 0.6 else TEXTS)


def numeric_text(random: Random) -> str:
    """Return a text that is a number in some syntax, often with a small defect."""
    if random.random() < 0.3:
        text = random.choice(NUMBERS)
    else:
        digits = "".join(random.choice("0123456789") for _ in range(random.randint(1, random.choice((3, 12, 25)))))
        text = random.choice(("", "-", "+")) + digits
        if random.random() < 0.5:
            text += "." + "".join(random.choice("0123456789") for _ in range(random.randint(0, 20)))
        if random.random() < 0.4:
            text += random.choice("eE") + random.choice(("", "-", "+")) + str(random.randint(0, 330))
    if random.random() < 0.2:
        place = random.randint(0, len(text))
        text = text[:place] + random.choice("0 .eEdDfFLxXpP+-\u0660\u00a0\x1f_") + text[place:]
    return text


def expression(random: Random) -> str:
    """Return an expression: mostly by the grammar, a quarter with some damage."""
    text = "".join(_condition(random, random.randint(0, 4)))
    for _ in range(3):
        if random.random() < 0.8:
            break
        text = _damage(random, text)
    return text


def _damage(random: Random, text: str) -> str:
    place = random.randint(0, len(text))
    kind = random.randrange(4)
    if kind == 0:
        return text[:place]
    if kind == 1:
        return text[:place] + text[place + random.randint(1, 3) :]
    blank = random.choice(("", " "))
    if kind == 2:
        return text + blank + random.choice(_JUNK)
    return text[:place] + blank + random.choice(_JUNK) + blank + text[place:]


def _condition(random: Random, depth: int) -> Sequence[str]:
    if depth > 0 and random.random() > 0.3:
        kind = random.randrange(6)
        if kind <= 2:
            word = "AND" if kind == 0 or random.random() < 0.3 else "OR"
            left, right = _condition(random, depth - 1), _condition(random, depth - 1)
            return [*left, *_spaced(random, word), *right]
        if kind == 3:
            return [*_spaced(random, "NOT"), *_parenthesised(random, depth)]
        if kind == 4:
            return _parenthesised(random, depth)
        sides = _comparison(random), _spaced(random, random.choice(("=", "<>"))), _operand(random, depth - 1)
        return [text for side in sides for text in side]
    return _comparison(random)


def _parenthesised(random: Random, depth: int) -> Sequence[str]:
    return ["(", _blank(random), *_condition(random, depth - 1), _blank(random), ")"]


def _comparison(random: Random) -> Sequence[str]:
    kind = random.randrange(12)
    left = [_name(random)] if random.random() < 0.75 else _operand(random, 1)
    if kind <= 2:
        return [*left, *_spaced(random, random.choice(("=", "<>"))), *_operand(random, 1)]
    if kind <= 5:
        return [*left, *_spaced(random, random.choice(_ORDERS)), *_number(random)]
    negation = _spaced(random, "NOT") if random.random() > 0.7 else []
    if kind == 6:
        return [*negation, *_operand(random, 0)]
    if kind == 7:
        return [*left, *_spaced(random, "IS"), *negation, *_spaced(random, "NULL")]
    return [*left, *negation, *_tested(random, kind)]


def _tested(random: Random, kind: int) -> Sequence[str]:
    if kind == 8:
        low, high = _number(random), _number(random)
        return [*_spaced(random, "BETWEEN"), *low, *_spaced(random, "AND"), *high]
    if kind == 9:
        choices = ",".join(_string(random) for _ in range(random.randint(1, 6)))
        return [*_spaced(random, "IN"), "(", choices, ")"]
    return [*_spaced(random, random.choice(_SEARCHES)), _string(random)]


def _operand(random: Random, depth: int) -> Sequence[str]:
    kind = random.randrange(12)
    if kind <= 4:
        return [_name(random)]
    if kind <= 6:
        return [_string(random)]
    if kind <= 8:
        return _number(random)
    if kind == 9:
        return [_cased(random, random.choice(("TRUE", "FALSE", "TRUE", "FALSE", "NULL")))]
    if kind == 10 and depth > 0:
        return _parenthesised(random, depth)
    return [random.choice(("-", "+", "- ", "NOT ")), *_operand(random, depth)]


def _number(random: Random) -> Sequence[str]:
    if random.random() < 0.2:
        return [_name(random)]
    if random.random() > 0.98:
        return [random.choice(_BAD_NUMBERS)]
    if random.random() > 0.92:
        # Null, but it throws where the condition throws: shows whether a side is evaluated at all.
        return ["-", *_parenthesised(random, 1)]
    return [random.choice(("", "", "", "-", "+", "- -")), random.choice(_LITERAL_NUMBERS)]


def _string(random: Random) -> str:
    return "'" + value(random).replace("'", "''") + "'"


def _name(random: Random) -> str:
    return random.choice(NAMES) if random.random() < 0.5 else random.choice("ab")


def _spaced(random: Random, word: str) -> Sequence[str]:
    return [_blank(random), _cased(random, word), _blank(random)]


def _blank(random: Random) -> str:
    # Mostly one space, so that a failing case can be read.
    return " " if random.random() < 0.9 else random.choice(_BLANKS)


def _cased(random: Random, word: str) -> str:
    if random.random() < 0.8:
        return word
    return "".join(random.choice((letter.lower(), letter)) for letter in word)
