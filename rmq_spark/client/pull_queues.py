"""The queues of a lite pull consumer: positions, leases and offsets. No threads; its caller serialises the calls."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rmq_spark.client.consumer_settings import ConsumerSettings
from rmq_spark.client.group_queues import GroupQueues, by_broker, decide, warn_lost
from rmq_spark.client.producer import Producer, SendResult
from rmq_spark.client.store import Store
from rmq_spark.client.subscription import Subscription
from rmq_spark.errors import InvalidRequestError, PreconditionFailedError
from rmq_spark.model.message import Message
from rmq_spark.model.message_queue import MessageQueue
from rmq_spark.rules import offsets as offset_rules
from rmq_spark.rules.queue_lease import Progress

WAIT_SECONDS: Final = 0.5
"""So long a poll waits before it looks whether queues have changed hands."""
AHEAD_ROWS: Final = 4_096
"""Rows that are read at least, if there are so many: a read costs far more than a row."""
BROKER_WAIT_SECONDS: Final = 0.05
"""Of several brokers it waits for one after the other, so long for each."""


@dataclass(eq=False)
class Cursor:
    """A queue in the consumer's hands."""

    epoch: int
    """Of the lease; 0 for a queue that was assigned by hand."""
    position: int
    """The next offset to return."""
    committed: int | None
    trusted_ns: int | None
    """Until when the lease is trusted; None without one."""
    place: int = 0
    ahead: pa.RecordBatch | None = None
    """Rows that were read and not returned yet; the first of them is at `position`."""
    read_to: int = 0
    """Where to read on behind `ahead`."""
    paused: bool = False
    lost: bool = False
    polled: bool = False
    """Whether messages were returned since the last commit."""

    def move(self, offset: int) -> None:
        self.position, self.place, self.ahead = offset, 0, None


class PullQueues:
    """The queues that one consumer has, by share or by hand.

    Args:
        store: an open store.
        group: the group.
        member: the consumer's id.
        groups: the consumer's part in its group.
        settings: times.
        auto_commit: whether a queue that is given back is committed as far as it was read.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        member: str,
        groups: GroupQueues,
        settings: ConsumerSettings,
        *,
        auto_commit: bool,
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._group = group
        self._member = member
        self._groups = groups
        self._settings = settings
        self._auto_commit = auto_commit
        self._keeping = threading.Lock()
        self._due = dict.fromkeys(("heartbeat", "renew", "rebalance"), 0)
        self._turn = 0
        self._has_priorities: dict[str, bool] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.cursors: dict[MessageQueue, Cursor] = {}
        self.assigned = False
        """Whether the caller has chosen the queues."""
        self._left_behind: set[MessageQueue] = set()
        """Queues that were polled and not committed, and are not this consumer's any more."""
        self._has_left = False

    def subscribe(self, topic: str, wanted: Subscription) -> None:
        """Share the queues of one more topic."""
        self.subscriptions[topic] = wanted
        self._due["rebalance"] = self._due["heartbeat"] = 0

    def assign(self, wanted: set[MessageQueue]) -> None:
        """Consume exactly these queues; those that were consumed before go on."""
        self.assigned = True
        stored = self._groups.committed(wanted - self.cursors.keys())
        for queue, offset in self._groups.start_offsets(stored).items():
            self.cursors[queue] = Cursor(0, offset, stored[queue], None)
        given_up = self.cursors.keys() - wanted
        if self._auto_commit:
            self._commit_assigned({queue: at for queue, at in self._moved().items() if queue in given_up})
        for queue in given_up:
            self._forget(queue)

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """First offset and end of a queue."""
        return self._groups.log(queue.broker).look(lambda view: view.state.queues.bounds(queue.topic, queue.queue_id))

    # ------------------------------------------------------------ reading

    def read(self, rows_max: int) -> tuple[list[tuple[MessageQueue, pa.RecordBatch]], bool, dict[str, int]]:
        """What there is to read, whether something was looked at in vain, and the logs' ends at the look."""
        now = self._clock.elapsed_ns()
        order = sorted(self.cursors)
        self._turn += 1
        turn = self._turn % max(1, len(order))
        reads: list[tuple[MessageQueue, pa.RecordBatch]] = []
        left, again, ends = rows_max, False, dict[str, int]()
        for queue in self._by_priority([*order[turn:], *order[:turn]]):
            cursor = self.cursors[queue]
            log = self._groups.log(queue.broker)
            if queue.broker not in ends:
                ends[queue.broker] = log.look(lambda view: view.state.offset)
            if cursor.paused or cursor.lost or (cursor.trusted_ns is not None and now >= cursor.trusted_ns):
                continue
            if cursor.position >= log.view.state.queues.bounds(queue.topic, queue.queue_id)[1]:
                continue
            rows = self._read_queue(queue, cursor, left)
            again = True
            if rows is not None:
                reads.append((queue, rows))
                left -= rows.num_rows
                if left <= 0:
                    break
        return reads, again, ends

    def _by_priority(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        """The queues with those of topics with priorities first, high ones before low ones."""
        for topic in {queue.topic for queue in queues} - self._has_priorities.keys():
            existing = self._store.find_topic(topic)
            self._has_priorities[topic] = existing is not None and existing.has_priorities
        if not any(self._has_priorities.values()):
            return queues
        return sorted(queues, key=lambda queue: -1 - queue.queue_id if self._has_priorities[queue.topic] else 0)

    def _read_queue(self, queue: MessageQueue, cursor: Cursor, rows_max: int) -> pa.RecordBatch | None:
        """The next rows of a queue; None when none of those that were looked at is wanted."""
        if cursor.ahead is None and not self._read_ahead(queue, cursor, max(rows_max, AHEAD_ROWS)):
            return None
        cursor.polled = True
        rows = cursor.ahead
        assert rows is not None  # noqa: S101 - read above
        if rows.num_rows > rows_max:
            cursor.ahead = rows.slice(rows_max)
            cursor.position = cursor.ahead.column("queueOffset")[0].as_py()
            return rows.slice(0, rows_max)
        cursor.position, cursor.ahead = cursor.read_to, None
        return rows

    def _read_ahead(self, queue: MessageQueue, cursor: Cursor, rows_max: int) -> bool:
        """Read rows of a queue; returns whether there are some."""
        subscribed = self.subscriptions.get(queue.topic)
        read = self._groups.read(queue, cursor.position, subscribed, rows_max=rows_max, place=cursor.place)
        if isinstance(read, int):
            cursor.move(read)
            return False
        cursor.place, cursor.read_to = read.place, read.next_offset
        if read.messages.num_rows:
            cursor.ahead = read.messages
            return True
        cursor.position = read.next_offset
        return False

    def wait(self, ends: Mapping[str, int], seconds: float) -> None:
        limit = min(seconds, WAIT_SECONDS)
        if not ends:
            self._store.nameserver.wait(self._store.nameserver.look(lambda view: view.state.offset), limit)
            self._due["rebalance"] = 0
        for broker, end in ends.items():
            if self._groups.log(broker).wait(end, limit if len(ends) == 1 else min(limit, BROKER_WAIT_SECONDS)):
                return

    # ------------------------------------------------------------ upkeep

    def keep(self) -> None:
        """Say that the consumer is there, and renew its leases, when that is due."""
        if self.assigned:
            return
        with self._keeping:
            if self._has_left:
                return
            now = self._clock.elapsed_ns()
            if now >= self._due["heartbeat"]:
                self._groups.beat({topic: each.expression for topic, each in list(self.subscriptions.items())})
                self._due["heartbeat"] = now + self._settings.heartbeat_ms * 1_000_000
            if now >= self._due["renew"]:
                held = {queue: each for queue, each in list(self.cursors.items()) if not each.lost}
                lost = self._groups.renew({queue: cursor.epoch for queue, cursor in held.items()})
                for queue, cursor in held.items():
                    cursor.trusted_ns = now + self._settings.trusted_lease_ms * 1_000_000
                    cursor.lost = queue in lost
                self._due["renew"] = now + self._settings.renew_ms * 1_000_000

    def rebalance(self) -> None:
        now = self._clock.elapsed_ns()
        self._forget_lost(
            queue
            for queue, cursor in list(self.cursors.items())
            if cursor.lost or (cursor.trusted_ns is not None and now >= cursor.trusted_ns)
        )
        if self.assigned or now < self._due["rebalance"]:
            return
        share = self._groups.share(self.subscriptions)
        self._give_back([queue for queue in self.cursors if queue not in share.queues])
        new = share.queues - self.cursors.keys()
        asked = self._clock.elapsed_ns()
        started = self._groups.take(new) if new else {}
        for queue, start in started.items():
            trusted = asked + self._settings.trusted_lease_ms * 1_000_000
            self.cursors[queue] = Cursor(start.epoch, start.offset, start.offset, trusted)
        wait = self._settings.rebalance_ms * 1_000_000 if len(started) == len(new) else int(WAIT_SECONDS * 1e9)
        self._due["rebalance"] = now + wait

    def _give_back(self, queues: Iterable[MessageQueue]) -> None:
        """Commit what polls returned, if that is automatic, and give the queues back."""
        progress: dict[MessageQueue, Progress] = {}
        for queue in queues:
            cursor = self.cursors[queue]
            offset = cursor.position if self._auto_commit or cursor.committed is None else cursor.committed
            progress[queue] = Progress(cursor.epoch, offset)
        self._groups.commit(progress, release=list(progress))
        for queue in progress:
            self._forget(queue)

    def _forget_lost(self, lost: Iterable[MessageQueue]) -> None:
        for queue in lost:
            warn_lost(self._group, queue)
            self._forget(queue)
            self._due["rebalance"] = 0

    def _forget(self, queue: MessageQueue) -> None:
        cursor = self.cursors.pop(queue)
        # Whoever commits by itself has to hear that what it polled is not its own any more: with a transaction, its
        # outputs would land and those of the next holder, too.
        if not self._auto_commit and cursor.polled:
            self._left_behind.add(queue)

    # ------------------------------------------------------------ committing

    def commit(self) -> list[MessageQueue]:
        """Commit everything that was read; returns the queues that were polled and went to other consumers.

        Raises:
            RmqError: as `CommitLog.decide`.
        """
        moved = self._moved()
        if self.assigned:
            self._commit_assigned(moved)
            lost = set[MessageQueue]()
        else:
            lost = self._groups.commit(
                {queue: Progress(cursor.epoch, cursor.position) for queue, cursor in moved.items()}
            )
        self._note_committed(moved, lost)
        return self._take_left_behind()

    def _commit_assigned(self, moved: Mapping[MessageQueue, Cursor]) -> None:
        for broker, mine in by_broker({queue: cursor.position for queue, cursor in moved.items()}).items():
            decide(self._groups.log(broker), offset_rules.commit(self._group, self._member, mine))

    def _moved(self) -> dict[MessageQueue, Cursor]:
        """Queues with something to commit; of those that were lost, the decision says so."""
        return {queue: cursor for queue, cursor in self.cursors.items() if cursor.position != cursor.committed}

    def _note_committed(self, moved: Mapping[MessageQueue, Cursor], lost: set[MessageQueue]) -> None:
        for queue, cursor in moved.items():
            if queue not in lost:
                cursor.committed, cursor.polled = cursor.position, False
        self._forget_lost(lost)

    def _take_left_behind(self) -> list[MessageQueue]:
        """Queues that were polled since the last commit and went to others; each is told once."""
        queues, self._left_behind = sorted(self._left_behind), set()
        return queues

    def land(self, producer: Producer, messages: list[Message]) -> list[SendResult]:
        """Send messages with the offsets of what was polled, in one decision."""
        if gone := self._take_left_behind():
            self.rewind()
            raise taken_over(self._group, gone)
        moved = self._moved()
        brokers = sorted({queue.broker for queue in moved})
        if len(brokers) > 1:
            self.rewind()
            raise InvalidRequestError(
                "messages of several brokers were polled; a transaction holds on one broker only",
                group=self._group,
                brokers=brokers,
            )
        try:
            prepared = producer.prepare(messages, brokers[0] if brokers else "") if messages else None
            if not moved:
                return [] if prepared is None else producer.land(prepared)
            log = self._groups.log(brokers[0])
            rows = None if prepared is None else prepared.batch
            if self.assigned:
                places = by_broker(moved)[brokers[0]]
                rule = offset_rules.commit(
                    self._group,
                    self._member,
                    {place: cursor.position for place, cursor in places.items()},
                    expected={place: cursor.committed for place, cursor in places.items()},
                    rows=rows,
                )
                result = log.decide(rule).result
                lost = set[MessageQueue]()
            else:
                progress = {queue: Progress(cursor.epoch, cursor.position) for queue, cursor in moved.items()}
                lost, result = self._groups.commit_with(brokers[0], progress, rows)
        except BaseException:
            self.rewind()
            raise
        if lost:
            self._forget_lost(lost)
            self.rewind()
            raise taken_over(self._group, lost)
        self._note_committed(moved, lost)
        return [] if prepared is None else producer.results(prepared, result)

    def rewind(self) -> None:
        """Go back to what the log says is committed: messages that were polled since come again."""
        self._take_left_behind()
        stored = self._groups.committed([queue for queue, cursor in self.cursors.items() if not cursor.lost])
        for queue, offset in self._groups.start_offsets(stored).items():
            cursor = self.cursors[queue]
            cursor.committed, cursor.polled = stored[queue], False
            cursor.move(offset)

    def leave(self) -> None:
        """Give every queue back, and leave the group."""
        if not self.subscriptions:
            self._groups.end_commits()
            return
        with self._keeping:
            self._has_left = True  # a heartbeat after this would keep the queues from the others until it expires
        self._give_back([queue for queue, cursor in self.cursors.items() if not cursor.lost])
        self._groups.leave()


def taken_over(group: str, queues: Iterable[MessageQueue]) -> PreconditionFailedError:
    """What the caller is told of queues that it polled and that are not its own any more."""
    return PreconditionFailedError(
        "queues went to other consumers meanwhile, so what was polled of them is not committed",
        group=group,
        queues=sorted(map(tuple, queues)),
    )
