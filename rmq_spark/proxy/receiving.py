"""ReceiveMessage: claims messages, or waits for some."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rmq_spark.client.pop_broker import PopBroker, Source, Taken
from rmq_spark.client.pop_sources import QueueSources, queues_in_turn, rotated
from rmq_spark.client.store import Store, Topic
from rmq_spark.client.subscription import Subscription, subscription
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.proxy import wire
from rmq_spark.proxy.auto_renew import AutoRenew
from rmq_spark.proxy.calls import Call, Right
from rmq_spark.proxy.clients import Clients
from rmq_spark.proxy.incoming import duration_ms, group_name, topic_name
from rmq_spark.proxy.log_watch import LogWatch, Queues
from rmq_spark.proxy.metrics import Metrics
from rmq_spark.proxy.outgoing import outgoing, set_ms
from rmq_spark.proxy.pop import Pop
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.status import OK, Code, RefusedError, checked
from rmq_spark.proxy.topics import Directory
from rmq_spark.proxy.wire import FilterType
from rmq_spark.proxy.workers import Workers
from rmq_spark.rules.pop_decisions import INVISIBLE_MS_MAX, RECEIVE_MAX, Fifo
from rmq_spark.rules.receipt import parse_receipt

DEADLINE_MARGIN_SECONDS: Final = 0.3
"""A receive answers so long before its caller's deadline."""
EMPTY: Final = wire.Status(code=Code.MESSAGE_NOT_FOUND, message="no message; receive again")
SUBSCRIPTIONS_KNOWN_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks to receive."""

    call: Call
    group: str
    topic: Topic
    broker: str
    queue: int | None
    """One queue of a FIFO group; None: all of the broker."""
    wanted: Subscription
    count: int
    invisible_ms: int
    auto_renew: bool
    fifo: Fifo | None
    seconds: float
    """How long to wait."""


class Watches:
    """One `LogWatch` a broker, made when first needed. Used from one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watches: dict[str, LogWatch] = {}
        self._stopped = False

    def of(self, broker: str) -> LogWatch:
        """What wakes those who wait for messages of a broker."""
        known = self._watches.get(broker)
        if known is None:
            known = self._watches[broker] = LogWatch(self._store.log(broker))
            if self._stopped:
                known.stop()  # a receive that was under way comes to wait when nobody shall any more
        return known

    def stop(self) -> None:
        """Wake everybody who waits; nobody can wait any more."""
        self._stopped = True
        for each in self._watches.values():
            each.stop()

    def join(self) -> None:
        """Wait for the threads, after `stop`."""
        for each in self._watches.values():
            each.join()


class Receiving:
    """Gives messages to clients."""

    def __init__(
        self,
        store: Store,
        settings: ProxySettings,
        *,
        workers: Workers,
        directory: Directory,
        clients: Clients,
        pop: Pop,
        watches: Watches,
        renew: AutoRenew,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._settings = settings
        self._workers = workers
        self._directory = directory
        self._clients = clients
        self._pop = pop
        self._watches = watches
        self._renew = renew
        self._metrics = metrics
        self._turns = itertools.count(int(store.clock.token()[-8:], 16))
        self._compiled: dict[tuple[int, str], Subscription] = {}

    async def receive_message(self, call: Call, request: Any, context: Any) -> AsyncIterator[Any]:
        """A status, the messages, and when they were handed over."""
        ask = await self._ask(call, request, context)
        if ask.auto_renew:
            self._clients.join(call.client_id, call.user)  # who cannot be kept messages for claims none
        else:
            self._clients.heard(call.client_id, call.user)
        messages = await self._receive(ask)
        if not messages:
            yield wire.ReceiveMessageResponse(status=EMPTY)
            return
        if ask.auto_renew:
            # Before the client has them: if it goes meanwhile they are given back. It may have gone while it waited.
            self._clients.join(call.client_id, call.user)
            self._renew.keep(call.client_id, ask.group, messages)
        size = sum(len(message.body) for message in messages)
        self._metrics.note_received(ask.topic.name, ask.group, len(messages), size)
        call.facts["messages"] = len(messages)
        yield wire.ReceiveMessageResponse(status=OK)
        topic = request.message_queue.topic
        for message in messages:
            yield wire.ReceiveMessageResponse(message=outgoing(message, topic, invisible_ms=ask.invisible_ms))
        last = wire.ReceiveMessageResponse()
        set_ms(last.delivery_timestamp, self._store.clock.now_ms())
        yield last

    # ------------------------------------------------------------ the request

    async def _ask(self, call: Call, request: Any, context: Any) -> Ask:
        group = group_name(request.group)
        name = topic_name(request.message_queue.topic)
        call.allow_topic(Right.SUB, name)
        call.allow_group(group)
        topic = self._directory.known_topic(name) or await self._directory.topic(name)
        if not topic.is_readable:
            raise RefusedError(Code.FORBIDDEN, "the topic may not be read", topic=name)
        group_settings = await self._directory.group(group)
        wanted = self.subscription(name, request.filter_expression)
        broker, queue = self._place(topic, request.message_queue)
        orderly = group_settings.orderly
        attempt = request.attempt_id if request.HasField("attempt_id") else None
        return Ask(
            call=call,
            group=group,
            topic=topic,
            broker=broker,
            # A simple consumer names a queue of the route, but receives from all of its broker, as in RocketMQ.
            queue=queue if orderly and request.auto_renew and queue >= 0 else None,
            wanted=wanted,
            count=min(request.batch_size, RECEIVE_MAX),
            invisible_ms=self._invisible_ms(request),
            auto_renew=request.auto_renew,
            fifo=Fifo(attempt_id=attempt, retry_max_times=group_settings.retry_max_times) if orderly else None,
            seconds=self._seconds(request, context),
        )

    def _place(self, topic: Topic, queue: Any) -> tuple[str, int]:
        broker = queue.broker.name or rotated(sorted(topic.queues), next(self._turns))[0]
        if broker not in topic.queues:
            raise RefusedError(Code.NOT_FOUND, "the topic has no queues on this broker", broker=broker)
        if queue.id >= topic.queues[broker]:
            raise RefusedError(Code.NOT_FOUND, "the topic has no such queue", broker=broker, queue=queue.id)
        return broker, queue.id

    def subscription(self, topic: str, expression: Any) -> Subscription:
        """The compiled filter of a request.

        Raises:
            RefusedError: it cannot be read.
        """
        kind, text = int(expression.type), expression.expression
        known = self._compiled.get((kind, text))
        if known is None:
            if kind == FilterType.SQL:
                known = checked(Code.ILLEGAL_FILTER_EXPRESSION, subscription, topic, None, text)
            elif kind in (FilterType.TAG, FilterType.UNSPECIFIED):
                known = checked(Code.ILLEGAL_FILTER_EXPRESSION, subscription, topic, text.strip() or "*", None)
            else:
                raise RefusedError(Code.ILLEGAL_FILTER_EXPRESSION, "unknown kind of filter", type=kind)
            if len(self._compiled) >= SUBSCRIPTIONS_KNOWN_MAX:
                self._compiled.clear()
            self._compiled[kind, text] = known
        return known

    def _invisible_ms(self, request: Any) -> int:
        if request.auto_renew:
            return round(self._settings.renew_invisible_seconds * 1000)
        asked = duration_ms(request.invisible_duration)
        least = round(self._settings.invisible_seconds_min * 1000)
        if not least <= asked <= INVISIBLE_MS_MAX:
            raise RefusedError(
                Code.ILLEGAL_INVISIBLE_TIME,
                "invisible time is too short or too long",
                ms=asked,
                least_ms=least,
                most_ms=INVISIBLE_MS_MAX,
            )
        return asked

    def _seconds(self, request: Any, context: Any) -> float:
        seconds = self._settings.poll_seconds_max
        if request.HasField("long_polling_timeout"):
            asked = duration_ms(request.long_polling_timeout) / 1000
            if asked < 0:
                raise RefusedError(Code.ILLEGAL_POLLING_TIME, "long polling time is negative", seconds=asked)
            seconds = min(seconds, asked)
        left = context.time_remaining()
        return seconds if left is None else max(0.0, min(seconds, left - DEADLINE_MARGIN_SECONDS))

    # ------------------------------------------------------------ receiving

    async def _receive(self, ask: Ask) -> list[StoredMessage]:
        if ask.count <= 0:
            return []
        reader = self._pop.known(ask.group, ask.broker)
        if reader is None:
            reader = await self._workers.run(self._pop.reader, ask.group, ask.broker)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ask.seconds
        while True:
            sources = self._sources(ask)
            taken = await self._try(ask, reader, sources)
            if taken.messages:
                return taken.messages
            if taken.again:
                continue
            left = deadline - loop.time()
            if left <= 0:
                return []
            if not await self._wait(ask, taken, sources, left):
                return []

    def _sources(self, ask: Ask) -> list[Source]:
        sources = QueueSources()
        queues = queues_in_turn(ask.topic, ask.broker, next(self._turns)) if ask.queue is None else [ask.queue]
        sources.add(ask.group, ask.topic.name, queues, ask.wanted)
        return sources.in_turn(self._store.clock)

    async def _try(self, ask: Ask, reader: PopBroker, sources: Sequence[Source]) -> Taken:
        running = self._workers.run(
            reader.receive,
            sources,
            count=ask.count,
            invisible_ms=ask.invisible_ms,
            fifo=ask.fifo,
            consumer=ask.call.client_id,
        )
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # The client has gone, and what is claimed for it meanwhile is not for it any more.
            running.add_done_callback(lambda done: self._return_unseen(ask, done))
            raise

    def _return_unseen(self, ask: Ask, done: asyncio.Future[Taken]) -> None:
        if done.cancelled() or done.exception() is not None or not done.result().messages:
            return
        held = []
        for message in done.result().messages:
            if message.receipt is not None:
                receipt = parse_receipt(message.receipt)
                held.append((ask.group, receipt.real_topic(ask.group, message.topic), receipt))
        returning = self._workers.run(self._pop.change, held, 0, ask.call.client_id)
        returning.add_done_callback(lambda each: each.exception())  # else they come back when their time is over

    async def _wait(self, ask: Ask, taken: Taken, sources: Sequence[Source], seconds: float) -> bool:
        """Wait for messages; False when the time is over or the proxy stops."""
        watch = self._watches.of(ask.broker)
        if ask.fifo is None:
            queues: Queues = tuple(sorted((source.topic, source.queue) for source in sources))
            return await watch.wait(queues, taken.queue_ends, seconds)
        # In order: an acknowledgement, or the end of an invisible time, frees a queue as well.
        limit = seconds if taken.wait_ms is None else min(seconds, max(taken.wait_ms, 1) / 1000)
        return await watch.wait((), taken.log_end, limit) or (limit < seconds and not watch.stopped)
