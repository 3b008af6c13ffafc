"""RocketMQ's recall handle: what a producer needs to keep a delayed message from being delivered (facts 6.3).

URL-safe base64 of `v1 topic broker time id`, separated by spaces. Only messages with a delivery time have one; those
with a delay level do not.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import properties as names
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules.system_topics import TIMER_TOPIC
from rmq_spark.rules.timer import Recalled

_VERSION: Final = "v1"


def of_row(broker: str, row: MessageRow) -> str | None:
    """The handle of a message as it is stored; None if it does not wait in the timer topic."""
    if row.topic != TIMER_TOPIC:
        return None
    properties = dict(row.properties)
    parts = (_VERSION, properties[names.REAL_TOPIC], broker, properties[names.TIMER_OUT_MS], row.msg_id)
    return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def parse(handle: str) -> tuple[str, Recalled]:
    """The broker and the message that a handle names.

    Raises:
        InvalidRequestError: it is no recall handle.
    """
    try:
        version, topic, broker, due, msg_id = base64.urlsafe_b64decode(handle.encode()).decode().split(" ", 4)
        recalled = Recalled(int(due), topic, msg_id)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError("not a recall handle", handle=handle) from error
    if version != _VERSION:
        raise InvalidRequestError("the recall handle has an unknown version", version=version)
    return broker, recalled
