"""Messages as clients receive them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import properties as names
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.proxy import wire
from rmq_spark.proxy.incoming import RESERVED, TRACE_CONTEXT
from rmq_spark.proxy.wire import DigestType, Encoding, WireType
from rmq_spark.rules.message_type import MessageType, check_type, type_of

WIRE_TYPES: Final[Mapping[MessageType, WireType]] = {
    MessageType.NORMAL: WireType.NORMAL,
    MessageType.FIFO: WireType.FIFO,
    MessageType.DELAY: WireType.DELAY,
    MessageType.TRANSACTION: WireType.TRANSACTION,
    MessageType.PRIORITY: WireType.PRIORITY,
}
_OTHER: Final = RESERVED | {names.CHECK_IMMUNITY_SECONDS, names.CHECK_TIMES}


def accepted_types(topic: str, topic_type: MessageType) -> list[WireType]:
    """The types of messages that a topic takes."""
    accepted = []
    for kind, wire_type in WIRE_TYPES.items():
        try:
            check_type(topic, topic_type, kind)
        except InvalidRequestError:
            continue
        accepted.append(wire_type)
    return accepted


def outgoing(message: StoredMessage, topic: Any, *, invisible_ms: int | None = None) -> Any:
    """A message for a client; `topic` is the topic as the client names it."""
    stored = message.properties
    one = wire.Message(topic=topic, body=message.body)
    if stored:
        one.user_properties.update({name: value for name, value in stored.items() if name not in _OTHER})
    system = one.system_properties
    if message.tags:
        system.tag = message.tags
    if message.keys:
        system.keys.extend(message.keys.split(" "))
    system.message_id = message.msg_id
    system.body_digest.type = DigestType.CRC32
    system.body_digest.checksum = f"{zlib.crc32(message.body):08X}"
    system.body_encoding = Encoding.IDENTITY
    system.message_type = WIRE_TYPES[type_of(stored)]
    set_ms(system.born_timestamp, message.born_ms)
    set_ms(system.store_timestamp, message.store_ms)
    system.born_host = message.born_host or ""
    system.store_host = message.broker
    system.queue_id = message.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = message.delivery_attempt
    if message.receipt is not None:
        system.receipt_handle = message.receipt
    if invisible_ms is not None:
        system.invisible_duration.seconds, ms = divmod(invisible_ms, 1000)
        system.invisible_duration.nanos = ms * 1_000_000
    _set_special(system, stored)
    return one


def _set_special(system: Any, stored: Mapping[str, str]) -> None:
    """What only some messages have."""
    if names.SHARDING_KEY in stored:
        system.message_group = stored[names.SHARDING_KEY]
    if stored.get(names.TIMER_DELIVER_MS, "").isdecimal():
        set_ms(system.delivery_timestamp, int(stored[names.TIMER_DELIVER_MS]))
    if stored.get(names.PRIORITY, "").isdecimal():
        system.priority = min(int(stored[names.PRIORITY]), 2**31 - 1)
    if TRACE_CONTEXT in stored:
        system.trace_context = stored[TRACE_CONTEXT]
    if names.DLQ_ORIGIN_TOPIC in stored:
        system.dead_letter_queue.topic = stored[names.DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = stored.get(names.DLQ_ORIGIN_MESSAGE_ID, "")


def set_ms(timestamp: Any, ms: int) -> None:
    """Set a protobuf timestamp."""
    timestamp.seconds, rest = divmod(ms, 1000)
    timestamp.nanos = rest * 1_000_000
