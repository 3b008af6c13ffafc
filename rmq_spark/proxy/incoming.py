"""Messages as clients send them, checked and turned into the model's: each mistake has its code."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import limits, names, properties
from rmq_spark.model.message import Message
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.status import Code, RefusedError, checked
from rmq_spark.proxy.wire import DigestType, Encoding, WireType
from rmq_spark.rules import system_topics
from rmq_spark.rules.message_type import MessageType

NAMESPACE_MARK: Final = "%"
"""Stands between a namespace and a name, as in RocketMQ."""
MESSAGE_ID_CHARS_MAX: Final = 128
BORN_HOST_CHARS_MAX: Final = 255
"""As long as a host name can be."""
_GZIP: Final = 47
"""zlib's window bits for gzip or zlib data, whichever it is."""
TRACE_CONTEXT: Final = "__TRACE_CONTEXT"

_TYPES: Final[Mapping[int, MessageType]] = {
    WireType.NORMAL: MessageType.NORMAL,
    WireType.FIFO: MessageType.FIFO,
    WireType.DELAY: MessageType.DELAY,
    WireType.TRANSACTION: MessageType.TRANSACTION,
    WireType.PRIORITY: MessageType.PRIORITY,
}


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message that a client sends."""

    message: Message
    type: MessageType
    immunity_ms: int | None
    """Of a transaction: how long nobody is asked about it; None: as usual."""


def resource_name(resource: Any) -> str:
    """The full name of a topic or group: with its namespace before it."""
    name: str = resource.name
    namespace: str = resource.resource_namespace
    return f"{namespace}{NAMESPACE_MARK}{name}" if namespace and name else name


def topic_name(resource: Any) -> str:
    """The topic that a request names.

    Raises:
        RefusedError: an illegal name, or a topic of the engine.
    """
    return checked(Code.ILLEGAL_TOPIC, system_topics.check_sendable, resource_name(resource))


def group_name(resource: Any) -> str:
    """The consumer group that a request names.

    Raises:
        RefusedError: an illegal name.
    """
    return checked(Code.ILLEGAL_CONSUMER_GROUP, names.check_group, resource_name(resource))


def duration_ms(duration: Any) -> int:
    """A protobuf duration in milliseconds."""
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000


def incoming(wire_message: Any, settings: ProxySettings, now_ms: int, address: str | None = None) -> Incoming:
    """The message that a client sends; `address` is the client's, for a message that does not say where it was made.

    Raises:
        RefusedError: something about it is wrong; the code names what.
    """
    system = wire_message.system_properties
    topic = topic_name(wire_message.topic)
    kind = _type(system)
    body = _body(wire_message.body, system, settings)
    tag = system.tag if system.HasField("tag") else None
    if tag is not None and (problem := limits.tag_problem(tag)):
        raise RefusedError(Code.ILLEGAL_MESSAGE_TAG, f"message {problem}")
    for key in system.keys:
        if not key.strip():
            raise RefusedError(Code.ILLEGAL_MESSAGE_KEY, f"message {limits.KEYS_BLANK}")
    msg_id = system.message_id
    if not msg_id.strip() or len(msg_id) > MESSAGE_ID_CHARS_MAX:
        raise RefusedError(Code.ILLEGAL_MESSAGE_ID, "message id is blank or longer than 128 characters")
    group = system.message_group if system.HasField("message_group") else None
    if group is not None and not group.strip():
        raise RefusedError(Code.ILLEGAL_MESSAGE_GROUP, "message group is blank; leave it out")
    deliver_at = _delivery(system, settings, now_ms) if system.HasField("delivery_timestamp") else None
    immunity_ms = None
    if system.HasField("orphaned_transaction_recovery_duration"):
        immunity_ms = max(0, duration_ms(system.orphaned_transaction_recovery_duration))
    try:
        message = Message(
            topic,
            body,
            tags=tag,
            keys=" ".join(system.keys) or None,
            properties=_properties(wire_message.user_properties, system, settings),
            sharding_key=group,
            priority=system.priority if system.HasField("priority") else None,
            deliver_at=deliver_at,
            msg_id=msg_id,
            born_timestamp_ms=_born_ms(system, now_ms),
            born_host=_born_host(system) or address,
        )
    except InvalidRequestError as error:
        problem = str(error)
        code = Code.MESSAGE_PROPERTIES_TOO_LARGE if limits.PROPERTIES_TOO_LARGE in problem else Code.BAD_REQUEST
        raise RefusedError(code, problem) from error
    return Incoming(message, kind, immunity_ms)


def _type(system: Any) -> MessageType:
    """The kind that a message says it is, and that its properties must agree with."""
    told = int(system.message_type)
    if told == WireType.LITE or system.HasField("lite_topic"):
        raise RefusedError(Code.NOT_IMPLEMENTED, "lite topics are not implemented; send to an ordinary topic")
    implied = [
        kind
        for kind, field in (
            (MessageType.DELAY, "delivery_timestamp"),
            (MessageType.FIFO, "message_group"),
            (MessageType.PRIORITY, "priority"),
        )
        if system.HasField(field)
    ]
    if told == WireType.UNSPECIFIED:
        kind = implied[0] if implied else MessageType.NORMAL
    elif told in _TYPES:
        kind = _TYPES[told]
    else:
        raise RefusedError(Code.BAD_REQUEST, "unknown message type", message_type=told)
    allowed = [] if kind in (MessageType.NORMAL, MessageType.TRANSACTION) else [kind]
    if implied != allowed:
        raise RefusedError(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "message group, delivery time and priority must agree with the message's type",
            type=str(kind),
            implied=[str(each) for each in implied],
        )
    return kind


def _body(body: bytes, system: Any, settings: ProxySettings) -> bytes:
    _check_digest(body, system.body_digest)
    limit = settings.body_bytes_max
    encoding = int(system.body_encoding)
    if encoding == Encoding.GZIP:
        unpack = zlib.decompressobj(_GZIP)
        try:
            body = unpack.decompress(body, limit + 1)
        except zlib.error as error:
            raise RefusedError(Code.MESSAGE_CORRUPTED, "message body cannot be unpacked") from error
        if not unpack.eof and len(body) <= limit:
            raise RefusedError(Code.MESSAGE_CORRUPTED, "message body is packed and cut short")
    elif encoding not in (Encoding.IDENTITY, Encoding.UNSPECIFIED):
        raise RefusedError(Code.BAD_REQUEST, "unknown body encoding", encoding=encoding)
    if not body:
        raise RefusedError(Code.MESSAGE_BODY_EMPTY, f"message {limits.BODY_EMPTY}")
    if len(body) > limit:
        raise RefusedError(Code.MESSAGE_BODY_TOO_LARGE, "message body is too large", limit_bytes=limit)
    return body


def _check_digest(body: bytes, digest: Any) -> None:
    kind, told = int(digest.type), digest.checksum
    if kind == DigestType.UNSPECIFIED:
        return
    if kind == DigestType.CRC32:
        # Clients differ in leading zeros.
        same = told.upper().lstrip("0") == f"{zlib.crc32(body):X}".lstrip("0")
    elif kind == DigestType.MD5:
        same = told.lower() == hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif kind == DigestType.SHA1:
        same = told.lower() == hashlib.sha1(body, usedforsecurity=False).hexdigest()
    else:
        raise RefusedError(Code.BAD_REQUEST, "unknown body digest", digest=kind)
    if not same:
        raise RefusedError(Code.MESSAGE_CORRUPTED, "message body does not match its digest")


def _properties(user: Mapping[str, str], system: Any, settings: ProxySettings) -> dict[str, str]:
    if not user and not system.HasField("trace_context"):
        return {}
    if len(user) > settings.user_properties_max:
        raise RefusedError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            "message has too many user properties",
            properties=len(user),
            limit=settings.user_properties_max,
        )
    size = 0
    kept: dict[str, str] = {}
    for name, value in user.items():
        size += len(name.encode()) + len(value.encode())
        if not value:
            continue  # RocketMQ drops them (rule 3)
        if problem := limits.property_problem(name, value):
            raise RefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"message {problem}", property=name)
        kept[name] = value
    if size > settings.user_properties_bytes_max:
        raise RefusedError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            "message's user properties are too long together",
            bytes=size,
            limit_bytes=settings.user_properties_bytes_max,
        )
    if system.HasField("trace_context") and system.trace_context.strip():
        kept[TRACE_CONTEXT] = system.trace_context
    return kept


def _delivery(system: Any, settings: ProxySettings, now_ms: int) -> int:
    told = system.delivery_timestamp
    ms = int(told.seconds) * 1000 + -(-int(told.nanos) // 1_000_000)
    if ms < 0 or ms >= 1 << 62:
        raise RefusedError(Code.ILLEGAL_DELIVERY_TIME, "delivery time is no time", ms=ms)
    limit_ms = settings.delay_seconds_max * 1000
    if limit_ms and ms - now_ms > limit_ms:
        raise RefusedError(
            Code.ILLEGAL_DELIVERY_TIME, "delivery time is too far ahead", ahead_ms=ms - now_ms, limit_ms=limit_ms
        )
    return ms


def _born_ms(system: Any, now_ms: int) -> int:
    born = system.born_timestamp
    ms = int(born.seconds) * 1000 + int(born.nanos) // 1_000_000
    return ms if 0 < ms < 1 << 47 else now_ms


def _born_host(system: Any) -> str:
    told: str = system.born_host
    if len(told) > BORN_HOST_CHARS_MAX:
        raise RefusedError(Code.BAD_REQUEST, "born host is longer than 255 characters", chars=len(told))
    return told


RESERVED: Final = properties.RESERVED | {properties.SHARDING_KEY, properties.TRANSACTION_ID, TRACE_CONTEXT}
"""Properties that clients do not see as the user's."""
