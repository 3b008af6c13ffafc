"""LitePullConsumer: the caller asks for messages when it wants some, as values or as an Arrow table."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

import pyarrow as pa

from rmq_spark.client.consumer_life import ConsumerLife
from rmq_spark.client.consumer_settings import DEFAULT, ConsumeFromArgument, ConsumerSettings, check_settings, start_of
from rmq_spark.client.group_queues import GroupQueues
from rmq_spark.client.observer import polled, tell_rows
from rmq_spark.client.producer import Producer
from rmq_spark.client.pull_queues import Cursor, PullQueues, taken_over
from rmq_spark.client.pull_transaction import PullTransaction
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import plain_rows, received_messages
from rmq_spark.client.subscription import subscription
from rmq_spark.errors import ClosedError, InvalidRequestError, NotFoundError, RmqError
from rmq_spark.log import schema
from rmq_spark.model import numbers, times
from rmq_spark.model.message_queue import MessageQueue
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules.assignment import Strategy, own_room, strategy_of

POLL_MESSAGES: Final = 256
"""Messages that one `poll` returns at most, unless it is told otherwise."""
POLL_ROWS: Final = 100_000
"""Rows of one `poll_table` at most, unless it is told otherwise."""
UPKEEP_SECONDS: Final = 1.0
"""So often it is looked whether a heartbeat is due while the caller does not poll."""

QueueArgument = MessageQueue | tuple[str, str, int]
"""Topic, broker and queue id."""

_log = logging.getLogger(__name__)


class LitePullConsumer(ConsumerLife):
    """Returns messages when it is asked. Safe to use from many threads; close it, or use it as a context manager.

    With `subscribe` the consumers of the group share the queues; with `assign` the caller chooses them. What a poll
    returned counts as consumed when the next poll begins (`auto_commit`, at most every 5 s), with `commit`, with
    `close`, or with a transaction. Delivery is at least once; with transactions, effects in the store happen once.

    Args:
        store: an open store; close the consumer before it.
        group: the consumer group.
        consume_from: where the group starts in queues that it has no offset of: `latest`, `earliest`, or a time.
        auto_commit: whether polls commit what earlier polls returned.
        strategy: how queues are shared: as for `PushConsumer`.
        settings: times.
        trace: write a trace of every poll's messages to RMQ_SYS_TRACE_TOPIC, in the background; `poll_table` has none.

    Raises (on making):
        InvalidRequestError: an illegal name, time or strategy.
    """

    def __init__(
        self,
        store: Store,
        group: str,
        *,
        consume_from: ConsumeFromArgument = "latest",
        auto_commit: bool = True,
        strategy: str | Strategy = "AVG",
        settings: ConsumerSettings = DEFAULT,
        trace: bool = False,
    ) -> None:
        check_settings(settings)
        super().__init__(store, group, trace=trace, room=own_room(strategy))
        self._auto_commit = auto_commit
        self._settings = settings
        groups = GroupQueues(
            store,
            group,
            self._client_id,
            settings=settings,
            strategy=strategy_of(strategy),
            consume_from=start_of(consume_from, store.clock.now_ms()),
            retries=False,
        )
        self._queues = PullQueues(store, group, self._client_id, groups, settings, auto_commit=auto_commit)
        self._lock = threading.RLock()
        self._commit_due = 0
        self._thread: threading.Thread | None = None
        self._producer: Producer | None = None
        store.start_services()

    # ------------------------------------------------------------ queues

    def subscribe(self, topic: str, *, tags: str | None = None, sql: str | None = None) -> LitePullConsumer:
        """Consume `topic`, too: all messages, those with one of some tags (`"a || b"`), or those that match SQL92.

        Raises:
            NotFoundError: there is no such topic.
            InvalidRequestError: both filters are given, one cannot be read, or queues were assigned.
            ClosedError: the consumer was closed, or made before a fork.
        """
        self._check_open()
        wanted = subscription(topic, tags, sql)
        self._store.topic(topic)
        with self._lock:
            if self._queues.assigned:
                raise InvalidRequestError("either subscribe or assign, not both", group=self._group)
            self._queues.subscribe(topic, wanted)
            if self._thread is None:
                self._close_at_exit()
                args = (self._queues, self._ended, self._group)
                name = f"rmq-pull-upkeep-{self._group}"
                self._thread = threading.Thread(target=_keep_up, args=args, name=name, daemon=True)
                self._thread.start()
        return self

    def assign(self, queues: Iterable[QueueArgument]) -> LitePullConsumer:
        """Consume exactly these queues, whatever other consumers do; offsets are committed for the group.

        Raises:
            NotFoundError: there is no such topic or queue.
            InvalidRequestError: topics were subscribed.
            ClosedError: the consumer was closed, or made before a fork.
        """
        self._check_open()
        wanted = set(_message_queues(queues))
        for queue in sorted(wanted):
            if not 0 <= queue.queue_id < self._store.topic(queue.topic).queues.get(queue.broker, 0):
                raise NotFoundError("no such queue", topic=queue.topic, broker=queue.broker, queue=queue.queue_id)
        with self._lock:
            if self._queues.subscriptions:
                raise InvalidRequestError("either subscribe or assign, not both", group=self._group)
            self._queues.assign(wanted)
        return self

    def assignment(self) -> list[MessageQueue]:
        """The queues that are consumed now."""
        with self._lock:
            return sorted(queue for queue, cursor in self._queues.cursors.items() if not cursor.lost)

    def position(self, queue: QueueArgument) -> int:
        """The offset of the next message that a poll returns of a queue.

        Raises:
            InvalidRequestError: the queue is not this consumer's.
        """
        with self._lock:
            return self._cursor(queue).position

    def seek(self, queue: QueueArgument, offset: int | str) -> None:
        """Go on at another offset of a queue: a number, `earliest` or `latest`.

        Raises:
            InvalidRequestError: the queue is not this consumer's, or does not hold the offset.
            ClosedError: the consumer was closed, or made before a fork.
        """
        self._check_open()
        with self._lock:
            cursor, at = self._cursor(queue), _message_queue(queue)
            first, end = self._queues.bounds(at)
            wanted = {"earliest": first, "latest": end}.get(offset, offset) if isinstance(offset, str) else offset
            if isinstance(wanted, bool) or not isinstance(wanted, int) or not first <= wanted <= end:
                raise InvalidRequestError(
                    "seek to an offset that the queue holds, to earliest or to latest",
                    queue=tuple(at),
                    offset=offset,
                    first=first,
                    end=end,
                )
            cursor.move(wanted)

    def pause(self, queues: Iterable[QueueArgument]) -> None:
        """Let polls pass over some queues until `resume`; they stay this consumer's.

        Raises:
            InvalidRequestError: a queue is not this consumer's.
        """
        self._set_paused(queues, True)

    def resume(self, queues: Iterable[QueueArgument]) -> None:
        """Undo `pause`.

        Raises:
            InvalidRequestError: a queue is not this consumer's.
        """
        self._set_paused(queues, False)

    def _set_paused(self, queues: Iterable[QueueArgument], paused: bool) -> None:
        with self._lock:
            for cursor in [self._cursor(queue) for queue in _message_queues(queues)]:
                cursor.paused = paused

    def _cursor(self, queue: QueueArgument) -> Cursor:
        cursor = self._queues.cursors.get(_message_queue(queue))
        if cursor is None:
            raise InvalidRequestError("the queue is not this consumer's", queue=tuple(queue), group=self._group)
        return cursor

    # ------------------------------------------------------------ polling

    def poll(self, timeout: timedelta | float = 5.0, *, max_messages: int = POLL_MESSAGES) -> list[ReceivedMessage]:
        """Return the next messages, in order per queue; an empty list when none came within `timeout`.

        Raises:
            InvalidRequestError: nothing is subscribed or assigned, a number below 1, or no duration from 0 on.
            ClosedError: the consumer was closed, or made before a fork.
            RmqError: the log could not be read or written; poll again.
        """
        messages: list[ReceivedMessage] = []
        numbers.check_whole("max_messages", max_messages, 1)
        for queue, rows in self._poll(timeout, max_messages):
            messages += received_messages(rows, queue.topic)
        polled(self._observers(), self._clock, self._group, messages)
        return messages

    def poll_table(self, timeout: timedelta | float = 5.0, *, max_rows: int = POLL_ROWS) -> pa.Table:
        """As `poll`, but as a table with the columns of `Store.read`, in order per queue; bodies are decompressed.

        Raises:
            as `poll`.
        """
        numbers.check_whole("max_rows", max_rows, 1)
        reads = self._poll(timeout, max_rows)
        if observers := self._observers():
            for queue, rows in reads:
                tell_rows(observers, self._group, queue.topic, rows)
        return pa.Table.from_batches([plain_rows(rows) for _, rows in reads], schema=schema.MESSAGE)

    def _poll(self, timeout: timedelta | float, rows_max: int) -> list[tuple[MessageQueue, pa.RecordBatch]]:
        deadline = self._clock.elapsed_ns() + times.wait_ms(timeout, "timeout") * 1_000_000
        with self._lock:
            self._check_open()
            if not self._queues.subscriptions and not self._queues.assigned:
                raise InvalidRequestError("nothing is subscribed or assigned", group=self._group)
            now = self._clock.elapsed_ns()
            if self._auto_commit and now >= self._commit_due:
                self._queues.commit()
                self._commit_due = now + self._settings.commit_ms * 1_000_000
        while True:
            with self._lock:
                self._check_open()
                self._queues.keep()
                self._queues.rebalance()
                reads, again, ends = self._queues.read(rows_max)
            if reads:
                return reads
            left = (deadline - self._clock.elapsed_ns()) / 1e9
            if left <= 0:
                return []
            if not again:
                self._queues.wait(ends, left)

    # ------------------------------------------------------------ committing

    def commit(self) -> None:
        """Commit everything that polls have returned.

        Raises:
            PreconditionFailedError: queues went to other consumers meanwhile; the others are committed. Their messages
                since the last commit come again.
            ClosedError: the consumer was closed, or made before a fork.
            RmqError: as `CommitLog.decide`; commit again.
        """
        with self._lock:
            self._check_open()
            if gone := self._queues.commit():
                raise taken_over(self._group, gone)

    def transaction(self) -> PullTransaction:
        """Send messages and commit what was polled as one commit: `with consumer.transaction() as tx: tx.send(...)`.

        All or nothing, once: a crash, another consumer that took over a queue, or an exception inside the `with` means
        that nothing was sent, and that the messages are polled again. The queues that were polled since the last commit
        and the topics that are sent to must share one broker.

        Raises:
            InvalidRequestError: the consumer commits by itself; make it with `auto_commit=False`.
        """
        self._check_open()
        if self._auto_commit:
            raise InvalidRequestError("transactions need a consumer with auto_commit=False", group=self._group)
        with self._lock:
            if self._producer is None:
                self._producer = Producer(self._store)
        return PullTransaction(self._queues, self._producer, self._lock, self._check_open)

    # ------------------------------------------------------------ life

    def close(self) -> None:
        """Commit what polls returned, if that is automatic, give the queues back, and leave the group.

        Raises:
            RmqError: as `CommitLog.decide`: messages since the last commit come again.
        """
        if self._ended.is_set() or self._is_forked:
            return
        with self._lock:
            if self._queues.assigned and self._auto_commit:
                self._queues.commit()
            self._ended.set()
            self._forget_exit()
            self._queues.leave()
        self._close_traces()


def _message_queue(queue: QueueArgument) -> MessageQueue:
    kinds = [type(part) for part in queue] if isinstance(queue, tuple) else None
    if kinds != [str, str, int]:
        raise InvalidRequestError("a queue is given as (topic, broker, queue id)", queue=queue)
    return MessageQueue(*queue)


def _message_queues(queues: Iterable[QueueArgument]) -> list[MessageQueue]:
    argument: object = queues
    if isinstance(argument, str | MessageQueue) or not isinstance(argument, Iterable):
        raise InvalidRequestError("give a list of queues, each as (topic, broker, queue id)", queues=queues)
    return [_message_queue(queue) for queue in queues]


def _keep_up(queues: PullQueues, closed: threading.Event, group: str) -> None:
    """Keep a consumer in its group while its caller does not poll."""
    while not closed.wait(UPKEEP_SECONDS):
        try:
            queues.keep()
        except ClosedError:
            return
        except RmqError as error:
            _log.warning("a consumer's upkeep failed and is tried again (group=%r): %s", group, error)
