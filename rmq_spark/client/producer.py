"""Sending messages: routing to queues, ids, compression, one commit for one call."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from rmq_spark.client.compression import compress
from rmq_spark.client.store import AUTO_CREATE_QUEUES, Store, Topic
from rmq_spark.errors import InvalidRequestError, NotFoundError, OutcomeUnknownError, RmqError
from rmq_spark.log.commit_log import UNCLEAR_REMEMBERED, AppendResult
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model import names
from rmq_spark.model.java_hash import java_hash
from rmq_spark.model.message import Message
from rmq_spark.model.message_id import UniqueIds, own_address

ROUTE_SECONDS = 30
"""How long a topic's queues are remembered, as RocketMQ's clients poll routes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
    """Where a message went. With `buffered` flush the offsets are None: it is not in the log yet."""

    msg_id: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int | None
    commit_offset: int | None
    store_timestamp_ms: int | None


@dataclass(slots=True)
class _Prepared:
    """Messages that have their queues and ids; a repeated send must not draw new ones."""

    messages: tuple[Message, ...]
    broker: str
    placed: list[tuple[str, int]]
    batch: MessageBatch
    result: AppendResult | None = None
    """Set once they landed; a send may be interrupted after that, too."""


class Producer:
    """Sends messages to a store. Safe to use from many threads: concurrent sends share commits.

    Args:
        store: an open store.
        auto_create: create unknown topics with 4 queues, as RocketMQ's brokers do by default.
        compress_over_bytes: compress bodies of at least so many bytes (RocketMQ: 4096); None never does.
    """

    def __init__(self, store: Store, *, auto_create: bool = True, compress_over_bytes: int | None = None) -> None:
        self._store = store
        self._auto_create = auto_create
        self._compress_over = compress_over_bytes
        self._ids = UniqueIds(store.clock)
        self._host = own_address()
        self._lock = threading.Lock()
        self._routes: dict[str, tuple[int, Topic]] = {}
        self._turns: dict[str, itertools.count[int]] = {}
        self._unclear: dict[tuple[int, ...], _Prepared] = {}
        """Sends whose outcome is not known, by the identity of their messages."""

    def __repr__(self) -> str:
        return f"Producer({self._store!r}, auto_create={self._auto_create})"

    def send(self, message: Message) -> SendResult:
        """Send one message and return where it is.

        Raises:
            NotFoundError: the topic does not exist and `auto_create` is off.
            InvalidRequestError: the topic is reserved, or has no queue of the number asked for.
            RmqError: as `CommitLog.append` says.
        """
        return self.send_batch([message])[0]

    def send_batch(self, messages: Sequence[Message]) -> list[SendResult]:
        """Send messages of any topics as one atomic commit; all of them go to one broker.

        After `OutcomeUnknownError`, or an interrupt, sending the same `Message` objects again lands them once.

        Raises:
            as `send`.
        """
        if not messages:
            raise InvalidRequestError("a batch needs at least one message")
        key = tuple(map(id, messages))
        with self._lock:
            prepared = self._unclear.get(key)
        if prepared is None:
            prepared = self._prepare(messages)
        try:
            if prepared.result is None:
                prepared.result = self._store.log(prepared.broker).append(prepared.batch)
            results = self._results(messages, prepared, prepared.result)
            self._forget(key)
        except BaseException as error:
            if isinstance(error, RmqError) and not isinstance(error, OutcomeUnknownError):
                self._forget(key)  # nothing was written
            else:
                self._remember(key, prepared)
            raise
        return results

    def _remember(self, key: tuple[int, ...], prepared: _Prepared) -> None:
        with self._lock:
            self._unclear.pop(key, None)
            self._unclear[key] = prepared
            while len(self._unclear) > UNCLEAR_REMEMBERED:
                self._unclear.pop(next(iter(self._unclear)))

    def _forget(self, key: tuple[int, ...]) -> None:
        if self._unclear:
            with self._lock:
                self._unclear.pop(key, None)

    def _results(self, messages: Sequence[Message], prepared: _Prepared, result: AppendResult) -> list[SendResult]:
        queue_offsets = result.queue_offsets if result.queue_offsets is None else result.queue_offsets.tolist()
        commits = result.commit_offsets if result.commit_offsets is None else result.commit_offsets.tolist()
        return [
            SendResult(
                msg_id=msg_id,
                topic=message.topic,
                broker=prepared.broker,
                queue_id=queue,
                queue_offset=queue_offsets[row] if queue_offsets else None,
                commit_offset=commits[row] if commits else None,
                store_timestamp_ms=result.store_ms,
            )
            for row, (message, (msg_id, queue)) in enumerate(zip(messages, prepared.placed, strict=True))
        ]

    def _prepare(self, messages: Sequence[Message]) -> _Prepared:
        now = self._store.clock.now_ms()
        drawn = iter(self._ids.draw(len(messages)))
        broker = ""
        placed: list[tuple[str, int]] = []
        parts: list[MessageBatch] = []
        for message in messages:
            broker, queue = self._place(message, broker)
            msg_id = message.msg_id or next(drawn)
            body, sys_flag = compress(message.body, self._compress_over)
            placed.append((msg_id, queue))
            parts.append(
                MessageBatch.of(
                    topic=message.topic,
                    queue_id=queue,
                    msg_id=msg_id,
                    body=body,
                    born_timestamp_ms=now if message.born_timestamp_ms is None else message.born_timestamp_ms,
                    tags=message.tags,
                    keys=message.keys_text(),
                    flag=message.flag,
                    sys_flag=sys_flag,
                    born_host=self._host,
                    properties=message.stored_properties().items(),
                )
            )
        return _Prepared(tuple(messages), broker, placed, MessageBatch.merge(parts))

    def _place(self, message: Message, broker: str) -> tuple[str, int]:
        """The broker and queue of a message: explicit queue, sharding key's hash, or the next in turn."""
        topic = self._route(message.topic)
        queues = [place for place in topic.message_queues() if not broker or place[0] == broker]
        if not queues:
            raise InvalidRequestError("topics of one batch must share a broker", topic=message.topic, broker=broker)
        if message.queue_id is not None:
            at = next((place for place in queues if place[1] == message.queue_id), None)
            if at is None:
                raise InvalidRequestError("no such queue", topic=message.topic, queue=message.queue_id)
            return at
        if message.sharding_key is not None:
            # Java's remainder keeps the sign, then abs: RocketMQ's SelectMessageQueueByHash.
            return queues[abs(java_hash(message.sharding_key)) % len(queues)]
        return queues[next(self._turns[message.topic]) % len(queues)]

    def _route(self, name: str) -> Topic:
        now = self._store.clock.elapsed_ns()
        with self._lock:
            known = self._routes.get(name)
            if known is not None and now - known[0] < ROUTE_SECONDS * 1_000_000_000:
                return known[1]
        names.check_sendable(name)
        topic = self._store.find_topic(name)
        if topic is None and not self._auto_create:
            raise NotFoundError("no such topic; create it first", topic=name)
        if topic is None:
            topic = self._store.create_topic(name, queues=AUTO_CREATE_QUEUES)
        with self._lock:
            self._routes[name] = (now, topic)
            start = int(self._store.clock.token()[-8:], 16)
            self._turns.setdefault(name, itertools.count(start))
        return topic
