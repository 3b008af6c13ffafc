"""Receiving by POP from one broker's log: read ahead, decide who gets what, hand over messages with receipts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rmq_spark.client.group_queues import decide
from rmq_spark.client.queue_windows import QueueWindows, Window
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import plain_rows, stored_messages
from rmq_spark.client.time_search import QueueTimes
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.queue_reader import ALL, QueueFilter, read_queue
from rmq_spark.log.request import Rule
from rmq_spark.log.view import LogView
from rmq_spark.model.stored_message import ReceivedMessage, StoredMessage
from rmq_spark.rules import pop_decisions, system_topics
from rmq_spark.rules.pop_decisions import Candidates, Claimed, Fifo, Received
from rmq_spark.rules.receipt import FIFO_REVIVE_QUEUE, Receipt, TopicType
from rmq_spark.rules.start_offset import ConsumeFrom, QueueEnds, start_offset

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A queue that messages are received from."""

    topic: str
    """That the queue is of: one that is subscribed, or the group's retry topic for it."""
    queue: int
    shown_topic: str
    """What listeners see."""
    topic_type: TopicType = TopicType.NORMAL
    wanted: QueueFilter = ALL
    expression: str = ""
    """Names `wanted`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one try to receive gave."""

    messages: list[ReceivedMessage] = field(default_factory=list)
    again: bool = False
    """Nothing yet, but there is more to look at: try at once."""
    log_end: int
    """The log's end at the look: when it has moved, there may be messages."""
    wait_ms: int | None = None
    """When a FIFO queue that is blocked may be free without anything being appended."""
    queue_ends: int = 0
    """The ends of all queues at the look, added up: when the sum has grown, there are messages."""


@dataclass(frozen=True, slots=True)
class _Seen:
    next_offset: int | None
    first: int
    end: int
    blocked_ms: int | None


class PopBroker:
    """One group's receives, acknowledgements and changes on one broker. Safe to use from any thread."""

    def __init__(
        self, store: Store, group: str, broker: str, *, consumer: str, consume_from: ConsumeFrom | int
    ) -> None:
        self._store = store
        self._clock = store.clock
        self._group = group
        self._broker = broker
        self._consumer = consumer
        self._consume_from = consume_from
        self._log = store.log(broker, *pop_decisions.FOLDS)
        self._windows = QueueWindows(self._log)
        self._times = QueueTimes(store)

    @property
    def log(self) -> CommitLog:
        """The broker's log."""
        return self._log

    def receive(
        self,
        sources: Sequence[Source],
        *,
        count: int,
        invisible_ms: int,
        fifo: Fifo | None,
        consumer: str | None = None,
    ) -> Taken:
        """Claim up to `count` messages of the queues, the first ones first; may give none although there are some.

        `consumer` holds them, if it is named.

        Raises:
            RmqError: as `CommitLog.decide`; nothing was claimed unless the outcome is unknown.
        """
        seen, log_end = self._log.look(lambda view: self._look(view, sources, fifo))
        windows: dict[tuple[str, int], tuple[Source, Window]] = {}
        candidates: list[Candidates] = []
        waits: list[int] = []
        available = 0
        for source, queue in zip(sources, seen, strict=True):
            if queue.blocked_ms is not None:
                waits.append(queue.blocked_ms)
                continue
            is_start = queue.next_offset is None
            position = self._start(source, queue) if queue.next_offset is None else queue.next_offset
            low, high, offsets = position, position, list[int]()
            if position < queue.end and available < count:
                window = self._windows.at(source.topic, source.queue, position, source.wanted, source.expression)
                windows[source.topic, source.queue] = source, window
                low, high, offsets = max(position, window.low), window.high, window.offsets
                available += min(count, window.count_from(low))
            elif not is_start:
                continue
            candidates.append(
                Candidates(
                    topic=source.topic, queue=source.queue, low=low, high=high, offsets=offsets, is_start=is_start
                )
            )
        wait_ms = min(waits, default=None)
        ends = sum(queue.end for queue in seen)
        if not candidates:
            return Taken(log_end=log_end, wait_ms=wait_ms, queue_ends=ends)
        received = self._decide(
            pop_decisions.receive(
                self._group,
                candidates,
                count=count,
                invisible_ms=invisible_ms,
                consumer=consumer or self._consumer,
                fifo=fifo,
            )
        )
        messages = self._messages(received, windows)
        again = not messages and bool(windows) and len(received.blocked) < len(windows)
        return Taken(messages=messages, again=again, log_end=log_end, wait_ms=wait_ms, queue_ends=ends)

    def ack(self, receipts: Sequence[tuple[str, Receipt]]) -> list[pop_decisions.AckStatus]:
        """Acknowledge messages by the topic that they were read from and receipt; see `pop_decisions.ack`."""
        return self._decide(pop_decisions.ack(self._group, receipts))

    def change_invisible(
        self, receipts: Sequence[tuple[str, Receipt]], invisible_ms: int
    ) -> list[pop_decisions.Changed]:
        """Change when messages are visible again; see `pop_decisions.change_invisible`."""
        rule = pop_decisions.change_invisible(self._group, receipts, invisible_ms=invisible_ms, consumer=self._consumer)
        return self._decide(rule)

    def give_up(self, messages: Sequence[tuple[str, Receipt, StoredMessage]]) -> list[pop_decisions.AckStatus]:
        """Move messages to the group's dead-letter topic, which is created if need be; see `pop_decisions.give_up`."""
        self._store.ensure_queues(system_topics.dlq_topic(self._group), self._broker, queues=1)
        return self._decide(pop_decisions.give_up(self._group, messages))

    def dead_letter(self, topic: str, receipt: Receipt) -> pop_decisions.AckStatus:
        """As `give_up`, for a message that is read again because the caller has only its receipt.

        Raises:
            DataExpiredError: retention has taken the message.
            RmqError: as `CommitLog.decide`.
        """
        read = read_queue(self._log, topic, receipt.queue_id, receipt.queue_offset, rows_max=1)
        if not read.messages.num_rows:
            return pop_decisions.AckStatus.UNKNOWN
        [status] = self.give_up([(topic, receipt, stored_messages(read.messages)[0])])
        return status

    # ------------------------------------------------------------ inner works

    def _look(self, view: LogView, sources: Sequence[Source], fifo: Fifo | None) -> tuple[list[_Seen], int]:
        state = view.state
        now = max(state.store_ms, self._clock.now_ms())
        seen = []
        for source in sources:
            place = (self._group, source.topic, source.queue)
            blocked = None if fifo is None else pop_decisions.blocked_ms(state, place, fifo, now)
            bounds = state.queues.bounds(source.topic, source.queue)
            seen.append(_Seen(pop_decisions.next_offset(state, place), *bounds, blocked))
        return seen, state.offset

    def _start(self, source: Source, seen: _Seen) -> int:
        """Where a group starts that has no offset of the queue."""
        key = (source.topic, self._broker, source.queue)
        return start_offset(
            None,
            self._consume_from,
            QueueEnds(
                topic=source.topic,
                first=seen.first,
                end=seen.end,
                first_store_ms=self._times.backlogs({key: 0})[key].oldest_ms if seen.first == 0 < seen.end else None,
            ),
            now_ms=self._clock.now_ms(),
            offset_at=lambda ms: self._times.search_queues([key], ms)[key],
        )

    def _decide(self, rule: Rule[Answer]) -> Answer:
        return decide(self._log, rule)

    def _messages(
        self, received: Received, windows: Mapping[tuple[str, int], tuple[Source, Window]]
    ) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        for claimed in received.claimed:
            source, window = windows[claimed.topic, claimed.queue]
            rows = window.messages.slice(window.index(claimed.offsets[0]), len(claimed.offsets))
            messages += stored_messages(
                plain_rows(rows),
                topic=source.shown_topic,
                reconsume_times=claimed.reconsume_times,
                receipts=_receipts(source, claimed, self._broker, rows.column("commitOffset").to_pylist()),
            )
        return messages


def _receipts(source: Source, claimed: Claimed, broker: str, commit_offsets: Sequence[int]) -> list[str]:
    """The receipts of messages that were claimed; they differ in their last two parts only."""
    one = Receipt(
        start_offset=claimed.claim.start,
        pop_ms=claimed.claim.pop_ms,
        invisible_ms=claimed.claim.invisible_ms,
        revive_queue=0 if claimed.reconsume_times is None else FIFO_REVIVE_QUEUE,
        topic_type=source.topic_type,
        broker=broker,
        queue_id=claimed.queue,
        queue_offset=0,
    )
    same = one.to_text().rpartition(" ")[0]
    return [f"{same} {offset} {commit}" for offset, commit in zip(claimed.offsets, commit_offsets, strict=True)]
