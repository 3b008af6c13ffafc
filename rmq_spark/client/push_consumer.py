"""PushConsumer: a listener is called for every message of a group's topics. The threads around `PushEngine`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from rmq_spark.client.consume_result import FAILURE, SUCCESS, ConsumeOutcome, ConsumeResult
from rmq_spark.client.consumer_life import ConsumerLife
from rmq_spark.client.consumer_settings import DEFAULT, ConsumeFromArgument, ConsumerSettings, check_settings, start_of
from rmq_spark.client.group_queues import GroupQueues
from rmq_spark.client.group_settings import group_settings
from rmq_spark.client.listener_engine import AGAIN_MS, Listener, ListenerEngine
from rmq_spark.client.local_offsets import LocalOffsets
from rmq_spark.client.observer import watched_listener
from rmq_spark.client.pop_engine import PopEngine
from rmq_spark.client.pop_receiver import PopReceiver
from rmq_spark.client.push_engine import PushEngine
from rmq_spark.client.store import Store
from rmq_spark.client.subscription import Subscription, subscription
from rmq_spark.errors import InvalidRequestError, RmqError
from rmq_spark.model import names, numbers, times
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules import retry
from rmq_spark.rules.assignment import Strategy, own_room, strategy_of

CLOSE_SECONDS: Final = 30.0
"""So long `close` waits for listeners."""
LOOK_SECONDS: Final = 1.0
"""So often threads look whether the consumer was closed."""
NO_ROOM_SECONDS: Final = 0.05
"""So long a reader waits for listeners to catch up before it looks again, as in RocketMQ."""
OFFSETS_HOME: Final = "~/.rmq_spark_offsets"
"""Where broadcasting consumers keep their offsets."""

Engine = ListenerEngine[Any]

Answer = ConsumeResult | ConsumeOutcome | None
Handle = Callable[[Any], Answer | Awaitable[Answer]]
"""Gets a message, or a list of messages when `batch_size` is over 1; may be a coroutine function."""

_log = logging.getLogger(__name__)


class PushConsumer(ConsumerLife):
    """Calls a listener for every message of some topics. Close it, or use it as a context manager.

    The consumers of a group share the queues, and each message goes to one of them (clustering), or each consumer gets
    every message (broadcasting). Delivery is at least once. A message whose listener fails comes again through
    `%RETRY%group` after 10 s, 30 s, 1 min and so on; after 16 retries it goes to `%DLQ%group`. Some process must run
    the timer service for that. With `orderly`, the messages of a queue are consumed one batch after the other, by one
    consumer of the group at a time; a batch that fails is retried in place, and holds its queue.

    With `pop`, queues are not shared out: every consumer of the group receives from every queue, so a slow one holds
    nobody up, and there may be more consumers than queues. A message is invisible to the others while its listener
    works; one that fails comes again after 1 s, 5 s, 10 s and so on, and goes to `%DLQ%group` after the maximum. Some
    process must run `ReviveService` for that. With `orderly`, each queue has one batch in flight. All consumers of a
    group must be alike in this.

    Args:
        store: an open store; close the consumer before it.
        group: the consumer group.
        orderly: consume each queue in order.
        broadcasting: every consumer gets every message. Offsets are kept in a file; a message whose listener fails is
            dropped, with a line in the log.
        threads: how many listeners run at a time.
        batch_size: messages that a listener gets at once; over 1 it gets lists.
        pop: receive by POP; not for broadcasting.
        max_reconsume_times: how often a message is retried. Unless it is given, or with -1: as the group's settings
            say (16), in order without `pop` for ever. With `pop` not more often than the group's settings say.
        consume_from: where the group starts in queues that it has no offset of: `latest` (queues whose first message
            is less than an hour old are read whole, see `rules/start_offset.py`), `earliest`, or a time.
        strategy: how queues are shared: `AVG`, `AVG_BY_CIRCLE`, `CONSISTENT_HASH`, `MACHINE_ROOM:room,room`,
            `MACHINE_ROOM_NEARBY:own room`, or one of `rules/assignment.py`. Brokers are named `room@name` then.
        settings: times and limits.
        instance: names a broadcasting consumer's file: give each of a machine another.
        offsets_home: directory of broadcasting consumers' offsets.
        trace: write a trace of every consumption to RMQ_SYS_TRACE_TOPIC, in the background; see `rmq trace`.

    Raises (on making):
        InvalidRequestError: an illegal name, number, time or strategy.

    Example:
        >>> from rmq_spark import Message, Producer, PushConsumer, Store
        >>> import threading
        >>> with Store.open("memory://push-example", create=True) as store:
        ...     _ = Producer(store).send(Message("orders", b"one"))
        ...     seen = threading.Event()
        ...     with PushConsumer(store, "billing") as consumer:
        ...         consumer.subscribe("orders").start(lambda message: seen.set())
        ...         seen.wait(60)
        True
    """

    def __init__(
        self,
        store: Store,
        group: str,
        *,
        orderly: bool = False,
        broadcasting: bool = False,
        pop: bool = False,
        threads: int = 20,
        batch_size: int = 1,
        max_reconsume_times: int = retry.DEFAULT_TIMES,
        consume_from: ConsumeFromArgument = "latest",
        strategy: str | Strategy = "AVG",
        settings: ConsumerSettings = DEFAULT,
        instance: str = "DEFAULT",
        offsets_home: str | os.PathLike[str] = OFFSETS_HOME,
        trace: bool = False,
    ) -> None:
        numbers.check_whole("threads", threads, 1)
        numbers.check_whole("batch_size", batch_size, 1)
        retry.check_times(max_reconsume_times)
        check_settings(settings)
        if pop and broadcasting:
            raise InvalidRequestError("with pop the consumers of a group share messages; leave out broadcasting")
        super().__init__(store, group, trace=trace, room=own_room(strategy))
        self._orderly = orderly
        self._pop = pop
        self._broadcasting = broadcasting
        self._threads_wanted = threads
        self._batch_size = batch_size
        self._max_reconsume_times = max_reconsume_times
        self._settings = settings
        self._local = self._local_offsets(instance, offsets_home) if broadcasting else None
        self._start_from = start_of(consume_from, store.clock.now_ms())
        self._groups = GroupQueues(
            store,
            group,
            self._client_id,
            settings=settings,
            strategy=strategy_of(strategy),
            consume_from=self._start_from,
            retries=not broadcasting and not orderly,
        )
        self._subscriptions: dict[str, Subscription] = {}
        self._priority_topics: set[str] = set()
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._workers: list[threading.Thread] = []
        self._reading: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: RmqError | None = None

    @property
    def error(self) -> RmqError | None:
        """What ended the consumer by itself; None while it runs, or when it was closed."""
        return self._error

    # ------------------------------------------------------------ life

    def subscribe(self, topic: str, *, tags: str | None = None, sql: str | None = None) -> PushConsumer:
        """Consume `topic`, too: all messages, those with one of some tags (`"a || b"`), or those that match SQL92.

        All consumers of a group must subscribe alike.

        Raises:
            NotFoundError: there is no such topic.
            InvalidRequestError: both filters are given, one cannot be read, or the consumer was started.
            ClosedError: the consumer was closed, or made before a fork.
        """
        self._check_open()
        if self._engine is not None:
            raise InvalidRequestError("subscribe before start", group=self._group, topic=topic)
        wanted = subscription(topic, tags, sql)
        if self._store.topic(topic).has_priorities:
            self._priority_topics.add(topic)
        self._subscriptions[topic] = wanted
        return self

    def start(self, handle: Handle) -> PushConsumer:
        """Join the group, take this consumer's share of the queues, and call `handle` for their messages from now on.

        Args:
            handle: gets a message, or a list of up to `batch_size` of them. Returning None or `ConsumeResult.SUCCESS`
                consumes them, `ConsumeResult.FAILURE` or an exception lets them come again, and a `ConsumeOutcome`
                says how many of them are consumed and when the others come again. It runs in up to `threads` threads at
                once; a coroutine function runs in one event loop.

        Raises:
            InvalidRequestError: nothing is subscribed, it was started before, or `handle` is no function.
            ClosedError: the consumer was closed, or made before a fork.
            RmqError: the group could not be joined; start it again.
        """
        self._check_open()
        if not callable(handle):
            raise InvalidRequestError("start takes a function that gets messages", type=type(handle).__name__)
        if not self._subscriptions:
            raise InvalidRequestError("nothing is subscribed; subscribe to a topic first", group=self._group)
        with self._lock:
            if self._engine is not None:
                raise InvalidRequestError("the consumer was started before", group=self._group)
            engine = self._make_engine(handle)
            engine.tick()
            self._engine = engine
        self._store.start_services()
        self._close_at_exit()
        self._workers = [self._run("work", self._work, engine) for _ in range(self._threads_wanted)]
        self._threads = [
            self._run("upkeep", self._keep_up, engine),
            self._run("members", self._watch_members, engine),
        ]
        self._read_brokers(engine)
        return self

    def join(self, timeout: timedelta | float | None = None) -> bool:
        """Wait until the consumer was closed, for a script that does nothing else; False if it was not.

        Raises:
            InvalidRequestError: `timeout` is no duration.
            RmqError: what ended the consumer by itself.
        """
        ended = self._ended.wait(None if timeout is None else _seconds(timeout))
        if self._error is not None:
            raise self._error
        return ended

    def close(self, timeout: timedelta | float = CLOSE_SECONDS) -> None:
        """Hand out no more messages, wait for listeners, commit offsets, and leave the group.

        A listener that is not done after `timeout` seconds is left alone; its messages come again.

        Raises:
            InvalidRequestError: `timeout` is no duration; nothing was done.
            RmqError: the offsets could not be committed: messages since the last commit come again.
        """
        limit = _seconds(timeout)
        with self._lock:
            if self._ended.is_set() or self._is_forked:
                return
            self._ended.set()
            engine = self._engine
        self._forget_exit()
        self._stop.set()
        if engine is None:
            return
        engine.stop()
        own = threading.current_thread()
        with engine.changed:
            engine.changed.notify_all()
            if own not in self._workers:
                engine.changed.wait_for(lambda: engine.is_idle, limit)
        engine.wake_workers(len(self._workers))
        engine.attention.set()
        try:
            engine.leave()
        finally:
            for thread in self._threads:
                if thread is not own:
                    thread.join(limit)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._close_traces()

    def _make_engine(self, handle: Handle) -> Engine:
        settings = group_settings(self._store, self._group)
        maximum = settings.retry_max_times
        if self._pop:
            receiver = PopReceiver(
                self._store,
                self._group,
                self._client_id,
                self._subscriptions,
                consume_from=self._start_from,
                orderly=self._orderly,
            )
            return PopEngine(
                self._clock,
                self._group,
                self._groups,
                receiver,
                expressions={topic: each.expression for topic, each in self._subscriptions.items()},
                listener=self._listener(handle),
                settings=self._settings,
                threads=self._threads_wanted,
                batch_size=self._batch_size,
                orderly=self._orderly,
                retry_max=self._max_reconsume_times if retry.is_given(self._max_reconsume_times) else None,
                priority_topics=frozenset(self._priority_topics),
            )
        return PushEngine(
            self._store,
            self._group,
            self._groups,
            subscriptions=self._subscriptions,
            listener=self._listener(handle),
            settings=self._settings,
            orderly=self._orderly,
            batch_size=self._batch_size,
            retry_max=retry.max_times(self._max_reconsume_times, orderly=self._orderly, group_max=maximum),
            local=self._local,
            retry_policy=settings.policy,
            priority_topics=frozenset(self._priority_topics),
        )

    # ------------------------------------------------------------ threads

    def _run(self, name: str, target: Callable[[Engine], None], engine: Engine) -> threading.Thread:
        def run() -> None:
            try:
                target(engine)
            except RmqError as error:
                self._fail(error)
            except Exception as error:  # noqa: BLE001 - a strategy of the user's, or a bug: nobody else would say so
                _log.exception("a thread of a consumer failed (group=%r)", self._group)
                cause = f"{type(error).__name__}: {error}"
                self._fail(RmqError("the consumer failed; the log has the details", group=self._group, cause=cause))

        # Daemons: an interpreter that exits closes the consumer first (see `start`), and waits for no listener after.
        thread = threading.Thread(target=run, name=f"rmq-push-{name}-{self._group}", daemon=True)
        thread.start()
        return thread

    def _fail(self, error: RmqError) -> None:
        """The consumer cannot go on: the log is damaged, or the store was closed."""
        if self._stop.is_set():
            return
        self._error = self._error or error
        _log.error("the consumer has ended; make a new one when the cause is gone (group=%r): %s", self._group, error)
        self._stop.set()
        if self._engine is not None:
            self._engine.wake_workers(len(self._workers))
        self._ended.set()

    def _work(self, engine: Engine) -> None:
        while not self._stop.is_set():
            engine.work(None)

    def _keep_up(self, engine: Engine) -> None:
        while not self._stop.is_set():
            try:
                seconds = engine.tick()
                self._read_brokers(engine)
            except RmqError as error:
                if not error.retriable:
                    raise
                _log.warning("a consumer's upkeep failed and is tried again (group=%r): %s", self._group, error)
                seconds = AGAIN_MS / 1000
            engine.attention.wait(min(seconds, LOOK_SECONDS))
            engine.attention.clear()

    def _watch_members(self, engine: Engine) -> None:
        seen = engine.nameserver_end
        while not self._stop.is_set():
            try:
                if self._store.nameserver.wait(seen, LOOK_SECONDS):
                    seen = self._store.nameserver.look(lambda view: view.state.offset)
                    engine.share_again()
            except RmqError as error:
                if not error.retriable:
                    raise
                _log.warning("the nameserver log cannot be read; trying again (group=%r): %s", self._group, error)
                self._stop.wait(AGAIN_MS / 1000)

    def _read_brokers(self, engine: Engine) -> None:
        for broker in sorted(engine.brokers() - self._reading):
            self._reading.add(broker)
            self._threads.append(self._run("read", partial(self._read, broker), engine))

    def _read(self, broker: str, engine: Engine) -> None:
        while not self._stop.is_set():
            try:
                fetched = engine.fetch(broker)
                if fetched.grown:
                    continue
                if fetched.blocked:
                    with engine.changed:
                        engine.changed.wait(NO_ROOM_SECONDS)
                else:
                    seconds = LOOK_SECONDS if fetched.wait_ms is None else min(LOOK_SECONDS, fetched.wait_ms / 1000)
                    engine.wait(broker, fetched.log_end, seconds)
            except RmqError as error:
                if not error.retriable:
                    raise
                _log.warning("a broker's log cannot be read; trying again (group=%r): %s", self._group, error)
                self._stop.wait(AGAIN_MS / 1000)

    # ------------------------------------------------------------ listeners

    def _listener(self, handle: Handle) -> Listener:
        call: Callable[[Any], object] = handle
        if inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(type(handle).__call__):
            loop = self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=(loop,), name=f"rmq-push-loop-{self._group}", daemon=True).start()

            def call(argument: Any) -> object:
                return asyncio.run_coroutine_threadsafe(handle(argument), loop).result()  # type: ignore[arg-type]

        def listen(messages: Sequence[ReceivedMessage]) -> ConsumeOutcome:
            try:
                result = call(messages[0] if self._batch_size == 1 else list(messages))
            except BaseException as error:  # noqa: BLE001 - the listener's own affair; the message comes again
                _log.warning(
                    "a listener failed (group=%r, topic=%r, msg_id=%r)",
                    self._group,
                    messages[0].topic,
                    messages[0].msg_id,
                    exc_info=error,
                )
                return FAILURE
            if result is None or result is ConsumeResult.SUCCESS:
                return SUCCESS
            if isinstance(result, ConsumeOutcome):
                return result
            if result is not ConsumeResult.FAILURE:
                _log.error(
                    "a listener must return None, a ConsumeResult or a ConsumeOutcome; its messages come again "
                    "(group=%r, returned=%r)",
                    self._group,
                    type(result).__name__,
                )
            return FAILURE

        return watched_listener(listen, self._observers, self._clock, self._group)

    # ------------------------------------------------------------ inner works

    def _local_offsets(self, instance: str, home: str | os.PathLike[str]) -> LocalOffsets:
        if not isinstance(home, str | os.PathLike):
            raise InvalidRequestError("offsets_home takes a directory", type=type(home).__name__)
        # The store's nonce: groups of the same name in two stores must not share offsets.
        place = Path(home).expanduser() / self._store.info["nonce"] / names.check_instance(instance)
        return LocalOffsets(place / f"{self._group.replace('|', '%7C')}.json")


def _seconds(timeout: timedelta | float) -> float:
    return min(max(0, times.duration_ms(timeout, "timeout")) / 1000, threading.TIMEOUT_MAX)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    # `close` waits for listeners no longer: threads that wait for a coroutine must not do so for ever.
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()
