"""A message as a producer hands it over, checked against RocketMQ's limits when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import names, properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a producer sends; the log adds ids, offsets and times.

    Raises:
        InvalidRequestError: an illegal topic, an empty or oversized body, a reserved or blank property, a value of the
            wrong type.
    """

    topic: str
    """Where it goes."""
    body: bytes
    """1 byte to 4 MiB, opaque."""
    tags: str | None = None
    """One tag; consumers subscribe to it by name."""
    keys: str | Sequence[str] | None = None
    """Business keys for look-up; several are joined by a space, as in RocketMQ."""
    flag: int = 0
    """An integer of the user's own."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """User properties; SQL92 filters see them."""
    sharding_key: str | None = None
    """Messages with equal sharding keys share a queue, and so keep their order."""
    queue_id: int | None = None
    """Send to exactly this queue."""
    msg_id: str | None = None
    """The UNIQ_KEY; drawn by the producer when absent. Retries keep it."""
    born_timestamp_ms: int | None = None
    """When the producer made it; the time of sending when absent."""

    def __post_init__(self) -> None:
        # Each send passes here: asking whether every type is the usual one takes a fifth of the full check.
        usual = type(self.topic) is str and type(self.body) is bytes and type(self.flag) is int
        usual = usual and type(self.tags) in _TEXT and type(self.keys) in _TEXT and type(self.queue_id) in _NUMBER
        usual = usual and type(self.msg_id) in _TEXT and type(self.sharding_key) in _TEXT
        if not (usual and type(self.properties) is dict and type(self.born_timestamp_ms) in _NUMBER):
            _check_types(self)
        names.check_topic(self.topic)
        if not self.body:
            raise InvalidRequestError("message body is empty; RocketMQ needs at least one byte", topic=self.topic)
        if len(self.body) > names.BODY_BYTES_MAX:
            raise InvalidRequestError("message body is over 4 MiB", topic=self.topic, bytes=len(self.body))
        if not -(1 << 31) <= self.flag < 1 << 31:
            raise InvalidRequestError("flag does not fit 32 bits", topic=self.topic, flag=self.flag)
        if self.tags is not None and (not self.tags.strip() or "|" in self.tags):
            raise InvalidRequestError("a tag is not blank and has no '|'", topic=self.topic, tags=self.tags)
        if (keys := self.keys_text()) is not None and not keys.strip():
            raise InvalidRequestError("keys are not blank; leave them out", topic=self.topic, keys=keys)
        for name, value in self.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidRequestError("property names and values must be texts", property=name, value=value)
            if not name.strip() or not value.strip():
                raise InvalidRequestError("property names and values must not be blank", property=name, value=value)
            if name in properties.RESERVED:
                raise InvalidRequestError("property name is reserved by RocketMQ", property=name)
        try:
            size = self.properties_size()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                "a text holds half of a surrogate pair, which UTF-8 cannot store", topic=self.topic
            ) from error
        if size > names.PROPERTIES_BYTES_MAX:
            raise InvalidRequestError("properties, tag and keys are over 32767 bytes together", topic=self.topic)

    def keys_text(self) -> str | None:
        """The keys as RocketMQ stores them: joined by one space; None when there are none."""
        if self.keys is None or isinstance(self.keys, str):
            return self.keys or None
        return " ".join(self.keys) or None

    def stored_properties(self) -> dict[str, str]:
        """The properties that are stored as a map: the user's, and the sharding key."""
        if self.sharding_key is None:
            return dict(self.properties)
        return {**self.properties, properties.SHARDING_KEY: self.sharding_key}

    def properties_size(self) -> int:
        """Bytes of RocketMQ's property string for this message: each pair has two separators."""
        pairs = self.stored_properties()
        if self.tags:
            pairs[properties.TAGS] = self.tags
        if keys := self.keys_text():
            pairs[properties.KEYS] = keys
        return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in pairs.items())


_NoneType: Final = type(None)
_TEXT: Final = frozenset((str, _NoneType))
_NUMBER: Final = frozenset((int, _NoneType))
_TYPES: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "topic": ((str,), "a text"),
    "body": ((bytes,), "bytes; encode a text"),
    "tags": ((str, _NoneType), "a text"),
    "keys": ((str, Sequence, _NoneType), "a text or a list of texts"),
    "flag": ((int,), "a whole number"),
    "properties": ((Mapping,), "a mapping of texts to texts"),
    "sharding_key": ((str, _NoneType), "a text"),
    "queue_id": ((int, _NoneType), "a whole number"),
    "msg_id": ((str, _NoneType), "a text"),
    "born_timestamp_ms": ((int, _NoneType), "a whole number"),
}
"""Field -> the types that it may have, and how an error says it."""


def _check_types(message: Message) -> None:
    """Refuse what a type checker would: the errors of later steps would name neither the field nor the value."""
    for name, (types, wanted) in _TYPES.items():
        value = getattr(message, name)
        if not isinstance(value, types) or isinstance(value, bool):
            shown = type(value).__name__ if name == "body" else value  # errors end up in logs, payloads must not
            raise InvalidRequestError(f"{name} must be {wanted}", **{name: shown})
    if message.keys is not None and not all(isinstance(key, str) for key in message.keys):
        raise InvalidRequestError("keys must be a text or a list of texts", keys=message.keys)
