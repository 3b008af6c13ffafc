from __future__ import annotations

import pytest

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.times import format_ms, parse_instant, parse_time


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", 42),
        ("000000000000", 0),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123", 1_700_000_000_123),
        ("2023-11-14 23:13:20.123+01:00", 1_700_000_000_123),
        ("2023-11-14#22:13:20:123", 1_700_000_000_123),
        ("2023-11-14#22:13:20", 1_700_000_000_000),
        ("2023-11-14", 1_699_920_000_000),
        ("1969-12-31T23:59:59.999Z", -1),
        ("42ms", 0),
        ("1s", 42 - 1_000),
        ("5m", 42 - 300_000),
        ("2h", 42 - 7_200_000),
        ("3d", 42 - 259_200_000),
        ("1w", 42 - 604_800_000),
    ],
)
def test_forms_of_a_time(text: str, ms: int) -> None:
    assert parse_time(text, "--from", 42) == ms


@pytest.mark.parametrize("text", ["0", "2026", "20231114", "17000000001"])
def test_a_number_that_looks_like_a_date_is_refused_for_people_and_milliseconds_for_programs(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"--from takes a time: a bare number .* 12 digits or more"):
        parse_time(text, "--from", 42)
    assert parse_instant(text, "option") == int(text)


@pytest.mark.parametrize("text", ["now", "5m"])
def test_an_instant_does_not_depend_on_when_it_is_read(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="option takes milliseconds since 1970 or ISO 8601"):
        parse_instant(text, "option")


@pytest.mark.parametrize(
    "text", ["", "today", "2023-13-01", "-5", "1e9", "9" * 16, "١٢٣", "5 m", "-5m", "1.5h", "5M", "m"]
)
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
        assert parse_instant(text, "--to") == ms
