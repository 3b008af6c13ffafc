"""Work for listeners that goes by priority: what comes first is not what was read first."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Task = TypeVar("Task")


class Tasks(Protocol[Task]):
    """What `queue.SimpleQueue` does, as far as engines need it."""

    def put(self, item: Task | None, /) -> None: ...

    def get(self, block: bool = True, timeout: float | None = None, /) -> Task | None: ...


class PriorityTasks(Generic[Task]):
    """A queue that gives tasks of a higher priority first, and those of one priority in their order.

    None, which wakes a worker, goes before all. Safe to use from any thread.
    """

    def __init__(self, priority_of: Callable[[Task], int]) -> None:
        self._priority_of = priority_of
        self._numbers = itertools.count()
        self._queue: queue.PriorityQueue[tuple[float, int, Task | None]] = queue.PriorityQueue()

    def put(self, item: Task | None, /) -> None:
        """Add a task."""
        rank = float("-inf") if item is None else -float(self._priority_of(item))
        self._queue.put((rank, next(self._numbers), item))

    def get(self, block: bool = True, timeout: float | None = None, /) -> Task | None:
        """The next task.

        Raises:
            queue.Empty: there is none, and none came within `timeout` seconds.
        """
        return self._queue.get(block, timeout)[2]
