"""Dead letters: the messages that groups gave up, and sending them again.

How far the dead letters of a group were replayed is an offset in the log, committed together with the copies: a replay
that was interrupted goes on where it ended, and two at once send nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rmq_spark.client.group_queues import decide
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import plain_rows, stored_messages
from rmq_spark.client.time_search import QueueKey, QueueTimes
from rmq_spark.errors import InvalidRequestError, NotFoundError
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.queue_reader import read_queue
from rmq_spark.model import names
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.properties import PRIORITY, SHARDING_KEY
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import offsets, retry, routing, system_topics
from rmq_spark.rules.offsets import ConsumerOffsets

REPLAY_GROUP: Final = f"{system_topics.SYSTEM_GROUP_PREFIX}DLQ_REPLAY"
"""Whose offsets say how far dead letters were replayed."""
REPLAY_ROWS: Final = 256
"""Messages that one commit of a replay sends at most."""

Progress = Callable[[int, int], None]
"""Called with how much is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """What a group has given up."""

    group: str
    topic: str
    messages: int
    """That are held."""
    left: int
    """That were not replayed yet."""
    last_ms: int | None
    """storeTimestamp of the newest; None when there is none."""


@dataclass(frozen=True, slots=True)
class _Queue:
    """The dead letters of a group on one broker."""

    broker: str
    first: int
    end: int
    replayed: int

    @property
    def position(self) -> int:
        return max(self.first, self.replayed)


class DeadLetterBox:
    """Dead letters of a store's groups. Safe to use from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._times = QueueTimes(store)

    def groups(self) -> list[DeadLetters]:
        """Every group that has dead letters, by name."""
        groups: set[str] = set()
        for broker in self._store.brokers():
            topics = self._store.log(broker).look(lambda view: view.state.queues.topics())
            groups.update(group for topic in topics if (group := _owner(topic)) is not None)
        return [letters for group in sorted(groups) if (letters := self.of(group)).messages]

    def of(self, group: str) -> DeadLetters:
        """How many dead letters a group has; none is no error."""
        topic = system_topics.dlq_topic(names.check_group(group))
        queues = self._queues(topic)
        newest: dict[QueueKey, int] = {(topic, one.broker, 0): one.end - 1 for one in queues}
        times = [each.oldest_ms for each in self._times.backlogs(newest).values() if each.oldest_ms is not None]
        return DeadLetters(
            group=group,
            topic=topic,
            messages=sum(one.end - one.first for one in queues),
            left=sum(one.end - one.position for one in queues),
            last_ms=max(times, default=None),
        )

    def read(self, group: str, *, limit: int = 64) -> list[StoredMessage]:
        """The newest dead letters of a group, at most `limit`, oldest first; bodies are plain.

        Raises:
            NotFoundError: the group has none.
        """
        topic = system_topics.dlq_topic(names.check_group(group))
        messages: list[StoredMessage] = []
        for one in self._known(group, topic):
            start = max(one.first, one.end - limit)
            read = read_queue(self._store.log(one.broker), topic, retry.DLQ_QUEUE, start, rows_max=one.end - start)
            messages += stored_messages(plain_rows(read.messages))
        return sorted(messages, key=lambda message: message.store_ms)[-limit:] if limit else []

    def replay(
        self,
        group: str,
        *,
        rate: float | None = None,
        limit: int | None = None,
        again: bool = False,
        to_group: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Send dead letters that were not replayed yet once more, and return how many.

        They go to the topic that they were first sent to, where every group gets them, as RocketMQ's dashboard does it.
        They keep their ids and count as never delivered. They stay in the dead-letter topic until retention takes them.

        Args:
            group: whose dead letters.
            rate: at most so many a second; None: as fast as it goes.
            limit: at most so many.
            again: all that are held, also those that were replayed before.
            to_group: only this group gets them, through its retry topic; for groups of push consumers without `pop` and
                without `orderly`, as only these read it.
            progress: told how many were sent, and how many there are.

        Raises:
            NotFoundError: the group has no dead letters.
            InvalidRequestError: the rate or limit is not over 0, or a topic has no queue on the broker of the dead
                letters that may be written; those before it were sent.
            PreconditionFailedError: somebody else replays them at the same time.
            RmqError: as `CommitLog.decide`; replay again, it goes on where it ended.
        """
        for what, number in (("rate", rate), ("limit", limit)):
            if number is not None and not number > 0:
                raise InvalidRequestError(f"a {what} is over 0", **{what: number})
        topic = system_topics.dlq_topic(names.check_group(group))
        queues = self._known(group, topic)
        total = sum(one.end - (one.first if again else one.position) for one in queues)
        total = total if limit is None else min(total, limit)
        sent = 0
        for one in queues:
            position, before = (one.first if again else one.position), one.replayed or None
            while position < one.end and sent < total:
                count = min(REPLAY_ROWS if rate is None else max(1, min(REPLAY_ROWS, int(rate))), total - sent)
                log = self._store.log(one.broker, ConsumerOffsets)
                read = read_queue(log, topic, retry.DLQ_QUEUE, position, rows_max=min(count, one.end - position))
                messages = stored_messages(plain_rows(read.messages))
                rows = [
                    self._row(message, group, one.broker, sent + at, to_group) for at, message in enumerate(messages)
                ]
                self._land(one.broker, topic, before, read.next_offset, rows)
                position = before = read.next_offset
                sent += len(messages)
                if progress is not None:
                    progress(sent, total)
                if rate is not None and sent < total:
                    self._store.clock.sleep(len(messages) / rate)
        return sent

    def _land(self, broker: str, topic: str, before: int | None, after: int, rows: Sequence[MessageRow]) -> None:
        place = (topic, retry.DLQ_QUEUE)
        rule = offsets.commit(
            REPLAY_GROUP,
            REPLAY_GROUP,
            {place: after},
            expected={place: before},
            rows=MessageBatch.from_rows(list(rows)) if rows else None,
        )
        decide(self._store.log(broker, ConsumerOffsets), rule)

    def _row(self, message: StoredMessage, group: str, broker: str, turn: int, to_group: bool) -> MessageRow:
        if to_group:
            return retry.replay_row(message, system_topics.retry_topic(group), 0)
        name = retry.dead_letter_origin(message)
        topic = self._store.find_topic(name)
        queues = [] if topic is None else [place for place in topic.writable_queues() if place[0] == broker]
        if not queues:
            raise InvalidRequestError(
                "the topic of a dead letter has no queue on its broker that may be written; replay to the group only",
                topic=name,
                broker=broker,
                msg_id=message.msg_id,
            )
        priority = message.properties.get(PRIORITY)
        place = routing.place(
            name,
            queues,
            lambda _: turn,
            sharding_key=message.properties.get(SHARDING_KEY),
            priority=None if priority is None else int(priority),
        )
        return retry.replay_row(message, name, place[1])

    def _queues(self, topic: str) -> list[_Queue]:
        queues = []
        for broker in self._store.brokers():
            first, end, replayed = self._store.log(broker, ConsumerOffsets).look(
                lambda view: (
                    *view.state.queues.bounds(topic, retry.DLQ_QUEUE),
                    view.state.fold(ConsumerOffsets).of(REPLAY_GROUP, topic).get(retry.DLQ_QUEUE, 0),
                )
            )
            if first < end:
                queues.append(_Queue(broker, first, end, replayed))
        return queues

    def _known(self, group: str, topic: str) -> list[_Queue]:
        queues = self._queues(topic)
        if not queues:
            raise NotFoundError("the group has no dead letters", group=group)
        return queues


def _owner(topic: str) -> str | None:
    return system_topics.group_of(topic) if system_topics.is_dlq(topic) else None
