"""One consumer's POP on all brokers: which queues to look at, and what happens to the messages that it holds."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rmq_spark.client.group_queues import end_commits
from rmq_spark.client.group_settings import GroupSettings, group_settings
from rmq_spark.client.pop_broker import PopBroker, Source, Taken
from rmq_spark.client.pop_sources import QueueSources, queues_in_turn, rotated
from rmq_spark.client.store import Store, Topic
from rmq_spark.client.subscription import Subscription
from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules.pop_decisions import AckStatus, Fifo
from rmq_spark.rules.receipt import Receipt, parse_receipt
from rmq_spark.rules.start_offset import ConsumeFrom

ROUTE_SECONDS: Final = 30
"""How long queues of topics and settings of the group are remembered, as RocketMQ's clients poll routes."""


@dataclass(frozen=True, slots=True)
class Routes:
    """What is remembered for a while."""

    at_ns: int
    topics: tuple[Topic, ...]
    settings: GroupSettings
    nameserver_end: int
    """The nameserver log's end when it was looked at."""

    def brokers(self) -> list[str]:
        """Brokers that have queues of the topics."""
        return sorted({broker for topic in self.topics for broker in topic.queues})


class PopReceiver:
    """Safe to use from any thread.

    Args:
        store: an open store.
        group: the group.
        consumer: this consumer's id.
        subscriptions: by topic; call `refresh` after a change.
        consume_from: where the group starts in queues that it has no offset of; a number is a time.
        orderly: receive in order (FIFO), whatever the group's settings say.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        consumer: str,
        subscriptions: Mapping[str, Subscription],
        *,
        consume_from: ConsumeFrom | int,
        orderly: bool = False,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._group = group
        self._consumer = consumer
        self._subscriptions = subscriptions
        self._consume_from = consume_from
        self._orderly = orderly
        self._turns = itertools.count(int(self._clock.token()[-8:], 16))
        self._lock = threading.Lock()
        self._brokers: dict[str, PopBroker] = {}
        self._routes: Routes | None = None
        self._attempts: dict[str, str] = {}
        """FIFO: by broker, the receive whose outcome is not known; the next one takes its place."""

    # ------------------------------------------------------------ routes

    def refresh(self) -> None:
        """Topics or subscriptions may have changed: look again."""
        self._routes = None

    def routes(self) -> Routes:
        """The queues of the topics and the group's settings, not older than `ROUTE_SECONDS`."""
        now = self._clock.elapsed_ns()
        routes = self._routes
        if routes is None or now - routes.at_ns >= ROUTE_SECONDS * 1_000_000_000:
            end = self._store.nameserver.look(lambda view: view.state.offset)
            subscribed = sorted(self._subscriptions)
            settings = group_settings(self._store, self._group)
            existing = [topic for name in subscribed if (topic := self._store.find_topic(name)) is not None]
            topics = [topic for topic in existing if topic.is_readable and settings.consume_enabled]
            routes = Routes(now, tuple(topics), settings, end)
            self._routes = routes
        return routes

    def log(self, broker: str) -> CommitLog:
        """A broker's log."""
        return self._broker(broker).log

    def _broker(self, name: str) -> PopBroker:
        with self._lock:
            known = self._brokers.get(name)
            if known is None:
                known = self._brokers[name] = PopBroker(
                    self._store, self._group, name, consumer=self._consumer, consume_from=self._consume_from
                )
            return known

    def leave(self) -> None:
        """Say that the consumer receives no more: its group is not active because of it. A failure is only logged."""
        with self._lock:
            logs = [each.log for each in self._brokers.values()]
        end_commits(self._group, self._consumer, logs)

    # ------------------------------------------------------------ receiving

    def turn(self) -> int:
        """A number that is one more each time: brokers, topics and queues take turns by it."""
        return next(self._turns)

    def receive(self, broker: str, turn: int, *, count: int, invisible_ms: int) -> Taken:
        """Claim up to `count` messages of a broker's queues; may give none although there are some.

        Raises:
            RmqError: as `CommitLog.decide`. When the outcome is unknown, the messages of a FIFO group come with the
                next call, others when their time is over.
        """
        routes = self.routes()
        orderly = self._orderly or routes.settings.orderly
        fifo = None
        if orderly:
            attempt = self._attempts.pop(broker, None) or self._clock.token()
            fifo = Fifo(attempt_id=attempt, retry_max_times=routes.settings.retry_max_times)
        sources = self._sources(routes, broker, turn)
        try:
            return self._broker(broker).receive(sources, count=count, invisible_ms=invisible_ms, fifo=fifo)
        except BaseException:
            if fifo is not None and fifo.attempt_id is not None:
                self._attempts[broker] = fifo.attempt_id
            raise

    def _sources(self, routes: Routes, broker: str, turn: int) -> list[Source]:
        """The queues to look at on a broker, in this turn's order."""
        sources = QueueSources()
        for topic in rotated(routes.topics, turn):
            subscribed = self._subscriptions.get(topic.name)
            if subscribed is not None and topic.queues.get(broker, 0):
                queues = queues_in_turn(topic, broker, turn // len(routes.topics))
                sources.add(self._group, topic.name, queues, subscribed)
        return sources.in_turn(self._clock)

    # ------------------------------------------------------------ settling

    def ack(self, messages: Iterable[ReceivedMessage]) -> list[tuple[ReceivedMessage, AckStatus]]:
        """Acknowledge messages, one commit a broker; see `pop_decisions.ack`.

        Raises:
            InvalidRequestError: a message has no receipt; nothing was acknowledged.
            RmqError: as `CommitLog.decide`.
        """
        answers: list[tuple[ReceivedMessage, AckStatus]] = []
        for broker, mine in self._by_broker(messages).items():
            receipts = [(topic, receipt) for topic, receipt, _ in mine]
            statuses = self._broker(broker).ack(receipts)
            answers += [(message, status) for (_, _, message), status in zip(mine, statuses, strict=True)]
        return answers

    def change_invisible(
        self, messages: Iterable[ReceivedMessage], invisible_ms: int
    ) -> list[tuple[ReceivedMessage, AckStatus]]:
        """Let messages be visible again `invisible_ms` from now on; those that are held get a new receipt.

        Raises:
            as `ack`.
        """
        answers: list[tuple[ReceivedMessage, AckStatus]] = []
        for broker, mine in self._by_broker(messages).items():
            receipts = [(topic, receipt) for topic, receipt, _ in mine]
            changes = self._broker(broker).change_invisible(receipts, invisible_ms)
            for (_, receipt, message), changed in zip(mine, changes, strict=True):
                if (claim := changed.claim) is not None:
                    renewed = replace(
                        receipt, start_offset=claim.start, pop_ms=claim.pop_ms, invisible_ms=claim.invisible_ms
                    )
                    # In place, as RocketMQ's clients do: whoever acknowledges the message later means the newest
                    # receipt (rule 31).
                    object.__setattr__(message, "receipt", renewed.to_text())
                answers.append((message, changed.status))
        return answers

    def give_up(self, messages: Iterable[ReceivedMessage]) -> list[tuple[ReceivedMessage, AckStatus]]:
        """Move messages to the group's dead-letter topic, one commit a broker.

        Raises:
            as `ack`.
        """
        answers: list[tuple[ReceivedMessage, AckStatus]] = []
        for broker, mine in self._by_broker(messages).items():
            statuses = self._broker(broker).give_up(mine)
            answers += [(message, status) for (_, _, message), status in zip(mine, statuses, strict=True)]
        return answers

    def _by_broker(self, messages: Iterable[ReceivedMessage]) -> dict[str, list[tuple[str, Receipt, ReceivedMessage]]]:
        parted: dict[str, list[tuple[str, Receipt, ReceivedMessage]]] = {}
        for message in messages:
            receipt = receipt_of(message)
            topic = receipt.real_topic(self._group, message.topic)
            parted.setdefault(receipt.broker, []).append((topic, receipt, message))
        return parted


def receipt_of(message: ReceivedMessage) -> Receipt:
    """The receipt of a message that was received by POP.

    Raises:
        InvalidRequestError: it was not.
    """
    if not isinstance(message, ReceivedMessage) or message.receipt is None:
        raise InvalidRequestError(
            "message has no receipt; pass one that a SimpleConsumer has received", type=type(message).__name__
        )
    return parse_receipt(message.receipt)
