"""POP: messages that consumers hold for a while, each until its acknowledgement or its time; the fold and its records.

A group's next offset in a queue is its committed offset (`rules/offsets.py`), as in RocketMQ: the commit that claims
messages moves it. So whatever reads committed offsets (lag, resets, tables) needs to know nothing of POP. This fold has
what is in flight, and nothing else: messages that were received and are neither acknowledged nor given back.

Records, all in queue 0 of `rmq_sys_pop`; times are the store times of their commits:

| `do` | means | fields |
| --- | --- | --- |
| `claim` | a consumer holds these messages | group, topic, queue, start, invisible, offsets, consumer; FIFO: order |
| `change` | the holder of a message keeps it for another time | group, topic, queue, offset, invisible, consumer |
| `end` | these messages are held no longer | group, topic, queue, offsets |
| `clear` | a reset: nothing of the queue is held any longer, or nothing of the group | group, and topic and queue |

`offsets` are runs: first offset and count, first offset and count, and so on. The decisions are in `pop_decisions.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.undo import Journal, UndoDict

Place = tuple[str, str, int]
"""Group, topic (a retry topic is one of its own) and queue."""

RUN_MAX: Final = 1 << 20
"""No record names more messages than this in one run: one that does is damage, and must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Claim:
    """That a consumer holds messages; one for each receive and queue. With an offset it is what a receipt names."""

    start: int
    """First offset of the messages that it was made for."""
    pop_ms: int
    """The log's time when it was made."""
    invisible_ms: int
    """For how long nobody else gets them."""
    consumer: str
    """Who holds them."""

    @property
    def due_ms(self) -> int:
        """From this time of the log on, others may get what is not acknowledged."""
        return self.pop_ms + self.invisible_ms


@dataclass(frozen=True, slots=True)
class Order:
    """The one batch in flight of a queue that is received in order (FIFO)."""

    offsets: tuple[int, ...]
    reconsume_times: tuple[int, ...]
    """How often each was delivered before."""
    end: int
    """Where the group goes on when all are acknowledged."""
    attempt_id: str | None
    """Names the receive that took it: the same receive again gets the same messages without waiting."""


class PopState(Fold):
    """What is in flight of every group, topic and queue. It grows with that, not with what was acknowledged."""

    name: ClassVar[str] = "pop"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_pop",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.held: UndoDict[Place, UndoDict[int, Claim]] = self.table()
        """Place -> offset of each message in flight -> whose it is."""
        self.orders: UndoDict[Place, Order] = self.table()

    # ------------------------------------------------------------ the fold

    def apply(self, records: Records) -> None:
        for value, store_ms in zip(records.values(), records.store_ms, strict=True):
            do = value["do"]
            if do == "clear":
                self._clear(value)
                continue
            place = (need(value["group"], str, "group"), need(value["topic"], str, "topic"), _number(value, "queue"))
            if do == "claim":
                self._claim(place, value, store_ms)
            elif do == "change":
                offset = _number(value, "offset")
                claim = _claim_of(value, offset, store_ms)
                held = self.held.get(place)
                if held is not None and offset in held:
                    held[offset] = claim
            elif do == "end":
                self._end(place, expand(value["offsets"]))
            else:
                raise ValueError(f"unknown record: do={do!r}")

    def _claim(self, place: Place, value: dict[str, Any], store_ms: int) -> None:
        offsets = expand(value["offsets"])
        claim = _claim_of(value, _number(value, "start"), store_ms)
        order = _order_of(value["order"], offsets) if "order" in value else None
        before = self.orders.get(place)
        if before is not None:
            self._end(place, before.offsets)  # whoever held them holds them no longer
        held = self.held.child(place)
        for offset in offsets:
            held[offset] = claim
        if order is not None:
            self.orders[place] = order

    def _end(self, place: Place, offsets: Iterable[int]) -> None:
        held = self.held.get(place)
        if held is None:
            return
        for offset in offsets:
            held.discard(offset)
        order = self.orders.get(place)
        if order is not None and not any(offset in held for offset in order.offsets):
            del self.orders[place]
        if not held:
            del self.held[place]

    def _clear(self, value: dict[str, Any]) -> None:
        group = need(value["group"], str, "group")
        if "topic" in value:
            places = [(group, need(value["topic"], str, "topic"), _number(value, "queue"))]
        else:
            places = [place for place in self.held if place[0] == group]
        for place in places:
            self.held.discard(place)
            self.orders.discard(place)

    def dump(self) -> Any:
        return [[*place, *self._dump_place(place, held)] for place, held in sorted(self.held.items())]

    def _dump_place(self, place: Place, held: Mapping[int, Claim]) -> tuple[Any, Any]:
        claims: dict[Claim, list[int]] = {}
        for offset, claim in sorted(held.items()):
            claims.setdefault(claim, []).append(offset)
        order = self.orders.get(place)
        return (
            [
                [claim.start, claim.pop_ms, claim.invisible_ms, claim.consumer, runs_of(offsets)]
                for claim, offsets in claims.items()
            ],
            None if order is None else [runs_of(order.offsets), order_value(order)],
        )

    def load(self, value: Any, version: int) -> None:
        self.held, self.orders = self.table(), self.table()
        for group, topic, queue, claims, order in value:
            held = self.held.child((group, topic, queue))
            for *claim, runs in claims:
                one = Claim(*claim)
                for offset in expand(runs):
                    held[offset] = one
            if order is not None:
                self.orders[group, topic, queue] = _order_of(order[1], expand(order[0]))

    # ------------------------------------------------------------ looking

    def claim_of(self, place: Place, offset: int) -> Claim | None:
        """Who holds a message; None when nobody does."""
        held = self.held.get(place)
        return None if held is None else held.get(offset)

    def unfinished(self, place: Place) -> list[int]:
        """Offsets of a FIFO batch that are not acknowledged; empty when none is in flight."""
        order, held = self.orders.get(place), self.held.get(place)
        return [] if order is None or held is None else [offset for offset in order.offsets if offset in held]

    def overdue(self, now_ms: int, limit: int) -> Iterator[tuple[Place, dict[int, Claim]]]:
        """Messages whose time is over by `now_ms`: by place, at most `limit` of each. FIFO batches are among them."""
        for place, held in self.held.items():
            mine: dict[int, Claim] = {}
            for offset, claim in held.items():
                if claim.pop_ms + claim.invisible_ms <= now_ms:
                    mine[offset] = claim
                    if len(mine) == limit:
                        break
            if mine:
                yield place, mine

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next message in flight is visible again, after `now_ms`; None when none will be."""
        due = (claim.due_ms for held in self.held.values() for claim in held.values())
        return min((ms for ms in due if ms > now_ms), default=None)

    def in_flight(self, group: str) -> dict[tuple[str, int], int]:
        """How many messages the consumers of a group hold, by topic and queue."""
        return {(place[1], place[2]): len(held) for place, held in self.held.items() if place[0] == group}


# ------------------------------------------------------------ records


def claim_record(place: Place, offsets: Sequence[int], claim: Claim, order: Order | None = None) -> dict[str, Any]:
    """The record of a claim; its time is that of its commit."""
    value = {
        "do": "claim",
        **_place(place),
        "start": claim.start,
        "invisible": claim.invisible_ms,
        "offsets": runs_of(offsets),
        "consumer": claim.consumer,
    }
    return value if order is None else {**value, "order": order_value(order)}


def change_record(place: Place, offset: int, claim: Claim) -> dict[str, Any]:
    """The record by which the holder of a message keeps it for another time."""
    return {
        "do": "change",
        **_place(place),
        "offset": offset,
        "invisible": claim.invisible_ms,
        "consumer": claim.consumer,
    }


def end_record(place: Place, offsets: Iterable[int]) -> dict[str, Any]:
    """The record by which nobody holds these messages any longer."""
    return {"do": "end", **_place(place), "offsets": runs_of(sorted(offsets))}


def clear_record(group: str, topic: str | None = None, queue: int = 0) -> dict[str, Any]:
    """The record by which nobody holds anything of a queue, or of the whole group."""
    return {"do": "clear", "group": group} if topic is None else {"do": "clear", **_place((group, topic, queue))}


def order_value(order: Order) -> dict[str, Any]:
    """What a record says of a FIFO batch beside its offsets."""
    return {"times": list(order.reconsume_times), "end": order.end, "attempt": order.attempt_id}


def runs_of(offsets: Iterable[int]) -> list[int]:
    """Ascending offsets as runs: first and count of each."""
    runs: list[int] = []
    after = -1
    for offset in offsets:
        if offset == after:
            runs[-1] += 1
        else:
            runs += (offset, 1)
        after = offset + 1
    return runs


def expand(runs: Any) -> list[int]:
    """The inverse of `runs_of`.

    Raises:
        TypeError, ValueError: it is no list of runs.
    """
    offsets: list[int] = []
    numbers = need(runs, list, "offsets")
    for first, count in zip(numbers[::2], numbers[1::2], strict=True):
        if need(first, int, "offsets") < 0 or not 0 < need(count, int, "offsets") <= RUN_MAX:
            raise ValueError("offsets must be runs of a first offset and a count")
        offsets += range(first, first + count)
    return offsets


def _place(place: Place) -> dict[str, Any]:
    group, topic, queue = place
    return {"group": group, "topic": topic, "queue": queue}


def _number(value: Mapping[str, Any], field: str) -> int:
    number: int = need(value[field], int, field)
    if number < 0:
        raise ValueError(f"{field} must not be below 0")
    return number


def _claim_of(value: Mapping[str, Any], start: int, store_ms: int) -> Claim:
    return Claim(start, store_ms, _number(value, "invisible"), need(value["consumer"], str, "consumer"))


def _order_of(value: Any, offsets: Sequence[int]) -> Order:
    times = tuple(need(each, int, "times") for each in need(value["times"], list, "times"))
    if len(times) != len(offsets):
        raise ValueError("times must be as many as offsets")
    attempt = value["attempt"]
    if attempt is not None:
        need(attempt, str, "attempt")
    return Order(tuple(offsets), times, _number(value, "end"), attempt)
