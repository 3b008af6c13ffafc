"""Times as people and scripts write them. Everything without a zone is UTC, whatever the machine's zone is."""

from __future__ import annotations

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
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_MQADMIN: Final = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


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


def parse_instant(text: str, option: str) -> int:
    """Return milliseconds since 1970 (UTC) for a time that does not depend on when it is read.

    A number is milliseconds, however short, and never a compact date: programs write these, not people.

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
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MILLISECOND


def format_ms(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; a number no calendar holds stays a number."""
    try:
        moment = _EPOCH + ms * _MILLISECOND
    except OverflowError:
        return str(ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
