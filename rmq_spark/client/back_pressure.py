"""Refusing sends to a topic whose consumers have fallen too far behind."""

from __future__ import annotations

from typing import Final

from rmq_spark.client.store import Store
from rmq_spark.errors import BackPressureError
from rmq_spark.log.view import LogView
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.rules.pop import PopState
from rmq_spark.rules.topics import Topic

LOOK_SECONDS: Final = 1.0
"""What was found counts for so long: sends in between cost nothing, and may pass the limit by what they send."""


class BackPressure:
    """Backlogs of topics with a limit, looked at about once a second. Safe to use from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[int, str, int]] = {}
        """Topic -> when it was looked at, the group that is behind most, and by how many messages."""

    def check(self, topic: Topic) -> None:
        """Return if messages may be sent to `topic`. Only groups that have committed offsets of it count.

        Raises:
            BackPressureError: a group has at least as many of its messages left to consume as the topic's limit.
        """
        now = self._store.clock.elapsed_ns()
        known = self._known.get(topic.name)
        if known is None or now - known[0] >= LOOK_SECONDS * 1_000_000_000:
            known = self._known[topic.name] = (now, *self._furthest_behind(topic))
        _, group, behind = known
        if behind >= topic.backlog_max:
            raise BackPressureError(
                "consumers are too far behind, so nothing was written; send again when they have caught up, or raise "
                "the topic's backlog limit",
                topic=topic.name,
                group=group,
                backlog=behind,
                limit=topic.backlog_max,
            )

    def _furthest_behind(self, topic: Topic) -> tuple[str, int]:
        behind: dict[str, int] = {}
        for broker in topic.queues:
            log = self._store.log(broker, ConsumerOffsets, PopState)
            for group, count in log.look(lambda view: _backlogs(view, topic.name)).items():
                behind[group] = behind.get(group, 0) + count
        return max(behind.items(), key=lambda item: item[1], default=("", -1))


def _backlogs(view: LogView, topic: str) -> dict[str, int]:
    """How many messages each group has left to consume of a topic on one broker: not received, or held by POP."""
    held = list(view.state.queues.of_topic(topic))
    in_flight = view.state.fold(PopState).held
    behind: dict[str, int] = {}
    for group, topics in view.state.fold(ConsumerOffsets).offsets.items():
        offsets = topics.get(topic)
        if offsets is not None:
            behind[group] = sum(max(0, end - max(first, offsets.get(queue, 0))) for queue, first, end in held)
            for queue, _, _ in held:
                # The offset of POP moves when messages are received; that of a FIFO group when they are acknowledged.
                claims = in_flight.get((group, topic, queue))
                if claims is not None:
                    behind[group] += sum(offset < offsets.get(queue, 0) for offset in claims)
    return behind
