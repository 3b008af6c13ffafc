"""Times as people and scripts write them. Everything without a zone is UTC, whatever the machine's zone is."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from rmq_spark.errors import InvalidRequestError

FORMS: Final = "now, milliseconds since 1970, ISO 8601, or yyyy-MM-dd#HH:mm:ss:SSS"
"""What `parse_time` takes, for help texts and errors."""

_NUMBER: Final = re.compile(r"\d{1,15}", re.ASCII)
_MQADMIN: Final = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def parse_time(text: str, option: str, now_ms: int, *, round_up: bool = False) -> int:
    """Return milliseconds since 1970 (UTC); a number is always milliseconds, never a compact date.

    A part of a millisecond is dropped, or makes it the next one with `round_up`.

    Raises:
        InvalidRequestError: none of the forms; it names `option`.
    """
    if text == "now":
        return now_ms
    if _NUMBER.fullmatch(text):
        return int(text)
    mqadmin = _MQADMIN.fullmatch(text)
    try:
        moment = datetime.fromisoformat("{}T{}.{}".format(*mqadmin.groups()) if mqadmin else text)
    except ValueError as error:
        raise InvalidRequestError(f"{option} takes a time: {FORMS}", value=text) from error
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
        return parse_time(value, option, now_ms, round_up=round_up)
    if isinstance(value, datetime):
        return _moment_ms(value, round_up)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{option} takes a time: a datetime, or {FORMS}", type=type(value).__name__)
    return value


def duration_ms(value: timedelta | float, option: str) -> int:
    """Milliseconds of a duration as the library takes it: a `timedelta` or seconds; a part of one counts as one.

    Raises:
        InvalidRequestError: neither, or a number that is not finite.
    """
    if isinstance(value, timedelta):
        return -(-value // _MILLISECOND)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidRequestError(f"{option} takes a timedelta or a number of seconds", value=value)
    return math.ceil(round(value * 1000, 6))


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
