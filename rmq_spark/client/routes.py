"""Where a producer may send: queues of topics, remembered for a while, and whether a topic takes a message now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rmq_spark.client.back_pressure import BackPressure
from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.model.message import Message
from rmq_spark.rules import routing, system_topics
from rmq_spark.rules.message_type import MessageType, check_type, type_of_message
from rmq_spark.rules.topics import Topic

ROUTE_SECONDS: Final = 30
"""How long a topic's queues are remembered, as RocketMQ's clients poll routes."""


@dataclass(frozen=True, slots=True)
class Route:
    """A topic's queues, as they were at a moment."""

    at_ns: int
    topic: Topic
    queues: Sequence[routing.Place]
    by_broker: Mapping[str, Sequence[routing.Place]]
    checked: bool
    """Whether the topic has a type or a limit, so that every message must be checked."""


def route_of(topic: Topic, at_ns: int) -> Route:
    """The queues of a topic that may be written.

    Raises:
        InvalidRequestError: there are none.
    """
    queues = topic.writable_queues()
    if not queues:
        raise InvalidRequestError(
            "topic has no queues that may be written",
            topic=topic.name,
            permission=topic.permission,
            read_only_brokers=sorted(topic.read_only_brokers & topic.queues.keys()),
        )
    by_broker: dict[str, list[routing.Place]] = {}
    for place in queues:
        by_broker.setdefault(place[0], []).append(place)
    checked = topic.message_type is not MessageType.UNSPECIFIED or topic.backlog_max > 0
    return Route(at_ns, topic, queues, by_broker, checked)


class Routes:
    """Routes of one producer. Safe to use from any thread.

    Args:
        store: an open store.
        auto_create: whether unknown topics are created, if the store's settings allow it.
    """

    def __init__(self, store: Store, *, auto_create: bool) -> None:
        self._store = store
        self._auto_create = auto_create
        self._known: dict[str, Route] = {}
        self._back_pressure = BackPressure(store)

    def of(self, name: str, *, with_priorities: bool = False) -> Route:
        """The queues of a topic; one that is created has priorities if that is asked for.

        Raises:
            NotFoundError: there is no such topic, and it must not be created.
            InvalidRequestError: the topic is reserved, or may not be written.
        """
        now = self._store.clock.elapsed_ns()
        known = self._known.get(name)
        if known is not None and now - known.at_ns < ROUTE_SECONDS * 1_000_000_000:
            return known
        system_topics.check_sendable(name)
        topic = self._store.find_topic(name)
        if topic is None:
            if not self._auto_create or not self._store.cluster_settings().auto_create_topics:
                raise NotFoundError("no such topic; create it first", topic=name)
            topic = self._store.auto_create_topic(name, with_priorities=with_priorities)
        route = self._known[name] = route_of(topic, now)
        return route

    def for_message(self, message: Message, *, in_transaction: bool = False) -> Route:
        """As `of`, if the topic takes the message now.

        Raises:
            InvalidRequestError: it takes messages of another type.
            BackPressureError: its consumers are too far behind.
            RmqError: as `of`.
        """
        route = self.of(message.topic, with_priorities=message.priority is not None)
        if route.checked or message.priority is not None:
            self.check(route, type_of_message(message, in_transaction=in_transaction))
        return route

    def check(self, route: Route, message_type: MessageType) -> None:
        """Return if messages of a type may be sent there now.

        Raises:
            as `for_message`.
        """
        check_type(route.topic.name, route.topic.message_type, message_type)
        if route.topic.backlog_max:
            self._back_pressure.check(route.topic)
