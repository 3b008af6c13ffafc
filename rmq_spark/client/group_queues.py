"""One consumer's part in its group: membership, its share of the queues, their leases and offsets.

It holds no queues itself: whoever consumes keeps them, and asks here for what changes in the log. Every act is one
decision a log, and is asked for again when its outcome is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from rmq_spark.client.consumer_settings import ConsumerSettings
from rmq_spark.client.store import Store
from rmq_spark.client.subscription import Subscription
from rmq_spark.client.time_search import QueueTimes
from rmq_spark.errors import ClosedError, DataExpiredError, OutcomeUnknownError, RmqError
from rmq_spark.log.commit_log import AppendResult, CommitLog, Decided
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.queue_reader import ALL, QueueRead, read_queue
from rmq_spark.log.request import Rule
from rmq_spark.log.view import LogView
from rmq_spark.model.message_queue import MessageQueue
from rmq_spark.rules import members, queue_lease, system_topics
from rmq_spark.rules import offsets as offset_rules
from rmq_spark.rules.assignment import Strategy
from rmq_spark.rules.group_config import settings_of
from rmq_spark.rules.members import GroupMembers
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.rules.queue_lease import Progress, Queue, QueueLeases
from rmq_spark.rules.start_offset import ConsumeFrom, QueueEnds, start_offset
from rmq_spark.rules.topics import GroupConfigs, TopicConfigs, may_read

UNKNOWN_TRIES: Final = 3
"""How often a decision whose outcome is not known is asked for again; it lands once."""

Answer = TypeVar("Answer")
Value = TypeVar("Value")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Share:
    """What one look at the nameserver log says."""

    queues: frozenset[MessageQueue]
    """This consumer's."""
    end: int
    """The nameserver log's end."""


@dataclass(frozen=True, slots=True)
class Start:
    """A queue that was taken."""

    epoch: int
    """Of the lease."""
    offset: int
    """Where to consume from."""


class GroupQueues:
    """Safe to use from any thread.

    Args:
        store: an open store.
        group: the group.
        member: this consumer's id.
        settings: the group's times.
        strategy: shares the queues of a topic.
        consume_from: where the group starts in queues that it has no offset of; a number is a time.
        retries: whether the group's retry topic is consumed, too.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        member: str,
        *,
        settings: ConsumerSettings,
        strategy: Strategy,
        consume_from: ConsumeFrom | int,
        retries: bool,
    ) -> None:
        self._store = store
        self._group = group
        self._member = member
        self._settings = settings
        self._strategy = strategy
        self._consume_from = consume_from
        self._retries = retries
        self._times = QueueTimes(store)
        self._differing: tuple[str, ...] = ()
        self._dead_letters: set[str] = set()
        self._logs: dict[str, CommitLog] = {}

    def log(self, broker: str) -> CommitLog:
        """A broker's log with what is needed here."""
        log = self._logs.get(broker)
        if log is None:
            log = self._logs[broker] = self._store.log(broker, ConsumerOffsets, QueueLeases)
        return log

    def read(
        self, queue: MessageQueue, offset: int, subscribed: Subscription | None, *, rows_max: int, place: int
    ) -> QueueRead | int:
        """The next messages of a queue that are wanted; or where it begins, if retention took what is at `offset`.

        Args:
            queue: which one.
            offset: where to read from.
            subscribed: which messages are wanted; None: all. Those of the retry topic are: they were wanted once.
            rows_max: as `read_queue`.
            place: as `read_queue`.

        Raises:
            RmqError: the log cannot be read.
        """
        wanted = ALL if subscribed is None else subscribed.wanted
        try:
            return read_queue(
                self.log(queue.broker),
                queue.topic,
                queue.queue_id,
                offset,
                rows_max=rows_max,
                wanted=wanted,
                place=place,
            )
        except DataExpiredError as error:
            first = int(str(error.context["first"]))
            _log.warning(
                "messages expired before the group consumed them (group=%r, queue=%r, from=%d, to=%d)",
                self._group,
                tuple(queue),
                offset,
                first,
            )
            return first

    # ------------------------------------------------------------ membership

    def beat(self, subscriptions: Mapping[str, str]) -> None:
        """Say that the consumer is there, and warn when members of the group subscribe differently.

        Raises:
            RmqError: as `CommitLog.decide`.
        """
        rule = members.heartbeat(self._group, self._member, subscriptions, self._settings.expiry_ms)
        heard = decide(self._store.nameserver, rule)
        if heard.differing and heard.differing != self._differing:
            _log.warning(
                "members of one group subscribe differently, so some get messages that they do not want and others "
                "never get theirs; subscribe alike (group=%r, topics=%r, members=%r)",
                self._group,
                list(heard.differing),
                list(heard.members),
            )
        self._differing = heard.differing

    def leave(self) -> None:
        """Say that the consumer has ended: the others share its queues at once."""
        decide(self._store.nameserver, members.leave(self._group, self._member))
        self.end_commits()

    def end_commits(self) -> None:
        """Say that the consumer commits no more: its group is not active because of it. A failure is only logged."""
        end_commits(self._group, self._member, self._logs.values())

    def share(self, topics: Iterable[str], *, alone: bool = False) -> Share:
        """This consumer's queues of some topics and of the retry topic; with `alone` all of them."""
        wanted = sorted(topics)
        now = self._store.clock.now_ms()

        def look(view: LogView) -> tuple[dict[str, dict[str, int]], list[str], int]:
            configs = view.state.fold(TopicConfigs).configs
            subscribed = [configs[topic] for topic in wanted if topic in configs]
            queues = {config["topic"]: dict(config["queues"]) for config in subscribed if may_read(config)}
            if not settings_of(view.state.fold(GroupConfigs).configs.get(self._group, {})).consume_enabled:
                queues = {}
            live = view.state.fold(GroupMembers).live(self._group, max(now, view.state.store_ms))
            return queues, list(live), view.state.offset

        by_topic, live, end = self._store.nameserver.look(look)
        if alone:
            live = [self._member]
        if self._retries:
            # Each broker keeps what failed there: one queue, as RocketMQ's `retryQueueNums`.
            brokers = {broker for queues in by_topic.values() for broker in queues}
            if brokers:
                brokers |= self._brokers_with_retries(brokers)
            by_topic[system_topics.retry_topic(self._group)] = dict.fromkeys(sorted(brokers), 1)
        mine: set[MessageQueue] = set()
        for topic, numbers in by_topic.items():
            queues = [MessageQueue(topic, broker, queue) for broker in numbers for queue in range(numbers[broker])]
            mine.update(queues if alone else self._strategy(self._member, queues, live))
        return Share(frozenset(mine), end)

    def _brokers_with_retries(self, known: Collection[str]) -> set[str]:
        """Brokers other than `known` that have messages of the retry topic: of topics that were subscribed before."""
        topic = system_topics.retry_topic(self._group)
        brokers: set[str] = set()
        for broker in set(self._store.brokers()) - set(known):
            try:
                if self.log(broker).look(lambda view: bool(list(view.state.queues.of_topic(topic)))):
                    brokers.add(broker)
            except ClosedError:
                raise
            except RmqError as error:
                told = "retries on a broker without subscribed topics cannot be looked for (group=%r, broker=%r): %s"
                _log.warning(told, self._group, broker, error)
        return brokers

    # ------------------------------------------------------------ leases

    def take(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, Start]:
        """Take the leases of queues; those that others hold are left out. Where the group starts is committed at once.

        Raises:
            RmqError: as `CommitLog.decide`; leases that were taken before it end by themselves.
        """
        started: dict[MessageQueue, Start] = {}
        for broker, mine in by_broker(dict.fromkeys(queues, None)).items():
            log = self.log(broker)
            # A decision that writes nothing is made on what this handle has seen: it might not know of a queue that
            # was given back.
            log.refresh()
            got = decide(log, queue_lease.take(self._group, self._member, mine, self._settings.lease_ms))
            leases = {MessageQueue(topic, broker, queue): taken for (topic, queue), taken in got.items()}
            offsets = self.start_offsets({queue: taken.offset for queue, taken in leases.items()})
            new = {queue: taken for queue, taken in leases.items() if taken.offset is None}
            for queue, taken in leases.items():
                started[queue] = Start(taken.epoch, offsets[queue])
            if new:
                # Else a group that starts at the end would lose what comes before its first commit, if it crashes.
                self.commit({queue: Progress(taken.epoch, offsets[queue]) for queue, taken in new.items()})
        return started

    def renew(self, held: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        """Renew leases, given with their epochs; returns those that were lost.

        Raises:
            RmqError: as `CommitLog.decide`.
        """
        lost: set[MessageQueue] = set()
        for broker, epochs in by_broker(held).items():
            rule = queue_lease.renew(self._group, self._member, epochs, self._settings.lease_ms)
            lost.update(_on(broker, decide(self.log(broker), rule)))
        return lost

    def commit(
        self,
        progress: Mapping[MessageQueue, Progress],
        *,
        release: Collection[MessageQueue] = (),
    ) -> set[MessageQueue]:
        """Commit offsets of queues whose leases are held; returns those that were lost.

        Args:
            progress: epoch and offset by queue.
            release: those of them to give back.

        Raises:
            RmqError: as `CommitLog.decide`; what was committed on other brokers stays.
        """
        lost: set[MessageQueue] = set()
        for broker, mine in by_broker(progress).items():
            rule = queue_lease.commit(
                self._group,
                self._member,
                mine,
                release=[(queue.topic, queue.queue_id) for queue in release if queue.broker == broker],
            )
            lost.update(_on(broker, decide(self.log(broker), rule)))
        return lost

    def commit_with(
        self, broker: str, progress: Mapping[MessageQueue, Progress], rows: MessageBatch | None
    ) -> tuple[set[MessageQueue], AppendResult]:
        """As `commit` of queues of one broker, with messages that land with the offsets if no lease was lost.

        Returns:
            The queues that were lost, and what the messages were given.

        Raises:
            RmqError: as `CommitLog.decide`.
        """
        rule = queue_lease.commit(self._group, self._member, by_broker(progress)[broker], rows=rows)
        decided = decide_surely(self.log(broker), rule)
        return _on(broker, decided.answer), decided.result

    def ensure_dead_letters(self, broker: str) -> None:
        """Make sure that the group's dead-letter topic is there for consumers, with one queue on the broker.

        Raises:
            RmqError: as `CommitLog.decide`.
        """
        if broker not in self._dead_letters:
            self._store.ensure_queues(system_topics.dlq_topic(self._group), broker)
            self._dead_letters.add(broker)

    def append(self, queue: MessageQueue, epoch: int, rows: MessageBatch) -> bool:
        """Append messages to the queue's broker if its lease is held; returns whether it is.

        Raises:
            RmqError: as `CommitLog.decide`.
        """
        held = {(queue.topic, queue.queue_id): epoch}
        return not decide(self.log(queue.broker), queue_lease.append(self._group, self._member, held, rows))

    # ------------------------------------------------------------ offsets

    def committed(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int | None]:
        """What the group has committed of queues; None: nothing."""
        offsets: dict[MessageQueue, int | None] = {}
        for broker in {queue.broker for queue in queues}:
            offsets.update(self._committed_on(broker, [queue for queue in queues if queue.broker == broker]))
        return offsets

    def _committed_on(self, broker: str, queues: Collection[MessageQueue]) -> dict[MessageQueue, int | None]:
        def ask(view: LogView) -> dict[MessageQueue, int | None]:
            fold = view.state.fold(ConsumerOffsets)
            return {queue: fold.of(self._group, queue.topic).get(queue.queue_id) for queue in queues}

        return self.log(broker).look(ask)

    def start_offsets(self, stored: Mapping[MessageQueue, int | None]) -> dict[MessageQueue, int]:
        """Where to consume queues from, given what the group has committed of each (facts 5.3)."""
        return {queue: self._start(queue, offset) for queue, offset in stored.items()}

    def _start(self, queue: MessageQueue, stored: int | None) -> int:
        if stored is not None:
            return stored
        key = (queue.topic, queue.broker, queue.queue_id)
        (first, end), log_ms = self.log(queue.broker).look(
            lambda view: (view.state.queues.bounds(queue.topic, queue.queue_id), view.state.store_ms)
        )
        return start_offset(
            None,
            self._consume_from,
            QueueEnds(
                topic=queue.topic,
                first=first,
                end=end,
                first_store_ms=self._times.backlogs({key: 0})[key].oldest_ms if first == 0 < end else None,
            ),
            now_ms=max(log_ms, self._store.clock.now_ms()),
            offset_at=lambda ms: self._times.search_queues([key], ms)[key],
        )


def decide(log: CommitLog, rule: Rule[Answer]) -> Answer:
    """The answer of a decision.

    Raises:
        RmqError: as `CommitLog.decide`.
    """
    return decide_surely(log, rule).answer


def decide_surely(log: CommitLog, rule: Rule[Answer]) -> Decided[Answer]:
    """Ask for a decision, and again while its outcome is not known.

    Raises:
        RmqError: as `CommitLog.decide`.
    """
    for _ in range(UNKNOWN_TRIES - 1):
        try:
            return log.decide(rule)
        except OutcomeUnknownError:
            continue  # the same rule again lands once, and gives the same answer
    return log.decide(rule)


def end_commits(group: str, member: str, logs: Iterable[CommitLog]) -> None:
    """Note in brokers' logs that a consumer has ended, where it was the last of its group to commit.

    A failure is only logged: the group seems active for two minutes then.
    """
    for log in list(logs):
        try:
            log.refresh()
            decide(log, offset_rules.leave(group, member))
        except RmqError as error:
            _log.warning("that a consumer has ended could not be written (group=%r): %s", group, error)


def warn_lost(group: str, queue: MessageQueue) -> None:
    """Say that another consumer may have a queue."""
    _log.warning(
        "the lease of a queue was lost; its messages since the last commit come again (group=%r, queue=%r)",
        group,
        tuple(queue),
    )


def by_broker(values: Mapping[MessageQueue, Value]) -> dict[str, dict[Queue, Value]]:
    """The values by topic and queue id, parted by broker."""
    grouped: dict[str, dict[Queue, Value]] = {}
    for queue in sorted(values):
        grouped.setdefault(queue.broker, {})[queue.topic, queue.queue_id] = values[queue]
    return grouped


def _on(broker: str, queues: frozenset[Queue]) -> set[MessageQueue]:
    return {MessageQueue(topic, broker, queue) for topic, queue in queues}
