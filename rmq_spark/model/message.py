"""A message as a producer hands it over, checked against RocketMQ's limits when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import limits, names, properties, times


@dataclass(frozen=True, slots=True)
class Message:
    """What a producer sends; the log adds ids, offsets and times.

    Raises:
        InvalidRequestError: an illegal topic, an empty or oversized body, a reserved or blank property, a time or
            a priority that is none, a value of the wrong type.
    """

    topic: str
    """Where it goes."""
    body: bytes
    """1 byte to 4 MiB, opaque."""
    _: KW_ONLY
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
    priority: int | None = None
    """0 or more; consumers get messages of a higher priority first."""
    delay_level: int = 0
    """Deliver it after so long as RocketMQ's delay level says: 1 (1 s) to 18 (2 h); 0 is now. Goes before a time."""
    delay: timedelta | float | None = None
    """Deliver it so many seconds after it is sent."""
    deliver_at: datetime | str | int | None = None
    """Do not deliver it before this time: a `datetime`, ISO text or milliseconds. A time that has passed is now."""
    queue_id: int | None = None
    """Send to exactly this queue."""
    msg_id: str | None = None
    """The UNIQ_KEY; drawn by the producer when absent. Retries keep it."""
    born_timestamp_ms: int | None = None
    """When the producer made it; the time of sending when absent."""
    born_host: str | None = None
    """Where it was made, if that is not where it is sent from."""

    def __post_init__(self) -> None:
        # Each send passes here: asking whether every type is the usual one takes a fifth of the full check.
        usual = type(self.topic) is str and type(self.body) is bytes and type(self.flag) is int
        usual = usual and type(self.delay_level) is int and type(self.priority) in _NUMBER
        usual = usual and type(self.tags) in _TEXT and type(self.keys) in _TEXT and type(self.queue_id) in _NUMBER
        usual = usual and type(self.msg_id) in _TEXT and type(self.sharding_key) in _TEXT
        usual = usual and type(self.born_host) in _TEXT
        if not (usual and type(self.properties) is dict and type(self.born_timestamp_ms) in _NUMBER):
            _check_types(self)
        names.check_topic(self.topic)
        if problem := limits.body_problem(len(self.body)):
            raise InvalidRequestError(f"message {problem}", topic=self.topic, bytes=len(self.body))
        if not limits.fits_int32(self.flag):
            raise InvalidRequestError(f"message {limits.FLAG_TOO_LARGE}", topic=self.topic, flag=self.flag)
        if self.tags is not None and (problem := limits.tag_problem(self.tags)):
            raise InvalidRequestError(f"message {problem}", topic=self.topic, tags=self.tags)
        if (keys := self.keys_text()) is not None and not keys.strip():
            raise InvalidRequestError(f"message {limits.KEYS_BLANK}", topic=self.topic, keys=keys)
        for name, value in self.properties.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidRequestError("property names and values must be texts", property=name, value=value)
            if problem := limits.property_problem(name, value):
                raise InvalidRequestError(f"message {problem}", topic=self.topic, property=name, value=value)
        if self.priority is not None and self.priority < 0:
            raise InvalidRequestError("a priority is 0 or more", topic=self.topic, priority=self.priority)
        if self.delay is not None and self.deliver_at is not None:
            raise InvalidRequestError("give either delay or deliver_at, not both", topic=self.topic)
        self.deliver_ms(0)
        if self.tags or self.keys or self.properties or self.sharding_key or self.priority is not None:
            _check_size(self)

    def keys_text(self) -> str | None:
        """The keys as RocketMQ stores them: joined by one space; None when there are none."""
        if self.keys is None or isinstance(self.keys, str):
            return self.keys or None
        return " ".join(self.keys) or None

    @property
    def is_delayed(self) -> bool:
        """Whether it asks for a delay, be it one that is over already."""
        return self.delay_level > 0 or self.delay is not None or self.deliver_at is not None

    def deliver_ms(self, now_ms: int) -> int | None:
        """When it is to be delivered if it is sent now, in milliseconds; None when it names no time."""
        if self.delay is not None:
            return now_ms + times.duration_ms(self.delay, "delay")
        if self.deliver_at is None:
            return None
        return times.time_ms(self.deliver_at, "deliver_at", now_ms, round_up=True)

    def stored_properties(self) -> dict[str, str]:
        """The properties that are stored as a map: the user's, the sharding key and the priority."""
        stored = dict(self.properties)
        if self.sharding_key is not None:
            stored[properties.SHARDING_KEY] = self.sharding_key
        if self.priority is not None:
            stored[properties.PRIORITY] = str(self.priority)
        return stored

    def properties_size(self) -> int:
        """Bytes of RocketMQ's property string for this message."""
        return limits.property_bytes(self.stored_properties().items(), self.tags, self.keys_text())


def _check_size(message: Message) -> None:
    try:
        size = message.properties_size()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            "a text holds half of a surrogate pair, which UTF-8 cannot store", topic=message.topic
        ) from error
    if size > limits.PROPERTIES_BYTES_MAX:
        raise InvalidRequestError(f"message {limits.PROPERTIES_TOO_LARGE}", topic=message.topic, bytes=size)


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
    "born_host": ((str, _NoneType), "a text"),
    "delay_level": ((int,), "a whole number"),
    "priority": ((int, _NoneType), "a whole number"),
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
