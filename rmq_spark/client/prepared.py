"""Messages that have their ids and queues, on their way into the log."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_spark.client.store import Topic
from rmq_spark.log.commit_log import AppendResult
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.message import Message
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import routing


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


@dataclass(frozen=True, slots=True)
class Route:
    """A topic's queues, as they were at a moment."""

    at_ns: int
    topic: Topic
    queues: list[routing.Place]
