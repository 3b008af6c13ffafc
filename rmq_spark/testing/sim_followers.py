"""Consumers of the simulation: each reads every queue in order, and sleeps while the log changes under it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa

from rmq_spark.errors import DataExpiredError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.queue_reader import read_queue

COLUMNS = ("commitOffset", "topic", "queueId", "queueOffset", "msgId", "storeTimestamp")
TOPICS, QUEUES = ("orders", "pay"), 3

Positions = dict[tuple[str, int], tuple[int, int]]
"""By topic and queue: the next offset of a consumer, and a place in the log where to look from (`QueueRead.place`)."""


class Followers:
    """The consumers of one seed.

    Args:
        seed: named when a check fails.
        rng: the seed's.
        observe: told every batch that was read.
        expires: whether messages may go before they are read.
    """

    def __init__(
        self, seed: int, rng: random.Random, observe: Callable[[pa.RecordBatch], None], *, expires: bool
    ) -> None:
        self._seed = seed
        self._rng = rng
        self._observe = observe
        self._expires = expires
        self._all: list[Positions] = []

    def start(self) -> Positions:
        """A new consumer at the beginning of every queue."""
        positions: Positions = {(topic, queue): (0, 0) for topic in TOPICS for queue in range(QUEUES)}
        self._all.append(positions)
        return positions

    def read_on(self, log: CommitLog, positions: Positions) -> None:
        """Read each queue from where the consumer stands to its end; every message must come, in order."""
        log.refresh()
        for topic, queue in positions:
            end = -1
            while positions[topic, queue][0] != end:
                offset, place = positions[topic, queue]
                rows_max = self._rng.choice([1, 3, 100])
                try:
                    got = read_queue(log, topic, queue, offset, rows_max=rows_max, columns=COLUMNS, place=place)
                except DataExpiredError as error:
                    first = int(str(error.context["first"]))
                    assert self._expires and first > offset, f"seed {self._seed}: {topic}/{queue} lost {offset}"
                    positions[topic, queue] = (first, 0)
                    continue
                offsets = got.messages.column("queueOffset").to_pylist()
                assert offsets == list(range(offset, got.next_offset)), (
                    f"seed {self._seed}: {topic}/{queue} read {offsets} from {offset} to {got.next_offset}"
                )
                self._observe(got.messages)
                positions[topic, queue], end = (got.next_offset, got.place), got.end

    def check(self, log: CommitLog) -> None:
        """Whoever still sleeps wakes up now, and reads to the end."""
        for positions in self._all:
            self.read_on(log, positions)
            ends = {place: log.view.state.queues.bounds(*place)[1] for place in positions}
            reached = {place: offset for place, (offset, _) in positions.items()}
            assert reached == ends, f"seed {self._seed}: a follower is at {reached}, the log at {ends}"
