"""Committed offsets of consumer groups: the fold, its records, and who committed last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

from rmq_spark.errors import PreconditionFailedError
from rmq_spark.log.fold import Fold, Records
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision, Rule
from rmq_spark.log.state import LogState
from rmq_spark.log.undo import Journal, UndoDict

MAX_OFFSET: Final = (1 << 63) - 1
MAX_QUEUE: Final = (1 << 31) - 1
"""Offsets have 64 bits and queue ids 32 in files and tables, as in RocketMQ; numbers in JSON have no bounds."""


class LastCommit(NamedTuple):
    """What is known of a consumer group's last change of offsets in one log."""

    at_ms: int
    """storeTimestamp of the last change, whoever made it."""
    member: str | None
    """Which consumer committed last; None when it gave no name."""
    member_ms: int | None
    """storeTimestamp of that commit; None when only an administrator has set offsets so far."""
    ended: bool = False
    """Whether that consumer has ended since."""


class ConsumerOffsets(Fold):
    """Committed offsets (next to consume) by group, topic and queue (RocketMQ's consumerOffset.json)."""

    name: ClassVar[str] = "consumer_offsets"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_consumer_offset",)

    _LAST: ClassVar[str] = ""
    """Where a group's last commit stands among its topics in a dump: no topic has that name, so a reader that does
    not know of it never asks for it."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.offsets: UndoDict[str, UndoDict[str, UndoDict[int, int]]] = self.table()
        """group -> topic -> queue -> offset."""
        self.last: UndoDict[str, LastCommit] = self.table()
        """By group; a group that is known from an older snapshot only has none."""

    def apply(self, records: Records) -> None:
        # On trial: what is about to be appended; logs of older versions hold any numbers.
        on_trial = self._journal.is_open
        for value, store_ms in zip(records.values(), records.store_ms, strict=True):
            group, member, offsets = check_form(value)
            if offsets is None:
                self.offsets.discard(group)
                self.last.discard(group)
                continue
            if on_trial:
                check_bounds(offsets)
            topics = self.offsets.get(group)
            mine = topics.get(value["topic"]) if topics is not None else None
            if mine is None:
                mine = self.offsets.child(group).child(value["topic"])
            for queue, offset in offsets.items():
                mine[queue] = offset
            if value.get("admin"):
                # An administrator's change says nothing about the consumers: what was known of them stays.
                before = self.last.get(group, LastCommit(0, None, None))
                self.last[group] = before._replace(at_ms=store_ms)
            elif value.get("left"):
                if (last := self.last.get(group)) is not None and last.member == member:
                    self.last[group] = last._replace(ended=True)
            else:
                self.last[group] = LastCommit(store_ms, member, store_ms)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Committed offsets of one group on one topic by queue."""
        topics = self.offsets.get(group)
        return dict(topics.get(topic) or {}) if topics is not None else {}

    def dump(self) -> Any:
        groups: dict[str, dict[str, Any]] = {}
        for group, topics in self.offsets.items():
            plain: dict[str, Any] = {
                topic: {str(queue): offset for queue, offset in queues.items()} for topic, queues in topics.items()
            }
            last = self.last.get(group)
            if last is not None:
                plain[self._LAST] = {"at": last.at_ms, "member": last.member, "memberAt": last.member_ms}
                if last.ended:
                    plain[self._LAST]["ended"] = True
            groups[group] = plain
        return groups

    def load(self, value: Any, version: int) -> None:
        self.offsets, self.last = self.table(), self.table()
        for group, topics in value.items():
            if last := topics.get(self._LAST):
                self.last[group] = LastCommit(last["at"], last["member"], last["memberAt"], bool(last.get("ended")))
            mine = self.offsets.child(group)
            for topic, queues in topics.items():
                if topic != self._LAST:
                    mine[topic] = self.table({int(queue): offset for queue, offset in queues.items()})


def check_form(value: dict[str, Any]) -> tuple[str, str | None, dict[int, int] | None]:
    """The group, the member and the offsets by queue of a record; no offsets where the group is deleted.

    Only their form is checked: logs of older versions may hold any numbers.

    Raises:
        KeyError, TypeError, AttributeError: it is not a record that `ConsumerOffsets` can take in.
    """
    group, member = value["group"], value.get("member")
    if type(group) is not str or (member is not None and type(member) is not str):
        raise TypeError("group and member must be texts")
    if value.get("deleted"):
        return group, member, None
    if type(value["topic"]) is not str or not value["topic"]:
        raise TypeError("topic must be a text that is not empty")
    offsets: dict[int, int] = {}
    for queue, offset in value["offsets"].items():
        if type(offset) is not int or not (queue.isascii() and queue.isdigit()):
            raise TypeError("offsets must be numbers by queue id")
        offsets[int(queue)] = offset
    return group, member, offsets


def check_bounds(offsets: Mapping[int, int]) -> None:
    """Check offsets by queue.

    Raises:
        ValueError: an offset or a queue id is out of bounds.
    """
    for queue, offset in offsets.items():
        if not (0 <= queue <= MAX_QUEUE and 0 <= offset <= MAX_OFFSET):
            raise ValueError("offsets and queue ids must not be below 0, nor be too large")


def offset_records(
    group: str, offsets: Mapping[tuple[str, int], int], extra: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Records that commit these offsets by (topic, queue): one a topic.

    Raises:
        ValueError: an offset or a queue id is out of bounds.
    """
    topics: dict[str, dict[str, int]] = {}
    for (topic, queue), offset in offsets.items():
        check_bounds({queue: offset})
        topics.setdefault(topic, {})[str(queue)] = offset
    return [{"group": group, "topic": topic, "offsets": queues, **extra} for topic, queues in topics.items()]


def commit(
    group: str,
    member: str,
    offsets: Mapping[tuple[str, int], int],
    *,
    expected: Mapping[tuple[str, int], int | None] | None = None,
    rows: MessageBatch | None = None,
) -> Rule[None]:
    """A rule that commits offsets by (topic, queue) without a lease: of queues that a consumer assigned to itself.

    Args:
        group: the group.
        member: the consumer's id.
        offsets: next to consume.
        expected: what must be committed of each before; None: anything.
        rows: messages that land with the offsets.

    The rule raises:
        PreconditionFailedError: something else is committed.
    """

    def rule(state: LogState) -> Decision[None]:
        known = state.fold(ConsumerOffsets)
        for (topic, queue), before in (expected or {}).items():
            if (committed := known.of(group, topic).get(queue)) != before:
                raise PreconditionFailedError(
                    "another consumer of the group has committed this queue; nothing was written",
                    group=group,
                    topic=topic,
                    queue=queue,
                    expected=before,
                    committed=committed,
                )
        changed = {at: offset for at, offset in offsets.items() if known.of(group, at[0]).get(at[1]) != offset}
        records = offset_records(group, changed, {"member": member})
        return Decision(None, rows=rows, records=[(ConsumerOffsets.topics[0], record) for record in records])

    return rule


def leave(group: str, member: str) -> Rule[None]:
    """A rule that notes that a consumer has ended, if it was the last one that committed: it commits no more."""

    def rule(state: LogState) -> Decision[None]:
        known = state.fold(ConsumerOffsets)
        last, topics = known.last.get(group), known.offsets.get(group)
        if last is None or last.ended or last.member != member or not topics:
            return Decision(None)
        # A reader that does not know of it takes it for a commit of nothing.
        record = {"group": group, "topic": min(topics), "offsets": {}, "member": member, "left": True}
        return Decision(None, records=[(ConsumerOffsets.topics[0], record)])

    return rule
