"""Sending messages: routing to queues, ids, compression, one commit for one call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final

from rmq_spark.client.check_answers import CheckAnswers, Checker
from rmq_spark.client.compression import compress
from rmq_spark.client.store import AUTO_CREATE_QUEUES, Store, Topic
from rmq_spark.client.transaction import Transaction
from rmq_spark.errors import InvalidRequestError, NotFoundError, OutcomeUnknownError, RmqError
from rmq_spark.log.commit_log import UNCLEAR_REMEMBERED, AppendResult
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model import names, times
from rmq_spark.model.message import Message
from rmq_spark.model.message_id import UniqueIds, own_address
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import delay, recall_handle, routing, system_topics, timer
from rmq_spark.rules.transaction import IMMUNITY_MS

DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
"""RocketMQ's name for producers that belong to no group."""
ROUTE_SECONDS = 30
"""How long a topic's queues are remembered, as RocketMQ's clients poll routes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResult:
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
    recall_handle: str | None = None
    """What `Producer.recall` takes, for messages with a delivery time that wait."""
    transaction_id: str | None = None
    """The transaction that the message is part of; it becomes visible when that is committed."""


@dataclass(slots=True)
class _Prepared:
    """Messages that have their queues and ids; a repeated send must not draw new ones."""

    messages: tuple[Message, ...]
    broker: str
    placed: list[tuple[str, int]]
    """Id and queue of each; a delayed message waits elsewhere until it gets there."""
    rows: list[MessageRow]
    batch: MessageBatch
    result: AppendResult | None = None
    """Set once they landed; a send may be interrupted after that, too."""

    def waits(self, row: int) -> bool:
        """Whether a message is delayed."""
        return system_topics.is_waiting(self.rows[row].topic)


class Producer:
    """Sends messages to a store. Safe to use from many threads: concurrent sends share commits.

    Args:
        store: an open store.
        auto_create: create unknown topics with 4 queues, as RocketMQ's brokers do by default.
        compress_over_bytes: compress bodies of at least so many bytes (RocketMQ: 4096); None never does.
        delays: delay levels, and how far ahead a delivery time may be; by default the store's settings count.
        group: the producer group; any producer of it may be asked about the group's transactions.
        checker: tells what has become of a transaction, from its first message. With one, the producer answers the
            questions of the transaction check, in a thread of its own, until it is closed.
        check_immunity: how long nobody asks about a new transaction, in seconds (RocketMQ: 6).
    """

    def __init__(
        self,
        store: Store,
        *,
        auto_create: bool = True,
        compress_over_bytes: int | None = None,
        delays: delay.DelaySettings | None = None,
        group: str = DEFAULT_GROUP,
        checker: Checker | None = None,
        check_immunity: timedelta | float = IMMUNITY_MS / 1000,
    ) -> None:
        self._store = store
        self._auto_create = auto_create
        self._compress_over = compress_over_bytes
        self._delays = delays or delay.DelaySettings(delay_max_ms=store.settings.timer_max_delay_ms or None)
        self._group = names.check_group(group)
        self._immunity_ms = times.duration_ms(check_immunity, "check_immunity")
        self._ids = UniqueIds(store.clock)
        self._host = own_address()
        self._lock = threading.Lock()
        self._routes: dict[str, tuple[int, Topic]] = {}
        self._turns = routing.RoundRobin(lambda: int(store.clock.token()[-8:], 16))
        self._unclear: dict[tuple[int, ...], _Prepared] = {}
        """Sends whose outcome is not known, by the identity of their messages."""
        self._answers = None if checker is None else CheckAnswers(store, self._group, checker)
        if self._answers is not None:
            self._answers.start()

    def __repr__(self) -> str:
        return f"Producer({self._store!r}, auto_create={self._auto_create})"

    def send(self, message: Message, *, transaction: Transaction | None = None) -> SendResult:
        """Send one message and return where it is; with `transaction` it is invisible until that is committed.

        Raises:
            NotFoundError: the topic does not exist and `auto_create` is off.
            InvalidRequestError: the topic is reserved, or has no queue of the number asked for; or the delivery
                time is too far ahead.
            PreconditionFailedError: the transaction is not open any more; nothing was written.
            RmqError: as `CommitLog.append` says.
        """
        if transaction is not None:
            return self._send_half(message, transaction)
        return self.send_batch([message])[0]

    def begin_transaction(self) -> Transaction:
        """A transaction whose messages, of any topics of one broker, become visible together or never.

        Leave it by `commit` or `rollback`. As a context manager it is rolled back by an exception; when it is left
        without either, it stays open, and the checker is asked about it later.
        """
        return Transaction(self._store, self._group, self._ids.draw()[0], self._immunity_ms)

    def recall(self, sent: SendResult | str) -> None:
        """Keep a message with a delivery time from being delivered. The same again changes nothing.

        Args:
            sent: what `send` returned, or its `recall_handle`.

        Raises:
            InvalidRequestError: it has no handle: it was not delayed, or by a delay level, which RocketMQ does not
                recall either; or the handle is none.
            PreconditionFailedError: the message is due, so it may have been delivered.
        """
        handle = sent.recall_handle if isinstance(sent, SendResult) else sent
        if handle is None:
            raise InvalidRequestError(
                "the message cannot be recalled; only those that were sent with delay or deliver_at can, until then"
            )
        broker, recalled = recall_handle.parse(handle)
        if broker not in self._store.brokers():
            raise InvalidRequestError("the recall handle names an unknown broker", broker=broker)
        self._store.log(broker, timer.TimerProgress).decide(timer.recall(recalled))

    def close(self) -> None:
        """End the thread that answers questions about transactions, if there is one."""
        if self._answers is not None:
            self._answers.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send_half(self, message: Message, transaction: Transaction) -> SendResult:
        if message.delay_level > 0:
            raise InvalidRequestError(
                "a message of a transaction cannot have a delay level; give it delay or deliver_at",
                topic=message.topic,
            )
        now = self._store.clock.now_ms()
        asked = delay.of_message(message, now)
        delay.check_delay(asked, now, self._delays)
        broker, queue = self._place(message, transaction.broker or "")
        row = self._row(message, queue, message.msg_id or self._ids.draw()[0], now)
        result = transaction.add(broker, row, asked.deliver_ms)
        return SendResult(
            msg_id=row.msg_id,
            topic=message.topic,
            broker=broker,
            queue_id=queue,
            queue_offset=None,
            commit_offset=None if result.commit_offsets is None else int(result.commit_offsets[0]),
            store_timestamp_ms=result.store_ms,
            transaction_id=transaction.id,
        )

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
                queue_offset=queue_offsets[row] if queue_offsets and not prepared.waits(row) else None,
                commit_offset=commits[row] if commits else None,
                store_timestamp_ms=result.store_ms,
                recall_handle=recall_handle.of_row(prepared.broker, prepared.rows[row]),
            )
            for row, (message, (msg_id, queue)) in enumerate(zip(messages, prepared.placed, strict=True))
        ]

    def _prepare(self, messages: Sequence[Message]) -> _Prepared:
        now = self._store.clock.now_ms()
        drawn = iter(self._ids.draw(len(messages)))
        broker = ""
        placed: list[tuple[str, int]] = []
        rows: list[MessageRow] = []
        for message in messages:
            broker, queue = self._place(message, broker)
            msg_id = message.msg_id or next(drawn)
            placed.append((msg_id, queue))
            row = self._row(message, queue, msg_id, now)
            rows.append(delay.park(row, delay.of_message(message, now), now, self._delays))
        return _Prepared(tuple(messages), broker, placed, rows, MessageBatch.from_rows(rows))

    def _row(self, message: Message, queue: int, msg_id: str, now: int) -> MessageRow:
        body, flags = compress(message.body, self._compress_over)
        return MessageRow(
            topic=message.topic,
            queue_id=queue,
            msg_id=msg_id,
            tags=message.tags,
            keys=message.keys_text(),
            body=body,
            flag=message.flag,
            sys_flag=flags,
            born_ms=now if message.born_timestamp_ms is None else message.born_timestamp_ms,
            born_host=self._host,
            reconsume_times=0,
            properties=list(message.stored_properties().items()),
        )

    def _place(self, message: Message, broker: str) -> routing.Place:
        """The broker and queue of a message; `broker` is the one that others of its batch go to."""
        queues = self._route(message.topic).message_queues()
        if broker:
            queues = [place for place in queues if place[0] == broker]
            if not queues:
                raise InvalidRequestError("topics of one batch must share a broker", topic=message.topic, broker=broker)
        return routing.place(
            message.topic,
            queues,
            self._turns.next,
            queue_id=message.queue_id,
            sharding_key=message.sharding_key,
            priority=message.priority,
        )

    def _route(self, name: str) -> Topic:
        now = self._store.clock.elapsed_ns()
        with self._lock:
            known = self._routes.get(name)
            if known is not None and now - known[0] < ROUTE_SECONDS * 1_000_000_000:
                return known[1]
        system_topics.check_sendable(name)
        topic = self._store.find_topic(name)
        if topic is None and not self._auto_create:
            raise NotFoundError("no such topic; create it first", topic=name)
        if topic is None:
            topic = self._store.create_topic(name, queues=AUTO_CREATE_QUEUES)
        with self._lock:
            self._routes[name] = (now, topic)
        return topic
