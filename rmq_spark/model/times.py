"""Times as people and scripts write them. Everything without a zone is UTC, whatever the machine's zone is."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from rmq_spark.errors import InvalidRequestError

FORMS: Final = "now, 5m (ago; ms, s, m, h, d, w), ISO 8601, yyyy-MM-dd#HH:mm:ss:SSS, or milliseconds since 1970"
"""What `parse_time` takes, for help texts and errors."""
DIGITS_MIN: Final = 12
"""A bare number has at least so many digits: fewer are a year or a compact date, and seldom a day before 1973."""

_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)
_AGO: Final = re.compile(r"(\d{1,15})(ms|s|m|h|d|w)", re.ASCII)
_SECONDS: Final = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_MQADMIN: Final = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_LIMIT: Final = 10**15
"""Times and durations have fewer milliseconds: more are meant as another unit."""


def parse_time(text: str, option: str, now_ms: int) -> int:
    """Return milliseconds since 1970 (UTC) for a time that somebody typed; `5m` is five minutes before `now_ms`.

    Raises:
        InvalidRequestError: none of `FORMS`, or a bare number that is too short to be meant; it names `option`.
    """
    if text == "now":
        return now_ms
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    if _NUMBER.fullmatch(text) and len(text) < DIGITS_MIN:
        raise InvalidRequestError(
            f"{option} takes a time: a bare number is milliseconds since 1970 and has {DIGITS_MIN} digits or more; "
            "write a date as 2026-01-31, a time ago as 5m",
            value=text,
        )
    try:
        return parse_instant(text, option)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{option} takes a time: {FORMS}", value=text) from error


def parse_duration(text: str, option: str) -> int:
    """Return the milliseconds of a duration that somebody typed: seconds, or a number with a unit, as `5m`.

    Raises:
        InvalidRequestError: neither; it names `option`.
    """
    if match := _AGO.fullmatch(text):
        return int(match[1]) * _UNITS_MS[match[2]]
    if not _SECONDS.fullmatch(text):
        raise InvalidRequestError(f"{option} takes seconds, or a number with ms, s, m, h, d or w: 5m", value=text)
    return math.ceil(round(float(text) * 1000, 6))


def parse_instant(text: str, option: str, *, round_up: bool = False) -> int:
    """Return milliseconds since 1970 (UTC) for a time that does not depend on when it is read.

    A number is milliseconds, however short, and never a compact date: programs write these, not people.

    A part of a millisecond is dropped, or makes it the next one with `round_up`.

    Raises:
        InvalidRequestError: none of the forms; it names `option`.
    """
    if _NUMBER.fullmatch(text):
        return int(text)
    mqadmin = _MQADMIN.fullmatch(text)
    try:
        moment = datetime.fromisoformat("{}T{}.{}".format(*mqadmin.groups()) if mqadmin else text)
    except ValueError as error:
        raise InvalidRequestError(f"{option} takes milliseconds since 1970 or ISO 8601", value=text) from error
    return _moment_ms(moment, round_up)


def time_ms(value: datetime | str | int, option: str, now_ms: int, *, round_up: bool = False) -> int:
    """Milliseconds since 1970 of a time as the library takes it: a `datetime`, a text of `FORMS`, or milliseconds.

    Args:
        value: a `datetime` without a zone is UTC.
        option: the name that an error gives.
        now_ms: what `now` means.
        round_up: whether a part of a millisecond makes it the next one, for what must not happen early.

    Raises:
        InvalidRequestError: none of these.
    """
    if isinstance(value, str):
        if value == "now":
            return now_ms
        try:
            return parse_instant(value, option, round_up=round_up)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"{option} takes a time: milliseconds since 1970 or ISO 8601", value=value
            ) from error
    if isinstance(value, datetime):
        return _moment_ms(value, round_up)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{option} takes a time: a datetime, or {FORMS}", type=type(value).__name__)
    if abs(value) >= _LIMIT:
        raise InvalidRequestError(f"{option} takes milliseconds since 1970, of up to 15 digits", value=value)
    return value


def duration_ms(value: timedelta | float, option: str) -> int:
    """Milliseconds of a duration as the library takes it: a `timedelta` or seconds; a part of one counts as one.

    Raises:
        InvalidRequestError: neither, or a number that is not finite or has more than 12 digits.
    """
    if isinstance(value, timedelta):
        return -(-value // _MILLISECOND)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LIMIT / 1000:  # nor NaN
        raise InvalidRequestError(f"{option} takes a timedelta or a number of seconds", value=value)
    return math.ceil(round(value * 1000, 6))


def wait_ms(value: timedelta | float, option: str) -> int:
    """As `duration_ms`, for what is 0 or more.

    Raises:
        InvalidRequestError: as `duration_ms`, or it is negative.
    """
    ms = duration_ms(value, option)
    if ms < 0 or (isinstance(value, int | float) and value < 0):
        raise InvalidRequestError(f"{option} is 0 or more", value=value)
    return ms


def format_ms(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; a number no calendar holds stays a number."""
    try:
        moment = _EPOCH + ms * _MILLISECOND
    except OverflowError:
        return str(ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def _moment_ms(moment: datetime, round_up: bool) -> int:
    past = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return -(-past // _MILLISECOND) if round_up else past // _MILLISECOND
