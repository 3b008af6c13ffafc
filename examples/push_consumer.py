"""A listener is called for every message. What it fails on comes again after a while."""

import threading

from rmq_spark import Message, Producer, PushConsumer, ReceivedMessage, Store

seen: list[str] = []
all_seen = threading.Event()


def handle(message: ReceivedMessage) -> None:
    seen.append(message.body.decode())
    print(f"{message.tags}: {message.body.decode()} (attempt {message.delivery_attempt})")
    if len(seen) == 2:
        all_seen.set()


with Store.open("shop", create=True) as store:
    producer = Producer(store)
    producer.send(Message("orders", b"a book", tags="paid", keys="o-1"))
    producer.send(Message("orders", b"a lamp", tags="new", keys="o-2"))
    producer.send(Message("orders", b"a chair", tags="shipped", keys="o-3"))

    with PushConsumer(store, "billing") as consumer:
        consumer.subscribe("orders", tags="paid || shipped")
        consumer.start(handle)
        all_seen.wait()

    print(store.read("orders", columns=["keys", "tags"]).to_pylist())

assert sorted(seen) == ["a book", "a chair"]
