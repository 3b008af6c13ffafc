"""A real Kafka broker for benchmarks, on free loopback ports, in a temporary directory.

What it is compared with reads and writes the same messages on the same machine; see `benchmarks/spark.py`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rmq_spark.testing.jars import ensure_jars, java_command
from rmq_spark.testing.servers import ServerProcess


class KafkaServer:
    """A running broker; topics exist only after `create_topic`."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process
        self.address = process.wait_for_ready_line()
        """`host:port`, what clients call `bootstrap.servers`."""

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic.

        Raises:
            UnavailableError: the broker refused, or ended.
        """
        self._process.ask(f"create {name} {partitions}")

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its files are gone within seconds.

        Raises:
            UnavailableError: the broker refused, or ended.
        """
        self._process.ask(f"delete {name}")

    @contextlib.contextmanager
    def feed(self, topic: str, *, rate: int, size: int) -> Iterator[None]:
        """Send `rate` messages a second of `size` bytes, with keys, as long as the context lasts.

        The sender lives in the broker's own process, so it takes no time of the one that measures.

        Raises:
            UnavailableError: the broker refused, or ended.
        """
        self._process.ask(f"feed {topic} {rate} {size}")
        try:
            yield
        finally:
            self._process.ask("rest")


@contextlib.contextmanager
def kafka_server(heap: str = "1g") -> Iterator[KafkaServer]:
    """Run a broker (Kafka 4, KRaft, its own controller) with Kafka's defaults but for replication; about 8 s to start.

    Raises:
        ServerStartError: it did not start; the message holds its log.
        UnavailableError: there is no Java, or the jar set `kafka` could not be fetched.
    """
    class_path = os.pathsep.join(map(str, ensure_jars("kafka")))
    source = Path(__file__).parent / "java" / "MiniKafka.java"
    with tempfile.TemporaryDirectory(prefix="rmq-kafka-") as scratch:
        flags = [f"-Xmx{heap}", f"-Duser.home={scratch}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        ports = map(str, _free_ports(2))
        process = ServerProcess("Kafka", [java_command(), *flags, "-cp", class_path, str(source), scratch, *ports])
        try:
            yield KafkaServer(process)
        finally:
            process.stop()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
