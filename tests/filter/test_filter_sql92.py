"""RocketMQ's SQL92 by example: the rules that are easy to get wrong, and what is refused where."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.filter import FilterSyntaxError, compile_sql

ONE_ROW = pa.RecordBatch.from_pydict(
    {"properties": pa.array([[("a", "1"), ("b", "1")]], pa.map_(pa.string(), pa.string()))}
)
MATCHES = [
    ("a = 1", {"a": "1"}, True),
    ("a = 1", {"a": "01"}, True),
    ("a = '1'", {"a": "01"}, False),
    # NOT binds tighter than a comparison.
    ("NOT a = 1", {"a": "2"}, False),
    ("NOT (a = 1)", {"a": "2"}, True),
    ("NOT a", {"a": "2"}, True),
    # Whatever follows a complete expression is ignored.
    ("a = 1 b = 2", {"a": "1"}, True),
    ("a > 007", {"a": "1"}, True),
    ("a = 1)", {"a": "1"}, True),
    ("a IS NULL < 3", {}, True),
    # Text is read as the type of the other side; what throws does not match.
    ("a > 3", {"a": "3.5"}, False),
    ("a > 3", {"a": "10000000000"}, False),
    ("a > 3.0", {"a": "3.5"}, True),
    ("a > 3.0", {"a": "NaN"}, True),
    ("a > 3", {"a": " 4"}, False),
    ("a > 3.0", {"a": " 4d "}, True),
    ("a > 5 OR b = 'x'", {"a": "abc", "b": "x"}, False),
    ("b = 'x' OR a > 5", {"a": "abc", "b": "x"}, True),
    ("b = 'y' AND a > 5 OR c = 1", {"a": "abc", "b": "x", "c": "1"}, True),
    ("a < b", {"a": "9", "b": "10"}, True),
    ("a < b", {"a": "-0.0", "b": "0.0"}, True),
    ("a = b", {"a": "1", "b": "1.0"}, False),
    # Null.
    ("a <> 'x'", {}, False),
    ("'x' <> a", {}, True),
    ("a NOT IN ('x')", {}, False),
    ("a = b", {}, True),
    ("a NOT CONTAINS 'x'", {}, False),
    ("NOT (a CONTAINS 'x')", {}, True),
    ("a CONTAINS ''", {"a": "x"}, False),
    ("a NOT STARTSWITH ''", {"a": "x"}, False),
    # Booleans.
    ("a", {"a": "true"}, False),
    ("a = TRUE", {"a": "tRuE"}, True),
    ("a = FALSE", {"a": "abc"}, True),
    ("TRUE = a", {"a": "true"}, False),
    ("TRUE", {}, True),
    ("NULL IS NULL", {}, True),
    ("-a IS NULL", {"a": "1"}, True),
    ("a NOT BETWEEN 2 AND 0", {"a": "1"}, True),
    ("a BETWEEN -1 AND -2", {"a": "-1"}, False),
    ("a = '''''tag'''''", {"a": "''tag''"}, True),
    ("a = 1 -- never ends", {"a": "1"}, True),
    ("A = 1", {"a": "1"}, False),
]


@pytest.mark.parametrize(("expression", "properties", "expected"), MATCHES)
def test_message_matches(expression: str, properties: dict[str, str], expected: bool) -> None:
    assert compile_sql(expression).matches(properties) is expected


REFUSED = [
    ("", 0, "a property name"),
    ("  ", 2, "a property name"),
    ("a = ", 4, "a property name"),
    ("a = NULL", 4, "IS NULL"),
    ("a != 1", 2, "<>"),
    ("a == 1", 3, "a property name"),
    ('a = "x"', 4, "single quotes"),
    ("a = 'x", 4, "closing quote"),
    ("a = 1;", 5, "operator"),
    ("a = 1 && b = 2", 6, "AND"),
    ("a IS 1", 5, "NULL or NOT NULL"),
    ("a IS NOT 1", 9, "NULL"),
    ("a NOT 1", 6, "BETWEEN, IN"),
    ("a IN (1)", 6, "text in single quotes"),
    ("a IN ()", 6, "text in single quotes"),
    ("a IN ('x'", 9, "',' or ')'"),
    ("1 IN ('x')", 0, "a property name"),
    ("a CONTAINS 1", 11, "text in single quotes"),
    ("a BETWEEN 1 OR 2", 12, "AND"),
    ("a BETWEEN 2 AND 1", 10, "the lower bound first"),
    ("a BETWEEN 'x' AND 'y'", 10, "a number"),
    ("a > 'x'", 4, "a number"),
    ("a > 1 AND (b < 2", 16, "')'"),
    ("1 < a < 3", 0, "a number"),
    ("a > 0.0", 4, "0, or"),
    ("a > 1e999", 4, "at most"),
    ("a > 9223372036854775808", 4, "9223372036854775807"),
    ("a = -9223372036854775808", 5, "9223372036854775807"),
    ("1", 0, "a comparison"),
    ("a = 1 OR 'x'", 9, "a comparison"),
    ("TRUE = 1", 7, "TRUE or FALSE"),
    ("a /* b", 2, "*/"),
    ("a and between 2 and 10", 6, "a property name"),
    ("a = '\ud83d'", 5, "UTF-8"),
]


@pytest.mark.parametrize(("expression", "position", "expected"), REFUSED)
def test_refusal_says_where_and_what_was_expected(expression: str, position: int, expected: str) -> None:
    with pytest.raises(FilterSyntaxError) as raised:
        compile_sql(expression)
    assert raised.value.position == position
    assert expected in raised.value.expected
    assert raised.value.expected in str(raised.value)
    assert isinstance(raised.value, InvalidRequestError)


def test_error_survives_pickling() -> None:
    with pytest.raises(FilterSyntaxError) as raised:
        compile_sql("a = ")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.position, again.expected, str(again)) == (4, raised.value.expected, str(raised.value))


def test_expression_of_4096_bytes_compiles_and_one_more_is_refused() -> None:
    fitting = "a = '" + "\u00e9" * 2045 + "'"
    assert len(fitting.encode()) == 4096
    assert compile_sql(fitting).matches({"a": "\u00e9" * 2045})
    with pytest.raises(FilterSyntaxError, match="4096 bytes"):
        compile_sql(fitting + " ")


@pytest.mark.parametrize(
    ("start", "middle", "end"),
    [
        ("(", "a = 1", ")"),
        ("NOT ", "(a = 1)", ""),
        ("(a = 1 OR ", "a = 1", ")"),
        ("(b=2 OR a=1 AND ", "a = 1", ")"),
    ],
)
def test_nesting_below_200_works_and_from_200_on_is_refused(start: str, middle: str, end: str) -> None:
    levels = 199 - middle.count("(")
    compiled = compile_sql(start * levels + middle + end * levels)
    expected = start != "NOT " or levels % 2 == 0
    assert compiled.matches({"a": "1", "b": "1"}) is expected
    assert compiled.mask(ONE_ROW).to_pylist() == [expected]
    with pytest.raises(FilterSyntaxError, match="nested too deep") as raised:
        compile_sql(start * 200 + middle + end * 200)
    assert "200" in raised.value.expected


@pytest.mark.parametrize(
    "expression",
    ["(" * 4096, "NOT " * 1024, "-" * 4095 + "1", "a" + "=1" * 2047, "a" + " IS NULL" * 500, "a=(" * 1300],
)
def test_hostile_nesting_is_an_error_and_no_crash(expression: str) -> None:
    with pytest.raises(FilterSyntaxError, match="nested too deep"):
        compile_sql(expression)


def test_deepest_tree_is_evaluated_far_down_the_stack() -> None:
    # 399 equalities, one upon the other: `(a = 1) = TRUE = TRUE ...`.
    compiled = compile_sql("a=1" + "=TRUE" * 398)

    def call(frames: int) -> bool:
        if frames:
            return call(frames - 1)
        return compiled.matches({"a": "1"}) and compiled.mask(ONE_ROW)[0].as_py()

    assert call(300) is True


def test_long_chains_of_and_and_or_are_not_nesting() -> None:
    assert compile_sql(" AND ".join(["a = 1"] * 400)).matches({"a": "1"})
    assert compile_sql(" OR ".join(["a = 2"] * 400 + ["a = 1"])).matches({"a": "1"})
