"""Metrics for Prometheus with RocketMQ's names, and a trace of every message. Metrics need the extra `metrics`."""

import urllib.request

from rmq_spark import Message, Producer, SimpleConsumer, Store, metrics
from rmq_spark.query.trace import client_traces

with Store.open("shop", create=True) as store:
    store.create_topic("orders", queues=1)
    with metrics.start(store, port=0) as served:
        with Producer(store, group="web", trace=True) as producer:
            sent = producer.send(Message("orders", b"a book"))
        with SimpleConsumer(store, "billing", trace=True) as consumer:
            consumer.subscribe("orders")
            consumer.ack(consumer.receive())

        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
    print(*[line for line in lines if line.startswith(("rocketmq_messages_in", "rocketmq_consumer_lag_m"))], sep="\n")

    records = client_traces(store, sent.msg_id)
    print([(record.type, record.group, record.success) for record in records])

assert [str(record.type) for record in records] == ["Pub", "SubBefore", "SubAfter"]
