"""Sending without waiting: one thread takes what callers have put down and sends it in batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from rmq_spark.client.send_result import SendResult
from rmq_spark.errors import ClosedError, InvalidRequestError
from rmq_spark.model.message import Message

BATCH_MESSAGES: Final = 1_000
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
        self._items: queue.Queue[Item | None] = queue.Queue(WAITING_MAX)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, message: Message) -> Future[SendResult]:
        """Send `message` soon.

        Raises:
            ClosedError: the producer was closed.
        """
        future: Future[SendResult] = Future()
        with self._lock:
            if self._closed:
                raise ClosedError("the producer is closed; make a new one")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rmq-send", daemon=True)
                self._thread.start()
        self._items.put((message, future))
        return future

    def close(self) -> None:
        """Send everything that waits, then end."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._items.put(None)
            thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            batch, ended = self._next_batch()
            by_topic: dict[str, list[Item]] = {}
            for message, future in batch:
                if future.set_running_or_notify_cancel():
                    by_topic.setdefault(message.topic, []).append((message, future))
            for items in by_topic.values():
                self._send_items(items)

    def _next_batch(self) -> tuple[list[Item], bool]:
        item = self._items.get()
        batch: list[Item] = []
        size = 0
        while item is not None:
            batch.append(item)
            size += len(item[0].body)
            if len(batch) >= BATCH_MESSAGES or size >= BATCH_BYTES:
                return batch, False
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

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
