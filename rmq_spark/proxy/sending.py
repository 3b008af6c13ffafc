"""SendMessage, RecallMessage: calls that come together are one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rmq_spark.client.prepared import Prepared
from rmq_spark.client.producer import Producer
from rmq_spark.client.recall import recall
from rmq_spark.client.send_result import SendResult
from rmq_spark.client.store import Store
from rmq_spark.client.transaction import Transaction
from rmq_spark.errors import NotFoundError, PreconditionFailedError, RmqError
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.message import Message
from rmq_spark.proxy import wire
from rmq_spark.proxy.auth import source_ip
from rmq_spark.proxy.calls import Call, Right
from rmq_spark.proxy.incoming import Incoming, incoming, topic_name
from rmq_spark.proxy.metrics import Metrics
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.status import OK, Code, RefusedError, checked
from rmq_spark.proxy.topics import Directory
from rmq_spark.proxy.transactions import wire_id
from rmq_spark.proxy.workers import Batches, Workers
from rmq_spark.rules import recall_handle
from rmq_spark.rules.delay import DelaySettings
from rmq_spark.rules.message_checks import check_batch
from rmq_spark.rules.message_type import MessageType, check_type
from rmq_spark.rules.transaction import IMMUNITY_MS


@dataclass(frozen=True, slots=True)
class _Request:
    """Messages of one call, which land together."""

    messages: tuple[Message, ...]


class Sending:
    """Sends messages of clients."""

    def __init__(
        self, store: Store, settings: ProxySettings, workers: Workers, directory: Directory, metrics: Metrics
    ) -> None:
        self._store = store
        self._settings = settings
        self._workers = workers
        self._directory = directory
        self._metrics = metrics
        delay_max_ms = settings.delay_seconds_max * 1000 or store.settings.timer_max_delay_ms
        delays = DelaySettings(delay_max_ms=delay_max_ms or None)
        self._producer = Producer(store, auto_create=False, delays=delays)
        self._batches: Batches[_Request, list[SendResult]] = Batches(workers, self._land)
        self._waiting_bytes = 0

    async def send_message(self, call: Call, request: Any, context: Any) -> Any:
        """Store messages: one, or several that go to one queue."""
        if not request.messages:
            raise RefusedError(Code.BAD_REQUEST, "the request holds no message")
        now_ms = self._store.clock.now_ms()
        address = source_ip(call.peer)
        messages = [incoming(each, self._settings, now_ms, address) for each in request.messages]
        first = messages[0]
        topic = first.message.topic
        call.allow_topic(Right.PUB, topic)
        known = self._directory.known_topic(topic) or await self._directory.topic(topic)
        for each in messages:
            checked(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, check_type, topic, known.message_type, each.type)
        size = sum(len(each.message.body) for each in messages)
        if self._waiting_bytes + size > self._settings.waiting_bytes_max:
            raise RefusedError(Code.TOO_MANY_REQUESTS, "too many messages wait for their commit; try again later")
        self._waiting_bytes += size
        try:
            results = await self._send(messages)
        except NotFoundError as error:
            raise RefusedError(Code.TOPIC_NOT_FOUND, str(error)) from error
        finally:
            self._waiting_bytes -= size
        self._metrics.note_sent(topic, first.type, len(messages), size)
        response = wire.SendMessageResponse(status=OK)
        for result in results:
            response.entries.add(
                status=OK,
                message_id=result.msg_id,
                transaction_id=wire_id(result),
                offset=result.queue_offset or 0,
                recall_handle=result.recall_handle or "",
            )
        return response

    async def _send(self, messages: Sequence[Incoming]) -> list[SendResult]:
        if len(messages) > 1:
            if any(each.type is MessageType.TRANSACTION for each in messages):
                raise RefusedError(Code.BAD_REQUEST, "a transaction's message is sent alone, not in a batch")
            checked(Code.BAD_REQUEST, check_batch, [each.message for each in messages])
        elif messages[0].type is MessageType.TRANSACTION:
            return [await self._workers.run(self._send_half, messages[0])]
        return await self._batches.put(_Request(tuple(each.message for each in messages)))

    async def recall_message(self, call: Call, request: Any, context: Any) -> Any:
        """Keep a delayed message from being delivered."""
        topic = topic_name(request.topic)
        call.allow_topic(Right.PUB, topic)
        _, recalled = checked(Code.BAD_REQUEST, recall_handle.parse, request.recall_handle)
        if recalled.topic != topic:
            raise RefusedError(Code.BAD_REQUEST, "the recall handle is of another topic", topic=recalled.topic)
        try:
            await self._workers.run(recall, self._store, request.recall_handle)
        except PreconditionFailedError as error:
            raise RefusedError(Code.BAD_REQUEST, str(error)) from error
        return wire.RecallMessageResponse(status=OK, message_id=recalled.msg_id)

    # ------------------------------------------------------------ in a thread

    def _land(self, requests: Sequence[_Request]) -> list[list[SendResult] | BaseException]:
        """Store what several calls send, as one commit for each broker; a call that is wrong fails alone."""
        answers: list[list[SendResult] | BaseException] = [[] for _ in requests]
        by_broker: dict[str, list[tuple[int, Prepared]]] = {}
        for at, request in enumerate(requests):
            try:
                prepared = self._prepare(request.messages)
            except RmqError as error:
                answers[at] = error
            else:
                by_broker.setdefault(prepared.broker, []).append((at, prepared))
        for mine in by_broker.values():
            try:
                results = self._producer.land(_merged([prepared for _, prepared in mine]))
            except RmqError as error:
                for at, _ in mine:
                    answers[at] = error
                continue
            done = 0
            for at, prepared in mine:
                answers[at] = results[done : done + len(prepared.messages)]
                done += len(prepared.messages)
        return answers

    def _prepare(self, messages: tuple[Message, ...]) -> Prepared:
        prepared = self._producer.prepare(messages[:1])
        if len(messages) == 1:
            return prepared
        queue = prepared.queues[0]  # RocketMQ's batches go to one queue
        return self._producer.prepare([replace(each, queue_id=queue) for each in messages], prepared.broker)

    def _send_half(self, half: Incoming) -> SendResult:
        # Clients of the protocol have no producer group: whoever publishes to the topic is asked.
        immunity_ms = IMMUNITY_MS if half.immunity_ms is None else half.immunity_ms
        transaction = Transaction(self._store, half.message.topic, self._store.clock.token(), immunity_ms)
        return self._producer.send(half.message, transaction=transaction)


def _merged(parts: Sequence[Prepared]) -> Prepared:
    """What several calls send to one broker, as one."""
    if len(parts) == 1:
        return parts[0]
    rows = [row for part in parts for row in part.rows]
    return Prepared(
        tuple(message for part in parts for message in part.messages),
        parts[0].broker,
        [msg_id for part in parts for msg_id in part.ids],
        [queue for part in parts for queue in part.queues],
        rows,
        MessageBatch(list(rows)),
    )
