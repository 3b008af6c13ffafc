"""Sending messages: routing to queues, ids, compression, one commit for one call."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Final

import pyarrow as pa

from rmq_spark.client import table_rows
from rmq_spark.client.async_sender import AsyncSender
from rmq_spark.client.check_answers import CheckAnswers, Checker
from rmq_spark.client.delays import log_now, parked
from rmq_spark.client.observer import Observer, send_with_hooks, tell_sent_rows, watched_sending
from rmq_spark.client.prepared import Prepared, batch_of, check_messages, message_row, send_results
from rmq_spark.client.recall import recall
from rmq_spark.client.routes import Routes
from rmq_spark.client.send_result import SendHook, SendResult, SendStatus, checked_hooks
from rmq_spark.client.store import Store
from rmq_spark.client.trace_writer import TraceWriter
from rmq_spark.client.transaction import Transaction
from rmq_spark.errors import ClosedError, InvalidRequestError, OutcomeUnknownError, RmqError
from rmq_spark.log.commit_log import UNCLEAR_REMEMBERED, AppendResult
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model import names, numbers, times
from rmq_spark.model.message import Message
from rmq_spark.model.message_id import UniqueIds, own_address
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import delay, routing
from rmq_spark.rules.message_type import MessageType
from rmq_spark.rules.transaction import IMMUNITY_MS

__all__ = ["Prepared", "Producer", "SendHook", "SendResult", "SendStatus"]

SEND_TIMEOUT_SECONDS: Final = 3.0
"""No further attempt is made after so long (RocketMQ: `sendMsgTimeout`, for all attempts together)."""
RETRIES: Final = 2
"""Attempts after the first one (RocketMQ: `retryTimesWhenSendFailed`)."""
DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"

_log = logging.getLogger(__name__)


class Producer:
    """Sends messages to a store. Safe to use from many threads: concurrent sends share commits.

    An attempt that fails is made again, on another broker if there is one, up to two times within `timeout`. The ids of
    messages stay, so a consumer can tell a message that came twice.

    Args:
        store: an open store.
        group: the producer group; producers of a transaction are found by it.
        auto_create: create unknown topics with 4 queues, as RocketMQ's brokers do by default, unless the store's
            settings forbid it.
        compress_over_bytes: compress bodies of at least so many bytes (RocketMQ: 4096); None never does.
        delays: delay levels, and how far ahead a delivery time may be; by default the store's settings count.
        checker: tells what has become of a transaction, from its first message. With one, the producer answers the
            questions of the transaction check, in a thread of its own, until it is closed.
        check_immunity: how long nobody asks about a new transaction, in seconds (RocketMQ: 6).
        timeout: after so many seconds, or a `timedelta`, no further attempt is made.
        retries: attempts after the first one.
        avoid_slow: leave out brokers that were slow or failed for a while (RocketMQ: `sendLatencyFaultEnable`).
        hooks: see every send.
        trace: write a trace of every message to RMQ_SYS_TRACE_TOPIC, in the background; see `rmq trace`.

    Raises (on making):
        InvalidRequestError: an illegal group name, number or time.
    """

    def __init__(
        self,
        store: Store,
        *,
        group: str = DEFAULT_GROUP,
        auto_create: bool = True,
        compress_over_bytes: int | None = None,
        delays: delay.DelaySettings | None = None,
        checker: Checker | None = None,
        check_immunity: timedelta | float = IMMUNITY_MS / 1000,
        timeout: timedelta | float = SEND_TIMEOUT_SECONDS,
        retries: int = RETRIES,
        avoid_slow: bool = False,
        hooks: Sequence[SendHook] = (),
        trace: bool = False,
    ) -> None:
        self._store = store
        self.group = names.check_group(group)
        self._auto_create = auto_create
        if compress_over_bytes is not None:
            numbers.check_whole("compress_over_bytes", compress_over_bytes, 0)
        self._compress_over = compress_over_bytes
        if delays is not None and not isinstance(delays, delay.DelaySettings):
            raise InvalidRequestError("delays takes DelaySettings", type=type(delays).__name__)
        self._delays = delays or delay.DelaySettings(delay_max_ms=store.settings.timer_max_delay_ms or None)
        if checker is not None and not callable(checker):
            raise InvalidRequestError("checker takes a function", type=type(checker).__name__)
        self._immunity_ms = times.wait_ms(check_immunity, "check_immunity")
        self._timeout_ns = times.wait_ms(timeout, "timeout") * 1_000_000
        self._retries = numbers.check_whole("retries", retries, 0)
        self._latency = routing.BrokerLatency() if avoid_slow else None
        self._hooks = checked_hooks(hooks)
        self._traces = (TraceWriter(store),) if trace else ()
        self._watched = bool(self._hooks or self._traces)
        self._ids = UniqueIds(store.clock)
        self._host = own_address()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._routes = Routes(store, auto_create=auto_create)
        self._turns = routing.RoundRobin(lambda: int(store.clock.token()[-8:], 16))
        self._unclear: dict[tuple[int, ...], Prepared] = {}
        """Sends whose outcome is not known, by the identity of their messages."""
        self._async: AsyncSender | None = None
        self._at_exit: Callable[[], None] | None = None
        self._answers = None if checker is None else CheckAnswers(store, self.group, checker, self._observers)
        if self._answers is not None:
            self._answers.start()
        store.start_services()

    def __repr__(self) -> str:
        return f"Producer({self._store!r}, auto_create={self._auto_create})"

    # ------------------------------------------------------------ sending

    def send(self, message: Message, *, transaction: Transaction | None = None) -> SendResult:
        """Send one message and return where it is; with `transaction` it is invisible until that is committed.

        Raises:
            NotFoundError: the topic does not exist, and `auto_create` or the store's setting is off.
            InvalidRequestError: the topic is reserved, takes messages of another type, may not be written, or has no
                queue of the number asked for; or the delivery time is too far ahead.
            BackPressureError: consumers of the topic are too far behind; nothing was written.
            PreconditionFailedError: the transaction is not open any more; nothing was written.
            RmqError: as `CommitLog.append` says, of the last attempt.
        """
        if transaction is not None:
            check_messages((message,))
            observers = self._observers()
            with watched_sending(observers, self._store.clock, self.group, (message,), is_transaction=True) as sending:
                sending.results = [self._send_half(message, transaction)]
            return sending.results[0]
        return self.send_batch((message,))[0]

    def begin_transaction(self) -> Transaction:
        """A transaction whose messages, of any topics of one broker, become visible together or never.

        Leave it by `commit` or `rollback`. As a context manager it is rolled back by an exception; when it is left
        without either, it stays open, and the checker is asked about it later.
        """
        return Transaction(self._store, self.group, self._ids.draw()[0], self._immunity_ms, self._observers)

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
        if handle is not None and not isinstance(handle, str):
            raise InvalidRequestError("recall takes what send returned, or its handle", type=type(sent).__name__)
        recall(self._store, handle, group=self.group, observers=self._observers())

    def send_batch(self, messages: Iterable[Message]) -> list[SendResult]:
        """Send messages of any topics as one atomic commit; all of them go to one broker.

        After `OutcomeUnknownError`, or an interrupt, sending the same `Message` objects again lands them once.

        Raises:
            as `send`.
        """
        batch = batch_of(messages)
        if not self._watched and not self._store.observers:
            return self._send_batch(batch)
        with watched_sending(self._observers(), self._store.clock, self.group, batch) as sending:
            sending.results = results = send_with_hooks(self._hooks, batch, self._send_batch)
        return results

    def send_async(self, message: Message) -> Future[SendResult]:
        """Send one message soon, together with others; the future has its result.

        Messages that one thread sends keep their order for each topic and queue. When 50,000 messages wait, it blocks.

        Raises:
            ClosedError: the producer was closed, or made before a fork.
            InvalidRequestError: it is no message.
        """
        check_messages((message,))
        return self._sender().put(message)

    async def asend(self, message: Message) -> SendResult:
        """As `send`, for asyncio.

        Raises:
            as `send`.
        """
        return await asyncio.wrap_future(self.send_async(message))

    def send_oneway(self, message: Message) -> None:
        """Send one message soon; a failure is only logged.

        Raises:
            ClosedError: the producer was closed, or made before a fork.
        """
        self.send_async(message).add_done_callback(_log_failure)

    def send_table(self, topic: str, table: pa.Table | pa.RecordBatch) -> int:
        """Send the rows of a table as messages of `topic`, and return how many; rows of a queue keep their order.

        Columns are `body`, and where wanted `tags`, `keys`, `flag`, `properties` (a map), `queueId`, `msgId` and
        `bornTimestamp`. A large table becomes several commits, of at most 100,000 rows and about 32 MiB each.

        Raises:
            InvalidRequestError: an unknown column, or a value that a message must not have; parts before it stay sent.
            RmqError: as `send`; the parts before it stay sent. The error's notes say how many rows that are.
        """
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        table_rows.check_table(table)
        sent = 0
        for part in table_rows.parts(table):
            broker, batch = self._table_part(topic, part)
            try:
                self._try(partial(self._append_once, broker, batch))
            except RmqError as error:
                error.add_note(f"{sent} of {table.num_rows} rows were sent before it")
                raise
            sent += part.num_rows
            tell_sent_rows(self._observers(), topic, part)
        return sent

    def flush(self) -> None:
        """Wait until everything that `send_async` and `send_oneway` were given is sent, or has failed."""
        with self._lock:
            sender, self._async = self._async, None
        if sender is not None:
            sender.close()

    def close(self) -> None:
        """Send what waits. The producer can be used again; the store is closed by whoever opened it."""
        if os.getpid() == self._pid:  # a fork has no thread that sends
            self.flush()
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
            self._at_exit = None
        if self._answers is not None:
            self._answers.close()
        for each in self._traces:
            each.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ attempts

    def _send_batch(self, messages: Sequence[Message]) -> list[SendResult]:
        key = tuple(map(id, messages))
        with self._lock:
            prepared = self._unclear.get(key)
        if prepared is None:
            prepared = self.prepare(messages)
        try:
            results = self.land(prepared)
            self._forget(key)
        except BaseException as error:
            if isinstance(error, RmqError) and not isinstance(error, OutcomeUnknownError):
                self._forget(key)  # nothing was written
            else:
                self._remember(key, prepared)
            raise
        return results

    def land(self, prepared: Prepared) -> list[SendResult]:
        """Send what was prepared.

        Raises:
            as `send`.
        """
        if prepared.result is None:
            self._attempt(prepared)
        assert prepared.result is not None  # noqa: S101 - an attempt gives a result or raises
        return self.results(prepared, prepared.result)

    def _attempt(self, prepared: Prepared) -> None:
        """Append until it lands: elsewhere if nothing was written, the same again if that is not known."""

        def append() -> None:
            prepared.result = self._append_once(prepared.broker, prepared.batch)

        def change(error: RmqError) -> None:
            if not isinstance(error, OutcomeUnknownError):
                # In place: should the next attempt end unclear, it is this one that must be repeated.
                new = self._prepared(prepared.messages, prepared.ids, "", avoid=prepared.broker)
                prepared.broker, prepared.queues = new.broker, new.queues
                prepared.rows, prepared.batch = new.rows, new.batch

        self._try(append, change)

    def _try(self, append: Callable[[], object], change: Callable[[RmqError], None] = lambda _: None) -> None:
        deadline = self._store.clock.elapsed_ns() + self._timeout_ns
        for left in reversed(range(self._retries + 1)):
            try:
                append()
            except RmqError as error:
                if not left or not error.retriable or self._store.clock.elapsed_ns() >= deadline:
                    raise
                change(error)
            else:
                return

    def _append_once(self, broker: str, batch: MessageBatch) -> AppendResult:
        if self._latency is None:
            return self._store.log(broker).append(batch)
        clock = self._store.clock
        began = clock.elapsed_ns()
        failed = True
        try:
            result = self._store.log(broker).append(batch)
            failed = False
            return result
        finally:
            now = clock.elapsed_ns()
            self._latency.note(broker, (now - began) / 1e6, now / 1e6, failed=failed)

    def _remember(self, key: tuple[int, ...], prepared: Prepared) -> None:
        with self._lock:
            self._unclear.pop(key, None)
            self._unclear[key] = prepared
            while len(self._unclear) > UNCLEAR_REMEMBERED:
                self._unclear.pop(next(iter(self._unclear)))

    def _forget(self, key: tuple[int, ...]) -> None:
        if self._unclear:
            with self._lock:
                self._unclear.pop(key, None)

    # ------------------------------------------------------------ rows

    def prepare(self, messages: Sequence[Message], broker: str = "") -> Prepared:
        """Give messages ids and queues of one broker, `broker` if it is named; nothing is written.

        Raises:
            as `send`, as far as it is about the messages.
        """
        drawn = self._ids.draw(len(messages))
        ids = [message.msg_id or drawn[row] for row, message in enumerate(messages)]
        return self._prepared(tuple(messages), ids, broker, avoid=None)

    def _prepared(self, messages: tuple[Message, ...], ids: list[str], broker: str, avoid: str | None) -> Prepared:
        now = self._store.clock.now_ms()
        queues: list[int] = []
        rows: list[MessageRow] = []
        topic = ""
        places: Sequence[routing.Place] = ()
        turns: Iterator[int] | None = None
        for message, msg_id in zip(messages, ids, strict=True):
            if turns is not None and message.topic == topic and _takes_any_queue(message):
                queue = places[next(turns) % len(places)][1]
            else:
                broker, queue = self._place(message, broker, avoid)
                topic = message.topic
                route = self._routes.of(topic)
                places = route.by_broker[broker]
                turns = None if route.checked else self._turns.of(topic)
            queues.append(queue)
            row = message_row(message, queue, msg_id, now, host=self._host, compress_over=self._compress_over)
            if message.delay_level > 0 or message.delay is not None or message.deliver_at is not None:
                row = parked(self._store, broker, message, row, self._delays)
            rows.append(row)
        # The messages were checked when they were made, and the engine adds nothing that could be refused.
        return Prepared(messages, broker, ids, queues, rows, MessageBatch(list(rows)))

    def _send_half(self, message: Message, transaction: Transaction) -> SendResult:
        if message.delay_level > 0:
            raise InvalidRequestError("a transaction's message has no delay level; give it delay or deliver_at")
        broker, queue = self._place(message, transaction.broker or "", None, in_transaction=True)
        now = log_now(self._store, broker) if message.is_delayed else self._store.clock.now_ms()
        asked = delay.of_message(message, now)
        delay.check_delay(asked, now, self._delays)
        msg_id = message.msg_id or self._ids.draw()[0]
        row = message_row(message, queue, msg_id, now, host=self._host, compress_over=self._compress_over)
        landed = transaction.add(broker, row, asked.deliver_ms)
        offset = None if landed.commit_offsets is None else int(landed.commit_offsets[0])
        return SendResult(
            row.msg_id, message.topic, broker, queue, None, offset, landed.store_ms, transaction_id=transaction.id
        )

    def results(self, prepared: Prepared, result: AppendResult) -> list[SendResult]:
        """What the sender of messages is told."""
        return send_results(prepared, result)

    def _table_part(self, topic: str, part: pa.Table) -> tuple[str, MessageBatch]:
        route = self._routes.of(topic)
        self._routes.check(route, MessageType.NORMAL)
        broker = routing.choose(
            route.queues, self._turns.next(topic), latency=self._latency, now_ms=self._store.clock.elapsed_ns() / 1e6
        )[0]
        batch = table_rows.table_batch(
            part,
            topic,
            len(route.by_broker[broker]),
            self._turns.next(topic),
            ids=self._ids,
            host=self._host,
            now_ms=self._store.clock.now_ms(),
        )
        return broker, batch

    def _place(
        self, message: Message, broker: str, avoid: str | None, *, in_transaction: bool = False
    ) -> routing.Place:
        """The broker and queue of a message; `broker` is the one that others of its batch go to."""
        topic = message.topic
        route = self._routes.for_message(message, in_transaction=in_transaction)
        queues = route.queues
        if broker:
            queues = route.by_broker.get(broker, ())
            if not queues:
                raise InvalidRequestError("topics of one batch must share a broker", topic=topic, broker=broker)
        if _takes_any_queue(message):
            turn = self._turns.next(topic)
            if broker or (avoid is None and self._latency is None):
                return queues[turn % len(queues)]
            now_ms = self._store.clock.elapsed_ns() / 1e6
            return routing.choose(queues, turn, avoid=avoid, latency=self._latency, now_ms=now_ms)
        return routing.place(
            topic,
            queues,
            self._turns.next,
            queue_id=message.queue_id,
            sharding_key=message.sharding_key,
            priority=message.priority,
        )

    def _observers(self) -> tuple[Observer, ...]:
        return (*self._traces, *self._store.observers)

    def _sender(self) -> AsyncSender:
        if os.getpid() != self._pid:
            raise ClosedError("the producer was made before a fork; open the store and make one in this process")
        sender = self._async
        if sender is None:
            with self._lock:
                if self._at_exit is None:
                    self._at_exit = _closer(weakref.ref(self))
                    atexit.register(self._at_exit)
                sender = self._async = self._async or AsyncSender(self.send_batch)
        return sender


def _takes_any_queue(message: Message) -> bool:
    return message.queue_id is None and message.sharding_key is None and message.priority is None


def _log_failure(future: Future[SendResult]) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        _log.warning("a message that was sent one way is lost: %s", error)


def _closer(reference: weakref.ref[Producer]) -> Callable[[], None]:
    def close() -> None:
        producer = reference()
        if producer is not None:
            producer.close()

    return close
