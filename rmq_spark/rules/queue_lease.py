"""Who of a group consumes a queue, and until when, in the log's own time (facts 5.8). Lives in a broker's log.

A lease lasts 60 s and is renewed each 20 s. Its holder goes by its own clock and stops 30 s after it last asked, which
is earlier. A process can sleep through its lease; what it does outside of the log then nobody can prevent, but what it
writes is decided here: an offset, and the copies of messages that failed, land only while the lease is held.

A queue's epoch rises whenever the lease is taken, so a holder that lost a lease and got it back cannot mistake the one
for the other. It is kept when the lease is given back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision, Rule
from rmq_spark.log.state import LogState
from rmq_spark.log.undo import Journal, UndoDict
from rmq_spark.rules.offsets import ConsumerOffsets, offset_records

LEASE_MS: Final = 60_000
"""How long a lease lasts: RocketMQ's `rebalance.lockMaxLiveTime` of a broker."""
RENEW_MS: Final = 20_000
"""How often it is renewed."""

Queue = tuple[str, int]
"""Topic and queue id, on the broker of the log."""


@dataclass(frozen=True, slots=True)
class QueueLease:
    """Who may consume a queue."""

    holder: str
    epoch: int
    """Rises with every taking."""
    until_ms: int
    """0: it was given back."""

    def is_held(self, holder: str, epoch: int, now_ms: int) -> bool:
        """Whether it is still the lease that `holder` took."""
        return self.holder == holder and self.epoch == epoch and self.until_ms > now_ms


@dataclass(frozen=True, slots=True)
class Taken:
    """A lease that was got."""

    epoch: int
    offset: int | None
    """What the group has committed of the queue at this very moment; None: nothing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the holder of a lease has come."""

    epoch: int
    """Of its lease."""
    offset: int
    """Next to consume."""


class QueueLeases(Fold):
    """Leases by group, topic and queue."""

    name: ClassVar[str] = "queue_leases"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_queue_lease",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.leases: UndoDict[str, UndoDict[Queue, QueueLease]] = self.table()
        """By group."""

    def apply(self, records: Records) -> None:
        for value in records.values():
            group, holder = need(value["group"], str, "group"), need(value["holder"], str, "holder")
            until = need(value["until"], int, "until")
            mine = self.leases.child(group)
            for topic, queues in need(value["queues"], dict, "queues").items():
                for queue, epoch in need(queues, dict, "queues").items():
                    mine[topic, int(queue)] = QueueLease(holder, need(epoch, int, "epoch"), until)

    def of(self, group: str, queue: Queue) -> QueueLease | None:
        """The lease of a queue; None if it never had one."""
        mine = self.leases.get(group)
        return None if mine is None else mine.get(queue)

    def dump(self) -> Any:
        return {
            group: [[*queue, lease.holder, lease.epoch, lease.until_ms] for queue, lease in sorted(leases.items())]
            for group, leases in self.leases.items()
        }

    def load(self, value: Any, version: int) -> None:
        self.leases = self.table()
        for group, leases in value.items():
            mine = self.leases.child(group)
            for topic, queue, *lease in leases:
                mine[topic, queue] = QueueLease(*lease)


def take(group: str, holder: str, queues: Collection[Queue], lease_ms: int = LEASE_MS) -> Rule[dict[Queue, Taken]]:
    """Take leases; the answer has those that were got, each with what the group has committed. Others are left out.

    A queue is free when nobody has its lease, or when its time is over. The holder itself gets it again.
    """

    def rule(state: LogState) -> Decision[dict[Queue, Taken]]:
        leases, offsets = state.fold(QueueLeases), state.fold(ConsumerOffsets)
        got: dict[Queue, Taken] = {}
        for topic, queue in sorted(set(queues)):
            lease = leases.of(group, (topic, queue))
            if lease is not None and lease.until_ms > state.now_ms and lease.holder != holder:
                continue
            epoch = 1 if lease is None else lease.epoch + 1
            got[topic, queue] = Taken(epoch, offsets.of(group, topic).get(queue))
        epochs = {queue: taken.epoch for queue, taken in got.items()}
        return Decision(got, records=_records(group, holder, epochs, state.now_ms + lease_ms))

    return rule


def renew(group: str, holder: str, held: Mapping[Queue, int], lease_ms: int = LEASE_MS) -> Rule[frozenset[Queue]]:
    """Keep leases, each given with its epoch; the answer has those that were lost."""

    def rule(state: LogState) -> Decision[frozenset[Queue]]:
        kept, lost = _parted(state, group, holder, held)
        return Decision(lost, records=_records(group, holder, kept, state.now_ms + lease_ms))

    return rule


def commit(
    group: str,
    holder: str,
    progress: Mapping[Queue, Progress],
    *,
    release: Iterable[Queue] = (),
    rows: MessageBatch | None = None,
) -> Rule[frozenset[Queue]]:
    """Commit offsets of queues whose leases are held; the answer has the queues that were lost: nothing is written.

    Args:
        group: the group.
        holder: who holds the leases.
        progress: how far it has come.
        release: those of the queues to give back with this.
        rows: messages that land with the offsets; only if no lease was lost.
    """
    released = frozenset(release)

    def rule(state: LogState) -> Decision[frozenset[Queue]]:
        kept, lost = _parted(state, group, holder, {queue: each.epoch for queue, each in progress.items()})
        if rows is not None and lost:
            return Decision(lost)
        known = state.fold(ConsumerOffsets)
        changed = {
            queue: progress[queue].offset
            for queue in kept
            if known.of(group, queue[0]).get(queue[1]) != progress[queue].offset
        }
        records = [
            *[(ConsumerOffsets.topics[0], record) for record in offset_records(group, changed, {"member": holder})],
            *_records(group, holder, {queue: epoch for queue, epoch in kept.items() if queue in released}, 0),
        ]
        return Decision(lost, rows=rows, records=records)

    return rule


def append(group: str, holder: str, held: Mapping[Queue, int], rows: MessageBatch) -> Rule[frozenset[Queue]]:
    """Append messages if all leases are held; the answer has the queues that were lost: nothing is written then."""

    def rule(state: LogState) -> Decision[frozenset[Queue]]:
        _, lost = _parted(state, group, holder, held)
        return Decision(lost, rows=None if lost else rows)

    return rule


def _parted(
    state: LogState, group: str, holder: str, held: Mapping[Queue, int]
) -> tuple[dict[Queue, int], frozenset[Queue]]:
    """The queues whose leases are held, with their epochs, and the others."""
    leases = state.fold(QueueLeases)
    kept = {
        queue: epoch
        for queue, epoch in held.items()
        if (lease := leases.of(group, queue)) is not None and lease.is_held(holder, epoch, state.now_ms)
    }
    return kept, frozenset(held.keys() - kept.keys())


def _records(
    group: str, holder: str, epochs: Mapping[Queue, int], until_ms: int
) -> list[tuple[str, Mapping[str, Any]]]:
    if not epochs:
        return []
    queues: dict[str, dict[str, int]] = {}
    for (topic, queue), epoch in epochs.items():
        queues.setdefault(topic, {})[str(queue)] = epoch
    return [(QueueLeases.topics[0], {"group": group, "holder": holder, "until": until_ms, "queues": queues})]
