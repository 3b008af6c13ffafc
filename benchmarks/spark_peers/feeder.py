"""Sends messages to a topic at a steady rate until standard input closes: `feeder.py STORE TOPIC RATE BYTES`.

A process of its own, so that it takes no time of the interpreter that measures.
"""

import sys
import threading
import time

from rmq_spark import Message, Producer, Store

FEEDS_A_SECOND = 50


def feed(place, topic, rate, size, stop):
    with Store.open(place) as store:
        producer = Producer(store)
        begun, sent = time.monotonic(), 0
        while not stop.wait(1 / FEEDS_A_SECOND):
            due = int((time.monotonic() - begun) * rate)
            if due > sent:
                producer.send_batch(
                    [Message(topic=topic, body=bytes(size), keys=f"order-{number}") for number in range(sent, due)]
                )
                sent = due


if __name__ == "__main__":
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    feed(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), ended)
