"""Sizes and values that a message may have: RocketMQ's limits as numbers and predicates, each of them once.

A problem is the text that says what is wrong, without a subject: a `Message` puts "message" before it, the Spark sink
"its". Column forms are in `rules/message_checks.py`; legal names are in `names.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rmq_spark.model import properties

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""A message body may have 4 MiB."""
PROPERTIES_BYTES_MAX: Final = 32_767
"""The encoded property string of RocketMQ is a signed short long."""
ENGINE_PROPERTIES_BYTES_MAX: Final = 2_048
"""What the engine's own properties (where a message waits, where it came from) may add to the user's."""
PAIR_MARKS_BYTES: Final = 2
"""Each pair of the property string has a mark behind its name and one behind its value."""

BODY_EMPTY: Final = "body is empty; RocketMQ needs at least one byte"
BODY_TOO_LARGE: Final = "body is over 4 MiB"
TAG_BLANK: Final = "tag is blank; leave it out"
TAG_HAS_BAR: Final = "tag has a '|'"
KEYS_BLANK: Final = "keys are blank; leave them out"
FLAG_TOO_LARGE: Final = "flag does not fit 32 bits"
PROPERTY_NAME_BLANK: Final = "property has a blank name"
PROPERTY_VALUE_BLANK: Final = "property has a blank value; leave it out"
PROPERTY_NAME_RESERVED: Final = "property name is reserved by RocketMQ"
PROPERTIES_TOO_LARGE: Final = "properties, tag and keys are over 32767 bytes together"


def body_problem(size: int) -> str | None:
    """What is wrong with a body of `size` bytes; None when nothing is."""
    if size == 0:
        return BODY_EMPTY
    return BODY_TOO_LARGE if size > BODY_BYTES_MAX else None


def tag_problem(tag: str) -> str | None:
    """What is wrong with a tag; None when nothing is."""
    if not tag.strip():
        return TAG_BLANK
    return TAG_HAS_BAR if "|" in tag else None


def property_problem(name: str, value: str) -> str | None:
    """What is wrong with a user's property; None when nothing is. RocketMQ drops empty values, so they are refused."""
    if not name.strip():
        return PROPERTY_NAME_BLANK
    if not value.strip():
        return PROPERTY_VALUE_BLANK
    return PROPERTY_NAME_RESERVED if name in properties.RESERVED else None


def fits_int32(number: int) -> bool:
    """Whether a number fits the 32 bits that flags have."""
    return -(1 << 31) <= number < 1 << 31


def property_bytes(pairs: Iterable[tuple[str, str]], tags: str | None = None, keys: str | None = None) -> int:
    """Bytes of RocketMQ's property string for these properties, tag and keys.

    Raises:
        UnicodeEncodeError: a text holds half of a surrogate pair.
    """
    size = sum(len(name.encode()) + len(value.encode()) + PAIR_MARKS_BYTES for name, value in pairs)
    for name, text in ((properties.TAGS, tags), (properties.KEYS, keys)):
        if text:
            size += len(name) + len(text.encode()) + PAIR_MARKS_BYTES
    return size
