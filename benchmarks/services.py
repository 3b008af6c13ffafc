"""How fast the services are.

    python benchmarks/services.py         # everything
    python benchmarks/services.py pop     # one part

`pop`: messages of 100 B, received and acknowledged in batches of 32 from one queue, by two processes and by 16 threads
of one process. The messages are there before the clock starts, and so are the processes.
"""

import multiprocessing
import os
import sys
import tempfile
import threading
import time

from rmq_spark.client.producer import Producer
from rmq_spark.client.simple_consumer import SimpleConsumer
from rmq_spark.client.store import Store
from rmq_spark.model.message import Message

BODY = b"x" * 100
MESSAGES = int(os.environ.get("RMQ_BENCH_MESSAGES", "100000"))
BATCH = 32


def report(name, value, unit, wanted):
    print(f"  {name:<58} {value:>12,.0f} {unit:<12} wanted {wanted}", flush=True)


def filled_store(place):
    with Store.create(place) as store:
        store.create_topic("orders", queues=1)
        producer = Producer(store)
        for _ in range(MESSAGES // 1000):
            producer.send_batch([Message("orders", BODY)] * 1000)


def drain(consumer):
    """Receive and acknowledge until nothing is left; returns how many."""
    count = 0
    while messages := consumer.receive(BATCH, 60, 0):
        consumer.ack(messages)
        count += len(messages)
    return count


def process(place, start, counts):
    with Store.open(place) as store:
        consumer = SimpleConsumer(store, "jobs").subscribe("orders")
        start.wait()
        counts.put(drain(consumer))


def by_processes(place, number):
    context = multiprocessing.get_context("spawn")
    start, counts = context.Barrier(number + 1), context.Queue()
    processes = [context.Process(target=process, args=(place, start, counts)) for _ in range(number)]
    for each in processes:
        each.start()
    start.wait()
    began = time.perf_counter()
    received = [counts.get() for _ in processes]
    seconds = time.perf_counter() - began
    for each in processes:
        each.join()
    return received, seconds


def by_threads(place, number):
    received = []
    with Store.open(place) as store:
        consumer = SimpleConsumer(store, "jobs").subscribe("orders")
        threads = [threading.Thread(target=lambda: received.append(drain(consumer))) for _ in range(number)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return received, time.perf_counter() - began


def pop():
    print("pop: receive and ack in batches of 32, 100 B, one queue")
    for name, run, number in (
        ("one thread", by_threads, 1),
        ("two processes", by_processes, 2),
        ("16 threads of one process", by_threads, 16),
    ):
        with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=os.environ.get("RMQ_BENCH_DIR")) as directory:
            place = f"{directory}/store"
            filled_store(place)
            received, seconds = run(place, number)
            assert sum(received) == MESSAGES, received
            report(f"{name} ({min(received):,} to {max(received):,} each)", MESSAGES / seconds, "messages/s", "20,000")


PARTS = {"pop": pop}


if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
