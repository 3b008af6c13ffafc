"""Delayed messages and transactions: how late, how many at once, what a look costs, and what a transaction costs.

    python benchmarks/services_timers.py                    # both sections; some 2 GB in a temporary directory
    python benchmarks/services_timers.py timers --pending 10000 1000000 --due 1000000
    python benchmarks/services_timers.py transactions

Messages of 100 bytes. `timers`: lateness is the store time of the delivered copy minus the due time. A tick is a
`run_once` with nothing due. `transactions`: one thread, one message in each, against plain sends of the same producer.
"""

import argparse
import tempfile
import time

import numpy as np
import pyarrow as pa

from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.scan import Query
from rmq_spark.model.message import Message
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.rules.system_topics import TIMER_TOPIC
from rmq_spark.services.runner import ServiceRunner
from rmq_spark.services.timer import TimerService

BODY = b"x" * 100
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
    with Store.create(f"{place}/tx", settings=SETTINGS) as store:
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help="timers, transactions; both by default")
    parser.add_argument("--pending", nargs="*", type=int, default=[10_000, 1_000_000])
    parser.add_argument("--due", type=int, default=1_000_000, help="how many are due within 10 s")
    parser.add_argument("--seconds", type=int, default=5, help="how long 100 are due each second")
    parser.add_argument("--sends", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if not given.sections or "timers" in given.sections:
            print("timers")
            steady(place, given.seconds)
            tick(place, given.pending)
            burst(place, given.due)
        if not given.sections or "transactions" in given.sections:
            print("transactions")
            transactions(place, given.sends)


if __name__ == "__main__":
    main()
