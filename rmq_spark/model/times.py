"""Times as people and scripts write them. Everything without a zone is UTC, whatever the machine's zone is."""

from __future__ import annotations

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


def parse_time(text: str, option: str, now_ms: int) -> int:
    """Return milliseconds since 1970 (UTC); a number is always milliseconds, never a compact date.

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
