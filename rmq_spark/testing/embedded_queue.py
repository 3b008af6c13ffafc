"""The embedded clients as a `QueueWorld`: on any store, with time that is moved by hand or with the machine's.

`StepwiseQueue` runs services and push consumers step by step, without threads; `ThreadedQueue` as programs do.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from typing import Any, Final

from rmq_spark.client.producer import Producer
from rmq_spark.client.push_consumer import PushConsumer
from rmq_spark.client.simple_consumer import SimpleConsumer
from rmq_spark.client.store import Store, append_records
from rmq_spark.client.stored_rows import received_messages
from rmq_spark.clock import ManualClock
from rmq_spark.errors import NotFoundError
from rmq_spark.rules import system_topics
from rmq_spark.rules.topics import GroupConfigs
from rmq_spark.rules.transaction import CheckSettings
from rmq_spark.services.revive import ReviveService
from rmq_spark.services.runner import ServiceRunner
from rmq_spark.services.service import Service
from rmq_spark.services.timer import TimerService, set_delay_levels
from rmq_spark.services.transaction_check import TransactionCheckService
from rmq_spark.testing.queue_world import WAIT_SECONDS, Closable, MessageKind, QueueWorld, RealTimeQueue, Received

STEP_SECONDS: Final = 10.0
"""Manual time passes in such steps: a live consumer ticks all the time, and would else lose its leases."""


class EmbeddedQueue(QueueWorld):
    """Clients in this process. Time and threads are the subclasses' affair.

    Args:
        store: an open store; whoever made it closes it, after this.
        pop: whether push consumers that do not broadcast share messages instead of queues.
    """

    check_immunity_seconds = 6.0

    def __init__(self, store: Store, *, pop: bool = False) -> None:
        self.store = store
        self._pop = pop
        self._closers: list[Callable[[], object]] = []
        self._instances = itertools.count()
        self._homes = tempfile.TemporaryDirectory(prefix="rmq-offsets-")

    def services(self, checks: CheckSettings) -> list[Service]:
        """Everything that a store needs somebody to run for its clients."""
        return [TimerService(self.store), ReviveService(self.store), TransactionCheckService(self.store, checks)]

    def create_topic(self, name: str, *, queues: int = 2, kind: MessageKind = MessageKind.NORMAL) -> None:
        self.store.create_topic(name, queues=queues)

    def set_group(self, name: str, *, fifo: bool = False, retry_max_times: int = 16) -> None:
        config = {"group": name, "consumeMessageOrderly": fifo, "retryMaxTimes": retry_max_times}
        append_records(self.store.nameserver, GroupConfigs, config)

    def producer(self, *, checker: Callable[[Received], Any] | None = None) -> Producer:
        made = Producer(self.store, group="conformance", checker=checker, check_immunity=self.check_immunity_seconds)
        self._closers.append(made.close)
        return made

    def simple_consumer(
        self, group: str, topic: str, *, tags: str | None = None, sql: str | None = None, consume_from: Any = "latest"
    ) -> SimpleConsumer:
        made = SimpleConsumer(self.store, group, consume_from=consume_from)
        self._closers.append(made.close)
        return made.subscribe(topic, tags=tags, sql=sql)

    def _push_consumer(
        self,
        group: str,
        topic: str,
        *,
        tags: str | None,
        sql: str | None,
        orderly: bool,
        broadcasting: bool,
        consume_from: Any,
    ) -> PushConsumer:
        made = PushConsumer(
            self.store,
            group,
            orderly=orderly,
            broadcasting=broadcasting,
            pop=self._pop and not broadcasting,
            consume_from=consume_from,
            threads=4,
            instance=f"conformance-{next(self._instances)}",
            offsets_home=self._homes.name,
        )
        return made.subscribe(topic, tags=tags, sql=sql)

    def dead_letters(self, group: str) -> list[Received]:
        topic = system_topics.dlq_topic(group)
        try:
            table = self.store.read(topic)
        except NotFoundError:
            return []
        return [message for batch in table.to_batches() for message in received_messages(batch, topic)]

    def wall_ms(self) -> int:
        return self.store.clock.now_ms()

    def close(self) -> None:
        for close in reversed(self._closers):
            close()
        self._homes.cleanup()


class StepwiseQueue(EmbeddedQueue):
    """Time is the store's `ManualClock`; nothing runs but what a call of this object runs."""

    def __init__(self, store: Store, clock: ManualClock, *, pop: bool = False) -> None:
        super().__init__(store, pop=pop)
        if pop:
            self.first_retry_seconds = 1.0  # rule 6: by POP the delays start at level 1
        self._clock = clock
        self._services = self.services(CheckSettings())
        self._producers: list[Producer] = []
        self._pushing: list[_Steps] = []

    def producer(self, *, checker: Callable[[Received], Any] | None = None) -> Producer:
        made = super().producer(checker=checker)
        if made._answers is not None:
            made._answers.close()  # its thread: questions are answered in `settle`
            self._producers.append(made)
        return made

    def push_consumer(self, group: str, topic: str, handle: Callable[[Received], Any], **options: Any) -> Closable:
        wanted = {"tags": None, "sql": None, "orderly": False, "broadcasting": False, "consume_from": "latest"}
        steps = _Steps(self._push_consumer(group, topic, **{**wanted, **options}), handle)
        self._pushing.append(steps)
        self._closers.append(steps.close)
        return steps

    def now(self) -> float:
        return self._clock.elapsed_ns() / 1e9

    def pass_time(self, seconds: float) -> None:
        self.settle()
        left = seconds
        while left > 0:
            step = min(left, STEP_SECONDS)
            self._clock.advance(step)
            left -= step
            self.settle()

    def settle(self) -> None:
        while True:
            for service in self._services:
                service.run_once()
            settled = [made._answers.run_once() for made in self._producers if made._answers is not None]
            consumed = [steps.run() for steps in self._pushing]
            if not any(settled) and not any(consumed):
                return

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        passed = 0.0
        while True:
            self.settle()
            if condition():
                return
            assert passed < WAIT_SECONDS, f"{what}: not within {WAIT_SECONDS:.0f} s of manual time"
            self._clock.advance(1.0)
            passed += 1.0


class _Steps:
    """A push consumer without its threads."""

    def __init__(self, consumer: PushConsumer, handle: Callable[[Received], Any]) -> None:
        self._engine = consumer._make_engine(handle)
        self._engine.tick()
        self._closed = False

    def run(self) -> int:
        """Take every step that can be taken now; returns how many turns of the listener that were."""
        turns = 0
        while not self._closed:
            self._engine.tick()
            read = [self._engine.fetch(broker)[0] for broker in sorted(self._engine.brokers())]
            done = 0
            while self._engine.work():
                done += 1
            turns += done
            if not done and not any(read):
                break
        return turns

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.stop()
            self._engine.leave()


class ThreadedQueue(RealTimeQueue, EmbeddedQueue):
    """The machine's time; services and consumers run in threads of their own, as in a program."""

    check_immunity_seconds = 0.5

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        set_delay_levels(store, " ".join(["1s"] * 18))  # the first retry is level 3, which is 10 s else
        runner = ServiceRunner(self.services(CheckSettings(interval_ms=500)), store.clock)
        runner.start()
        self._closers.append(runner.stop)

    def push_consumer(self, group: str, topic: str, handle: Callable[[Received], Any], **options: Any) -> Closable:
        wanted = {"tags": None, "sql": None, "orderly": False, "broadcasting": False, "consume_from": "latest"}
        consumer = self._push_consumer(group, topic, **{**wanted, **options})
        self._closers.append(consumer.close)
        return consumer.start(handle)
