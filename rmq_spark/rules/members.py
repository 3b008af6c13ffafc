"""Members of consumer groups: who is alive, what each subscribes to (facts 5.5, 5.10). Lives in the nameserver log.

A member says that it is there by a heartbeat each 30 s, and is taken for gone 120 s after the last one, by the log's
own time; a member that ends says so. Every member computes its share of the queues from the same list.

All members of a group must subscribe alike (rule 24): queues are shared by topic, so what a member does not want of its
queues nobody gets. A heartbeat tells on which topics members differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.request import Decision, Rule
from rmq_spark.log.state import LogState
from rmq_spark.log.undo import Journal, UndoDict

HEARTBEAT_MS: Final = 30_000
"""RocketMQ's `heartbeatBrokerInterval`."""
EXPIRY_MS: Final = 120_000
"""A member that was not heard of for so long is taken for gone, as RocketMQ's brokers do."""


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer of a group, as its last heartbeat told."""

    at_ms: int
    """storeTimestamp of the heartbeat."""
    until_ms: int
    """When it is taken for gone unless it is heard of again."""
    subscriptions: tuple[tuple[str, str], ...]
    """Topic and expression of each subscription, by topic."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a member is told in return for its heartbeat."""

    members: tuple[str, ...]
    """Ids of all live members, itself included, sorted."""
    differing: tuple[str, ...]
    """Topics that live members subscribe to differently, or not all of them."""


class GroupMembers(Fold):
    """Live members by group and id. Those that are gone are forgotten with the next record of their group."""

    name: ClassVar[str] = "group_members"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_group_member",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.members: UndoDict[str, UndoDict[str, Member]] = self.table()

    def apply(self, records: Records) -> None:
        for value, store_ms in zip(records.values(), records.store_ms, strict=True):
            group, name = need(value["group"], str, "group"), need(value["member"], str, "member")
            left = bool(value.get("left"))
            expiry = 0 if left else need(value["expiry"], int, "expiry")
            subscriptions = {} if left else need(value["subscriptions"], dict, "subscriptions")
            for expression in subscriptions.values():
                need(expression, str, "subscriptions")
            mine: UndoDict[str, Member] = self.members.child(group)
            if left:
                mine.discard(name)
            else:
                mine[name] = Member(store_ms, store_ms + expiry, tuple(sorted(subscriptions.items())))
            for other in [other for other, member in mine.items() if member.until_ms <= store_ms]:
                del mine[other]
            if not mine:
                self.members.discard(group)

    def live(self, group: str, now_ms: int) -> dict[str, Member]:
        """The members that are alive at a time, by id."""
        known: Mapping[str, Member] = self.members.get(group) or {}
        return {name: known[name] for name in sorted(known) if known[name].until_ms > now_ms}

    def dump(self) -> Any:
        return {
            group: {name: [one.at_ms, one.until_ms, dict(one.subscriptions)] for name, one in members.items()}
            for group, members in self.members.items()
        }

    def load(self, value: Any, version: int) -> None:
        self.members = self.table()
        for group, members in value.items():
            mine = self.members.child(group)
            for name, (at_ms, until_ms, subscriptions) in members.items():
                mine[name] = Member(at_ms, until_ms, tuple(sorted(subscriptions.items())))


def differing(members: Mapping[str, Member]) -> tuple[str, ...]:
    """Topics that members subscribe to differently, or that only some of them subscribe to."""
    seen = [dict(member.subscriptions) for member in members.values()]
    topics = {topic for subscriptions in seen for topic in subscriptions}
    return tuple(sorted(topic for topic in topics if len({each.get(topic) for each in seen}) > 1))


def heartbeat(group: str, member: str, subscriptions: Mapping[str, str], expiry_ms: int = EXPIRY_MS) -> Rule[Heard]:
    """Join a group, or stay in it.

    Args:
        group: the group.
        member: the consumer's id, which no other has.
        subscriptions: topic -> expression.
        expiry_ms: how long it is alive without another heartbeat.
    """

    def rule(state: LogState) -> Decision[Heard]:
        members = state.fold(GroupMembers).live(group, state.now_ms)
        mine = Member(state.now_ms, state.now_ms + expiry_ms, tuple(sorted(subscriptions.items())))
        members[member] = mine
        record = {"group": group, "member": member, "subscriptions": dict(subscriptions), "expiry": expiry_ms}
        heard = Heard(tuple(sorted(members)), differing(members))
        return Decision(heard, records=[(GroupMembers.topics[0], record)])

    return rule


def leave(group: str, member: str) -> Rule[bool]:
    """Leave a group; the answer says whether the member was in it."""

    def rule(state: LogState) -> Decision[bool]:
        if member not in (state.fold(GroupMembers).members.get(group) or {}):
            return Decision(False)
        return Decision(True, records=[(GroupMembers.topics[0], {"group": group, "member": member, "left": True})])

    return rule
