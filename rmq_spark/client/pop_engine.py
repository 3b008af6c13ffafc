"""A push consumer on POP, step by step: consumers of a group share every queue, and nothing is assigned to anybody.

A message that was received is held until its listener is done: its invisible time is renewed meanwhile. Success
acknowledges it, failure lets it come again after a while, and after the maximum it goes to the dead-letter topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rmq_spark.client.consume_result import ConsumeOutcome
from rmq_spark.client.consumer_settings import ConsumerSettings
from rmq_spark.client.group_queues import GroupQueues
from rmq_spark.client.listener_engine import AGAIN_MS, Fetched, Listener, ListenerEngine
from rmq_spark.client.pop_receiver import PopReceiver, receipt_of
from rmq_spark.client.process_queue import OVERHEAD_BYTES
from rmq_spark.clock import Clock
from rmq_spark.errors import RmqError
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules import retry
from rmq_spark.rules.pop_decisions import INVISIBLE_MS_MAX, RECEIVE_MAX, AckStatus

RENEWALS: Final = (1, 3, 5, 10, 30, 60)
"""How many invisible times each renewal of a message adds: with 60 s, RocketMQ's 1 min, 3 min, 5 min, … 1 h."""
RENEW_LOOK_MS: Final = 5_000
"""So often it is looked which messages are to be renewed; more often with a short invisible time."""
RENEW_AHEAD_MS: Final = 10_000
"""A message whose time is over so soon is renewed."""
RENEW_TOTAL_MS: Final = 3 * 3_600_000
"""A message that was held for so long is not renewed any more: it comes again."""
HAND_BACK_MS: Final = 1_000
"""A message that no listener got before the consumer was closed comes again after this time."""

Answers = list[tuple[ReceivedMessage, AckStatus]]
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Held:
    """A message in this consumer's hands."""

    message: ReceivedMessage
    received_ns: int
    until_ns: int
    """Until when it is surely held: counted from before it was asked for."""
    renewals: int = 0
    working: bool = False
    """Whether a listener has it."""

    @property
    def size(self) -> int:
        return len(self.message.body) + OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """What could not be written: it is tried again while the messages are held."""

    act: Callable[[], Answers]
    until_ns: int


class PopEngine(ListenerEngine[list[_Held]]):
    """One consumer of a group.

    Args:
        clock: the store's.
        group: the group.
        groups: the consumer's membership.
        receiver: receives and settles.
        expressions: what is subscribed, by topic.
        listener: what consumes.
        settings: times and limits.
        threads: how many listeners run at a time. So many batches are held, not more: what waits here for a slow
            listener another consumer cannot have.
        batch_size: messages that a listener gets at once.
        orderly: whether the consumer receives in order; each queue then has one batch in flight.
        retry_max: how often a message is retried; None: as the group's settings say.
        priority_topics: topics whose queues are priorities: high ones are consumed first.
    """

    def __init__(
        self,
        clock: Clock,
        group: str,
        groups: GroupQueues,
        receiver: PopReceiver,
        *,
        expressions: dict[str, str],
        listener: Listener,
        settings: ConsumerSettings,
        threads: int,
        batch_size: int,
        orderly: bool,
        retry_max: int | None,
        priority_topics: Collection[str] = (),
    ) -> None:
        def priority_of(task: list[_Held]) -> int:
            message = task[0].message
            return message.queue_id if message.topic in priority_topics else 0

        super().__init__(
            clock,
            groups,
            expressions=expressions,
            heartbeat_ms=settings.heartbeat_ms,
            steps=("heartbeat", "routes", "renew", "settle"),
            priority_of=priority_of if priority_topics else None,
        )
        self._group = group
        self._receiver = receiver
        self._listener = listener
        self._settings = settings
        self._held_max = min(threads * batch_size, settings.cached_messages_max)
        self._batch_size = batch_size
        self._orderly = orderly
        self._retry_max = retry_max
        self._held: set[_Held] = set()
        """Guarded by the lock, which is kept over a renewal: whoever settles a message has its newest receipt."""
        self._unsettled: list[_Unsettled] = []
        self._busy = 0
        """Batches that listeners have, or whose outcome is being written."""

    # ------------------------------------------------------------ upkeep

    def tick(self) -> float:
        with self._ticking:
            now = self._clock.elapsed_ns()
            steps = {"heartbeat": self._beat, "routes": self._look, "renew": self._renew, "settle": self._settle_again}
            failed = self._run_due(now, steps)
            if failed:
                raise failed[0]
            return max(0.0, (min(self._due.values()) - self._clock.elapsed_ns()) / 1e9)

    def share_again(self) -> None:
        self._receiver.refresh()
        self._due["routes"] = 0
        self.attention.set()

    def _look(self) -> int:
        self.nameserver_end = self._receiver.routes().nameserver_end
        return self._settings.rebalance_ms

    def brokers(self) -> set[str]:
        return set(self._receiver.routes().brokers())

    def wait(self, broker: str, log_end: int, seconds: float) -> None:
        self._receiver.log(broker).wait(log_end, seconds)

    def _renew(self) -> int:
        """Keep what listeners have or will get; returns after how many milliseconds to look again."""
        invisible_ms = self._settings.invisible_ms
        ahead_ns = min(RENEW_AHEAD_MS, invisible_ms // 2) * 1_000_000
        with self._lock:
            now = self._clock.elapsed_ns()
            due: dict[int, list[_Held]] = {}
            for held in self._held:
                if now < held.until_ns <= now + ahead_ns and now - held.received_ns < RENEW_TOTAL_MS * 1_000_000:
                    times = RENEWALS[min(held.renewals, len(RENEWALS) - 1)]
                    due.setdefault(min(times * invisible_ms, INVISIBLE_MS_MAX), []).append(held)
            for renewed_ms, mine in due.items():
                by_message = {id(held.message): held for held in mine}
                answers = self._receiver.change_invisible([held.message for held in mine], renewed_ms)
                for message, status in answers:
                    held = by_message[id(message)]
                    held.renewals += 1
                    held.until_ns = now + renewed_ms * 1_000_000 if status is AckStatus.OK else 0
        return min(RENEW_LOOK_MS, max(1, invisible_ms // 4))

    def _settle_again(self) -> int:
        for each in self._take_unsettled():
            if self._clock.elapsed_ns() < each.until_ns:
                self._settle(each)
        return AGAIN_MS

    # ------------------------------------------------------------ receiving

    def _fetch(self, broker: str) -> Fetched:
        room = self._room()
        if self._stopping or room <= 0:
            return Fetched(False, True, 0)
        # In order, one batch of a queue is in flight. One that a listener would not get at once would only wait, and
        # be counted as delivered with the one before it.
        count = min(room, RECEIVE_MAX, self._batch_size if self._in_order else RECEIVE_MAX)
        asked = self._clock.elapsed_ns()
        invisible_ms = self._settings.invisible_ms
        taken = self._receiver.receive(broker, self._receiver.turn(), count=count, invisible_ms=invisible_ms)
        until = asked + invisible_ms * 1_000_000
        for _, run in groupby(taken.messages, lambda message: (message.topic, message.queue_id)):
            mine = [_Held(message, asked, until) for message in run]
            with self._lock:
                self._held.update(mine)
            for at in range(0, len(mine), self._batch_size):
                self._tasks.put(mine[at : at + self._batch_size])
        return Fetched(bool(taken.messages) or taken.again, False, taken.log_end, taken.wait_ms)

    @property
    def _in_order(self) -> bool:
        return self._orderly or self._receiver.routes().settings.orderly

    def _room(self) -> int:
        """How many messages may be received now."""
        with self._lock:
            if sum(held.size for held in self._held) > self._settings.cached_bytes_max:
                return 0
            return self._held_max - len(self._held)

    # ------------------------------------------------------------ consuming

    def _consume_task(self, task: list[_Held]) -> None:
        with self._lock:
            if self._stopping:
                return
            now = self._clock.elapsed_ns()
            held = [each for each in task if now < each.until_ns]
            self._held.difference_update(each for each in task if now >= each.until_ns)  # another may have them
            for each in held:
                each.working = True
            self._busy += bool(held)
        if not held:
            return
        try:
            self._consume(held)
        finally:
            with self._lock:
                self._busy -= 1

    def _consume(self, held: Sequence[_Held]) -> None:
        messages = [each.message for each in held]
        outcome = self._listener(messages)
        with self._lock:
            self._held.difference_update(held)  # not renewed any more: receipts do not change from here on
        until = min(each.until_ns for each in held)
        for act in self._acts(messages, outcome):
            self._settle(_Unsettled(act, until))

    def _acts(self, messages: Sequence[ReceivedMessage], outcome: ConsumeOutcome) -> list[Callable[[], Answers]]:
        """What is to be written for messages that a listener is done with."""
        receiver = self._receiver
        done = outcome.consumed(len(messages))
        acts: list[Callable[[], Answers]] = [lambda: receiver.ack(messages[:done])] if done else []
        if done == len(messages):
            return acts
        settings = receiver.routes().settings
        maximum = settings.retry_max_times if self._retry_max is None else self._retry_max
        level = outcome.delay_level
        waits: dict[int | None, list[ReceivedMessage]] = {}
        for message in messages[done:]:
            if retry.is_given_up(message.reconsume_times + 1, maximum, retry.Path.POP, level=level):
                wait_ms = None
            elif receipt_of(message).is_fifo:
                wait_ms = self._settings.suspend_ms
            else:
                wait_ms = retry.pop_nack_ms(message.reconsume_times, settings.policy, level=level)
            waits.setdefault(wait_ms, []).append(message)
        return [*acts, *[_failing(receiver, mine, wait_ms) for wait_ms, mine in waits.items()]]

    def _settle(self, what: _Unsettled) -> None:
        try:
            answers = what.act()
        except RmqError as error:
            if not error.retriable:
                raise
            _log.warning("messages could not be settled; trying again (group=%r): %s", self._group, error)
            with self._lock:
                self._unsettled.append(what)
            return
        late = [message.msg_id for message, status in answers if status not in (AckStatus.OK, AckStatus.NOT_HELD)]
        if late:
            _log.warning(
                "a listener was done when its messages were not this consumer's any more; they come again (group=%r, "
                "msg_ids=%r)",
                self._group,
                late,
            )

    # ------------------------------------------------------------ the end

    def stop(self) -> None:
        with self._lock:
            self._stopping = True

    @property
    def is_idle(self) -> bool:
        with self._lock:
            return not self._busy

    def leave(self) -> None:
        with self._ticking:
            for each in self._take_unsettled():
                each.act()
            with self._lock:
                now = self._clock.elapsed_ns()
                waiting = [held.message for held in self._held if not held.working and now < held.until_ns]
                self._held = {held for held in self._held if held.working}
            if waiting:
                self._receiver.change_invisible(waiting, HAND_BACK_MS)
            self._groups.leave()
            self._receiver.leave()

    def _take_unsettled(self) -> Iterable[_Unsettled]:
        with self._lock:
            unsettled, self._unsettled = self._unsettled, []
        return unsettled


def _failing(receiver: PopReceiver, messages: Sequence[ReceivedMessage], wait_ms: int | None) -> Callable[[], Answers]:
    if wait_ms is None:
        return lambda: receiver.give_up(messages)
    return lambda: receiver.change_invisible(messages, wait_ms)
