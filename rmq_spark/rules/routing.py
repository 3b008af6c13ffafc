"""Which queue a message goes to (facts 3.1, 3.2, 4).

Queues of a topic are sorted by broker and number, and ordering keys are hashed over that list (rule 23): it must be
the same for every producer, so it does not depend on which broker is up. A message goes, in this order, to the queue
that it names, by its sharding key, by its priority, or to the next queue in turn.

Priorities are queues, as in RocketMQ 5: priority 0 is queue 0, and what is above the last queue goes to the last one.
Consumers drain high queues before low ones.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.java_hash import java_hash, java_hashes

I64 = npt.NDArray[np.int64]
Place = tuple[str, int]
"""Broker and queue number."""

READ: Final = 4
WRITE: Final = 2
"""Bits of a topic's permission; 6 is read and write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueNumbers:
    """A topic's queues on one broker."""

    broker: str
    read: int
    """Consumers see queues 0 to read - 1."""
    write: int
    """Producers see queues 0 to write - 1."""
    permission: int = READ | WRITE


def write_queues(numbers: Iterable[QueueNumbers]) -> list[Place]:
    """The queues that producers see, in routing order."""
    return sorted((one.broker, queue) for one in numbers if one.permission & WRITE for queue in range(one.write))


def read_queues(numbers: Iterable[QueueNumbers]) -> list[Place]:
    """The queues that consumers see, in routing order."""
    return sorted((one.broker, queue) for one in numbers if one.permission & READ for queue in range(one.read))


def check_resize(before: QueueNumbers, after: QueueNumbers, undrained: Collection[int] = ()) -> None:
    """Check that new queue numbers leave no message behind: write shrinks first, read last (rule 22).

    Args:
        before: the numbers now.
        after: the numbers wanted.
        undrained: queues that hold messages which some group has not consumed.

    Raises:
        InvalidRequestError: queues would be written that nobody reads, or messages would be left behind.
    """
    if after.write > after.read:
        raise InvalidRequestError(
            "more queues would be written than read; raise the read number first",
            broker=after.broker,
            read=after.read,
            write=after.write,
        )
    left = sorted(queue for queue in undrained if after.read <= queue < before.read)
    if left:
        raise InvalidRequestError(
            "queues that would no longer be read still hold messages; lower the write number and wait until every "
            "group has consumed them",
            broker=after.broker,
            queues=left,
        )


# ------------------------------------------------------------ one message


class RoundRobin:
    """Turns of topics: each starts at a random number and goes on by one with every message. Safe to share."""

    def __init__(self, random_start: Callable[[], int]) -> None:
        self._random_start = random_start
        self._lock = threading.Lock()
        self._turns: dict[str, itertools.count[int]] = {}

    def of(self, topic: str) -> Iterator[int]:
        """The turns of a topic, which all who send to it share; a turn's remainder by the number of queues is one."""
        turns = self._turns.get(topic)
        if turns is None:
            with self._lock:
                turns = self._turns.setdefault(topic, itertools.count(self._random_start()))
        return turns

    def next(self, topic: str) -> int:
        """The next turn of a topic."""
        return next(self.of(topic))


def queue_for_key(key: str, queues: Sequence[Place]) -> Place:
    """The queue that all messages with this key go to: RocketMQ's SelectMessageQueueByHash."""
    return queues[abs(java_hash(key)) % len(queues)]


def priority_queue(priority: int, queues: int) -> int:
    """The queue number of a priority."""
    return max(0, min(priority, queues - 1))


def drain_order(queues: Iterable[int]) -> list[int]:
    """Queues of a topic with priorities in the order that a consumer drains them: high before low."""
    return sorted(queues, reverse=True)


def place(
    topic: str,
    queues: Sequence[Place],
    turn: Callable[[str], int],
    *,
    queue_id: int | None = None,
    sharding_key: str | None = None,
    priority: int | None = None,
) -> Place:
    """Where a message goes. `turn` gives the topic's next turn, and is asked only if it counts.

    Raises:
        InvalidRequestError: the topic has no queues, or not the one that was asked for.
    """
    if not queues:
        raise InvalidRequestError("topic has no queues that may be written", topic=topic)
    if queue_id is not None:
        named = [at for at in queues if at[1] == queue_id]
        if not named:
            raise InvalidRequestError("no such queue", topic=topic, queue=queue_id)
        return named[0]
    if sharding_key is not None:
        return queue_for_key(sharding_key, queues)
    if priority is not None:
        counts: dict[str, int] = {}
        for broker, queue in queues:
            counts[broker] = max(counts.get(broker, 0), queue + 1)
        broker = sorted(counts)[turn(topic) % len(counts)]
        return broker, priority_queue(priority, counts[broker])
    return queues[turn(topic) % len(queues)]


def selected(topic: str, queues: Sequence[Place], selector: Callable[[Sequence[Place]], Place]) -> Place:
    """The queue that a user's selector chose.

    Raises:
        InvalidRequestError: it is none of the topic's.
    """
    chosen = selector(queues)
    if chosen not in queues:
        raise InvalidRequestError("the selector must return one of the queues it was given", topic=topic, chosen=chosen)
    return chosen


# ------------------------------------------------------------ retries and slow brokers

LATENCY_MS: Final = (50, 100, 550, 1800, 3000, 5000, 15_000)
UNAVAILABLE_MS: Final = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
"""From a latency of `LATENCY_MS` on, a broker is left out for as long as the entry here says (5.1.4 and later)."""
FAILED_LATENCY_MS: Final = 10_000
"""A send that failed counts as one that took so long."""


def unavailable_ms(latency_ms: float) -> int:
    """How long a broker is left out after a send that took so long."""
    for limit, duration in zip(reversed(LATENCY_MS), reversed(UNAVAILABLE_MS), strict=True):
        if latency_ms >= limit:
            return duration
    return 0


class BrokerLatency:
    """Which brokers are left out because they were slow or failed. Safe to share; RocketMQ has it off by default."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def note(self, broker: str, latency_ms: float, now_ms: float, *, failed: bool = False) -> None:
        """A send to `broker` took so long, or failed."""
        self._until[broker] = now_ms + unavailable_ms(FAILED_LATENCY_MS if failed else latency_ms)

    def is_available(self, broker: str, now_ms: float) -> bool:
        """Whether messages may be sent to it."""
        return now_ms >= self._until.get(broker, now_ms)

    def until(self) -> Mapping[str, float]:
        """When each broker that was noted is available again."""
        return dict(self._until)


def choose(
    queues: Sequence[Place],
    turn: int,
    *,
    avoid: str | None = None,
    latency: BrokerLatency | None = None,
    now_ms: float = 0,
) -> Place:
    """The queue in turn, of a broker that is available and not the one to avoid.

    A retry avoids the broker that failed last, if there is another. When every broker is left out, the one that comes
    back first is taken: sending is never refused for slowness.

    Raises:
        InvalidRequestError: there are no queues.
    """
    if not queues:
        raise InvalidRequestError("topic has no queues that may be written")
    ordered = [queues[(turn + step) % len(queues)] for step in range(len(queues))]
    if latency is not None:
        available = [at for at in ordered if latency.is_available(at[0], now_ms)]
        if not available:
            until = latency.until()
            return min(ordered, key=lambda at: (at[0] == avoid, until.get(at[0], 0.0)))
        ordered = available
    return next((at for at in ordered if at[0] != avoid), ordered[0])


# ------------------------------------------------------------ columns


def queues_for_keys(keys: pa.Array, queues: I64) -> I64:
    """`queue_for_key` of many rows on one broker, given how many queues each row's topic has; null keys give 0."""
    # 64 bits, because Java's least integer has no positive twin.
    numbers: I64 = np.abs(java_hashes(keys).astype(np.int64)) % queues
    return numbers


def even_slices(count: int, queues: int, start: int) -> I64:
    """Queue of each of `count` rows: every queue gets as many as if they were dealt out one by one from `start` on.

    The rows of a queue lie side by side, so that a file of them needs no sorting.
    """
    each, more = divmod(count, queues)
    sizes = each + ((np.arange(queues) - start) % queues < more)
    return np.repeat(np.arange(queues, dtype=np.int64), sizes)


def deal_out(topics: npt.NDArray[np.int32], queues: I64, starts: I64) -> tuple[I64, I64]:
    """Queues of rows of several topics, dealt out one by one for each topic, and the turns after them.

    Args:
        topics: number of each row's topic.
        queues: how many queues each topic has.
        starts: the next turn of each topic.
    """
    order = np.argsort(topics, kind="stable")
    counts = np.bincount(topics, minlength=len(queues))
    rank = np.empty(len(topics), np.int64)
    rank[order] = np.arange(len(topics)) - np.repeat(np.cumsum(counts) - counts, counts)
    return (starts[topics] + rank) % queues[topics], starts + counts
