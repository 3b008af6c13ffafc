"""Metrics with RocketMQ 5's names, for Prometheus: what this process's clients do, and how far groups are behind.

`start(store)` serves them; it needs the extra `metrics`. Nothing here is imported or counted before that. Counters and
histograms are of this process and of clients of that `Store` object; gauges are of the whole store, and are computed
when somebody asks for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from rmq_spark.client.observer import Consumption, EndedTransaction, Observer, Sending
from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.store import Store
from rmq_spark.errors import MissingExtraError
from rmq_spark.log.view import LogView
from rmq_spark.model.message import Message
from rmq_spark.model.message_id import own_address
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules import system_topics
from rmq_spark.rules.cluster import ClusterConfig
from rmq_spark.rules.members import GroupMembers
from rmq_spark.rules.pop import PopState
from rmq_spark.rules.transaction import Transactions

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import GaugeMetricFamily, Metric

PORT: Final = 5557
"""Where RocketMQ's brokers serve theirs."""
SIZE_BUCKETS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Bytes of a message, as RocketMQ's `message_size`."""
SEND_BUCKETS_MS: Final = (0.5, 1, 5, 10, 20, 50, 200, 500)
PROCESS_BUCKETS_MS: Final = (1, 5, 10, 100, 1_000, 10_000, 60_000)
DELIVERY_BUCKETS_MS: Final = (1, 5, 10, 20, 50, 200, 500, 10_000)
NODE: Final = ("cluster", "node_type", "node_id")
"""Labels that every metric has."""


class MetricsServer:
    """Metrics of a store that are being served; `start` makes it. Close it, or use it as a context manager."""

    def __init__(self, observer: ClientMetrics, stop: Callable[[], None], store: Store, port: int) -> None:
        self._observer = observer
        self._stop = stop
        self._store = store
        self.port = port
        """Where they are served."""

    def close(self) -> None:
        """Serve and count no longer. Closing twice is no error."""
        if self._observer in self._store.observers:
            self._store.observers.remove(self._observer)
            self._stop()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start(store: Store, port: int = PORT, *, host: str = "127.0.0.1", cluster: str = "DefaultCluster") -> MetricsServer:
    """Count what clients of `store` do from now on, and serve it at `http://host:port/metrics`.

    Args:
        store: an open store; close the server before it.
        port: 0 takes any that is free.
        host: the address to listen at.
        cluster: the label of that name.

    Raises:
        MissingExtraError: prometheus-client is not installed.
        OSError: the port is taken.
    """
    prometheus = _prometheus()
    registry = prometheus.CollectorRegistry()
    observer = register(store, registry, cluster=cluster)
    try:
        server, thread = prometheus.start_http_server(port, addr=host, registry=registry)
    except BaseException:
        store.observers.remove(observer)
        raise

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return MetricsServer(observer, stop, store, server.server_port)


def register(store: Store, registry: CollectorRegistry, *, cluster: str = "DefaultCluster") -> ClientMetrics:
    """Count what clients of `store` do into a registry of your own, together with the store's gauges.

    Raises:
        MissingExtraError: prometheus-client is not installed.
    """
    node = {"cluster": cluster, "node_type": "client", "node_id": own_address()}
    observer = ClientMetrics(registry, node, store.clock.now_ms)
    registry.register(StoreGauges(store, node))
    store.observers.append(observer)
    return observer


class ClientMetrics(Observer):
    """Counters and histograms of what clients do."""

    def __init__(self, registry: CollectorRegistry, node: dict[str, str], now_ms: Callable[[], int]) -> None:
        prometheus = _prometheus()
        self._node = tuple(node[name] for name in NODE)
        self._now_ms = now_ms
        self._children: dict[tuple[Any, ...], Any] = {}

        def counter(name: str, help_: str, *labels: str) -> Any:
            return prometheus.Counter(f"rocketmq_{name}", help_, (*NODE, *labels), registry=registry)

        def histogram(name: str, help_: str, buckets: Sequence[float], *labels: str) -> Any:
            return prometheus.Histogram(
                f"rocketmq_{name}", help_, (*NODE, *labels), buckets=(*buckets, float("inf")), registry=registry
            )

        of_send = ("topic", "message_type", "is_system")
        of_delivery = ("topic", "consumer_group", "is_retry", "is_system")
        self._in = counter("messages_in_total", "Messages sent.", *of_send)
        self._bytes_in = counter("throughput_in_total", "Bytes of bodies sent.", *of_send)
        self._size = histogram("message_size", "Bytes of a message's body.", SIZE_BUCKETS, "topic", "message_type")
        self._out = counter("messages_out_total", "Messages handed to consumers.", *of_delivery)
        self._bytes_out = counter("throughput_out_total", "Bytes of bodies handed to consumers.", *of_delivery)
        self._send_cost = histogram(
            "send_cost_time", "Milliseconds of a send call.", SEND_BUCKETS_MS, "topic", "invocation_status"
        )
        self._process = histogram(
            "process_time",
            "Milliseconds from a listener's call to its end, or from a receive to the acknowledgement.",
            PROCESS_BUCKETS_MS,
            "topic",
            "consumer_group",
            "invocation_status",
        )
        self._ended = {
            True: counter("commit_messages_total", "Transactional messages committed.", "topic"),
            False: counter("rollback_messages_total", "Transactional messages rolled back.", "topic"),
        }
        self._latency = histogram(
            "delivery_latency",
            "Milliseconds from a message's store time to its delivery.",
            DELIVERY_BUCKETS_MS,
            "topic",
            "consumer_group",
        )

    def _of(self, metric: Any, *labels: str) -> Any:
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = metric.labels(*self._node, *labels)
        return child

    def sent(self, sending: Sending) -> None:
        status = "failure" if sending.results is None else "success"
        self._of(self._send_cost, sending.messages[0].topic, status).observe(sending.cost_ms)
        if sending.results is None:
            return
        for message in sending.messages:
            kind = "transaction" if sending.is_transaction else _message_type(message)
            labels = (message.topic, kind, _text(system_topics.is_system(message.topic)))
            self._of(self._in, *labels).inc()
            self._of(self._bytes_in, *labels).inc(len(message.body))
            self._of(self._size, message.topic, kind).observe(len(message.body))

    def sent_rows(self, topic: str, rows: int, size: int) -> None:
        labels = (topic, "normal", _text(system_topics.is_system(topic)))
        self._of(self._in, *labels).inc(rows)
        self._of(self._bytes_in, *labels).inc(size)

    def delivered(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        now_ms = self._now_ms()
        for message in messages:
            is_system = _text(system_topics.is_system(message.topic))
            labels = (message.topic, group, _text(message.reconsume_times > 0), is_system)
            self._of(self._out, *labels).inc()
            self._of(self._bytes_out, *labels).inc(len(message.body))
            self._of(self._latency, message.topic, group).observe(max(0, now_ms - message.store_ms))

    def delivered_rows(self, group: str, topic: str, rows: int, size: int) -> None:
        labels = (topic, group, _text(system_topics.is_retry(topic)), _text(system_topics.is_system(topic)))
        self._of(self._out, *labels).inc(rows)
        self._of(self._bytes_out, *labels).inc(size)

    def consumed(self, consumption: Consumption) -> None:
        status = "success" if consumption.succeeded else "failure"
        topic = consumption.messages[0].topic
        self._of(self._process, topic, consumption.group, status).observe(consumption.cost_ms)

    def ended(self, messages: Sequence[EndedTransaction]) -> None:
        for each in messages:
            self._of(self._ended[each.committed], each.topic).inc()


class StoreGauges:
    """Gauges of a whole store, computed when they are asked for. A collector of `prometheus_client`.

    Args:
        store: an open store.
        node: the labels that every metric has.
        consumers: counts live consumers by group that the store does not know of, as those of a proxy.
    """

    def __init__(
        self, store: Store, node: dict[str, str], consumers: Callable[[], Mapping[str, int]] | None = None
    ) -> None:
        self._store = store
        self._consumers = consumers
        self._node = [node[name] for name in NODE]
        self._groups = GroupOffsets(store)

    def collect(self) -> Iterator[Metric]:
        """The gauges as they are now."""
        yield from self._lag()
        yield from self._connections()
        yield from self._store_wide()
        yield self._permissions()

    def _gauge(self, name: str, help_: str, *labels: str) -> GaugeMetricFamily:
        from prometheus_client.metrics_core import GaugeMetricFamily

        return GaugeMetricFamily(f"rocketmq_{name}", help_, labels=[*NODE, *labels])

    def _lag(self) -> Iterator[Metric]:
        labels = ("topic", "consumer_group", "queue_id", "is_retry")
        lag = self._gauge("consumer_lag_messages", "Messages not consumed: ready and in flight.", *labels)
        ready = self._gauge("consumer_ready_messages", "Messages that nobody has received yet.", *labels)
        inflight = self._gauge("consumer_inflight_messages", "Messages received and not acknowledged.", *labels)
        latency = self._gauge("consumer_lag_latency", "Milliseconds since the oldest of them was stored.", *labels)
        queueing = self._gauge(
            "consumer_queueing_latency",
            "Milliseconds since the oldest one that nobody has received was stored.",
            *labels,
        )
        held = self._held()
        for group in self._groups.groups():
            for queue in self._groups.lag(group):
                is_retry = system_topics.is_retry(queue.topic)
                # As RocketMQ's brokers say it: queues of two brokers may have the same number.
                values = [self._node[0], "broker", queue.broker, queue.topic, group, str(queue.queue), _text(is_retry)]
                flying = held.get((group, queue.topic, queue.broker, queue.queue), 0)
                ready.add_metric(values, queue.lag)
                inflight.add_metric(values, flying)
                lag.add_metric(values, queue.lag + flying)
                latency.add_metric(values, queue.lag_ms)
                queueing.add_metric(values, queue.lag_ms)
        yield from (lag, ready, inflight, latency, queueing)

    def _held(self) -> dict[tuple[str, str, str, int], int]:
        held: dict[tuple[str, str, str, int], int] = {}
        for broker in self._store.brokers():
            counts = self._store.log(broker, PopState).look(_count_held)
            held.update({(group, topic, broker, queue): count for (group, topic, queue), count in counts.items()})
        return held

    def _connections(self) -> Iterator[Metric]:
        now_ms = self._store.clock.now_ms()

        def live(view: LogView) -> dict[str, int]:
            members = view.state.fold(GroupMembers)
            now = max(now_ms, view.state.store_ms)
            return {group: len(members.live(group, now)) for group in members.members}

        gauge = self._gauge("consumer_connections", "Live consumers.", "consumer_group")
        counts = Counter(self._store.nameserver.look(live))
        counts.update({} if self._consumers is None else self._consumers())
        for group, count in sorted(counts.items()):
            gauge.add_metric([*self._node, group], count)
        yield gauge

    def _permissions(self) -> Metric:
        gauge = self._gauge("broker_permission", "4: read, 6: read and write.")
        read_only = self._store.nameserver.look(lambda view: view.state.fold(ClusterConfig).read_only())
        for broker in self._store.brokers():
            gauge.add_metric([self._node[0], "broker", broker], 4 if broker in read_only else 6)
        return gauge

    def _store_wide(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily

        halves, dead = 0, dict[str, int]()
        for broker in self._store.brokers():
            log = self._store.log(broker, Transactions)
            halves += log.look(lambda view: len(view.state.fold(Transactions).open))
            for group in self._groups.groups():
                topic = system_topics.dlq_topic(group)
                end = log.look(lambda view, topic=topic: view.state.queues.bounds(topic, 0)[1])  # type: ignore[misc]
                dead[group] = dead.get(group, 0) + end
        letters = CounterMetricFamily(
            "rocketmq_send_to_dlq_messages", "Messages that a group gave up.", labels=[*NODE, "consumer_group"]
        )
        for group, count in sorted(dead.items()):
            letters.add_metric([*self._node, group], count)
        yield letters
        topics = [topic.name for topic in self._store.topics() if not system_topics.is_made_by_engine(topic.name)]
        numbers = (
            ("half_messages", "Open transactions.", halves),
            ("topic_number", "Topics.", len(topics)),
            ("consumer_group_number", "Consumer groups.", len(dead)),
        )
        for name, help_, value in numbers:
            gauge = self._gauge(name, help_)
            gauge.add_metric(self._node, value)
            yield gauge

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not read the store."""
        return []


def _count_held(view: LogView) -> dict[tuple[str, str, int], int]:
    return {place: len(claims) for place, claims in view.state.fold(PopState).held.items()}


def _message_type(message: Message) -> str:
    if message.is_delayed:
        return "delay"
    if message.sharding_key is not None:
        return "fifo"
    return "normal" if message.priority is None else "priority"


def _text(value: bool) -> str:
    return str(value).lower()


def _prometheus() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise MissingExtraError('metrics need prometheus-client; run: pip install "rmq-spark[metrics]"') from error
    return prometheus_client
