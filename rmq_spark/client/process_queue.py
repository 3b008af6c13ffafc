"""One queue in a push consumer's hands: what was read and is not finished, and how far the group may commit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from rmq_spark.client.consumer_settings import ConsumerSettings
from rmq_spark.model.message_queue import MessageQueue
from rmq_spark.model.stored_message import ReceivedMessage

OVERHEAD_BYTES: Final = 256
"""What a message takes in memory beside its body."""


class ProcessQueue:
    """Safe to use from any thread.

    Args:
        queue: which one.
        epoch: of its lease; 0 without one.
        offset: where to read from.
        trusted_ns: until when the lease is trusted, by `Clock.elapsed_ns`; None without one.
    """

    def __init__(self, queue: MessageQueue, epoch: int, offset: int, trusted_ns: int | None) -> None:
        self.queue = queue
        self.epoch = epoch
        self.position = offset
        """The next offset to read. Only the one who reads changes it."""
        self.place = 0
        """Where in the log to go on reading."""
        self.committed = offset
        self.dropped_ns: int | None = None
        """When it was given up: no message is handed out any more, and it goes back when those that were are done."""
        self.lost = False
        """Whether the lease is gone: what its listeners say does not count any more."""
        self._trusted_ns = trusted_ns
        self._lock = threading.Lock()
        self._unfinished: dict[int, ReceivedMessage] = {}
        """By offset, ascending: those that wait and those that listeners have."""
        self._waiting: deque[ReceivedMessage] = deque()
        self._running: dict[int, int] = {}
        """Offset -> when a listener got it."""
        self._claimed: set[int] = set()
        """Offsets of those that somebody is about to send back."""
        self._bytes = 0
        self._turn_taken = False

    # ------------------------------------------------------------ reading

    def has_room(self, settings: ConsumerSettings, *, orderly: bool) -> bool:
        """Whether more may be read: limits may be passed by one read, as in RocketMQ."""
        with self._lock:
            if len(self._unfinished) > settings.cached_messages_max or self._bytes > settings.cached_bytes_max:
                return False
            first = next(iter(self._unfinished), None)
            return orderly or first is None or self.position - 1 - first <= settings.span_max

    def put(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Take in what was read, up to `next_offset`."""
        with self._lock:
            for message in messages:
                self._unfinished[message.queue_offset] = message
                self._waiting.append(message)
                self._bytes += len(message.body) + OVERHEAD_BYTES
            self.position = next_offset

    # ------------------------------------------------------------ consuming

    def take(self, count: int, now_ns: int) -> list[ReceivedMessage]:
        """The next messages for a listener; none when the queue was dropped or the lease is not to be trusted."""
        with self._lock:
            if self.dropped_ns is not None or not self._is_trusted(now_ns):
                return []
            taken = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
            for message in taken:
                self._running[message.queue_offset] = now_ns
            return taken

    def finish(self, messages: Iterable[ReceivedMessage]) -> None:
        """These need no more attention: the offset may pass them."""
        with self._lock:
            for message in messages:
                self._running.pop(message.queue_offset, None)
                self._claimed.discard(message.queue_offset)
                if self._unfinished.pop(message.queue_offset, None) is not None:
                    self._bytes -= len(message.body) + OVERHEAD_BYTES

    def put_back(self, messages: Collection[ReceivedMessage], *, failed: bool) -> None:
        """Let messages be the next ones again, in their order; `failed` counts one more failure."""
        with self._lock:
            for message in reversed(list(messages)):
                self._claimed.discard(message.queue_offset)
                if self._running.pop(message.queue_offset, None) is None:
                    continue  # it was sent back meanwhile, because its listener took too long
                again = replace(message, reconsume_times=message.reconsume_times + 1) if failed else message
                self._unfinished[message.queue_offset] = again
                self._waiting.appendleft(again)

    def claim(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those that a listener has and nobody sends back yet: the caller alone does, and says `finish` or `put_back`.

        A listener may fail while its messages are sent back because it took too long.
        """
        with self._lock:
            mine = [
                message
                for message in messages
                if message.queue_offset in self._running and message.queue_offset not in self._claimed
            ]
            self._claimed.update(message.queue_offset for message in mine)
            return mine

    def unclaim(self, messages: Iterable[ReceivedMessage]) -> None:
        """They could not be sent back; somebody may try again."""
        with self._lock:
            self._claimed.difference_update(message.queue_offset for message in messages)

    def overdue(self, before_ns: int) -> list[ReceivedMessage]:
        """Messages that a listener has had since before a time."""
        with self._lock:
            return [self._unfinished[offset] for offset, since in self._running.items() if since < before_ns]

    def take_turn(self) -> bool:
        """For listeners that go in order: whether the caller is the only one who consumes this queue now."""
        with self._lock:
            if self._turn_taken:
                return False
            self._turn_taken = True
            return True

    def end_turn(self, now_ns: int) -> bool:
        """The caller has consumed enough; returns whether there are messages that may be handed out."""
        with self._lock:
            self._turn_taken = False
            return bool(self._waiting) and self.dropped_ns is None and self._is_trusted(now_ns)

    # ------------------------------------------------------------ progress and lease

    def offset(self) -> int:
        """What may be committed: the first unfinished message, or the next one to read."""
        with self._lock:
            return next(iter(self._unfinished), self.position)

    @property
    def is_idle(self) -> bool:
        """Whether no listener has a message of it."""
        with self._lock:
            return not self._running

    def drop(self, now_ns: int, *, lost: bool = False) -> None:
        """Hand out no more; what waits is left to the next holder."""
        with self._lock:
            self.dropped_ns = now_ns if self.dropped_ns is None else self.dropped_ns
            self.lost = self.lost or lost
            self._waiting.clear()

    def trust(self, until_ns: int) -> None:
        """The lease was renewed."""
        with self._lock:
            self._trusted_ns = until_ns

    def is_trusted(self, now_ns: int) -> bool:
        """Whether the lease is surely held; a queue without one always is."""
        with self._lock:
            return self._is_trusted(now_ns)

    def _is_trusted(self, now_ns: int) -> bool:
        return self._trusted_ns is None or now_ns < self._trusted_ns
