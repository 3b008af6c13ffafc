"""SimpleConsumer: receive, acknowledge, change the invisible time. Any number of consumers share every queue."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final

from rmq_spark.client.group_settings import GroupSettings, group_settings
from rmq_spark.client.pop_broker import PopBroker, Source, Taken
from rmq_spark.client.pop_sources import QueueSources, rotated
from rmq_spark.client.store import Store, Topic
from rmq_spark.client.subscription import Subscription, subscription
from rmq_spark.errors import ClosedError, InvalidRequestError, PreconditionFailedError
from rmq_spark.model import names, times
from rmq_spark.model.message_id import own_address
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules.pop_decisions import RECEIVE_MAX, AckStatus, Fifo
from rmq_spark.rules.receipt import Receipt, parse_receipt
from rmq_spark.rules.start_offset import ConsumeFrom

ROUTE_SECONDS: Final = 30
"""How long queues of topics and settings of the group are remembered, as RocketMQ's clients poll routes."""
INVISIBLE_MS_MAX: Final = 12 * 3_600_000
"""Longest time that a message may be held, as in RocketMQ."""
WAIT_SECONDS: Final = 0.5
"""So long a receive waits before it looks whether the consumer was closed."""
BROKER_WAIT_SECONDS: Final = 0.05
"""Of several brokers it waits for one after the other, so long for each."""

Duration = timedelta | float
"""Seconds or a `timedelta`."""


@dataclass(frozen=True, slots=True)
class _Routes:
    """What is remembered for a while."""

    at_ns: int
    topics: tuple[Topic, ...]
    settings: GroupSettings

    def brokers(self) -> list[str]:
        return sorted({broker for topic in self.topics for broker in topic.queues})


class SimpleConsumer:
    """Receives messages one batch at a time. Safe to use from many threads; close it, or use it as a context manager.

    A message that was received is invisible to the other consumers of the group for a time. If it is not acknowledged
    by then, it comes back through the group's retry topic, with one more `reconsume_times`; after the group's maximum
    (16) it goes to `%DLQ%group`. Some process must run `ReviveService` for that. A group whose settings say
    `consumeMessageOrderly` receives the messages of a queue in order: one batch at a time, and again from the first
    message that was not acknowledged.

    Args:
        store: an open store.
        group: the consumer group.
        consume_from: where a group starts in queues that it has no offset of: `latest`, `earliest`, or a time.

    Raises (on making):
        InvalidRequestError: an illegal name or time.
    """

    def __init__(self, store: Store, group: str, *, consume_from: str | int | datetime = "latest") -> None:
        self._store = store
        self._group = names.check_group(group)
        self._clock = store.clock
        self._consume_from = _consume_from(consume_from, self._clock.now_ms())
        self._pid = os.getpid()
        token = self._clock.token()
        self._consumer = f"{own_address()}@{self._pid}@{token[-8:]}"
        self._turns = itertools.count(int(token[-8:], 16))
        self._lock = threading.Lock()
        self._closed = False
        self._subscriptions: dict[str, Subscription] = {}
        self._brokers: dict[str, PopBroker] = {}
        self._routes: _Routes | None = None
        self._attempt: str | None = None
        """FIFO: the receive whose outcome is not known; the next one takes its place."""

    @property
    def consumer_id(self) -> str:
        """How tools see this consumer."""
        return self._consumer

    # ------------------------------------------------------------ subscriptions

    def subscribe(self, topic: str, *, tags: str | None = None, sql: str | None = None) -> SimpleConsumer:
        """Receive messages of `topic`, too: all, those with one of some tags (`"a || b"`), or those that match SQL92.

        The last call for a topic counts. All consumers of a group must subscribe alike: what one of them does not want
        is passed over for all.

        Raises:
            NotFoundError: there is no such topic.
            InvalidRequestError: both filters are given, or one cannot be read.
            ClosedError: the consumer was closed, or made before a fork.
        """
        self._check_open()
        wanted = subscription(topic, tags, sql)
        self._store.topic(topic)
        with self._lock:
            self._subscriptions[topic] = wanted
            self._routes = None
        return self

    def unsubscribe(self, topic: str) -> None:
        """Receive messages of `topic` no longer. Those that are held can still be acknowledged."""
        self._check_open()
        with self._lock:
            self._subscriptions.pop(topic, None)
            self._routes = None

    # ------------------------------------------------------------ receiving

    def receive(
        self,
        max_messages: int = RECEIVE_MAX,
        invisible_duration: Duration = 30.0,
        await_duration: Duration = 15.0,
    ) -> list[ReceivedMessage]:
        """Return up to `max_messages` messages that nobody else gets for `invisible_duration`.

        Waits up to `await_duration` for the first one, then returns what there is. Topics, queues and brokers take
        turns.

        Args:
            max_messages: 1 to 32.
            invisible_duration: seconds or `timedelta`; at most 12 hours.
            await_duration: seconds or `timedelta`; 0 does not wait.

        Raises:
            InvalidRequestError: an argument is out of bounds, or nothing is subscribed.
            ClosedError: the consumer was closed, or made before a fork.
            RmqError: as `CommitLog.decide`. After `OutcomeUnknownError` messages may be held that were not returned;
                they come back when their time is over, those of a FIFO group with the next receive.
        """
        if isinstance(max_messages, bool) or not 1 <= max_messages <= RECEIVE_MAX:
            raise InvalidRequestError("max_messages is 1 to 32", max_messages=max_messages)
        invisible_ms = _invisible_ms(invisible_duration)
        await_ms = times.duration_ms(await_duration, "await_duration")
        if await_ms < 0:
            raise InvalidRequestError("await_duration is 0 or more", await_duration=await_duration)
        deadline = self._clock.elapsed_ns() + await_ms * 1_000_000
        while True:
            self._check_open()
            routes = self._route()
            taken = self._try_brokers(routes, max_messages, invisible_ms)
            for each in taken.values():
                if each.messages:
                    return each.messages
            if any(each.again for each in taken.values()):
                continue
            left = (deadline - self._clock.elapsed_ns()) / 1_000_000_000
            if left <= 0:
                return []
            self._wait(taken, left)

    def _try_brokers(self, routes: _Routes, count: int, invisible_ms: int) -> dict[str, Taken]:
        """Try one broker after the other until one gives messages."""
        fifo = None
        if routes.settings.orderly:
            attempt, self._attempt = self._attempt or self._clock.token(), None
            fifo = Fifo(attempt_id=attempt, retry_max_times=routes.settings.retry_max_times)
        turn = next(self._turns)
        brokers = rotated(routes.brokers(), turn)
        taken: dict[str, Taken] = {}
        for broker in brokers:
            sources = self._sources(routes, broker, turn // max(1, len(brokers)))
            try:
                taken[broker] = self._broker(broker).receive(sources, count=count, invisible_ms=invisible_ms, fifo=fifo)
            except BaseException:
                self._attempt = None if fifo is None else fifo.attempt_id
                raise
            if taken[broker].messages:
                break
        return taken

    def _sources(self, routes: _Routes, broker: str, turn: int) -> list[Source]:
        """The queues to look at on a broker, in this turn's order."""
        found = QueueSources()
        for topic in rotated(routes.topics, turn):
            subscribed = self._subscriptions.get(topic.name)
            queues = topic.queues.get(broker, 0)
            if subscribed is not None and queues:
                order = rotated(range(queues), turn // len(routes.topics))
                found.add(self._group, topic.name, order, subscribed, orderly=routes.settings.orderly)
        return found.in_turn(self._clock)

    def _wait(self, taken: dict[str, Taken], seconds: float) -> None:
        """Wait until one of the logs has grown since it was looked at, or a FIFO queue may be free; not for long."""
        waits = [each.wait_ms / 1000 for each in taken.values() if each.wait_ms is not None]
        limit = min(seconds, WAIT_SECONDS, *waits)
        if not taken:
            self._clock.sleep(limit)  # every topic is deleted
        for broker, each in taken.items():
            pause = limit if len(taken) == 1 else min(limit, BROKER_WAIT_SECONDS)
            if self._broker(broker).log.wait(each.log_end, pause):
                return

    # ------------------------------------------------------------ settling

    def ack(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Acknowledge one message or several, which is one commit a broker: they are not delivered again.

        Doing it again within its time changes nothing. A message whose time is over can be acknowledged until it was
        given back; after that nobody can tell it from one that was acknowledged before.

        Raises:
            InvalidRequestError: a message was not received by a SimpleConsumer; nothing was acknowledged.
            PreconditionFailedError: some receipts do not count any more: the messages were given back to the group, or
                have a newer receipt. The others are acknowledged. The error names the ids.
            ClosedError: the consumer was closed, or made before a fork.
            RmqError: as `CommitLog.decide`; acknowledge them again.
        """
        self._check_open()
        given = [messages] if isinstance(messages, ReceivedMessage) else list(messages)
        by_broker: dict[str, list[tuple[ReceivedMessage, Receipt]]] = {}
        for message in given:
            receipt = _receipt(message)
            by_broker.setdefault(receipt.broker, []).append((message, receipt))
        bad: dict[str, list[str]] = {}
        for broker, mine in by_broker.items():
            receipts = [(receipt.real_topic(self._group, message.topic), receipt) for message, receipt in mine]
            for (message, _), status in zip(mine, self._broker(broker).ack(receipts), strict=True):
                if status not in (AckStatus.OK, AckStatus.NOT_HELD):
                    bad.setdefault(status.value, []).append(message.msg_id)
        if bad:
            raise PreconditionFailedError(_NO_LONGER, group=self._group, **bad)

    def change_invisible_duration(self, message: ReceivedMessage, duration: Duration) -> ReceivedMessage:
        """Let `message` be visible to others `duration` from now on; short to give it back soon, long to keep it.

        The message gets a new receipt, and the old one stops working: a copy of the message that was made before cannot
        be acknowledged. Returns `message`.

        Raises:
            InvalidRequestError: not a duration up to 12 hours, or not a message that was received.
            PreconditionFailedError: the message is not held by this receipt any more.
            ClosedError: the consumer was closed, or made before a fork.
            RmqError: as `CommitLog.decide`; change it again.
        """
        self._check_open()
        invisible_ms = _invisible_ms(duration)
        receipt = _receipt(message)
        changed = self._broker(receipt.broker).change_invisible(
            receipt.real_topic(self._group, message.topic), receipt, invisible_ms
        )
        if changed.claim is None:
            raise PreconditionFailedError(_NO_LONGER, group=self._group, **{changed.status.value: [message.msg_id]})
        renewed = replace(
            receipt,
            start_offset=changed.claim.start,
            pop_ms=changed.claim.pop_ms,
            invisible_ms=changed.claim.invisible_ms,
        )
        # In place, as RocketMQ's clients do: whoever acknowledges the message later means the newest receipt (rule 31).
        object.__setattr__(message, "receipt", renewed.to_text())
        return message

    # ------------------------------------------------------------ life

    def close(self) -> None:
        """End this consumer. What it holds comes back when its time is over; a receive that waits raises soon."""
        self._closed = True

    def __enter__(self) -> SimpleConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed; make a new one", group=self._group)
        if os.getpid() != self._pid:
            raise ClosedError(
                "the consumer was made before a fork; open the store and make a consumer in this process",
                group=self._group,
            )

    def _broker(self, name: str) -> PopBroker:
        with self._lock:
            known = self._brokers.get(name)
            if known is None:
                known = self._brokers[name] = PopBroker(
                    self._store, self._group, name, consumer=self._consumer, consume_from=self._consume_from
                )
            return known

    def _route(self) -> _Routes:
        now = self._clock.elapsed_ns()
        routes = self._routes
        if routes is not None and now - routes.at_ns < ROUTE_SECONDS * 1_000_000_000:
            return routes
        with self._lock:
            subscribed = sorted(self._subscriptions)
        if not subscribed:
            raise InvalidRequestError("nothing is subscribed; subscribe to a topic first", group=self._group)
        topics = [topic for name in subscribed if (topic := self._store.find_topic(name)) is not None]
        self._routes = routes = _Routes(now, tuple(topics), group_settings(self._store, self._group))
        return routes


_NO_LONGER: Final = "receipts do not count any more; the messages come again, or have a newer receipt"


def _consume_from(value: str | int | datetime, now_ms: int) -> ConsumeFrom | int:
    if isinstance(value, str) and value in ("latest", "earliest"):
        return ConsumeFrom(value)
    return times.time_ms(value, "consume_from", now_ms)


def _invisible_ms(duration: Duration) -> int:
    invisible_ms = times.duration_ms(duration, "invisible_duration")
    if not 0 < invisible_ms <= INVISIBLE_MS_MAX:
        raise InvalidRequestError("an invisible duration is over 0 and up to 12 hours", duration=duration)
    return invisible_ms


def _receipt(message: ReceivedMessage) -> Receipt:
    if not isinstance(message, ReceivedMessage) or message.receipt is None:
        raise InvalidRequestError(
            "message has no receipt; pass one that a SimpleConsumer has received", type=type(message).__name__
        )
    return parse_receipt(message.receipt)
