"""A proxy as a `QueueWorld`: clients that speak plain gRPC, and a proxy in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import grpc
from proxy_process import RawClient

from rmq_spark.client.consume_result import ConsumeResult
from rmq_spark.client.store import Store, append_records
from rmq_spark.client.stored_rows import received_messages
from rmq_spark.errors import NotFoundError, PreconditionFailedError
from rmq_spark.model.message import Message
from rmq_spark.proxy import Proxy, ProxySettings, wire
from rmq_spark.proxy.status import Code
from rmq_spark.rules import system_topics
from rmq_spark.rules.message_type import MessageType
from rmq_spark.rules.topics import GroupConfigs
from rmq_spark.rules.transaction import CheckSettings, TransactionState
from rmq_spark.services.revive import ReviveService
from rmq_spark.services.runner import ServiceRunner
from rmq_spark.services.timer import TimerService
from rmq_spark.services.transaction_check import TransactionCheckService
from rmq_spark.testing.queue_world import Feature, MessageKind, RealTimeQueue

IMMUNITY_MS = 500


class ProxyThread:
    """A proxy in a thread with an event loop of its own."""

    def __init__(self, store: Store, settings: ProxySettings, services: ServiceRunner) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._proxy = self._run(self._start(store, settings, services))
        self.address = f"127.0.0.1:{self._proxy.port}"

    @staticmethod
    async def _start(store: Store, settings: ProxySettings, services: ServiceRunner) -> Proxy:
        proxy = Proxy(store, settings, services=services)
        await proxy.start()
        return proxy

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._run(self._proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(eq=False)
class GrpcMessage:
    topic: str
    body: bytes
    tags: str | None
    keys: str | None
    properties: Mapping[str, str]
    msg_id: str
    delivery_attempt: int
    receipt: str


def received(message: Any) -> GrpcMessage:
    system = message.system_properties
    keys, properties = " ".join(system.keys) or None, dict(message.user_properties)
    handle = system.receipt_handle
    attempt = system.delivery_attempt
    return GrpcMessage(
        message.topic.name, message.body, system.tag or None, keys, properties, system.message_id, attempt, handle
    )


def refuse(status: Any) -> None:
    if status.code == Code.INVALID_RECEIPT_HANDLE:
        raise PreconditionFailedError(status.message)
    assert status.code == Code.OK, status


@dataclass(frozen=True)
class GrpcSent:
    msg_id: str
    topic: str
    recall_handle: str


class GrpcTransaction:
    def __init__(self, raw: RawClient) -> None:
        self._raw = raw
        self.topic, self.id = "", ""

    def commit(self) -> None:
        self.end(1)

    def rollback(self) -> None:
        self.end(2)

    def end(self, resolution: int) -> None:
        answer = self._raw.call(
            "EndTransaction", topic={"name": self.topic}, transaction_id=self.id, resolution=resolution
        )
        refuse(answer.status)


class GrpcProducer:
    """Sends; answers questions about transactions if it has a checker."""

    _ids = itertools.count()

    def __init__(self, address: str, client_id: str, checker: Callable[[Any], Any] | None) -> None:
        self._raw = RawClient(address, client_id)
        self._checker = checker
        self._commands: queue.Queue[Any] = queue.Queue()
        self._stream: Any = None
        self._topics: set[str] = set()

    def send(self, message: Message, *, transaction: GrpcTransaction | None = None) -> GrpcSent:
        if transaction is not None:
            self._publish(message.topic)
        [entry] = self._send([self._wire(message, transaction is not None)])
        if transaction is not None:
            transaction.topic, transaction.id = message.topic, entry.transaction_id
        return GrpcSent(entry.message_id, message.topic, entry.recall_handle)

    def send_batch(self, messages: Sequence[Message]) -> list[GrpcSent]:
        entries = self._send([self._wire(message, False) for message in messages])
        return [GrpcSent(each.message_id, messages[0].topic, "") for each in entries]

    def begin_transaction(self) -> GrpcTransaction:
        return GrpcTransaction(self._raw)

    def recall(self, sent: GrpcSent) -> None:
        answer = self._raw.call("RecallMessage", topic={"name": sent.topic}, recall_handle=sent.recall_handle)
        refuse(answer.status)

    def close(self) -> None:
        if self._stream is not None:
            self._commands.put(None)
            self._stream.cancel()
            self._thread.join()
        self._raw.close()

    def _send(self, messages: list[Any]) -> Any:
        answer = self._raw.call("SendMessage", messages=messages)
        refuse(answer.status)
        return answer.entries

    def _wire(self, message: Message, in_transaction: bool) -> Any:
        made = wire.Message(body=message.body, user_properties=message.properties)
        made.topic.name = message.topic
        system = made.system_properties
        system.message_id = f"{id(self):x}-{next(self._ids)}"
        system.body_encoding = 1
        system.message_type = 4 if in_transaction else 3 if message.is_delayed else 2 if message.sharding_key else 1
        if message.tags:
            system.tag = message.tags
        system.keys.extend((message.keys_text() or "").split())
        if message.sharding_key:
            system.message_group = message.sharding_key
        due = message.deliver_ms(time.time_ns() // 1_000_000)
        if due is not None:
            system.delivery_timestamp.FromMilliseconds(due)
        if in_transaction:
            system.orphaned_transaction_recovery_duration.FromMilliseconds(IMMUNITY_MS)
        return made

    def _publish(self, topic: str) -> None:
        self._topics.add(topic)
        topics = [{"name": each} for each in sorted(self._topics)]
        self._commands.put(wire.TelemetryCommand(settings={"client_type": 1, "publishing": {"topics": topics}}))
        if self._stream is None:
            self._stream = self._raw.telemetry(iter(self._commands.get, None))
            assert next(self._stream).status.code == Code.OK
            self._thread = threading.Thread(target=self._answer)
            self._thread.start()

    def _answer(self) -> None:
        try:
            for command in self._stream:
                if command.HasField("recover_orphaned_transaction_command") and self._checker is not None:
                    asked = command.recover_orphaned_transaction_command
                    state = self._checker(received(asked.message))
                    if state is not TransactionState.UNKNOWN:
                        ended = GrpcTransaction(self._raw)
                        ended.topic, ended.id = asked.message.topic.name, asked.transaction_id
                        ended.end(1 if state is TransactionState.COMMIT else 2)
        except grpc.RpcError:
            return  # the producer was closed


class GrpcSimpleConsumer:
    auto_renew = False

    def __init__(self, address: str, client_id: str, group: str, topic: str, expression: Any) -> None:
        self._raw = RawClient(address, client_id)
        self._names = {"group": {"name": group}, "topic": {"name": topic}}
        self._expression = expression

    def receive(
        self, max_messages: int = 32, invisible_duration: float = 30.0, await_duration: float = 15.0
    ) -> list[GrpcMessage]:
        answers = self._raw.call(
            "ReceiveMessage",
            group=self._names["group"],
            message_queue={"topic": self._names["topic"], "id": -1, "broker": {"name": "broker-0"}},
            filter_expression=self._expression,
            batch_size=max_messages,
            invisible_duration={"seconds": int(invisible_duration)},
            long_polling_timeout={"nanos": int(await_duration * 1e9) % 10**9, "seconds": int(await_duration)},
            auto_renew=self.auto_renew,
        )
        if answers[0].status.code != Code.MESSAGE_NOT_FOUND:
            refuse(answers[0].status)
        return [received(each.message) for each in answers if each.HasField("message")]

    def ack(self, message: GrpcMessage) -> None:
        entry = {"message_id": message.msg_id, "receipt_handle": message.receipt}
        refuse(self._raw.call("AckMessage", **self._names, entries=[entry]).status)

    def change_invisible_duration(self, message: GrpcMessage, duration: float) -> GrpcMessage:
        answer = self._raw.call(
            "ChangeInvisibleDuration",
            **self._names,
            receipt_handle=message.receipt,
            invisible_duration={"seconds": int(duration)},
        )
        refuse(answer.status)
        message.receipt = answer.receipt_handle
        return message

    def close(self) -> None:
        self._raw.close()


class GrpcPushConsumer(GrpcSimpleConsumer):
    """One thread that receives, listens and settles, one message after the other."""

    auto_renew = True

    def __init__(self, handle: Callable[[Any], Any], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._handle = handle
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self.receive(1, 0, 0.2):
                try:
                    failed = self._handle(message) is ConsumeResult.FAILURE
                except RuntimeError:
                    failed = True
                if failed:
                    self.change_invisible_duration(message, 1)
                else:
                    self.ack(message)

    def close(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            super().close()


class GrpcQueue(RealTimeQueue):
    """Clients of a proxy on a store; time is real."""

    lacks: ClassVar[frozenset[Feature]] = RealTimeQueue.lacks | {
        Feature.START_POSITIONS,
        Feature.BROADCASTING,
        Feature.WIDE_TRANSACTIONS,
        Feature.DELAY_LEVELS,
    }

    def __init__(self, store: Store) -> None:
        self.store = store
        checks = TransactionCheckService(store, CheckSettings(interval_ms=500))
        services = ServiceRunner([TimerService(store), ReviveService(store), checks], store.clock)
        settings = ProxySettings(listen="127.0.0.1:0", invisible_seconds_min=1.0)
        self._proxy = ProxyThread(store, settings, services)
        self._closers: list[Callable[[], object]] = []
        self._numbers = itertools.count()

    def create_topic(self, name: str, *, queues: int = 2, kind: MessageKind = MessageKind.NORMAL) -> None:
        self.store.create_topic(name, queues=queues, message_type=MessageType(kind.value))

    def set_group(self, name: str, *, fifo: bool = False, retry_max_times: int = 16) -> None:
        config = {"group": name, "consumeMessageOrderly": fifo, "retryMaxTimes": retry_max_times}
        append_records(self.store.nameserver, GroupConfigs, config)

    def producer(self, *, checker: Callable[[Any], Any] | None = None) -> GrpcProducer:
        made = GrpcProducer(self._proxy.address, self._client_id(), checker)
        self._closers.append(made.close)
        return made

    def simple_consumer(
        self, group: str, topic: str, *, tags: str | None = None, sql: str | None = None, consume_from: Any = "latest"
    ) -> GrpcSimpleConsumer:
        made = GrpcSimpleConsumer(self._proxy.address, self._client_id(), group, topic, _expression(tags, sql))
        self._closers.append(made.close)
        return made

    def push_consumer(
        self,
        group: str,
        topic: str,
        handle: Callable[[Any], Any],
        *,
        tags: str | None = None,
        sql: str | None = None,
        orderly: bool = False,
        broadcasting: bool = False,
        consume_from: Any = "latest",
    ) -> GrpcPushConsumer:
        made = GrpcPushConsumer(handle, self._proxy.address, self._client_id(), group, topic, _expression(tags, sql))
        self._closers.append(made.close)
        return made

    def dead_letters(self, group: str) -> list[Any]:
        topic = system_topics.dlq_topic(group)
        try:
            table = self.store.read(topic)
        except NotFoundError:
            return []
        return [message for batch in table.to_batches() for message in received_messages(batch, topic)]

    def close(self) -> None:
        for close in reversed(self._closers):
            close()
        self._proxy.close()

    def _client_id(self) -> str:
        return f"client-{next(self._numbers)}"


def _expression(tags: str | None, sql: str | None) -> dict[str, Any]:
    return {"type": 2, "expression": sql} if sql is not None else {"type": 1, "expression": tags or "*"}
