"""Messages that have their ids and queues, on their way into the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rmq_spark.client.compression import compress
from rmq_spark.client.send_result import SendResult, SendStatus
from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.commit_log import AppendResult
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.message import Message
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import recall_handle


@dataclass(slots=True)
class Prepared:
    """Messages that have their queues and ids; a repeated send must not draw new ones."""

    messages: tuple[Message, ...]
    broker: str
    ids: list[str]
    queues: list[int]
    """A delayed message waits elsewhere until it gets there."""
    rows: list[MessageRow]
    batch: MessageBatch
    result: AppendResult | None = None
    """Set once they landed; a send may be interrupted after that, too."""


def batch_of(messages: Iterable[Message]) -> Sequence[Message]:
    """The messages that are sent together, as a sequence.

    Raises:
        InvalidRequestError: it is a single message, has none, or something else among them.
    """
    if isinstance(messages, Message):
        raise InvalidRequestError("a batch is a list of messages; use send for a single one")
    if not isinstance(messages, Iterable):
        raise InvalidRequestError("a batch is a list of messages", type=type(messages).__name__)
    batch = messages if isinstance(messages, tuple | list) else tuple(messages)
    if not batch:
        raise InvalidRequestError("a batch needs at least one message")
    check_messages(batch)
    return batch


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what is no message: later steps would fail without saying what was wrong.

    Raises:
        InvalidRequestError: there is something else among them.
    """
    for message in messages:
        if not isinstance(message, Message):
            raise InvalidRequestError("only a Message can be sent; make one", type=type(message).__name__)


_new: Final = tuple.__new__
"""Makes a named tuple from its values in half the time; for those that are made for every message of every batch."""


def message_row(
    message: Message, queue: int, msg_id: str, now_ms: int, *, host: str, compress_over: int | None
) -> MessageRow:
    """The row of a message; bodies of at least `compress_over` bytes are compressed."""
    body, flags = (message.body, 0) if compress_over is None else compress(message.body, compress_over)
    stored = message.properties or message.sharding_key is not None or message.priority is not None
    return _new(
        MessageRow,
        (
            message.topic,
            queue,
            msg_id,
            message.tags,
            message.keys_text() if message.keys else None,
            body,
            message.flag,
            flags,
            now_ms if message.born_timestamp_ms is None else message.born_timestamp_ms,
            message.born_host or host,
            0,
            list(message.stored_properties().items()) if stored else [],
        ),
    )


def send_results(prepared: Prepared, result: AppendResult) -> list[SendResult]:
    """What the sender of messages is told."""
    count = len(prepared.rows)
    none: list[int | None] = [None] * count
    offsets = none if result.queue_offsets is None else result.queue_offsets.tolist()
    commits = none if result.commit_offsets is None else result.commit_offsets.tolist()
    status = SendStatus.BUFFERED if result.store_ms is None and not result.repeated else SendStatus.SEND_OK
    broker, store_ms = prepared.broker, result.store_ms
    return [
        _new(
            SendResult,
            (msg_id, message.topic, broker, queue, offset, commit, store_ms, status, None, None)
            if row.topic is message.topic
            # a delayed message waits in another topic
            else (
                msg_id,
                message.topic,
                broker,
                queue,
                None,
                commit,
                store_ms,
                status,
                recall_handle.of_row(broker, row),
                None,
            ),
        )
        for message, msg_id, queue, row, offset, commit in zip(
            prepared.messages, prepared.ids, prepared.queues, prepared.rows, offsets, commits, strict=False
        )
    ]
