"""Messages that have their ids and queues, on their way into the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what is not a list of messages: later steps would fail without saying what was wrong.

    Raises:
        InvalidRequestError: it is a single message, or has something else among them.
    """
    if isinstance(messages, Message):
        raise InvalidRequestError("a batch is a list of messages; use send for a single one")
    for message in messages:
        if not isinstance(message, Message):
            raise InvalidRequestError("only a Message can be sent; make one", type=type(message).__name__)


def send_results(prepared: Prepared, result: AppendResult) -> list[SendResult]:
    """What the sender of messages is told."""
    count = len(prepared.rows)
    none: list[int | None] = [None] * count
    offsets = none if result.queue_offsets is None else result.queue_offsets.tolist()
    commits = none if result.commit_offsets is None else result.commit_offsets.tolist()
    status = SendStatus.BUFFERED if result.store_ms is None and not result.repeated else SendStatus.SEND_OK
    return [
        SendResult(
            msg_id,
            message.topic,
            prepared.broker,
            queue,
            offset if row.topic is message.topic else None,  # a delayed message waits in another topic
            commit,
            result.store_ms,
            status,
            recall_handle.of_row(prepared.broker, row) if row.topic is not message.topic else None,
        )
        for message, msg_id, queue, row, offset, commit in zip(
            prepared.messages, prepared.ids, prepared.queues, prepared.rows, offsets, commits, strict=False
        )
    ]
