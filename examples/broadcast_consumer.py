"""Broadcasting: every consumer gets every message, and keeps its own offsets in a file. A failure is not retried."""

import threading

from rmq_spark import Message, Producer, PushConsumer, ReceivedMessage, Store

NODES = ("node-a", "node-b")
seen: dict[str, set[bytes]] = {node: set() for node in NODES}
left = threading.Semaphore(0)


def forget(node: str, message: ReceivedMessage) -> None:
    print(f"{node} forgets {message.body.decode()}")
    seen[node].add(message.body)
    left.release()


with Store.open("shop", create=True) as store:
    store.create_topic("cache", queues=2)
    consumers = [
        PushConsumer(store, "caches", broadcasting=True, instance=node, offsets_home="offsets", consume_from="earliest")
        for node in NODES
    ]
    for node, consumer in zip(NODES, consumers, strict=True):
        consumer.subscribe("cache").start(lambda message, node=node: forget(node, message))

    producer = Producer(store)
    for key in (b"user 1", b"user 2"):
        producer.send(Message("cache", key))
    for _ in range(len(NODES) * 2):
        left.acquire()
    for consumer in consumers:
        consumer.close()

assert seen == {node: {b"user 1", b"user 2"} for node in NODES}
