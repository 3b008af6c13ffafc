"""Consume, transform, produce: messages and consumed offsets in one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from rmq_spark.client.producer import Producer
from rmq_spark.client.pull_queues import PullQueues
from rmq_spark.client.send_result import SendResult
from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.message import Message


class PullTransaction:
    """Collects messages; they are sent with the consumed offsets when the `with` block ends well."""

    def __init__(
        self, queues: PullQueues, producer: Producer, lock: threading.RLock, check_open: Callable[[], None]
    ) -> None:
        self._queues = queues
        self._producer = producer
        self._lock = lock
        self._check_open = check_open
        self._messages: list[Message] = []
        self.results: list[SendResult] = []
        """Where the messages are, after the block has ended."""

    def send(self, message: Message) -> None:
        """Send `message` when the transaction ends well.

        Raises:
            InvalidRequestError: it is no `Message`.
        """
        if not isinstance(message, Message):
            raise InvalidRequestError("send takes a Message", type=type(message).__name__)
        self._messages.append(message)

    def __enter__(self) -> PullTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if error is not None:
                self._queues.rewind()
            else:
                self._check_open()  # a consumer that was closed has given its queues back
                self.results = self._queues.land(self._producer, self._messages)
