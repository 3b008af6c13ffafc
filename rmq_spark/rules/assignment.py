"""Which queues of a topic a member of a group consumes: RocketMQ's strategies, to the letter (facts 5.5).

Every member computes its own part from the same queues and members, so nobody has to hand anything out. Both are
sorted first. A member that is not in the list gets nothing.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.message_queue import MessageQueue

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own id, queues of a topic, ids of all members) -> own queues."""

_ROOM: Final = "MACHINE_ROOM"
_NEARBY: Final = "MACHINE_ROOM_NEARBY"
VIRTUAL_NODES: Final = 10
"""Places of each member on the ring of the consistent hash."""


def averagely(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Neighbouring queues, as many for each: 8 queues and 3 members give 0-2, 3-5, 6-7."""
    queues, at, count = _ordered(me, queues, members)
    if at is None:
        return []
    more = len(queues) % count
    size = 1 if len(queues) <= count else len(queues) // count + (1 if at < more else 0)
    start = at * size if at < more else at * size + more
    return queues[start : start + size]


def averagely_by_circle(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """Every m-th queue: dealt out like cards."""
    queues, at, count = _ordered(me, queues, members)
    return [] if at is None else queues[at::count]


def by_config(fixed: Sequence[MessageQueue]) -> Strategy:
    """The queues of a fixed list, whatever there is."""

    def strategy(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        del me, queues, members
        return list(fixed)

    return strategy


def room_before_at(broker: str) -> str | None:
    """The machine room in a broker's name `<room>@<name>`; None when it names none."""
    room, mark, _ = broker.partition("@")
    return room if mark else None


def by_machine_room(rooms: Collection[str], room_of: Callable[[str], str | None] = room_before_at) -> Strategy:
    """Only queues of brokers in some machine rooms, shared by all members.

    Args:
        rooms: the rooms.
        room_of: the room of a broker, None when it has none.
    """

    def strategy(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        near, at, count = _ordered(me, [one for one in queues if room_of(one.broker) in rooms], members)
        if at is None:
            return []
        each, more = divmod(len(near), count)
        own = near[at * each : at * each + each]
        return [*own, near[count * each + at]] if at < more else own

    return strategy


def by_consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Each queue goes to the next member on a ring of hashes: few queues move when members come and go."""

    def strategy(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        queues, at, _ = _ordered(me, queues, members)
        if at is None:
            return []
        ring = {ring_hash(f"{member}-{node}"): member for member in sorted(members) for node in range(virtual_nodes)}
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            index = bisect.bisect_left(places, ring_hash(_queue_text(queue)))
            return ring[places[index % len(places)]]

        return [queue for queue in queues if owner(queue) == me]

    return strategy


def ring_hash(text: str) -> int:
    """The first four bytes of the MD5 of a text, as a number without sign."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def machine_room_nearby(
    inner: Strategy, room_of_broker: Callable[[str], str], room_of_member: Callable[[str], str]
) -> Strategy:
    """Queues go to members in the same room; rooms with queues and no members are shared by all members.

    Args:
        inner: shares the queues of a room.
        room_of_broker: the room of a broker, by its name.
        room_of_member: the room of a member, by its id.

    Raises:
        InvalidRequestError: (when it is used) a broker or a member has no room.
    """

    def strategy(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        queues, at, _ = _ordered(me, queues, members)
        if at is None:
            return []
        queues_in: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_in.setdefault(_room(room_of_broker(queue.broker), broker=queue.broker), []).append(queue)
        members_in: dict[str, list[str]] = {}
        for member in sorted(members):
            members_in.setdefault(_room(room_of_member(member), member=member), []).append(member)
        own_room = _room(room_of_member(me), member=me)
        own = inner(me, queues_in.pop(own_room, []), members_in[own_room])
        for room in sorted(queues_in.keys() - members_in.keys()):
            own = [*own, *inner(me, queues_in[room], members)]
        return own

    return strategy


STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": averagely,
    "AVG_BY_CIRCLE": averagely_by_circle,
    "CONSISTENT_HASH": by_consistent_hash(),
}
"""Strategies that need nothing but a name; RocketMQ's names."""


def strategy_of(strategy: str | Strategy) -> Strategy:
    """The strategy of a name, or itself.

    Raises:
        InvalidRequestError: no such name, or neither a name nor a function.
    """
    if not isinstance(strategy, str):
        if not callable(strategy):
            raise InvalidRequestError("strategy takes a name or a function", type=type(strategy).__name__)
        return strategy
    name, _, rooms = strategy.partition(":")
    if name == _ROOM and rooms:
        return by_machine_room(frozenset(rooms.split(",")))
    inner = "AVG" if name == _NEARBY else name.removeprefix(f"{_NEARBY}-")
    if name.startswith(_NEARBY) and rooms and inner in STRATEGIES:
        # What has no room is refused when it is used.
        return machine_room_nearby(STRATEGIES[inner], _room_or_nothing, _room_or_nothing)
    if strategy not in STRATEGIES:
        known = [*STRATEGIES, f"{_ROOM}:room,room", f"{_NEARBY}:own room", f"{_NEARBY}-<inner>:own room"]
        raise InvalidRequestError("no such strategy", strategy=strategy, known=known)
    return STRATEGIES[strategy]


def own_room(strategy: str | Strategy) -> str:
    """The room that a strategy's name says its consumer is in; empty where it says none."""
    if not isinstance(strategy, str) or not strategy.startswith(_NEARBY):
        return ""
    return strategy.partition(":")[2]


def _room_or_nothing(name: str) -> str:
    return room_before_at(name) or ""


def _ordered(
    me: str, queues: Sequence[MessageQueue], members: Sequence[str]
) -> tuple[list[MessageQueue], int | None, int]:
    """The queues sorted, the own place among the sorted members (None when not among them), and how many there are."""
    ordered = sorted(members)
    return sorted(queues), ordered.index(me) if me in ordered else None, len(ordered)


def _queue_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker}, queueId={queue.queue_id}]"


def _room(room: str | None, **facts: str) -> str:
    if not room:
        raise InvalidRequestError(
            "machine room is not known; the strategy needs one for every broker and member", **facts
        )
    return room
