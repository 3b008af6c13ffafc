"""A push consumer that shares queues with the others of its group, or has them all, step by step."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rmq_spark.client.consumer_settings import ConsumerSettings
from rmq_spark.client.delays import settings_for
from rmq_spark.client.group_queues import GroupQueues, warn_lost
from rmq_spark.client.listener_engine import AGAIN_MS, Fetched, Listener, ListenerEngine
from rmq_spark.client.local_offsets import LocalOffsets
from rmq_spark.client.process_queue import ProcessQueue
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import received_messages
from rmq_spark.client.subscription import Subscription
from rmq_spark.errors import RmqError
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.view import LogView
from rmq_spark.model.message_queue import MessageQueue
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules import delay, retry, system_topics
from rmq_spark.rules.queue_lease import Progress

READ_ROWS: Final = 512
"""Messages of a queue that one read looks at."""
LOCAL_RETRY_MS: Final = 5_000
"""How soon a message is consumed again here when it could not be sent back."""
DRAIN_MS: Final = 20_000
"""So long a queue that goes to another consumer waits for listeners that have no order to keep."""
TURN_MS: Final = 60_000
"""So long one orderly queue may keep a thread while others wait."""
TIMEOUT_LEVEL: Final = 3
"""Delay level of a message whose listener took too long."""

_log = logging.getLogger(__name__)


class PushEngine(ListenerEngine[ProcessQueue]):
    """One consumer of a group.

    Args:
        store: an open store.
        group: the group.
        groups: the consumer's part in its group.
        subscriptions: by topic.
        listener: what consumes.
        settings: times and limits.
        orderly: whether the messages of a queue are consumed one batch after the other.
        batch_size: messages that a listener gets at once.
        retry_max: how often a message is retried.
        retry_policy: how long a failed message waits.
        priority_topics: topics whose queues are priorities: high ones are consumed first.
        local: where a broadcasting consumer keeps its offsets; None: the group shares the queues.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        groups: GroupQueues,
        *,
        subscriptions: Mapping[str, Subscription],
        listener: Listener,
        settings: ConsumerSettings,
        orderly: bool,
        batch_size: int,
        retry_max: int,
        local: LocalOffsets | None,
        retry_policy: retry.RetryPolicy = retry.DEFAULT_POLICY,
        priority_topics: Collection[str] = (),
    ) -> None:
        def priority_of(held: ProcessQueue) -> int:
            return held.queue.queue_id if held.queue.topic in priority_topics else 0

        super().__init__(
            store.clock,
            groups,
            expressions={topic: each.expression for topic, each in subscriptions.items()},
            heartbeat_ms=settings.heartbeat_ms,
            steps=("heartbeat", "renew", "rebalance", "commit"),
            priority_of=priority_of if priority_topics else None,
        )
        self._store = store
        self._group = group
        self._subscriptions = dict(subscriptions)
        self._listener = listener
        self._settings = settings
        self._orderly = orderly
        self._batch_size = batch_size
        self._retry_max = retry_max
        self._retry_policy = retry_policy
        self._local = local
        self._held: dict[MessageQueue, ProcessQueue] = {}
        self._later: list[tuple[int, int, ProcessQueue]] = []
        self._numbers = itertools.count()

    # ------------------------------------------------------------ upkeep

    def tick(self) -> float:
        with self._ticking:
            now = self._clock.elapsed_ns()
            self._start_later(now)
            self._drop_untrusted(now)
            steps = {"rebalance": self._rebalance, "commit": self._commit_when_due}
            if self._local is None:
                steps = {"heartbeat": self._beat, "renew": self._renew, **steps}
            failed = self._run_due(now, steps)
            self._give_back(now)
            if failed:
                raise failed[0]
            return self._seconds_left()

    def share_again(self) -> None:
        self._due["rebalance"] = 0
        self.attention.set()

    def _commit_when_due(self) -> int:
        self._send_back_overdue(self._clock.elapsed_ns())
        self.commit()
        return self._settings.commit_ms

    def _seconds_left(self) -> float:
        with self._lock:
            next_due = min([*self._due.values(), *[due for due, _, _ in self._later[:1]]])
            if any(held.dropped_ns is not None for held in self._held.values()):
                next_due = min(next_due, self._clock.elapsed_ns() + AGAIN_MS * 1_000_000)
        return max(0.0, (next_due - self._clock.elapsed_ns()) / 1e9)

    def _start_later(self, now: int) -> None:
        while True:
            with self._lock:
                if not self._later or self._later[0][0] > now:
                    return
                held = heapq.heappop(self._later)[2]
            self._tasks.put(held)

    def _schedule(self, held: ProcessQueue, wait_ms: int) -> None:
        with self._lock:
            due = self._clock.elapsed_ns() + wait_ms * 1_000_000
            heapq.heappush(self._later, (due, next(self._numbers), held))
        self.attention.set()

    # ------------------------------------------------------------ queues

    def queues(self) -> list[MessageQueue]:
        """The queues that are consumed now."""
        with self._lock:
            return sorted(queue for queue, held in self._held.items() if held.dropped_ns is None)

    def brokers(self) -> set[str]:
        with self._lock:
            return {queue.broker for queue in self._held}

    def wait(self, broker: str, log_end: int, seconds: float) -> None:
        self._groups.log(broker).wait(log_end, seconds)

    def _all(self) -> list[ProcessQueue]:
        with self._lock:
            return list(self._held.values())

    def _rebalance(self) -> int:
        """Share the queues again; returns after how many milliseconds the next time is due."""
        share = self._groups.share(self._subscriptions, alone=self._local is not None)
        self.nameserver_end = share.end
        if self._stopping:
            return self._settings.rebalance_ms
        now = self._clock.elapsed_ns()
        for held in self._all():
            if held.queue not in share.queues:
                held.drop(now)
        self._give_back(now)
        with self._lock:
            new = share.queues - self._held.keys()
            balanced = all(self._held[queue].dropped_ns is None for queue in share.queues & self._held.keys())
        made = self._take(new) if new else []
        with self._lock:
            self._held.update((each.queue, each) for each in made)
        for broker in sorted({each.queue.broker for each in made}):
            self.fetch(broker)
        return self._settings.rebalance_ms if balanced and len(made) == len(new) else AGAIN_MS

    def _take(self, new: frozenset[MessageQueue]) -> list[ProcessQueue]:
        """Start consuming queues; those that another consumer still holds are left out."""
        if self._local is not None:
            known = self._local.load()
            offsets = self._groups.start_offsets({queue: known.get(queue) for queue in new})
            self._local.store({**known, **offsets})
            return [ProcessQueue(queue, 0, offset, None) for queue, offset in offsets.items()]
        trusted = self._clock.elapsed_ns() + self._settings.trusted_lease_ms * 1_000_000
        started = self._groups.take(new)
        return [ProcessQueue(queue, start.epoch, start.offset, trusted) for queue, start in started.items()]

    def _renew(self) -> int:
        asked = self._clock.elapsed_ns()
        held = {each.queue: each for each in self._all() if not each.lost}
        lost = self._groups.renew({queue: each.epoch for queue, each in held.items()})
        for queue, each in held.items():
            if queue in lost:
                self._lose(each)
            else:
                each.trust(asked + self._settings.trusted_lease_ms * 1_000_000)
        return self._settings.renew_ms

    def _drop_untrusted(self, now: int) -> None:
        """Give up queues whose lease may be over: this process slept, or could not reach the log."""
        for held in self._all():
            if not held.is_trusted(now) and not held.lost:
                self._lose(held)

    def _lose(self, held: ProcessQueue) -> None:
        warn_lost(self._group, held.queue)
        # It is kept until its listeners are done: taken again before that, the queue would have two of them.
        held.drop(self._clock.elapsed_ns(), lost=True)
        self.share_again()

    def _give_back(self, now: int) -> None:
        """Commit and give back queues that were dropped, and forget those that were lost, once listeners are done."""
        ready = [
            held
            for held in self._all()
            if held.dropped_ns is not None
            and (held.is_idle or (not self._orderly and now - held.dropped_ns >= DRAIN_MS * 1_000_000))
        ]
        for held in ready:
            self._commit([held], release=True)
            with self._lock:
                if self._held.get(held.queue) is held:
                    del self._held[held.queue]

    # ------------------------------------------------------------ offsets

    def commit(self) -> None:
        """Commit how far the listeners have come.

        Raises:
            RmqError: as `CommitLog.decide`.
        """
        self._commit(self._all(), release=False)

    def _commit(self, queues: Sequence[ProcessQueue], *, release: bool) -> None:
        offsets = {held: held.offset() for held in queues if not held.lost}
        if self._local is not None:
            if any(held.committed != offset for held, offset in offsets.items()):
                self._local.store({**self._local.load(), **{held.queue: at for held, at in offsets.items()}})
            lost = set[MessageQueue]()
        else:
            changed = {held: offset for held, offset in offsets.items() if release or held.committed != offset}
            progress = {held.queue: Progress(held.epoch, offset) for held, offset in changed.items()}
            lost = self._groups.commit(progress, release=list(progress) if release else [])
        for held, offset in offsets.items():
            if held.queue in lost:
                self._lose(held)
            else:
                held.committed = offset

    # ------------------------------------------------------------ reading

    def _fetch(self, broker: str) -> Fetched:
        mine = [held for held in self._all() if held.queue.broker == broker and held.dropped_ns is None]

        def look(view: LogView) -> tuple[list[int], int]:
            ends = [view.state.queues.bounds(held.queue.topic, held.queue.queue_id)[1] for held in mine]
            return ends, view.state.offset

        ends, log_end = self._groups.log(broker).look(look)
        grown = blocked = False
        for held, end in zip(mine, ends, strict=True):
            if held.position >= end:
                continue
            if self._stopping or not held.has_room(self._settings, orderly=self._orderly):
                blocked = True
                continue
            self._read(held)
            grown = True
        return Fetched(grown, blocked, log_end)

    def _read(self, held: ProcessQueue) -> None:
        queue = held.queue
        subscribed = self._subscriptions.get(queue.topic)
        read = self._groups.read(queue, held.position, subscribed, rows_max=READ_ROWS, place=held.place)
        if isinstance(read, int):
            held.put([], read)
            return
        messages = received_messages(read.messages, queue.topic)
        held.place = read.place
        held.put(messages, read.next_offset)
        turns = 1 if self._orderly and messages else -(-len(messages) // self._batch_size)
        for _ in range(turns):
            self._tasks.put(held)

    # ------------------------------------------------------------ consuming

    def _consume_task(self, task: ProcessQueue) -> None:
        if self._orderly:
            self._work_in_order(task)
        else:
            batch = task.take(self._batch_size, self._clock.elapsed_ns())
            if batch:
                self._consume(task, batch)
        if task.dropped_ns is not None:
            self.attention.set()  # another consumer waits for the queue

    def _consume(self, held: ProcessQueue, batch: list[ReceivedMessage]) -> None:
        outcome = self._listener(batch)
        done = outcome.consumed(len(batch))
        held.finish(batch[:done])
        # Others were sent back, or just are: it took too long.
        left = held.claim(batch[done:])
        if held.lost or not left:
            held.finish(left)
        elif self._local is not None:
            for message in left:
                _log.warning(
                    "a broadcasting listener failed, and there is no retry: message dropped (group=%r, topic=%r, "
                    "msg_id=%r)",
                    self._group,
                    message.topic,
                    message.msg_id,
                )
            held.finish(left)
        elif self._send_back(held, left, outcome.delay_level):
            held.finish(left)
        else:
            held.put_back(left, failed=True)
            self._schedule(held, LOCAL_RETRY_MS)

    def _work_in_order(self, held: ProcessQueue) -> None:
        if not held.take_turn():
            return
        until = self._clock.elapsed_ns() + TURN_MS * 1_000_000
        while not self._stopping and (now := self._clock.elapsed_ns()) < until:
            batch = held.take(self._batch_size, now)
            if not batch:
                break
            outcome = self._listener(batch)
            done = len(batch) if held.lost else outcome.consumed(len(batch))
            held.finish(batch[:done])
            batch = batch[done:]
            if not batch:
                continue
            level = min(0, outcome.delay_level)
            given_up = [each for each in batch if retry.is_given_up(each.reconsume_times, self._retry_max, level=level)]
            if given_up and self._local is None and self._send_back(held, given_up, level):
                held.finish(given_up)
                batch = [message for message in batch if message not in given_up]
            held.put_back(batch, failed=True)
            if batch:
                held.end_turn(now)
                self._schedule(held, self._settings.suspend_ms)
                return
        if held.end_turn(self._clock.elapsed_ns()):
            self._tasks.put(held)

    def _send_back(self, held: ProcessQueue, messages: Sequence[ReceivedMessage], level: int = 0) -> bool:
        """Append copies for the retry or the dead-letter topic; returns whether the messages are settled by that."""
        try:
            rows = [self._row_back(message, level) for message in messages]
            if any(system_topics.is_dlq(row.topic) for row in rows):
                self._groups.ensure_dead_letters(held.queue.broker)
            if not self._groups.append(held.queue, held.epoch, MessageBatch.from_rows(rows)):
                self._lose(held)
        except RmqError as error:
            _log.warning(
                "messages could not be sent back and are consumed again here (group=%r, queue=%r): %s",
                self._group,
                tuple(held.queue),
                error,
            )
            return False
        return True

    def _row_back(self, message: ReceivedMessage, level: int) -> MessageRow:
        if retry.is_given_up(message.reconsume_times, self._retry_max, level=level):
            return retry.dead_letter_row(message, self._group)
        now = self._clock.now_ms()
        wait = retry.retry_delay(message.reconsume_times, now, self._retry_policy, level=level)
        row = retry.retry_row(message, system_topics.retry_topic(self._group))
        return delay.park(row, wait, now, settings_for(self._store, wait.level))

    def _send_back_overdue(self, now: int) -> None:
        """Send back messages that listeners have had for too long; what those listeners say later does not count."""
        if self._orderly or self._local is not None:
            return
        before = now - self._settings.consume_timeout_ms * 1_000_000
        for held in self._all():
            late = held.claim(held.overdue(before))
            if late:
                _log.warning(
                    "a listener takes too long; its messages are sent back (group=%r, queue=%r, messages=%d)",
                    self._group,
                    tuple(held.queue),
                    len(late),
                )
                if self._send_back(held, late, TIMEOUT_LEVEL):
                    held.finish(late)
                else:
                    held.unclaim(late)

    # ------------------------------------------------------------ the end

    def stop(self) -> None:
        self._stopping = True
        now = self._clock.elapsed_ns()
        for held in self._all():
            held.drop(now)

    @property
    def is_idle(self) -> bool:
        return all(held.is_idle for held in self._all())

    def leave(self) -> None:
        with self._ticking:
            # An orderly queue whose listener does not end is not given back: its lease ends by itself.
            busy = [held for held in self._all() if self._orderly and not held.is_idle]
            self._commit(busy, release=False)
            self._commit([held for held in self._all() if held not in busy], release=True)
            with self._lock:
                self._held.clear()
            if self._local is None:
                self._groups.leave()
