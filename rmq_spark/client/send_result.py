"""What a producer is told about a message that it sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.message import Message


class SendStatus(Enum):
    """How a send ended. A send that failed raises instead."""

    SEND_OK = "SEND_OK"
    """The message is in the log, as durable as the flush setting says."""
    BUFFERED = "BUFFERED"
    """With `buffered` flush: it is in memory, and in the log within a moment."""


class SendResult(NamedTuple):
    """Where a message went. With `buffered` flush the offsets are None: it is not in the log yet.

    A delayed message has no `queue_offset`: it gets one when it is delivered. Until then it waits at `commit_offset`.
    """

    msg_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int | None
    commit_offset: int | None
    store_timestamp_ms: int | None
    status: SendStatus = SendStatus.SEND_OK
    recall_handle: str | None = None
    """What `Producer.recall` takes, for messages with a delivery time that wait."""
    transaction_id: str | None = None
    """The transaction that the message is part of; it becomes visible when that is committed."""


class SendHook(Protocol):
    """Sees every send of a producer, as tracing needs it. An exception of a hook fails the send.

    `send_table` sends columns, and calls no hooks.
    """

    def before(self, messages: Sequence[Message]) -> None:
        """Messages are about to be sent together; nothing has happened yet."""

    def after(
        self, messages: Sequence[Message], results: Sequence[SendResult] | None, error: BaseException | None
    ) -> None:
        """They were sent, or `error` tells why not."""


def checked_hooks(hooks: Iterable[SendHook]) -> tuple[SendHook, ...]:
    """The hooks of a producer.

    Raises:
        InvalidRequestError: they are no list, or one lacks `before` or `after`.
    """
    if isinstance(hooks, Iterable):
        collected = tuple(hooks)
        if all(callable(getattr(hook, name, None)) for hook in collected for name in ("before", "after")):
            return collected
    raise InvalidRequestError("hooks takes a list of objects with before and after", value=hooks)
