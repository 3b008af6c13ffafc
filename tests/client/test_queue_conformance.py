"""The embedded clients keep the promises of a queue: step by step in memory, with threads on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from group_store import memory_store

from rmq_spark import Store
from rmq_spark.clock import ManualClock
from rmq_spark.testing.embedded_queue import StepwiseQueue, ThreadedQueue
from rmq_spark.testing.queue_conformance import QueueConformance
from rmq_spark.testing.queue_push_conformance import PushConformance
from rmq_spark.testing.queue_world import QueueWorld


class TestInMemoryStepByStep(QueueConformance):
    @pytest.fixture
    def world(self) -> Iterator[QueueWorld]:
        clock = ManualClock()
        with memory_store(clock, retention_ms=24 * 3_600_000) as store:
            world = StepwiseQueue(store, clock)
            yield world
            world.close()


class TestListenersByPopStepByStep(PushConformance):
    @pytest.fixture
    def world(self) -> Iterator[QueueWorld]:
        clock = ManualClock()
        with memory_store(clock, retention_ms=24 * 3_600_000) as store:
            world = StepwiseQueue(store, clock, pop=True)
            yield world
            world.close()


class TestOnDiskWithThreads(QueueConformance):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[QueueWorld]:
        with Store.create(str(tmp_path / "store")) as store:
            world = ThreadedQueue(store)
            yield world
            world.close()
