"""A message that was consumed as JSON or as a line, with the names that `rmq read` uses."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from rmq_spark.cli.output import printable
from rmq_spark.model.times import format_ms

if TYPE_CHECKING:
    from rmq_spark.model.stored_message import StoredMessage


def body_field(body: bytes) -> tuple[str, str]:
    """Name and value of a body: its text, or base64 if it is none."""
    try:
        return "body", body.decode()
    except UnicodeDecodeError:
        return "bodyBase64", base64.b64encode(body).decode()


def message_document(message: StoredMessage) -> dict[str, Any]:
    """The message as a JSON object."""
    field, body = body_field(message.body)
    return {
        "topic": message.topic,
        "brokerName": message.broker,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "tags": message.tags,
        "keys": message.keys,
        field: body,
        "bornTimestamp": message.born_ms,
        "storeTimestamp": message.store_ms,
        "reconsumeTimes": message.reconsume_times,
        "properties": dict(message.properties),
    }


def message_text(message: StoredMessage) -> str:
    """The message on one line: time, first topic, id, tries, tags, keys and body, with tabs between."""
    from rmq_spark.rules.retry import dead_letter_origin

    field, body = body_field(message.body)
    shown = (
        format_ms(message.store_ms),
        dead_letter_origin(message),
        message.msg_id,
        str(message.reconsume_times),
        message.tags or "-",
        message.keys or "-",
        body if field == "body" else f"base64:{body}",
    )
    return "\t".join(map(printable, shown))
