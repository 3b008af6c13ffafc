"""SimpleConsumer: receive, acknowledge, change the invisible time. Any number of consumers share every queue."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from rmq_spark.client.consumer_life import ConsumerLife
from rmq_spark.client.consumer_settings import ConsumeFromArgument, start_of
from rmq_spark.client.observer import acknowledged, received
from rmq_spark.client.pop_broker import Taken
from rmq_spark.client.pop_receiver import PopReceiver
from rmq_spark.client.pop_sources import rotated
from rmq_spark.client.store import Store
from rmq_spark.client.subscription import Subscription, subscription
from rmq_spark.errors import InvalidRequestError, PreconditionFailedError
from rmq_spark.model import numbers, times
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules.pop_decisions import INVISIBLE_MS_MAX, RECEIVE_MAX, AckStatus

WAIT_SECONDS: Final = 0.5
"""So long a receive waits before it looks whether the consumer was closed."""
BROKER_WAIT_SECONDS: Final = 0.05
"""Of several brokers it waits for one after the other, so long for each."""

Duration = timedelta | float
"""Seconds or a `timedelta`."""


class SimpleConsumer(ConsumerLife):
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
        trace: write a trace of every consumption to RMQ_SYS_TRACE_TOPIC, in the background; see `rmq trace`.

    Raises (on making):
        InvalidRequestError: an illegal name or time.
    """

    def __init__(
        self, store: Store, group: str, *, consume_from: ConsumeFromArgument = "latest", trace: bool = False
    ) -> None:
        super().__init__(store, group, trace=trace)
        self._subscriptions: dict[str, Subscription] = {}
        start = start_of(consume_from, self._clock.now_ms())
        self._receiver = PopReceiver(store, group, self._client_id, self._subscriptions, consume_from=start)
        store.start_services()

    @property
    def consumer_id(self) -> str:
        """How tools see this consumer."""
        return self._client_id

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
        self._subscriptions[topic] = wanted
        self._receiver.refresh()
        return self

    def unsubscribe(self, topic: str) -> None:
        """Receive messages of `topic` no longer. Those that are held can still be acknowledged."""
        self._check_open()
        self._subscriptions.pop(topic, None)
        self._receiver.refresh()

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
        numbers.check_whole("max_messages", max_messages, 1, RECEIVE_MAX)
        invisible_ms = _invisible_ms(invisible_duration)
        await_ms = times.wait_ms(await_duration, "await_duration")
        deadline = self._clock.elapsed_ns() + await_ms * 1_000_000
        while True:
            self._check_open()
            if not self._subscriptions:
                raise InvalidRequestError("nothing is subscribed; subscribe to a topic first", group=self._group)
            taken = self._try_brokers(max_messages, invisible_ms)
            for each in taken.values():
                if each.messages:
                    received(self._observers(), self._clock, self._group, each.messages)
                    return each.messages
            if any(each.again for each in taken.values()):
                continue
            left = (deadline - self._clock.elapsed_ns()) / 1_000_000_000
            if left <= 0:
                return []
            self._wait(taken, left)

    def _try_brokers(self, count: int, invisible_ms: int) -> dict[str, Taken]:
        """Try one broker after the other until one gives messages."""
        turn = self._receiver.turn()
        brokers = rotated(self._receiver.routes().brokers(), turn)
        taken: dict[str, Taken] = {}
        for broker in brokers:
            taken[broker] = self._receiver.receive(broker, turn // len(brokers), count=count, invisible_ms=invisible_ms)
            if taken[broker].messages:
                break
        return taken

    def _wait(self, taken: dict[str, Taken], seconds: float) -> None:
        """Wait until one of the logs has grown since it was looked at, or a FIFO queue may be free; not for long."""
        waits = [each.wait_ms / 1000 for each in taken.values() if each.wait_ms is not None]
        limit = min(seconds, WAIT_SECONDS, *waits)
        if not taken:
            self._clock.sleep(limit)  # every topic is deleted
        for broker, each in taken.items():
            pause = limit if len(taken) == 1 else min(limit, BROKER_WAIT_SECONDS)
            if self._receiver.log(broker).wait(each.log_end, pause):
                return

    # ------------------------------------------------------------ settling

    def ack(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Acknowledge one message or several, which is one commit a broker: they are not delivered again.

        Doing it again within its time changes nothing. A message whose time is over can be acknowledged until it was
        given back; after that it cannot be distinguished from one that was acknowledged before.

        Raises:
            InvalidRequestError: a message was not received by a SimpleConsumer; nothing was acknowledged.
            PreconditionFailedError: some receipts do not count any more: the messages were given back to the group, or
                have a newer receipt. The others are acknowledged. The error names the ids.
            ClosedError: the consumer was closed, or made before a fork.
            RmqError: as `CommitLog.decide`; acknowledge them again.
        """
        self._check_open()
        if not isinstance(messages, Iterable):  # a ReceivedMessage is none
            messages = [messages]
        answers = self._receiver.ack(list(messages))
        if observers := self._observers():
            done = [message for message, status in answers if status is AckStatus.OK]
            acknowledged(observers, self._clock, self._group, done)
        self._refuse_stale(answers)

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
        changed = self._receiver.change_invisible([message], _invisible_ms(duration))
        self._refuse_stale(changed, held_only=True)
        return message

    def _refuse_stale(self, answers: Iterable[tuple[ReceivedMessage, AckStatus]], *, held_only: bool = False) -> None:
        bad: dict[str, list[str]] = {}
        for message, status in answers:
            if status is not AckStatus.OK and (held_only or status is not AckStatus.NOT_HELD):
                bad.setdefault(status.value, []).append(message.msg_id)
        if bad:
            raise PreconditionFailedError(_NO_LONGER, group=self._group, **bad)

    # ------------------------------------------------------------ life

    def close(self) -> None:
        """End this consumer. What it holds comes back when its time is over; a receive that waits raises soon."""
        if self._ended.is_set() or self._is_forked:
            return
        self._ended.set()
        self._receiver.leave()
        self._close_traces()


_NO_LONGER: Final = "receipts do not count any more; the messages come again, or have a newer receipt"


def _invisible_ms(duration: Duration) -> int:
    invisible_ms = times.duration_ms(duration, "invisible_duration")
    if not 0 < invisible_ms <= INVISIBLE_MS_MAX:
        raise InvalidRequestError("invisible_duration is over 0 and up to 12 hours", value=duration)
    return invisible_ms
