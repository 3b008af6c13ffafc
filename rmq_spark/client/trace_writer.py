"""Message traces: what a client did with each message, written to the trace topic, in the background and in batches."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rmq_spark.client.observer import Consumption, EndedTransaction, Observer, Sending
from rmq_spark.client.store import DEFAULT_BROKER, Store
from rmq_spark.errors import RmqError
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.message import Message
from rmq_spark.model.message_id import UniqueIds, own_address
from rmq_spark.model.message_row import MessageRow
from rmq_spark.rules import system_topics
from rmq_spark.rules.trace_record import CODE_FAILED, CODE_SUCCESS, MESSAGE_TYPES, TraceRecord, TraceType, encode

FLUSH_SECONDS: Final = 5.0
"""So long a record waits at most."""
RECORDS_MAX: Final = 10
"""Records of one trace message at most."""
BYTES_MAX: Final = 128_000
"""Bytes of one trace message at most."""
KEYS_MAX: Final = 8_000
"""Characters of a trace message's keys at most: those beyond are not found by a search, their records are."""
WAITING_MAX: Final = 20_480
"""So many records may wait; more are dropped, with a line in the log."""
FLUSH_RECORDS: Final = 2_048
"""With so many waiting, they are written before their time."""

TRANSACTION_END: Final = MESSAGE_TYPES.index("Trans_msg_Commit")
"""The message type of what a transaction's end says, also of one that was rolled back: as RocketMQ's clients."""

_log = logging.getLogger(__name__)


class TraceWriter(Observer):
    """Writes one client's traces. A store that cannot be written costs traces, never a send.

    Args:
        store: an open store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pid = os.getpid()
        self._host = own_address()
        self._ids = UniqueIds(store.clock)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._records: list[TraceRecord] = []
        self._dropped = 0
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._at_exit: Callable[[], None] | None = None
        self._has_topic = False

    # ------------------------------------------------------------ what happens

    def sent(self, sending: Sending) -> None:
        results = sending.results
        records = []
        for row, message in enumerate(sending.messages):
            result = None if results is None else results[row]
            records.append(
                TraceRecord(
                    type=TraceType.PUB,
                    ms=sending.began_ms,
                    group=sending.group,
                    topic=message.topic,
                    msg_id=result.msg_id if result is not None else message.msg_id or "",
                    tags=message.tags or "",
                    keys=message.keys_text() or "",
                    store_host=result.broker if result is not None else "",
                    body_bytes=len(message.body),
                    cost_ms=round(sending.cost_ms),
                    message_type=_message_type(message, sending.is_transaction),
                    offset_id="" if result is None or result.commit_offset is None else str(result.commit_offset),
                    success=result is not None,
                )
            )
        self._add(records)

    def consuming(self, consumption: Consumption) -> None:
        self._add(
            TraceRecord(
                type=TraceType.SUB_BEFORE,
                ms=consumption.began_ms,
                group=consumption.group,
                request_id=consumption.request_id,
                msg_id=message.msg_id,
                retry_times=message.reconsume_times,
                keys=message.keys or "",
            )
            for message in consumption.messages
        )

    def consumed(self, consumption: Consumption) -> None:
        cost_ms = round(consumption.cost_ms / max(1, len(consumption.messages)))
        self._add(
            TraceRecord(
                type=TraceType.SUB_AFTER,
                ms=self._store.clock.now_ms(),
                group=consumption.group,
                request_id=consumption.request_id,
                msg_id=message.msg_id,
                cost_ms=cost_ms,
                success=consumption.succeeded,
                keys=message.keys or "",
                code=CODE_SUCCESS if consumption.succeeded else CODE_FAILED,
            )
            for message in consumption.messages
        )

    def ended(self, messages: Sequence[EndedTransaction]) -> None:
        self._add(
            TraceRecord(
                type=TraceType.END_TRANSACTION,
                ms=self._store.clock.now_ms(),
                group=each.group,
                topic=each.topic,
                msg_id=each.msg_id,
                tags=each.tags or "",
                keys=each.keys or "",
                store_host=each.broker,
                message_type=TRANSACTION_END,
                transaction_id=each.transaction_id,
                transaction_state="COMMIT_MESSAGE" if each.committed else "ROLLBACK_MESSAGE",
                from_check=each.from_check,
            )
            for each in messages
        )

    def recalled(self, group: str, topic: str, msg_id: str, succeeded: bool) -> None:
        now = self._store.clock.now_ms()
        self._add(
            [TraceRecord(type=TraceType.RECALL, ms=now, group=group, topic=topic, msg_id=msg_id, success=succeeded)]
        )

    # ------------------------------------------------------------ writing

    def flush(self) -> None:
        """Write what waits; what cannot be written is dropped, with a line in the log."""
        with self._writing:
            with self._lock:
                records, self._records = self._records, []
                dropped, self._dropped = self._dropped, 0
            if dropped:
                _log.warning("message traces came faster than they were written; %d were dropped", dropped)
            if not records:
                return
            try:
                self._write(records)
            except RmqError as error:
                _log.warning("%d message traces could not be written and are dropped: %s", len(records), error)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
            self._at_exit = None
        if os.getpid() != self._pid:
            return  # what waits is the parent's
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.flush()

    def _add(self, records: Iterable[TraceRecord]) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            for record in records:
                if len(self._records) < WAITING_MAX:
                    self._records.append(record)
                else:
                    self._dropped += 1
            if self._thread is None and not self._closed:
                self._at_exit = _closer(weakref.ref(self))
                atexit.register(self._at_exit)
                self._thread = threading.Thread(target=self._run, name="rmq-trace", daemon=True)
                self._thread.start()
            if len(self._records) >= FLUSH_RECORDS:
                self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            self.flush()

    def _write(self, records: list[TraceRecord]) -> None:
        if not self._has_topic:
            self._store.ensure_queues(system_topics.TRACE_TOPIC, DEFAULT_BROKER)
            self._has_topic = True
        now = self._store.clock.now_ms()
        messages = _messages(records)
        ids = self._ids.draw(len(messages))
        rows = [
            MessageRow(system_topics.TRACE_TOPIC, 0, msg_id, None, keys, body, 0, 0, now, self._host, 0, [])
            for msg_id, (keys, body) in zip(ids, messages, strict=True)
        ]
        self._store.log(DEFAULT_BROKER).append(MessageBatch.from_rows(rows))


def _messages(records: Iterable[TraceRecord]) -> list[tuple[str, bytes]]:
    """Keys and body of each trace message: looking for a message's id or key finds its traces."""
    messages: list[tuple[str, bytes]] = []
    keys: dict[str, None] = {}
    bodies: list[bytes] = []

    def end() -> None:
        if bodies:
            messages.append((" ".join(keys), b"".join(bodies)))
            keys.clear()
            bodies.clear()

    for record in records:
        body = encode(record).encode()
        if len(bodies) >= RECORDS_MAX or sum(map(len, bodies)) + len(body) > BYTES_MAX:
            end()
        bodies.append(body)
        for key in filter(None, [record.msg_id, *record.keys.split()]):
            if sum(map(len, keys)) + len(key) <= KEYS_MAX:
                keys[key] = None
    end()
    return messages


def _message_type(message: Message, is_transaction: bool) -> int:
    if is_transaction:
        return 1
    if message.is_delayed:
        return 3
    if message.sharding_key is not None:
        return 4
    return 5 if message.priority is not None else 0


def _closer(reference: weakref.ref[TraceWriter]) -> Callable[[], None]:
    def close() -> None:
        writer = reference()
        if writer is not None:
            writer.close()

    return close
