"""Sending without waiting: one thread takes what callers have put down and sends it in batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from rmq_spark.client.send_result import SendResult
from rmq_spark.errors import ClosedError, InvalidRequestError
from rmq_spark.model.message import Message

BATCH_MESSAGES: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024
"""What is sent together at most."""
WAITING_MAX: Final = 50_000
"""So many messages may wait; then callers wait, too."""

Item = tuple[Message, "Future[SendResult]"]


class AsyncSender:
    """Safe to use from any thread. Messages that one thread puts down keep their order for each topic.

    Args:
        send: sends messages of one topic together.
    """

    def __init__(self, send: Callable[[Sequence[Message]], list[SendResult]]) -> None:
        self._send = send
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._resting = False
        """Whether the thread waits for messages."""
        self._blocked = 0
        """Callers who wait until there is room."""
        self._closed = False

    def put(self, message: Message) -> Future[SendResult]:
        """Send `message` soon.

        Raises:
            ClosedError: the producer was closed.
        """
        future: Future[SendResult] = Future()
        with self._changed:
            while len(self._items) >= WAITING_MAX and not self._closed:
                self._blocked += 1
                try:
                    self._changed.wait()
                finally:
                    self._blocked -= 1
            if self._closed:
                raise ClosedError("the producer is closed; make a new one")
            self._items.append((message, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rmq-send", daemon=True)
                self._thread.start()
            if self._resting:
                self._changed.notify_all()
        return future

    def close(self) -> None:
        """Send everything that waits, then end."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            by_topic: dict[str, list[Item]] = {}
            for message, future in batch:
                if future.set_running_or_notify_cancel():
                    by_topic.setdefault(message.topic, []).append((message, future))
            for items in by_topic.values():
                self._send_items(items)

    def _next_batch(self) -> list[Item]:
        """What is sent together next; nothing when the sender was closed and everything is sent."""
        with self._changed:
            self._resting = True
            self._changed.wait_for(lambda: self._items or self._closed)
            self._resting = False
            batch: list[Item] = []
            size = 0
            while self._items and len(batch) < BATCH_MESSAGES and size < BATCH_BYTES:
                item = self._items.popleft()
                batch.append(item)
                size += len(item[0].body)
            if self._blocked:
                self._changed.notify_all()
        return batch

    def _send_items(self, items: list[Item]) -> None:
        try:
            results = self._send([message for message, _ in items])
        except InvalidRequestError as error:
            if len(items) == 1:
                items[0][1].set_exception(error)
                return
            for item in items:  # one of them is at fault, and nothing was written: the others shall not suffer for it
                self._send_items([item])
        except BaseException as error:  # noqa: BLE001 - each caller is told
            for _, future in items:
                future.set_exception(error)
        else:
            for (_, future), result in zip(items, results, strict=True):
                future.set_result(result)
