from __future__ import annotations

import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.times import format_ms, parse_time


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", 42),
        ("0", 0),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123", 1_700_000_000_123),
        ("2023-11-14 23:13:20.123+01:00", 1_700_000_000_123),
        ("2023-11-14#22:13:20:123", 1_700_000_000_123),
        ("2023-11-14#22:13:20", 1_700_000_000_000),
        ("2023-11-14", 1_699_920_000_000),
        ("1969-12-31T23:59:59.999Z", -1),
        ("20231114", 20_231_114),
    ],
)
def test_forms_of_a_time(text: str, ms: int) -> None:
    assert parse_time(text, "--from", 42) == ms


@pytest.mark.parametrize("text", ["", "today", "2023-13-01", "-5", "1e9", "9" * 16, "١٢٣"])
def test_anything_else_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="--before takes a time"):
        parse_time(text, "--before", 0)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (2**62, str(2**62)),
    ],
)
def test_times_are_shown_in_utc(ms: int, text: str) -> None:
    assert format_ms(ms) == text
    if ms < 2**60:
        assert parse_time(text, "--to", 0) == ms
