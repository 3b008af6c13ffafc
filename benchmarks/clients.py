"""How fast the clients are.

    python benchmarks/clients.py              # everything
    python benchmarks/clients.py send wake    # some parts

`send`: messages of 100 B, flushed in the background (`Flush.ASYNC`): one at a time, by 16 threads, without waiting, in
batches of 1,000 `Message` objects that exist before the clock starts, and as a table. `wake`: one process sends 100
messages a second, another has a listener; time from before the send to the listener. `idle`: processor time of push
consumers that have nothing to do. `poll`: a backlog of 2 million messages, as tables and as message objects.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import pyarrow as pa

from rmq_spark import Flush, LitePullConsumer, LogSettings, Message, Producer, PushConsumer, Store

BODY = b"x" * 100
BACKLOG = int(os.environ.get("RMQ_BENCH_BACKLOG", "2000000"))
ASYNC = LogSettings(flush=Flush.ASYNC)
SERVICES = os.environ.get("RMQ_BENCH_SERVICES", "auto")


def report(name, value, unit, wanted):
    print(f"  {name:<58} {value:>12,.2f} {unit:<12} wanted {wanted}", flush=True)


def place():
    return tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=os.environ.get("RMQ_BENCH_DIR"))


def rate(count, call):
    started = time.perf_counter()
    call()
    return count / (time.perf_counter() - started)


# ---------------------------------------------------------------- sending


def send():
    with (
        place() as directory,
        Store.create(f"{directory}/store", settings=ASYNC, services=SERVICES) as store,
        Producer(store) as producer,
    ):
        store.create_topic("orders", queues=4)
        one_by_one(producer)
        threads(producer)
        report("send_async, one caller", best(lambda: without_waiting(producer)), "messages/s", ">= 60,000")
        report("send_batch of 1,000 Message objects", best(lambda: batches(producer)), "messages/s", ">= 300,000")
        report("send_table, 100,000 rows a call", best(lambda: tables(producer)), "rows/s", ">= 1,500,000")


def best(measure, rounds=3):
    return statistics.median(measure() for _ in range(rounds))


def one_by_one(producer, count=3_000):
    times = []
    for number in range(count + 200):
        started = time.perf_counter()
        producer.send(Message("orders", BODY))
        if number >= 200:
            times.append(time.perf_counter() - started)
    times.sort()
    report("send, one thread, one message at a time: median", times[len(times) // 2] * 1e3, "ms", "<= 0.4")
    report("  p99", times[int(len(times) * 0.99)] * 1e3, "ms", "-")


def threads(producer, number=16, each=4_000):
    def work():
        for _ in range(each):
            producer.send(Message("orders", BODY))

    def run():
        started = [threading.Thread(target=work) for _ in range(number)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()

    report("send, 16 threads", best(lambda: rate(number * each, run)), "messages/s", ">= 16,000")


def without_waiting(producer, count=120_000):
    def run():
        futures = [producer.send_async(Message("orders", BODY)) for _ in range(count)]
        producer.flush()
        assert all(future.result() for future in futures[::1000])

    return rate(count, run)


def batches(producer, number=100):
    made = [[Message("orders", BODY) for _ in range(1_000)] for _ in range(number)]
    return rate(number * 1_000, lambda: [producer.send_batch(messages) for messages in made])


def tables(producer, number=20, rows=100_000):
    table = pa.table({"body": pa.repeat(pa.scalar(BODY, pa.binary()), rows)})
    return rate(number * rows, lambda: [producer.send_table("orders", table) for _ in range(number)])


# ---------------------------------------------------------------- listeners in other processes


def listener_process(uri):
    """Prints a line for each message: how long ago its sender began."""
    with Store.open(uri, settings=ASYNC, services=SERVICES) as store, PushConsumer(store, "listeners") as consumer:
        lines = []
        consumer.subscribe("orders").start(lambda message: lines.append(time.monotonic() - float(message.body)))
        print("started", flush=True)
        sys.stdin.readline()
        before = cpu_seconds()
        sys.stdin.readline()
        print(json.dumps({"latencies": lines, "cpu": cpu_seconds() - before}), flush=True)
        sys.stdin.readline()


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Listener:
    def __init__(self, uri):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--listen", uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "started\n"

    def tell(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self):
        self.tell()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.tell()
        self.process.communicate()


def wake(seconds=30):
    with (
        place() as directory,
        Store.create(f"{directory}/store", settings=ASYNC, services=SERVICES) as store,
        Producer(store) as producer,
    ):
        store.create_topic("orders", queues=4)
        listener = Listener(f"{directory}/store")
        listener.tell()
        for _ in range(100):
            producer.send(Message("orders", str(time.monotonic()).encode()))
            time.sleep(0.01)
        began = time.monotonic()
        for number in range(seconds * 100):
            time.sleep(max(0.0, began + number / 100 - time.monotonic()))
            producer.send(Message("orders", str(time.monotonic()).encode()))
        time.sleep(1)
        latencies = sorted(listener.answer()["latencies"][100:])
        listener.end()
    assert len(latencies) == seconds * 100
    report("send to listener, two processes, 100/s: p50", latencies[len(latencies) // 2] * 1e3, "ms", "<= 1.5")
    report("  p99", latencies[int(len(latencies) * 0.99)] * 1e3, "ms", "<= 6")


def idle(seconds=30):
    for number, wanted in ((1, "< 1"), (20, "< 10")):
        with place() as directory, Store.create(f"{directory}/store", settings=ASYNC, services=SERVICES) as store:
            store.create_topic("orders", queues=4)
            Producer(store).send(Message("orders", b"0"))
            listeners = [Listener(f"{directory}/store") for _ in range(number)]
            time.sleep(15)  # joining and sharing queues is over
            for listener in listeners:
                listener.tell()
            time.sleep(seconds)
            used = sum(listener.answer()["cpu"] for listener in listeners)
            for listener in listeners:
                listener.end()
        name = "an idle push consumer" if number == 1 else f"{number} idle push consumers in processes"
        report(f"{name}: share of a core", 100 * used / seconds, "%", wanted)


# ---------------------------------------------------------------- a backlog


def poll():
    with place() as directory, Store.create(f"{directory}/store", settings=ASYNC, services=SERVICES) as store:
        store.create_topic("orders", queues=4)
        producer = Producer(store)
        part = pa.table({"body": pa.repeat(pa.scalar(BODY, pa.binary()), 100_000)})
        for _ in range(BACKLOG // 100_000):
            producer.send_table("orders", part)

        def as_tables(group):
            with LitePullConsumer(store, group, consume_from="earliest") as pull:
                pull.subscribe("orders")
                pull.poll_table(max_rows=1)
                rows = 1
                started = time.perf_counter()
                while rows < BACKLOG:
                    rows += pull.poll_table().num_rows
                return rows / (time.perf_counter() - started)

        def as_messages(group, wanted=600_000):
            with LitePullConsumer(store, group, consume_from="earliest") as pull:
                pull.subscribe("orders")
                pull.poll(max_messages=1)
                count = 1
                started = time.perf_counter()
                while count < min(wanted, BACKLOG):
                    count += len(pull.poll())
                return count / (time.perf_counter() - started)

        tables = statistics.median(as_tables(f"tables-{number}") for number in range(3))
        report("poll_table of a backlog of 2 million", tables, "rows/s", ">= 2,000,000")
        messages = statistics.median(as_messages(f"messages-{number}") for number in range(3))
        report("poll of it, as message objects", messages, "messages/s", ">= 150,000")


PARTS = {"send": send, "wake": wake, "idle": idle, "poll": poll}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--listen"]:
        listener_process(sys.argv[2])
    else:
        for name in sys.argv[1:] or PARTS:
            print(name)
            PARTS[name]()
