"""Metrics: RocketMQ 5's names, counters of what clients do, gauges computed when they are asked for."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from group_store import memory_store
from prometheus_client import CollectorRegistry
from push_steps import Steps

from rmq_spark import Admin, ConsumeResult, LitePullConsumer, Message, Producer, SimpleConsumer, Store, metrics
from rmq_spark.clock import ManualClock


@pytest.fixture
def store() -> Iterator[Store]:
    with memory_store(ManualClock()) as made:
        made.create_topic("t", queues=2)
        yield made


@pytest.fixture
def registry(store: Store) -> CollectorRegistry:
    made = CollectorRegistry()
    metrics.register(store, made)
    return made


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """The sum of the samples that have these labels; None when there is none."""
    values = [
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == f"rocketmq_{name}" and labels.items() <= sample.labels.items()
    ]
    return sum(values) if values else None


def test_sends_are_counted_by_topic_and_type(store: Store, registry: CollectorRegistry) -> None:
    producer = Producer(store)
    producer.send(Message("t", b"12345"))
    producer.send_batch([Message("t", b"1", sharding_key="k"), Message("t", b"1", delay=5)])
    with producer.begin_transaction() as tx:
        producer.send(Message("t", b"1"), transaction=tx)
        tx.rollback()
    counts = {kind: value(registry, "messages_in_total", topic="t", message_type=kind) for kind in
              ("normal", "fifo", "delay", "transaction")}  # fmt: skip
    assert counts == {"normal": 1, "fifo": 1, "delay": 1, "transaction": 1}
    assert value(registry, "throughput_in_total", topic="t") == 8
    assert value(registry, "message_size_count", topic="t") == 4
    assert value(registry, "send_cost_time_count", topic="t", invocation_status="success") == 3


def test_a_failed_send_is_a_failure_and_no_message(store: Store, registry: CollectorRegistry) -> None:
    with pytest.raises(Exception, match="no such topic"):
        Producer(store, auto_create=False).send(Message("missing", b"x"))
    assert value(registry, "send_cost_time_count", topic="missing", invocation_status="failure") == 1
    assert value(registry, "messages_in_total", topic="missing") is None


def test_tables_are_counted_by_rows(store: Store, registry: CollectorRegistry) -> None:
    import pyarrow as pa

    Producer(store).send_table("t", pa.table({"body": pa.array([b"ab", b"c"], pa.binary())}))
    with LitePullConsumer(store, "g", consume_from="earliest") as pull:
        pull.subscribe("t")
        assert pull.poll_table(0).num_rows == 2
    assert value(registry, "messages_in_total", topic="t") == 2
    assert value(registry, "throughput_in_total", topic="t") == 3
    assert value(registry, "messages_out_total", topic="t", consumer_group="g") == 2
    assert value(registry, "throughput_out_total", topic="t", consumer_group="g") == 3


def test_listeners_are_timed_by_result(store: Store, registry: CollectorRegistry) -> None:
    results = [ConsumeResult.FAILURE, ConsumeResult.SUCCESS]
    consumer = Steps(store, lambda _: results.pop(), "g")
    for _ in range(2):
        Producer(store).send(Message("t", b"x"))
    consumer.run()
    for status in ("success", "failure"):
        assert value(registry, "process_time_count", consumer_group="g", invocation_status=status) == 1
    assert value(registry, "messages_out_total", consumer_group="g", is_retry="false") == 2
    assert value(registry, "consumer_connections", consumer_group="g") == 1
    consumer.leave()


def test_lag_is_ready_and_in_flight_for_each_queue(store: Store, registry: CollectorRegistry) -> None:
    producer = Producer(store)
    for _ in range(5):
        producer.send(Message("t", b"x", queue_id=0))
    producer.send(Message("t", b"x", queue_id=1))
    with SimpleConsumer(store, "g") as consumer:
        consumer.subscribe("t")
        while not (got := [each for each in consumer.receive(2, 30, 0) if each.queue_id == 0]):
            pass
        lag = {
            (name, queue): value(registry, f"consumer_{name}", topic="t", consumer_group="g", queue_id=queue)
            for name in ("lag_messages", "ready_messages", "inflight_messages")
            for queue in ("0",)
        }
        assert lag == {("lag_messages", "0"): 5, ("ready_messages", "0"): 3, ("inflight_messages", "0"): 2}
        assert isinstance(store.clock, ManualClock)
        store.clock.advance(7)
        for name in ("consumer_lag_latency", "consumer_queueing_latency"):
            assert value(registry, name, consumer_group="g", queue_id="0") == 7_000
        consumer.ack(got)
    assert value(registry, "consumer_lag_messages", consumer_group="g", queue_id="0") == 3
    assert value(registry, "process_time_count", consumer_group="g", invocation_status="success") == 2


def test_no_two_samples_are_alike_when_a_topic_is_on_two_brokers() -> None:
    with memory_store(ManualClock()) as store:
        store.create_topic("t", queues=1, brokers=("a", "b"))
        for _ in range(4):
            Producer(store).send(Message("t", b"x"))
        with LitePullConsumer(store, "g", consume_from="earliest").subscribe("t") as consumer:
            assert len(consumer.poll(0)) == 4
        registry = CollectorRegistry()
        metrics.register(store, registry)
        seen = [
            (sample.name, tuple(sorted(sample.labels.items())))
            for family in registry.collect()
            for sample in family.samples
        ]
        assert len(set(seen)) == len(seen)
        for broker in "ab":
            assert value(registry, "consumer_lag_messages", consumer_group="g", node_id=broker) == 0


def test_ends_of_transactions_are_counted_by_message(store: Store, registry: CollectorRegistry) -> None:
    producer = Producer(store)
    for end, messages in (("commit", 2), ("rollback", 1)):
        tx = producer.begin_transaction()
        for _ in range(messages):
            producer.send(Message("t", b"x"), transaction=tx)
        getattr(tx, end)()
    assert value(registry, "commit_messages_total", topic="t") == 2
    assert value(registry, "rollback_messages_total", topic="t") == 1


def test_a_broker_that_is_read_only_says_so(store: Store, registry: CollectorRegistry) -> None:
    Producer(store).send(Message("t", b"x"))
    assert value(registry, "broker_permission", node_id="broker-0", node_type="broker") == 6
    Admin(store).brokers.set_read_only("broker-0")
    assert value(registry, "broker_permission", node_id="broker-0", node_type="broker") == 4


def test_dead_letters_and_open_transactions(store: Store, registry: CollectorRegistry) -> None:
    consumer = Steps(store, lambda _: ConsumeResult.FAILURE, "g", max_reconsume_times=0)
    producer = Producer(store)
    producer.send(Message("t", b"x"))
    consumer.run()
    consumer.leave()
    producer.send(Message("t", b"x"), transaction=producer.begin_transaction())
    assert value(registry, "send_to_dlq_messages_total", consumer_group="g") == 1
    assert value(registry, "half_messages") == 1
    assert value(registry, "topic_number") == 1
    assert value(registry, "consumer_group_number") == 1


def test_metrics_are_served_until_they_are_closed(store: Store) -> None:
    with metrics.start(store, 0) as served:
        Producer(store).send(Message("t", b"x"))
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        assert 'rocketmq_messages_in_total{cluster="DefaultCluster",is_system="false",message_type="normal"' in text
        assert store.observers
    assert store.observers == []
    served.close()


def test_a_client_without_metrics_does_not_import_prometheus() -> None:
    code = (
        "import sys; from rmq_spark import *; s = Store.create('memory://m'); p = Producer(s); "
        "p.send(Message('t', b'x')); assert 'prometheus_client' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
