"""Consumer groups: how far they have come, how far that is behind, and how to set them elsewhere.

Offsets are messages in the log of the broker that has the queues (RocketMQ's consumerOffset.json). Whoever commits says
so by one append a broker; whoever resets compares first, so that a commit that came in between is not overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rmq_spark.client.reading import nearest
from rmq_spark.client.store import Store, append_records
from rmq_spark.client.time_search import QueueKey, QueueTimes, by_broker
from rmq_spark.errors import InvalidRequestError, NotFoundError, PreconditionFailedError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.request import Decision
from rmq_spark.log.state import LogState
from rmq_spark.log.time_search import Queue
from rmq_spark.log.view import LogView
from rmq_spark.model import names
from rmq_spark.rules import pop_decisions, system_topics
from rmq_spark.rules.members import GroupMembers
from rmq_spark.rules.offsets import MAX_OFFSET, ConsumerOffsets, LastCommit, offset_records
from rmq_spark.rules.topics import GroupConfigs

HEARTBEAT_EXPIRY_MS: Final = 120_000
"""A consumer that was not heard of for so long is taken for gone, as RocketMQ's brokers do."""
FORCED_TRIES: Final = 20
"""How often a forced reset compares again when consumers commit at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLag:
    """How far a group is behind on one queue."""

    topic: str
    broker: str
    queue: int
    committed: int | None
    """Next offset to consume; None when the group has committed none here."""
    first: int
    """First offset that is still held."""
    end: int
    """Exclusive end."""
    lag: int
    """Messages that are held and not consumed; all that are held when nothing was committed."""
    lag_ms: int
    """Age of the oldest of them; 0 when there is none."""
    missed: int
    """Messages that were deleted before the group consumed them."""
    updated_ms: int | None
    """storeTimestamp of the group's last change of offsets on this broker; None when it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChange:
    """What a reset does, or would do, to one queue."""

    topic: str
    broker: str
    queue: int
    before: int | None
    """None when the group had committed nothing here."""
    after: int
    redelivered: int
    """Messages that are held and will be consumed again."""
    skipped: int
    """Messages that are held, were not consumed, and will not be; where nothing was committed, none was consumed."""

    @property
    def changed(self) -> bool:
        """Whether the group's offset changes at all."""
        return self.before != self.after


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What is known of a group's consumers."""

    active: bool
    """Whether one is a live member, or committed less than `HEARTBEAT_EXPIRY_MS` ago and has not ended since."""
    member: str | None
    """Which one committed last; None when it gave no name."""
    member_ms: int | None
    """storeTimestamp of that commit; None when none ever did."""
    updated_ms: int | None
    """storeTimestamp of the last change of offsets, an administrator's included."""


@dataclass(frozen=True, slots=True)
class OffsetsOf:
    """Reset target: what another group has committed."""

    group: str


@dataclass(frozen=True, slots=True)
class _Part:
    """What one broker's log knows of a group."""

    known: bool
    offsets: dict[Queue, int]
    last: LastCommit | None


Target = str | int | Mapping[QueueKey, int] | OffsetsOf
"""Where to reset to: `earliest`, `latest` or `skip` (the same), a time in milliseconds since 1970 (negative: latest, as
in RocketMQ), offsets by queue, or another group's."""


_Plans = dict[str, list[OffsetChange]]
"""Changes by broker."""


class GroupOffsets:
    """Consumer groups of a store. Safe to use from any thread.

    Example:
        >>> with Store.create("memory://groups-example") as store:
        ...     topic = store.create_topic("orders", queues=2)
        ...     GroupOffsets(store).commit("billing", {("orders", "broker-0", 1): 7})
        ...     GroupOffsets(store).committed("billing")
        True
        {('orders', 'broker-0', 1): 7}
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._times = QueueTimes(store)

    # ------------------------------------------------------------ reading

    def groups(self) -> list[str]:
        """Every group that has committed offsets or has settings, by name; the engine's own are left out."""
        known = set(self._store.nameserver.look(lambda view: list(view.state.fold(GroupConfigs).configs)))
        for broker in self._store.brokers():
            known.update(self._log(broker).look(lambda view: list(view.state.fold(ConsumerOffsets).offsets)))
        return sorted(group for group in known if not group.startswith(system_topics.SYSTEM_GROUP_PREFIX))

    def committed(self, group: str) -> dict[QueueKey, int]:
        """The next offset to consume by (topic, broker, queue); empty for a group that is not known."""
        return _all_offsets(self._read(group))

    def activity(self, group: str) -> Activity:
        """Whether the group's consumers are at work, as far as their commits tell."""
        return self._judge(group, self._read(group))

    def lag(self, group: str) -> list[QueueLag]:
        """How far the group is behind on every queue of the topics where it has committed, and of its retry topics.

        Raises:
            NotFoundError: there is no such group.
            CorruptDataError: a file of the log is damaged or missing.
        """
        parts = self._read_known(group)
        committed = _all_offsets(parts)
        topics = {topic for topic, _, _ in committed}
        keys = sorted({*self._queues_of(topics), *self._retry_queues(group)})
        now = self._store.clock.now_ms()
        backlogs = self._times.backlogs({key: committed.get(key, 0) for key in keys})
        lags = []
        for (topic, broker, queue), backlog in backlogs.items():
            offset = committed.get((topic, broker, queue))
            last = parts[broker].last if broker in parts else None
            lags.append(
                QueueLag(
                    topic=topic,
                    broker=broker,
                    queue=queue,
                    committed=offset,
                    first=backlog.first,
                    end=backlog.end,
                    lag=max(0, backlog.end - max(backlog.first, offset or 0)),
                    lag_ms=0 if backlog.oldest_ms is None else max(0, now - backlog.oldest_ms),
                    missed=0 if offset is None else max(0, backlog.first - offset),
                    updated_ms=last.at_ms if last else None,
                )
            )
        return lags

    # ------------------------------------------------------------ committing

    def commit(self, group: str, offsets: Mapping[QueueKey, int], *, member: str | None = None) -> bool:
        """Note that the group goes on at `offsets`, and return whether anything was written.

        Queues that stand there already are left out; other queues keep theirs. Offsets may go back, as in RocketMQ. It
        is one append a broker: all of a broker's queues or none. Doing it again is harmless, after any error.

        Raises:
            InvalidRequestError: an illegal name, or an offset below 0 or from 2^63 on.
            NotFoundError: there is no such topic or queue.
            LostRaceError, UnavailableError, OutcomeUnknownError: as `CommitLog.append`; offsets of other brokers may
                have been written.
        """
        names.check_group(group)
        self._check_queues(offsets)
        wrote = False
        for broker, wanted in by_broker(offsets).items():
            known = self._read_on(broker, group).offsets
            changed = {queue: offset for queue, offset in wanted.items() if known.get(queue) != offset}
            if changed:
                extra = {} if member is None else {"member": member}
                append_records(self._log(broker), ConsumerOffsets, *offset_records(group, changed, extra))
                wrote = True
        return wrote

    # ------------------------------------------------------------ administration

    def reset(
        self, group: str, topic: str | None = None, *, to: Target, dry_run: bool = False, force: bool = False
    ) -> list[OffsetChange]:
        """Set the group's offsets elsewhere, and return what changes, queue by queue.

        Without `topic`, on all topics where it has committed any (or those of the offsets given, or of the group that
        is cloned). With one, a group that has committed nothing yet may be set, too. Offsets given must lie between a
        queue's first and its end; a clone takes over what the other group has committed, and leaves other queues alone.
        With `dry_run` nothing is written, and nothing is refused because of activity.

        Consumers that are at work would commit over it, so while the group is active it is refused unless `force`. A
        commit that comes in between refuses it, too, and with `force` makes it compare again.

        Raises:
            InvalidRequestError: an illegal name, target or offset.
            NotFoundError: there is no such group, topic or queue.
            PreconditionFailedError: the group is active, or committed meanwhile; the error names the brokers whose
                queues were reset before that.
            CorruptDataError: a file of the log is damaged or missing.
        """
        names.check_group(group)
        plans = self._plan(group, topic, to)
        if not dry_run:
            self._refuse_active(group, self._read(group), force)
            done: list[str] = []
            for broker in plans:
                try:
                    plans[broker] = self._carry_out(group, broker, plans, force, lambda: self._plan(group, topic, to))
                except PreconditionFailedError as error:
                    raise PreconditionFailedError(error.args[0], group=group, broker=broker, done=done) from error
                done.append(broker)
        return sorted(
            (change for plan in plans.values() for change in plan),
            key=lambda each: (each.topic, each.broker, each.queue),
        )

    def delete(self, group: str, *, force: bool = False) -> None:
        """Forget the group: its offsets and its settings. Its retry and dead-letter topics stay; they are messages.

        Raises:
            NotFoundError: there is no such group.
            PreconditionFailedError: it is active, and `force` is not set.
        """
        parts = self._read_known(group)
        self._refuse_active(group, parts, force)

        gone = {"group": group, "deleted": True, "admin": True}

        def delete(state: LogState) -> Decision[None]:
            if not force and self._is_active(state.fold(ConsumerOffsets).last.get(group)):
                raise PreconditionFailedError(_ACTIVE, group=group)
            return Decision(
                None, records=[(ConsumerOffsets.topics[0], gone), *pop_decisions.clear_records(state, group)]
            )

        for broker, part in parts.items():
            if part.known:
                self._store.log(broker, *pop_decisions.FOLDS).decide(delete)
        # The settings go last: if something fails before, the group is still there to be deleted again.
        if self._has_settings(group):
            append_records(self._store.nameserver, GroupConfigs, gone)

    # ------------------------------------------------------------ inner works

    def _read(self, group: str) -> dict[str, _Part]:
        """What each broker's log knows of the group."""
        return {broker: self._read_on(broker, group) for broker in self._store.brokers()}

    def _read_on(self, broker: str, group: str) -> _Part:
        def copy(view: LogView) -> tuple[dict[str, dict[int, int]] | None, LastCommit | None]:
            fold = view.state.fold(ConsumerOffsets)
            topics = fold.offsets.get(group)
            copied = None if topics is None else {topic: dict(queues) for topic, queues in topics.items()}
            return copied, fold.last.get(group)

        topics, last = self._log(broker).look(copy)
        offsets = {
            (topic, queue): offset for topic, queues in (topics or {}).items() for queue, offset in queues.items()
        }
        return _Part(topics is not None, offsets, last)

    def _read_known(self, group: str) -> dict[str, _Part]:
        parts = self._read(group)
        if not any(part.known for part in parts.values()) and not self._has_settings(group):
            raise NotFoundError("no such consumer group", group=group, **nearest(group, self.groups()))
        return parts

    def _has_settings(self, group: str) -> bool:
        return self._store.nameserver.look(lambda view: group in view.state.fold(GroupConfigs).configs)

    def _judge(self, group: str, parts: Mapping[str, _Part]) -> Activity:
        lasts = [part.last for part in parts.values() if part.last is not None]
        seen = max(lasts, key=lambda last: last.member_ms or -1, default=None)
        return Activity(
            active=any(map(self._is_active, lasts)) or self._has_members(group),
            member=seen.member if seen else None,
            member_ms=seen.member_ms if seen else None,
            updated_ms=max((last.at_ms for last in lasts), default=None),
        )

    def _is_active(self, last: LastCommit | None) -> bool:
        if last is None or last.member_ms is None or last.ended:
            return False
        return self._store.clock.now_ms() - last.member_ms < HEARTBEAT_EXPIRY_MS

    def _has_members(self, group: str) -> bool:
        now_ms = self._store.clock.now_ms()
        return self._store.nameserver.look(
            lambda view: bool(view.state.fold(GroupMembers).live(group, max(now_ms, view.state.store_ms)))
        )

    def _refuse_active(self, group: str, parts: Mapping[str, _Part], force: bool) -> None:
        known = self._judge(group, parts)
        if known.active and not force:
            raise PreconditionFailedError(_ACTIVE, group=group, member=known.member, committed_ms=known.member_ms)

    def _check_queues(self, offsets: Mapping[QueueKey, int]) -> None:
        topics = {topic.name: topic for topic in self._store.topics()}
        for (topic, broker, queue), offset in offsets.items():
            existing = topics.get(topic)
            if existing is None:
                raise NotFoundError("no such topic", topic=topic)
            if not 0 <= queue < existing.queues.get(broker, 0):
                raise NotFoundError(
                    "no such queue", topic=topic, broker=broker, queue=queue, queues=dict(existing.queues)
                )
            if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= MAX_OFFSET:
                raise InvalidRequestError(
                    "an offset is a number from 0 on and below 2^63", topic=topic, queue=queue, offset=offset
                )

    def _plan(self, group: str, topic: str | None, to: Target) -> _Plans:
        """What a reset would change."""
        committed = self.committed(group)
        targets = self._targets(group, committed, topic, to)
        plans: _Plans = {}
        for broker, mine in by_broker(targets).items():
            bounds = self._bounds(broker, mine)
            for (name, queue), after in mine.items():
                before = committed.get((name, broker, queue))
                first, end = bounds[name, queue]
                # Where nothing was committed, all that is held is lag: so it is skipped if it will not be consumed.
                reached = first if before is None else before
                change = OffsetChange(
                    topic=name,
                    broker=broker,
                    queue=queue,
                    before=before,
                    after=after,
                    redelivered=max(0, min(reached, end) - max(after, first)),
                    skipped=max(0, min(after, end) - max(reached, first)),
                )
                plans.setdefault(broker, []).append(change)
        return plans

    def _targets(
        self, group: str, committed: Mapping[QueueKey, int], topic: str | None, to: Target
    ) -> dict[QueueKey, int]:
        if isinstance(to, Mapping):
            if topic is not None and (other := sorted({key[0] for key in to} - {topic})):
                raise InvalidRequestError("offsets are given for another topic", topic=topic, others=other)
            self._check_queues(to)
            return self._within_bounds(to)
        if isinstance(to, OffsetsOf):
            if topic is not None:
                self._store.topic(topic)
            source = _all_offsets(self._read_known(to.group))
            # Queues that are gone, with a topic that was deleted and made smaller, are not brought back.
            known = set(self._queues_of({name for name, _, _ in source} if topic is None else {topic}))
            return {key: offset for key, offset in source.items() if key in known}
        if topic is not None:
            self._store.topic(topic)
        else:
            self._read_known(group)
        keys = self._queues_of({name for name, _, _ in committed} if topic is None else {topic})
        if isinstance(to, int) and not isinstance(to, bool) and to >= 0:
            return self._times.search_queues(keys, to)
        if to not in ("earliest", "latest", "skip") and not (isinstance(to, int) and to < 0):
            raise InvalidRequestError("reset to earliest, latest, skip, a time, offsets or another group's", to=to)
        side = 0 if to == "earliest" else 1
        return {
            (name, broker, queue): bounds[side]
            for broker, mine in by_broker(dict.fromkeys(keys, 0)).items()
            for (name, queue), bounds in self._bounds(broker, mine).items()
        }

    def _queues_of(self, topics: Collection[str]) -> list[QueueKey]:
        """Every queue of those of the topics that exist."""
        return [
            (topic.name, broker, queue)
            for topic in self._store.topics()
            if topic.name in topics
            for broker, queue in topic.message_queues()
        ]

    def _retry_queues(self, group: str) -> list[QueueKey]:
        """Every queue of the group's retry topics that ever held a message."""

        def look(view: LogView) -> list[Queue]:
            queues = view.state.queues
            topics = [topic for topic in queues.topics() if system_topics.is_retry(topic)]
            mine = [topic for topic in topics if system_topics.group_of(topic) == group]
            return [(topic, queue) for topic in mine for queue, _, _ in queues.of_topic(topic)]

        return [
            (topic, broker, queue) for broker in self._store.brokers() for topic, queue in self._log(broker).look(look)
        ]

    def _within_bounds(self, offsets: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        for broker, mine in by_broker(offsets).items():
            bounds = self._bounds(broker, mine)
            for (topic, queue), offset in mine.items():
                first, end = bounds[topic, queue]
                if not first <= offset <= end:
                    raise InvalidRequestError(
                        "offset is outside of what the queue holds",
                        topic=topic,
                        broker=broker,
                        queue=queue,
                        offset=offset,
                        first=first,
                        end=end,
                    )
        return dict(offsets)

    def _bounds(self, broker: str, queues: Iterable[Queue]) -> dict[Queue, tuple[int, int]]:
        return self._store.log(broker).look(lambda view: {queue: view.state.queues.bounds(*queue) for queue in queues})

    def _carry_out(
        self, group: str, broker: str, plans: _Plans, force: bool, again: Callable[[], _Plans]
    ) -> list[OffsetChange]:
        """Land a broker's plan and return it; by force, a plan that was overtaken is recomputed."""
        plan = plans[broker]
        for left in reversed(range(FORCED_TRIES if force else 1)):
            try:
                self._land(broker, group, plan, force)
                break
            except PreconditionFailedError:
                if not left:
                    raise
                plan = again().get(broker, [])
        return plan

    def _land(self, broker: str, group: str, plan: list[OffsetChange], force: bool) -> None:
        """Append what a plan changes, if nothing that it stands on has changed."""
        changed = {(each.topic, each.queue): each.after for each in plan if each.changed}
        if not changed:
            return

        def reset(state: LogState) -> Decision[None]:
            fold = state.fold(ConsumerOffsets)
            if not force and self._is_active(fold.last.get(group)):
                raise PreconditionFailedError(_ACTIVE)
            if any(fold.of(group, each.topic).get(each.queue) != each.before for each in plan):
                raise PreconditionFailedError("the group committed while it was being reset; reset again")
            records = offset_records(group, changed, {"admin": True})
            ended = pop_decisions.clear_records(state, group, changed)
            return Decision(None, records=[*[(ConsumerOffsets.topics[0], record) for record in records], *ended])

        self._store.log(broker, *pop_decisions.FOLDS).decide(reset)

    def _log(self, broker: str) -> CommitLog:
        return self._store.log(broker, ConsumerOffsets)


_ACTIVE: Final = "the group's consumers are active; close them (one that died counts for two minutes), or force it"


def _all_offsets(parts: Mapping[str, _Part]) -> dict[QueueKey, int]:
    return {
        (topic, broker, queue): offset
        for broker, part in parts.items()
        for (topic, queue), offset in part.offsets.items()
    }
