"""Lines of standard input as messages: a line is a body, or a JSON object that also has tags, keys and the like.

Knows nothing of stores; an error names the line, and its caller knows what was sent before it.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from rmq_spark.cli.options import checked_text
from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import numbers
from rmq_spark.model.message import Message

WAITS: Final = ("delay", "deliver_at", "delay_level")
"""When a message is delivered, as `Message` names it; a line has one of them at most."""
FIELDS: Final = (
    *("body", "bodyBase64", "tags", "keys", "properties", "shardingKey", "queueId", "topic", "priority"),
    *WAITS,
)
"""What a JSON line may have; exactly one of the first two is needed."""


class LineFormat(StrEnum):
    """How lines are read."""

    AUTO = "auto"
    """JSON where a line is an object with a body, text elsewhere."""
    TEXT = "text"
    """Every line is a body, byte for byte."""
    JSON = "json"
    """Every line is a JSON object with a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What messages get that do not say it themselves."""

    topic: str
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    sharding_key: str | None = None
    queue_id: int | None = None
    priority: int | None = None
    delay_level: int = 0
    delay_seconds: float | None = None
    deliver_at: str | int | None = None

    def message(self, body: bytes) -> Message:
        """A message with `body` and all the defaults.

        Raises:
            InvalidRequestError: as `Message`.
        """
        return Message(
            topic=self.topic,
            body=body,
            tags=self.tags,
            keys=tuple(self.keys) or None,
            properties=self.properties,
            sharding_key=self.sharding_key,
            queue_id=self.queue_id,
            priority=self.priority,
            delay_level=self.delay_level,
            delay=self.delay_seconds,
            deliver_at=self.deliver_at,
        )


def read_messages(lines: Iterable[bytes], line_format: LineFormat, defaults: Defaults) -> Iterator[tuple[int, Message]]:
    """Yield (line number from 1, message); empty lines are passed over.

    Raises:
        InvalidRequestError: a line is no message; the error names it.
    """
    for number, raw in enumerate(lines, 1):
        line = raw.removesuffix(b"\n").removesuffix(b"\r")
        if not line or (line_format is LineFormat.JSON and not line.strip()):
            continue
        try:
            yield number, _message(line, line_format, defaults)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"line {number}: {error.args[0]}", **error.context) from error


def _message(line: bytes, line_format: LineFormat, defaults: Defaults) -> Message:
    if line_format is LineFormat.TEXT or (line_format is LineFormat.AUTO and not line.startswith(b"{")):
        return defaults.message(line)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        if line_format is LineFormat.AUTO:
            return defaults.message(line)
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is not UTF-8 or too deep"
        raise InvalidRequestError("not valid JSON", reason=reason) from error
    if isinstance(value, dict) and ("body" in value or "bodyBase64" in value):
        return _from_object(value, defaults)
    if line_format is LineFormat.AUTO:
        return defaults.message(line)
    raise InvalidRequestError('not a JSON object with "body" or "bodyBase64"')


def _from_object(value: dict[str, Any], defaults: Defaults) -> Message:
    for name in value:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidRequestError(f"unknown field{hint}", field=name, known=list(FIELDS))
    topic = _text(value, "topic")
    if topic is not None and topic != defaults.topic:
        raise InvalidRequestError("message is for another topic", topic=topic, expected=defaults.topic)
    tags, keys = _text(value, "tags"), _keys(value)
    sharding_key, queue_id, priority = _text(value, "shardingKey"), _whole(value, "queueId"), _whole(value, "priority")
    body = _body(value)
    return replace(
        _with_wait(value, defaults),
        tags=defaults.tags if tags is None else tags,
        keys=keys or defaults.keys,
        properties={**defaults.properties, **_properties(value)},
        sharding_key=defaults.sharding_key if sharding_key is None else sharding_key,
        queue_id=defaults.queue_id if queue_id is None else queue_id,
        priority=defaults.priority if priority is None else priority,
    ).message(body)


def _with_wait(value: dict[str, Any], defaults: Defaults) -> Defaults:
    """The defaults, with the line's own time of delivery if it names one."""
    waits = [name for name in WAITS if value.get(name) is not None]
    if not waits:
        return defaults
    if len(waits) > 1:
        raise InvalidRequestError("give one of delay, deliver_at and delay_level", given=waits)
    return replace(
        defaults,
        delay_seconds=_seconds(value, "delay"),
        deliver_at=_time(value, "deliver_at"),
        delay_level=numbers.check_whole("delay_level", _whole(value, "delay_level") or 0, 0),
    )


def _seconds(value: dict[str, Any], name: str) -> float | None:
    seconds = value.get(name)
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise InvalidRequestError("field must be a number of seconds", field=name)
    return seconds


def _time(value: dict[str, Any], name: str) -> str | int | None:
    moment = value.get(name)
    if moment is not None and (isinstance(moment, bool) or not isinstance(moment, int | str)):
        raise InvalidRequestError("field must be ISO 8601 or milliseconds since 1970", field=name)
    return moment


def _body(value: dict[str, Any]) -> bytes:
    if "body" in value and "bodyBase64" in value:
        raise InvalidRequestError('give either "body" or "bodyBase64"')
    if "body" in value:
        text = _text(value, "body")
        if text is None:
            raise InvalidRequestError("field must be a text", field="body")
        return text.encode()
    try:
        return base64.b64decode(_text(value, "bodyBase64") or "", validate=True)
    except binascii.Error as error:
        raise InvalidRequestError("not valid base64", field="bodyBase64") from error


def _text(value: dict[str, Any], name: str) -> str | None:
    """A field that is a text, null or absent."""
    text = value.get(name)
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError("field must be a text", field=name)
    return None if text is None else checked_text(text, name)


def _keys(value: dict[str, Any]) -> tuple[str, ...]:
    field_value = value.get("keys")
    keys = [field_value] if isinstance(field_value, str) else field_value or []
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise InvalidRequestError("field must be a text or a list of texts", field="keys")
    return tuple(checked_text(key, "keys") for key in keys)


def _properties(value: dict[str, Any]) -> dict[str, str]:
    properties = value.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(text, str) for text in properties.values()):
        raise InvalidRequestError("field must be an object of texts", field="properties")
    return {checked_text(name, "property"): checked_text(text, "property") for name, text in properties.items()}


def _whole(value: dict[str, Any], name: str) -> int | None:
    number = value.get(name)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise InvalidRequestError("field must be a whole number", field=name)
    return number
