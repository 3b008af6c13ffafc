"""Admin: topics, groups, offsets, members, brokers and dead letters of a store. The commands of `rmq` stand on it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from rmq_spark.client.brokers import Brokers
from rmq_spark.client.dead_letters import DeadLetterBox
from rmq_spark.client.delays import adopt_levels
from rmq_spark.client.group_settings import GroupSettings, group_settings
from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.store import DEFAULT_BROKER, DEFAULT_QUEUES, Store, Topic
from rmq_spark.client.time_search import QueueSpan, QueueTimes
from rmq_spark.client.traffic import Traffic, between, count
from rmq_spark.errors import ExistsError
from rmq_spark.log.view import LogView
from rmq_spark.model import names, times
from rmq_spark.rules import cluster, group_config, members, topic_decisions
from rmq_spark.rules.cluster import ClusterSettings
from rmq_spark.rules.members import GroupMembers, Member
from rmq_spark.rules.message_type import MessageType
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.rules.topic_decisions import TopicChange


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMembership:
    """Who consumes for a group."""

    members: dict[str, Member]
    """Live push and lite pull consumers by id."""
    differing: tuple[str, ...]
    """Topics that they subscribe to differently: some get messages that they do not want, others never get theirs."""


class Admin:
    """Administers a store. Safe to use from any thread; the store is closed by whoever opened it.

    `offsets`, `brokers` and `dead_letters` are the parts for committed offsets, brokers and dead letters.

    Example:
        >>> from rmq_spark import Admin, Store
        >>> with Store.create("memory://admin-example") as store:
        ...     admin = Admin(store)
        ...     _ = admin.create_topic("orders", queues=2, message_type="FIFO")
        ...     admin.update_topic("orders", backlog_max=1000).backlog_max
        1000
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._times = QueueTimes(store)
        self.offsets = GroupOffsets(store)
        """Committed offsets of groups: lag, reset, clone, delete."""
        self.brokers = Brokers(store)
        """Brokers: add, make read-only, drain."""
        self.dead_letters = DeadLetterBox(store)
        """What groups gave up: count, read, replay."""

    def __repr__(self) -> str:
        return f"Admin({self._store!r})"

    # ------------------------------------------------------------ the store

    def settings(self) -> ClusterSettings:
        """Settings that every client of the store follows."""
        return self._store.cluster_settings()

    def update_settings(
        self, *, auto_create_topics: bool | None = None, backlog_max: int | None = None
    ) -> ClusterSettings:
        """Change settings of the store; None leaves one as it is. Producers follow within 30 s.

        Args:
            auto_create_topics: whether a send to an unknown topic creates it.
            backlog_max: sends to a topic are refused while a group has so many messages of it left; 0: never.

        Raises:
            InvalidRequestError: a value of the wrong kind.
        """
        wanted = {"autoCreateTopics": auto_create_topics, "backlogMax": backlog_max}
        changed = {name: value for name, value in wanted.items() if value is not None}
        self._store.nameserver.decide(cluster.update_settings(changed))
        return self.settings()

    def traffic(self, seconds: timedelta | float = 1.0) -> Traffic:
        """Messages in and out a second, measured over so long, and what is left to consume.

        Raises:
            InvalidRequestError: `seconds` is no duration.
        """
        wait_ms = max(0, times.duration_ms(seconds, "seconds"))
        before = count(self._store)
        self._store.clock.sleep(wait_ms / 1000)
        return between(before, count(self._store))

    # ------------------------------------------------------------ topics

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        return self._store.topics()

    def topic(self, name: str) -> Topic:
        """The topic.

        Raises:
            NotFoundError: there is none of that name.
        """
        return self._store.topic(name)

    def spans(self, name: str) -> list[QueueSpan]:
        """What each queue of a topic holds: offsets and times.

        Raises:
            NotFoundError: there is no such topic.
            CorruptDataError: a file is damaged or missing.
        """
        return self._times.spans(name)

    def create_topic(
        self,
        name: str,
        *,
        queues: int = DEFAULT_QUEUES,
        write_queues: int | None = None,
        permission: int | None = None,
        message_type: str = MessageType.UNSPECIFIED,
        backlog_max: int | None = None,
        brokers: Collection[str] = (DEFAULT_BROKER,),
    ) -> Topic:
        """Create a topic.

        Args:
            name: of the topic.
            queues: queues on each broker that are read.
            write_queues: those of them that are written; all, unless given.
            permission: 4 read, 2 write, 6 both.
            message_type: the only type of messages that it takes; without one it takes all but PRIORITY.
            backlog_max: sends are refused while a group has so many of its messages left; 0: never. The store's
                settings count unless it is given.
            brokers: where it gets queues.

        Raises:
            ExistsError: there is one.
            InvalidRequestError: an illegal name, number or type.
        """
        wanted = TopicChange(
            read_queues=queues,
            write_queues=write_queues,
            permission=permission,
            message_type=message_type,
            backlog_max=backlog_max,
            brokers=tuple(brokers),
        )
        adopt_levels(self._store, brokers)
        topic, created = self._store.nameserver.decide(topic_decisions.create(name, wanted, queues)).answer
        if not created:
            raise ExistsError("there is a topic already; update it instead", topic=name, queues=dict(topic.queues))
        return topic

    def update_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        message_type: str | None = None,
        backlog_max: int | None = None,
        brokers: Collection[str] = (),
    ) -> Topic:
        """Change a topic; None leaves a setting as it is. Producers follow within 30 s.

        To get fewer queues, lower `write_queues` first, wait until every group has consumed the upper ones, then lower
        `read_queues` (rule 22).

        Args:
            name: the topic.
            queues: read and written queues on each broker, together.
            read_queues: queues on each broker that are read.
            write_queues: those of them that are written.
            permission: 4 read, 2 write, 6 both.
            message_type: the only type of messages that it takes.
            backlog_max: sends are refused while a group has so many of its messages left; 0: never.
            brokers: more brokers to put it on.

        Raises:
            NotFoundError: there is no such topic.
            InvalidRequestError: an illegal value, or messages would be left behind.
        """
        wanted = TopicChange(
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            permission=permission,
            message_type=message_type,
            backlog_max=backlog_max,
            brokers=tuple(brokers),
        )
        adopt_levels(self._store, brokers)
        undrained = self._undrained(name) if wanted.read_queues is not None else {}
        return self._store.nameserver.decide(topic_decisions.update(name, wanted, undrained)).answer

    def delete_topic(self, name: str) -> None:
        """Delete a topic and hide its messages; see `Store.delete_topic`.

        Raises:
            NotFoundError: there is no such topic.
        """
        self._store.delete_topic(name)

    def _undrained(self, name: str) -> dict[str, list[int]]:
        """By broker: queues of a topic that some group has not consumed; without any group, all that hold messages."""

        def look(view: LogView) -> list[int]:
            groups = [topics.get(name) for topics in view.state.fold(ConsumerOffsets).offsets.values()]
            known = [offsets for offsets in groups if offsets is not None]
            return [
                queue
                for queue, first, end in view.state.queues.of_topic(name)
                if first < end and (not known or any(offsets.get(queue, 0) < end for offsets in known))
            ]

        topic = self._store.topic(name)
        return {broker: self._store.log(broker, ConsumerOffsets).look(look) for broker in topic.queues}

    # ------------------------------------------------------------ groups

    def groups(self) -> list[str]:
        """Every group that has committed offsets or has settings, by name."""
        return self.offsets.groups()

    def group(self, name: str) -> GroupSettings:
        """The settings of a group; one that nobody has configured has the defaults."""
        return group_settings(self._store, names.check_group(name))

    def update_group(
        self,
        name: str,
        *,
        orderly: bool | None = None,
        retry_max_times: int | None = None,
        consume_enabled: bool | None = None,
        retry_policy: str | None = None,
    ) -> GroupSettings:
        """Create a group or change its settings; None leaves one as it is.

        Args:
            name: of the group.
            orderly: POP consumers receive the messages of a queue in order.
            retry_max_times: how often a message is retried.
            consume_enabled: without it the group's consumers get nothing; they follow within 30 s.
            retry_policy: CUSTOMIZED (10 s, 30 s, 1 min, …) or EXPONENTIAL (5 s, 10 s, 20 s, …).

        Raises:
            InvalidRequestError: an illegal name, number or policy.
        """
        rule = group_config.update(
            names.check_group(name),
            orderly=orderly,
            retry_max_times=retry_max_times,
            consume_enabled=consume_enabled,
            retry_policy=retry_policy,
        )
        return self._store.nameserver.decide(rule).answer

    def delete_group(self, name: str, *, force: bool = False) -> None:
        """Forget a group; see `GroupOffsets.delete`.

        Raises:
            NotFoundError: there is no such group.
            PreconditionFailedError: it is active, and `force` is not set.
        """
        self.offsets.delete(name, force=force)

    def members(self, group: str) -> GroupMembership:
        """The live consumers of a group, and where they subscribe differently; none is no error."""
        names.check_group(group)
        now = self._store.clock.now_ms()
        live = self._store.nameserver.look(
            lambda view: view.state.fold(GroupMembers).live(group, max(now, view.state.store_ms))
        )
        return GroupMembership(members=live, differing=members.differing(live))
