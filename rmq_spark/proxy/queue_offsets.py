"""PullMessage, UpdateOffset, GetOffset, QueryOffset: queues by offset, which RocketMQ's own proxy leaves out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import received_messages
from rmq_spark.client.subscription import Subscription
from rmq_spark.client.time_search import QueueKey, QueueTimes
from rmq_spark.log.queue_reader import QueueRead, read_queue
from rmq_spark.proxy import wire
from rmq_spark.proxy.calls import Call, Right
from rmq_spark.proxy.incoming import duration_ms, group_name, topic_name
from rmq_spark.proxy.metrics import Metrics
from rmq_spark.proxy.outgoing import outgoing
from rmq_spark.proxy.receiving import EMPTY, Receiving, Watches
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.status import OK, Code, RefusedError
from rmq_spark.proxy.topics import Directory
from rmq_spark.proxy.wire import OffsetPolicy
from rmq_spark.proxy.workers import Workers
from rmq_spark.rules.offsets import MAX_OFFSET

TIME_MS_MAX: Final = 1 << 53
PULL_MAX: Final = 1_024
"""Messages of one pull."""


class QueueOffsets:
    """Reads queues by offset, and keeps offsets of groups."""

    def __init__(
        self,
        store: Store,
        settings: ProxySettings,
        *,
        workers: Workers,
        directory: Directory,
        receiving: Receiving,
        watches: Watches,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._settings = settings
        self._workers = workers
        self._directory = directory
        self._receiving = receiving
        self._watches = watches
        self._metrics = metrics
        self._offsets = GroupOffsets(store)
        self._times = QueueTimes(store)

    async def pull_message(self, call: Call, request: Any, context: Any) -> AsyncIterator[Any]:
        """A status, the messages from an offset on that match, and where to go on."""
        group = group_name(request.group)
        call.allow_group(group)
        topic, broker, queue = await self._queue(call, request.message_queue)
        if not 0 <= request.offset <= MAX_OFFSET:
            raise RefusedError(Code.ILLEGAL_OFFSET, "an offset is 0 or more", offset=request.offset)
        if not 1 <= request.batch_size <= PULL_MAX:
            raise RefusedError(Code.BAD_REQUEST, "pull 1 to 1024 messages", batch_size=request.batch_size)
        wanted = self._receiving.subscription(topic, request.filter_expression)
        loop = asyncio.get_running_loop()
        asked = duration_ms(request.long_polling_timeout) / 1000
        deadline = loop.time() + min(max(asked, 0.0), self._settings.poll_seconds_max)
        while True:
            read = await self._workers.run(self._read, request, (topic, broker, queue), wanted)
            left = deadline - loop.time()
            if read.next_offset > request.offset or left <= 0:
                break
            if not await self._watches.of(broker).wait(((topic, queue),), read.end, left):
                break
        messages = received_messages(read.messages, topic)
        if not messages:
            yield wire.PullMessageResponse(status=EMPTY)
        else:
            size = sum(len(message.body) for message in messages)
            self._metrics.note_received(topic, group, len(messages), size)
            yield wire.PullMessageResponse(status=OK)
        for message in messages:
            yield wire.PullMessageResponse(message=outgoing(message, request.message_queue.topic))
        yield wire.PullMessageResponse(next_offset=read.next_offset)

    async def update_offset(self, call: Call, request: Any, context: Any) -> Any:
        """Note where a group goes on in a queue."""
        group = group_name(request.group)
        call.allow_group(group)
        key = await self._queue(call, request.message_queue)
        if not 0 <= request.offset <= MAX_OFFSET:
            raise RefusedError(Code.ILLEGAL_OFFSET, "an offset is 0 or more", offset=request.offset)
        await self._workers.run(self._offsets.commit, group, {key: request.offset}, member=call.client_id)
        return wire.UpdateOffsetResponse(status=OK)

    async def get_offset(self, call: Call, request: Any, context: Any) -> Any:
        """Where a group goes on in a queue."""
        group = group_name(request.group)
        call.allow_group(group)
        key = await self._queue(call, request.message_queue)
        offset = (await self._workers.run(self._offsets.committed, group)).get(key)
        if offset is None:
            raise RefusedError(Code.OFFSET_NOT_FOUND, "the group has no offset of this queue", group=group)
        return wire.GetOffsetResponse(status=OK, offset=offset)

    async def query_offset(self, call: Call, request: Any, context: Any) -> Any:
        """The first offset of a queue, its end, or the one of a time."""
        key = await self._queue(call, request.message_queue)
        policy = int(request.query_offset_policy)
        if policy not in list(OffsetPolicy):
            raise RefusedError(Code.BAD_REQUEST, "unknown offset policy", policy=policy)
        ms = duration_ms(request.timestamp)
        if policy == OffsetPolicy.TIMESTAMP and not (request.HasField("timestamp") and 0 <= ms < TIME_MS_MAX):
            raise RefusedError(Code.BAD_REQUEST, "the policy needs a time", ms=ms)
        offset = await self._workers.run(self._find, key, OffsetPolicy(policy), ms)
        return wire.QueryOffsetResponse(status=OK, offset=offset)

    async def _queue(self, call: Call, queue: Any) -> QueueKey:
        name = topic_name(queue.topic)
        call.allow_topic(Right.SUB, name)
        topic = await self._directory.topic(name)
        broker = queue.broker.name or min(topic.queues)
        if not 0 <= queue.id < topic.queues.get(broker, 0):
            raise RefusedError(Code.NOT_FOUND, "the topic has no such queue", broker=broker, queue=queue.id)
        return name, broker, queue.id

    # ------------------------------------------------------------ in a thread

    def _read(self, request: Any, key: QueueKey, wanted: Subscription) -> QueueRead:
        topic, broker, queue = key
        log = self._store.log(broker)
        return read_queue(log, topic, queue, request.offset, rows_max=request.batch_size, wanted=wanted.wanted)

    def _find(self, key: QueueKey, policy: OffsetPolicy, ms: int) -> int:
        topic, broker, queue = key
        if policy is OffsetPolicy.TIMESTAMP:
            return self._times.search_queues([key], ms)[key]
        first, end = self._store.log(broker).look(lambda view: view.state.queues.bounds(topic, queue))
        return first if policy is OffsetPolicy.BEGINNING else end
