"""What every engine of a push consumer has: work for listeners, steps that are due, and somebody to wake.

An engine does what a push consumer does, step by step and without threads: `tick`, `fetch` and `work`. `PushConsumer`
runs them. Each step may be called by any thread. Time is the store's clock, so a test moves it by hand.
"""

from __future__ import annotations

import queue as queues_of_tasks
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from rmq_spark.client.consume_result import ConsumeOutcome
from rmq_spark.client.group_queues import GroupQueues
from rmq_spark.client.task_queue import PriorityTasks, Tasks
from rmq_spark.clock import Clock
from rmq_spark.errors import RmqError
from rmq_spark.model.stored_message import ReceivedMessage

AGAIN_MS: Final = 500
"""How soon a step that failed is tried again."""

Listener = Callable[[Sequence[ReceivedMessage]], ConsumeOutcome]
"""Consumes a batch; it does not raise."""
Task = TypeVar("Task")


class Fetched(NamedTuple):
    """What one look at a broker's queues gave."""

    grown: bool
    """Something was read: look again at once."""
    blocked: bool
    """There is more for which there is no room now."""
    log_end: int
    """The log's end when it was looked at."""
    wait_ms: int | None = None
    """When there may be messages although the log has not grown."""


class ListenerEngine(ABC, Generic[Task]):
    """One consumer of a group.

    Args:
        clock: the store's.
        groups: the consumer's part in its group.
        expressions: what it subscribes, by topic.
        heartbeat_ms: how often it says that it is there.
        steps: names of what `tick` does now and then.
        priority_of: listeners get tasks of a higher priority first; None: as they were read.
    """

    def __init__(
        self,
        clock: Clock,
        groups: GroupQueues,
        *,
        expressions: Mapping[str, str],
        heartbeat_ms: int,
        steps: Sequence[str],
        priority_of: Callable[[Task], int] | None = None,
    ) -> None:
        self._clock = clock
        self._groups = groups
        self._expressions = dict(expressions)
        self._heartbeat_ms = heartbeat_ms
        self._tasks: Tasks[Task] = queues_of_tasks.SimpleQueue() if priority_of is None else PriorityTasks(priority_of)
        self._due = dict.fromkeys(steps, 0)
        self._ticking = threading.Lock()
        self._fetching: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self.changed = threading.Condition()
        """Notified when a listener is done: there may be room to read more."""
        self.attention = threading.Event()
        """Set when `tick` should not wait any longer."""
        self.nameserver_end = -1
        """End of the nameserver log when members and topics were last looked at."""

    # ------------------------------------------------------------ what differs

    @abstractmethod
    def tick(self) -> float:
        """Do what is due; returns after how many seconds to call again.

        Raises:
            RmqError: something could not be done; call again soon.
        """

    @abstractmethod
    def share_again(self) -> None:
        """Members or topics may have changed: look with the next tick."""

    @abstractmethod
    def brokers(self) -> set[str]:
        """Brokers to fetch from."""

    @abstractmethod
    def wait(self, broker: str, log_end: int, seconds: float) -> None:
        """Wait until a broker's log has grown, at most so long."""

    @abstractmethod
    def stop(self) -> None:
        """Read no more, and hand out no more messages."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether no listener has a message."""

    @abstractmethod
    def leave(self) -> None:
        """Give everything back, and leave the group.

        Raises:
            RmqError: as `CommitLog.decide`.
        """

    @abstractmethod
    def _fetch(self, broker: str) -> Fetched: ...

    @abstractmethod
    def _consume_task(self, task: Task) -> None: ...

    # ------------------------------------------------------------ what is alike

    def fetch(self, broker: str) -> Fetched:
        """Read what there is of a broker's queues, once.

        Raises:
            RmqError: the log cannot be read.
        """
        with self._lock:
            lock = self._fetching.setdefault(broker, threading.Lock())
        with lock:
            return self._fetch(broker)

    def work(self, timeout: float | None = 0) -> bool:
        """Consume one batch, or the turn of one orderly queue; returns False when `wake_workers` ended the wait.

        Args:
            timeout: how many seconds to wait for work; None: until there is some; 0: not.
        """
        try:
            task = self._tasks.get(timeout != 0, timeout or None)
        except queues_of_tasks.Empty:
            return False
        if task is None:
            return False
        self._consume_task(task)
        with self.changed:
            self.changed.notify_all()
        return True

    def wake_workers(self, count: int) -> None:
        """Let so many calls of `work` return False."""
        for _ in range(count):
            self._tasks.put(None)

    def _run_due(self, now: int, steps: Mapping[str, Callable[[], int]]) -> list[RmqError]:
        """Run the steps that are due, each of which returns after how many milliseconds it is due again."""
        failed: list[RmqError] = []
        for name, step in steps.items():
            if now < self._due[name]:
                continue
            try:
                wait_ms = step()
            except RmqError as error:
                failed.append(error)  # the other steps are done all the same
                wait_ms = AGAIN_MS
            self._due[name] = self._clock.elapsed_ns() + wait_ms * 1_000_000
        return failed

    def _beat(self) -> int:
        self._groups.beat(self._expressions)
        return self._heartbeat_ms
