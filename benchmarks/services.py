"""How fast the services are: delayed messages, transactions and POP, with messages of 100 bytes.

    python benchmarks/services.py                                  # everything; some 5 GB in a temporary directory
    python benchmarks/services.py pop transactions                 # some parts
    python benchmarks/services.py tick --pending 10000 10000000
    RMQ_BENCH_DIR=/mnt/disk python benchmarks/services.py burst --due 1000000

`steady`, `burst`: lateness is the store time of the delivered copy minus the due time. `tick`: a `run_once` with
nothing due, and opening a store, by how much is pending. `transactions`: one thread, one message in each, against plain
sends of the same producer. `pop`: received and acknowledged in batches of 32 from one queue; the messages are there
before the clock starts, and so are the processes. Flushes are `async`, RocketMQ's default; those of `pop` `sync`, too.
"""

import argparse
import multiprocessing
import os
import tempfile
import threading
import time

import numpy as np
import pyarrow as pa

from rmq_spark.client.producer import Producer
from rmq_spark.client.simple_consumer import SimpleConsumer
from rmq_spark.client.store import Store
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.scan import Query
from rmq_spark.model.message import Message
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.rules.system_topics import TIMER_TOPIC
from rmq_spark.services.runner import ServiceRunner
from rmq_spark.services.timer import TimerService

BODY = b"x" * 100
BATCH = 32
PARK_ROWS = 50_000
SETTINGS = LogSettings(flush=Flush.ASYNC)


def report(name, value, unit, wanted):
    print(f"  {name:<58} {value:>12,.2f} {unit:<10} wanted {wanted}", flush=True)


def park(store, due_ms):
    """Park a message for each due time, as Arrow tables."""
    log = store.log()
    for start in range(0, len(due_ms), PARK_ROWS):
        due = [str(value) for value in due_ms[start : start + PARK_ROWS].tolist()]
        rows = len(due)
        properties = [
            [("TIMER_DELIVER_MS", value), ("TIMER_OUT_MS", value), ("REAL_TOPIC", "due"), ("REAL_QID", str(row % 8))]
            for row, value in enumerate(due)
        ]
        table = pa.table(
            {
                "topic": pa.array([TIMER_TOPIC] * rows),
                "queueId": pa.array(np.zeros(rows, np.int32)),
                "msgId": pa.array([f"{start + row:032X}" for row in range(rows)]),
                "body": pa.array([BODY] * rows, pa.binary()),
                "bornTimestamp": pa.array(np.full(rows, 1_700_000_000_000)).cast(pa.timestamp("ms", "UTC")),
                "properties": pa.array(properties, pa.map_(pa.string(), pa.string())),
            }
        )
        log.append(MessageBatch.from_arrow(table))


def lateness(store, topic="due"):
    """Store time minus due time of each delivered message."""
    late = []
    for batch in store.log().scan(Query(topics=frozenset({topic}), columns=("storeTimestamp", "properties"))):
        stored = batch.column("storeTimestamp").cast(pa.int64()).to_numpy()
        due = np.array([int(dict(pairs)["TIMER_OUT_MS"]) for pairs in batch.column("properties").to_pylist()])
        late.append(stored - due)
    return np.concatenate(late) if late else np.empty(0)


def wait_for(store, count):
    log = store.log()
    while sum(end for _, _, end in log.refresh().state.queues.of_topic("due")) < count:
        log.wait(log.view.state.offset, 0.5)


def steady(place, seconds):
    with Store.create(f"{place}/steady", settings=SETTINGS, services="off") as store:
        begin = store.clock.now_ms() + 1_500
        park(store, begin + np.arange(100 * seconds) * 10)
        with ServiceRunner([TimerService(store)], store.clock):
            wait_for(store, 100 * seconds)
        late = lateness(store)
        report("100 due each second: lateness p50", float(np.percentile(late, 50)), "ms", "< 20")
        report("100 due each second: lateness p99", float(np.percentile(late, 99)), "ms", "< 100")


def burst(place, count):
    with Store.create(f"{place}/burst", settings=SETTINGS, services="off") as store:
        begin = store.clock.now_ms() + 20_000 + count // 30
        park(store, begin + np.random.default_rng(1).integers(0, 10_000, count))
        timers = TimerService(store)
        timers.run_once()
        print(f"  {count:,} parked, {max(0, begin - store.clock.now_ms()) / 1000:.1f} s before the first is due")
        with ServiceRunner([timers], store.clock):
            wait_for(store, count)
        late = lateness(store)
        report(f"{count:,} due within 10 s: lateness p50", float(np.percentile(late, 50)), "ms", "-")
        report(f"{count:,} due within 10 s: lateness p99", float(np.percentile(late, 99)), "ms", "< 1,000")


def tick(place, counts):
    """What a look costs by how much is pending, and how long the next process takes to begin."""
    first = None
    for count in counts:
        with Store.create(f"{place}/tick-{count}", settings=SETTINGS, services="off") as store:
            due = store.clock.now_ms() + 86_400_000
            park(store, due + np.random.default_rng(1).integers(0, 86_400_000, count))
            timers = TimerService(store)
            timers.run_once()
            times = []
            for _ in range(500):
                started = time.perf_counter()
                timers.run_once()
                times.append(time.perf_counter() - started)
            cost = sorted(times)[len(times) // 2] * 1e6
            first = first or cost
            report(f"a tick with {count:,} pending", cost, "us", f"< {1.5 * first:,.0f}")
        started = time.perf_counter()
        with Store.open(f"{place}/tick-{count}", settings=SETTINGS, services="off") as store:
            store.log().refresh()
            report(f"opening the store with {count:,} pending", (time.perf_counter() - started) * 1e3, "ms", "equal")
            started = time.perf_counter()
            TimerService(store).run_once()
            report(f"first look of a new deliverer, {count:,} pending", time.perf_counter() - started, "s", "-")


def transactions(place, count):
    rates = []
    with Store.create(f"{place}/tx", settings=SETTINGS, services="off") as store:
        producer = Producer(store)
        for _ in range(3):
            started = time.perf_counter()
            for _ in range(count):
                producer.send(Message("plain", BODY))
            plain = count / (time.perf_counter() - started)
            started = time.perf_counter()
            for _ in range(count):
                with producer.begin_transaction() as tx:
                    producer.send(Message("tx", BODY), transaction=tx)
                    tx.commit()
            rates.append((plain, count / (time.perf_counter() - started)))
    plain, inside = sorted(rates, key=lambda rate: rate[1] / rate[0])[1]
    report("plain sends, one thread", plain, "/s", "-")
    report("transactions of one message, one thread", inside, "/s", f"> {0.4 * plain:,.0f}")
    report("of the plain rate", inside / plain, "", "> 0.4")


def filled_store(place, messages):
    with Store.create(place, settings=SETTINGS, services="off") as store:
        store.create_topic("orders", queues=1)
        producer = Producer(store)
        for _ in range(messages // 1000):
            producer.send_batch([Message("orders", BODY)] * 1000)


def drain(consumer):
    """Receive and acknowledge until nothing is left; returns how many."""
    count = 0
    while messages := consumer.receive(BATCH, 60, 0):
        consumer.ack(messages)
        count += len(messages)
    return count


def process(place, settings, start, counts):
    with Store.open(place, settings=settings, services="off") as store:
        consumer = SimpleConsumer(store, "jobs").subscribe("orders")
        start.wait()
        counts.put(drain(consumer))


def by_processes(place, settings, number):
    context = multiprocessing.get_context("spawn")
    start, counts = context.Barrier(number + 1), context.Queue()
    processes = [context.Process(target=process, args=(place, settings, start, counts)) for _ in range(number)]
    for each in processes:
        each.start()
    start.wait()
    began = time.perf_counter()
    received = [counts.get() for _ in processes]
    seconds = time.perf_counter() - began
    for each in processes:
        each.join()
    return received, seconds


def by_threads(place, settings, number):
    received = []
    with Store.open(place, settings=settings, services="off") as store:
        consumer = SimpleConsumer(store, "jobs").subscribe("orders")
        threads = [threading.Thread(target=lambda: received.append(drain(consumer))) for _ in range(number)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return received, time.perf_counter() - began


def pop(place, messages):
    for flush in (Flush.ASYNC, Flush.SYNC):
        for name, run, number in (
            ("one thread", by_threads, 1),
            ("two processes", by_processes, 2),
            ("16 threads of one process", by_threads, 16),
        ):
            store = f"{place}/pop-{flush}-{number}"
            filled_store(store, messages)
            received, seconds = run(store, LogSettings(flush=flush), number)
            assert sum(received) == messages, received
            each = f"{min(received):,} to {max(received):,} each"
            report(f"{flush}, {name} ({each})", messages / seconds, "messages/s", "> 20,000")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="steady, tick, burst, transactions, pop; all by default")
    parser.add_argument("--pending", nargs="*", type=int, default=[10_000, 10_000_000])
    parser.add_argument("--due", type=int, default=1_000_000, help="how many are due within 10 s")
    parser.add_argument("--seconds", type=int, default=5, help="how long 100 are due each second")
    parser.add_argument("--sends", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=100_000, help="how many are received")
    given = parser.parse_args()
    parts = {
        "steady": (steady, given.seconds),
        "tick": (tick, given.pending),
        "burst": (burst, given.due),
        "transactions": (transactions, given.sends),
        "pop": (pop, given.messages),
    }
    for name in given.parts or parts:
        run, argument = parts[name]
        print(name)
        with tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=os.environ.get("RMQ_BENCH_DIR")) as place:
            run(place, argument)


if __name__ == "__main__":
    main()
