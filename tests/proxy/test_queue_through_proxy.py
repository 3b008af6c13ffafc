"""The proxy keeps the promises of a queue: the conformance suite of the clients, through gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc_queue import GrpcQueue

from rmq_spark.client.store import Store
from rmq_spark.testing.queue_conformance import QueueConformance
from rmq_spark.testing.queue_world import QueueWorld


class TestThroughProxy(QueueConformance):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[QueueWorld]:
        with Store.create(str(tmp_path / "store"), services="off") as store:
            world = GrpcQueue(store)
            yield world
            world.close()
