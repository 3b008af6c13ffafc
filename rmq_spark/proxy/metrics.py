"""Prometheus metrics of a proxy, with RocketMQ's names (facts 13.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from rmq_spark.client.store import Store
from rmq_spark.metrics import StoreGauges
from rmq_spark.proxy.status import Code
from rmq_spark.rules import system_topics
from rmq_spark.rules.message_type import MessageType

_LATENCY_BUCKETS: Final = (0.001, 0.003, 0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
_SIZE_BUCKETS: Final = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20)


class Metrics:
    """What a proxy counts. Each has a registry of its own, so that two proxies may live in one process."""

    def __init__(self, cluster: str, node_id: str) -> None:
        self.registry = CollectorRegistry()
        self._fixed = {"cluster": cluster, "node_type": "proxy", "node_id": node_id}
        sent = ("topic", "message_type", "is_system")
        got = ("topic", "consumer_group", "is_retry", "is_system")
        self._in = self._make(Counter, "rocketmq_messages_in", "Messages sent.", sent)
        self._in_bytes = self._make(Counter, "rocketmq_throughput_in", "Bytes of bodies sent.", sent)
        self._size = self._make(
            Histogram, "rocketmq_message_size", "Sizes of bodies sent.", ("message_type",), buckets=_SIZE_BUCKETS
        )
        self._out = self._make(Counter, "rocketmq_messages_out", "Messages received.", got)
        self._out_bytes = self._make(Counter, "rocketmq_throughput_out", "Bytes of bodies received.", got)
        self._ended = {
            True: self._make(Counter, "rocketmq_commit_messages", "Transactions committed.", ("topic",)),
            False: self._make(Counter, "rocketmq_rollback_messages", "Transactions rolled back.", ("topic",)),
        }
        self._latency = self._make(
            Histogram,
            "rocketmq_rpc_latency",
            "Seconds from a call to its answer.",
            ("request_code", "response_code"),
            buckets=_LATENCY_BUCKETS,
        )
        self.producers = self._make(Gauge, "rocketmq_producer_connections", "Producers with a telemetry stream.")
        self.held = self._make(Gauge, "rocketmq_proxy_held_messages", "Messages kept for push consumers.")
        self.calls = self._make(Gauge, "rocketmq_processor_watermark", "Calls under way.")
        self.up = self._make(Gauge, "rocketmq_proxy_up", "1 while the proxy serves.")
        self._children: dict[tuple[Any, ...], Any] = {}
        self._sent: dict[tuple[str, MessageType], tuple[Any, Any, Any]] = {}

    def note_sent(self, topic: str, kind: MessageType, count: int, size: int) -> None:
        """Messages of one kind were sent."""
        known = self._sent.get((topic, kind))
        if known is None:
            system = str(system_topics.is_system(topic)).lower()
            told = str(kind).lower()
            known = self._sent[topic, kind] = (
                self._child(self._in, topic, told, system),
                self._child(self._in_bytes, topic, told, system),
                self._child(self._size, told),
            )
        messages, throughput, sizes = known
        messages.inc(count)
        throughput.inc(size)
        sizes.observe(size / count)

    def note_received(self, topic: str, group: str, count: int, size: int, *, retry: bool = False) -> None:
        """A client was given messages."""
        system = str(system_topics.is_system(topic)).lower()
        told = str(retry).lower()
        self._child(self._out, topic, group, told, system).inc(count)
        self._child(self._out_bytes, topic, group, told, system).inc(size)

    def note_ended(self, topic: str, *, committed: bool) -> None:
        """A transaction ended."""
        self._child(self._ended[committed], topic).inc()

    def note_call(self, rpc: str, code: Code, seconds: float) -> None:
        """A call was answered."""
        self._child(self._latency, rpc, code.name.lower()).observe(seconds)

    def add_store(self, store: Store, consumers: Callable[[], Mapping[str, int]]) -> None:
        """Show the gauges of the store, too, as lags; `consumers` counts those of this proxy by group."""
        self.registry.register(StoreGauges(store, self._fixed, consumers))

    def serve(self, host: str, port: int) -> tuple[Any, int]:
        """Serve them over HTTP; returns what ends it (`shutdown`, `server_close`) and the port."""
        server, _ = start_http_server(port, host, registry=self.registry)
        return server, server.server_port

    def _make(self, kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **more: Any) -> Any:
        made = kind(name, text, (*self._fixed, *labels), registry=self.registry, **more)
        # Without labels of its own, a metric is one value from the start.
        return made if labels else made.labels(*self._fixed.values())

    def _child(self, metric: Any, *values: str) -> Any:
        key = (id(metric), *values)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*self._fixed.values(), *values)
        return child
