"""Which queues a receive by POP looks at, in which order: those of topics, and the group's retry topics for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from rmq_spark.client.pop_broker import Source
from rmq_spark.client.store import Topic
from rmq_spark.client.subscription import Subscription
from rmq_spark.clock import Clock
from rmq_spark.rules import routing, system_topics
from rmq_spark.rules.receipt import TopicType

RETRY_FIRST_ONE_IN: Final = 5
"""One receive in so many looks at the retry topics first; the others look there when the batch is not full."""

Item = TypeVar("Item")


class QueueSources:
    """The queues of one broker that one receive looks at."""

    def __init__(self) -> None:
        self._normal: list[Source] = []
        self._retries: list[Source] = []

    def add(self, group: str, topic: str, queues: Iterable[int], wanted: Subscription) -> None:
        """Look at these queues of `topic`, in this order, too, and at the group's retry topic for it.

        A FIFO group retries in place. What it held before it was one is in its retry topic all the same.
        """
        self._normal += [
            Source(topic=topic, queue=queue, shown_topic=topic, wanted=wanted.wanted, expression=wanted.expression)
            for queue in queues
        ]
        if not system_topics.is_retry(topic):
            # No filter: what was wanted once is wanted still.
            retry_topic = system_topics.pop_retry_topic(group, topic)
            self._retries.append(Source(topic=retry_topic, queue=0, shown_topic=topic, topic_type=TopicType.RETRY_V2))

    def in_turn(self, clock: Clock) -> list[Source]:
        """All of them; once in a while the retry topics come first."""
        retry_first = int(clock.token()[-8:], 16) % RETRY_FIRST_ONE_IN == 0
        return [*self._retries, *self._normal] if retry_first else [*self._normal, *self._retries]


def queues_in_turn(topic: Topic, broker: str, turn: int) -> list[int]:
    """Queues of a topic on a broker: beginning with another one each turn; of a priority topic the highest first."""
    queues = range(topic.queues[broker])
    return routing.drain_order(queues) if topic.has_priorities else rotated(queues, turn)


def rotated(items: Sequence[Item], turn: int) -> list[Item]:
    """The items, beginning with another one each turn."""
    at = turn % len(items) if items else 0
    return [*items[at:], *items[:at]]
