"""Two push consumers share one queue by POP: whoever has time gets the next message."""

import threading

from rmq_spark import Message, Producer, PushConsumer, ReceivedMessage, Store

seen: set[str] = set()
slow_has_one, all_seen = threading.Event(), threading.Event()


def note(message: ReceivedMessage) -> None:
    seen.add(message.body.decode())
    if len(seen) == 5:
        all_seen.set()


def slow(message: ReceivedMessage) -> None:
    slow_has_one.set()
    print("the slow one waits for the others")
    while len(seen) < 4:  # its message is not given to anybody else meanwhile
        all_seen.wait(0.01)
    note(message)


with Store.open("shop", create=True) as store:
    store.create_topic("jobs", queues=1)
    producer = Producer(store)
    with (
        PushConsumer(store, "workers", pop=True, threads=1) as first,
        PushConsumer(store, "workers", pop=True) as second,
    ):
        first.subscribe("jobs").start(slow)
        producer.send(Message("jobs", b"0"))
        slow_has_one.wait()
        first_only = set(seen)
        second.subscribe("jobs").start(note)
        for number in range(1, 5):
            producer.send(Message("jobs", str(number).encode()))
        all_seen.wait()

assert not first_only
assert sorted(seen) == ["0", "1", "2", "3", "4"]
