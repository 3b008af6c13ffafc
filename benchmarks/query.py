"""Queries by key, id, queue and time among many messages, and what the tables behind them cost.

    python benchmarks/query.py                       # 10 million messages: some minutes, 5 GB of disk
    python benchmarks/query.py --messages 1000000    # a tenth of it
    python benchmarks/query.py --keys uuid           # keys of 36 characters that nothing compresses

The log is measured with a tenth of the messages first, then with all, to see how times grow. Messages have bodies of
100 bytes, a tag, one key each (order numbers in no order), in 8 queues and commits of 10,000; the log is rolled.
Latencies are of one process that keeps the store open; `rmq query` is a process of its own each time.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid

import numpy as np
import pyarrow as pa

from rmq_spark.client.store import Store
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.model.message_id import UniqueIds, own_address
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.query.messages import MessageQuery
from rmq_spark.tables import engine

BATCH = 10_000
QUEUES = 8
PRIME = 999_999_937
STEP = 387_420_489


def key_of(number, kind):
    """The key of message `number`: distinct for each, and in no order."""
    if kind == "uuid":
        return str(uuid.UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835) % (1 << 128)))
    return f"order-{number * STEP % PRIME:09d}"


def append(store, first, last, kind):
    log, ids, host = store.log(), UniqueIds(store.clock), own_address()
    draw = np.random.default_rng(first)
    ends = pa.py_buffer(np.arange(0, (BATCH + 1) * 100, 100, dtype=np.int32))
    for start in range(first, last, BATCH):
        count = min(BATCH, last - start)
        text = draw.integers(ord("a"), ord("z") + 1, (BATCH, 100), np.uint8)
        table = pa.table(
            {
                "topic": pa.repeat("orders", count),
                "queueId": pa.array((np.arange(start, start + count) % QUEUES).astype(np.int32)),
                "msgId": pa.array(ids.draw(count)),
                "tags": pa.array([f"Tag{number % 5}" for number in range(start, start + count)]),
                "keys": pa.array([key_of(number, kind) for number in range(start, start + count)]),
                "body": pa.Array.from_buffers(pa.binary(), BATCH, [None, ends, pa.py_buffer(text)])[:count],
                "bornTimestamp": pa.array(np.full(count, store.clock.now_ms())).cast(pa.timestamp("ms", tz="UTC")),
                "bornHost": pa.repeat(host, count),
            }
        )
        log.append(MessageBatch.from_arrow(table))


def report(name, value, wanted=""):
    print(f"  {name:<58} {value:>16}   {wanted}", flush=True)


def timed(work, arguments):
    """Milliseconds and bytes read of each call."""
    times, sizes = [], []
    for argument in arguments:
        start = time.perf_counter()
        answer = work(argument)
        times.append((time.perf_counter() - start) * 1000)
        sizes.append(answer.stats.bytes_read)
    return np.array(times), np.array(sizes)


def latencies(store, count, queries, kind):
    """Ask `queries` questions of each kind; returns the median of those by key."""
    query = MessageQuery(store)
    draw = np.random.default_rng(count)
    picked = draw.integers(0, count, queries).tolist()
    keys = [key_of(number, kind) for number in picked]
    for key in keys[:50]:
        assert query.by_key("orders", key).messages["keys"].to_pylist() == [key]
    ids = [query.by_key("orders", key).messages["msgId"][0].as_py() for key in keys[: queries // 2]]
    absent = [key_of(number, kind) for number in draw.integers(20_000_000, 90_000_000, queries // 2).tolist()]
    newest = query.by_time("orders", limit=1).messages["storeTimestamp"].cast(pa.int64())[0].as_py()
    oldest = store.log().look(lambda view: view.mark.segments[0].min_ms)
    moments = draw.integers(oldest, newest + 1, 50).tolist()
    kinds = {
        "by key": (lambda key: query.by_key("orders", key), keys),
        "by key, absent": (lambda key: query.by_key("orders", key), absent),
        "by id": (lambda msg_id: query.by_id(msg_id, topic="orders"), ids),
        "by queue and offset": (lambda n: query.by_queue("orders", n % QUEUES, n // 8, n // 8 + 1), picked[:100]),
        "by time, the 64 newest before a moment": (lambda ms: query.by_time("orders", to_ms=ms), moments),
    }
    medians = {}
    for name, (work, arguments) in kinds.items():
        times, sizes = timed(work, arguments)
        p50, p99 = np.percentile(times, [50, 99])
        medians[name] = p50
        wanted = "wanted p50 < 10, p99 < 50" if name == "by key" else ""
        report(f"{name}: p50, p99, best", f"{p50:.2f} {p99:.2f} {times.min():.2f} ms", wanted)
        report(f"{name}: bytes read, median", f"{int(np.median(sizes)):,}")
    return medians["by key"]


def build(store, messages):
    start = time.perf_counter()
    done = engine.reput(store)
    seconds = time.perf_counter() - start
    assert done.messages == messages, (done.messages, messages)
    report("reput: messages a second into all tables", f"{messages / seconds:,.0f}", "wanted >= 500,000")


def sizes(store, count):
    tables = {status.table: status for status in engine.status(store)}
    for name, status in tables.items():
        report(f"{name}: bytes a message, files", f"{status.bytes / count:.2f} {status.files:>5}")
    both = (tables["consumequeue"].bytes + tables["index"].bytes) / count
    report("consumequeue and index: bytes a message", f"{both:.2f}", "wanted <= 48")
    log = store.log().look(lambda view: sum(segment.bytes for segment in view.mark.segments))
    report("the log itself: bytes a message", f"{log / count:.2f}")


def command(place, key, rounds=15):
    """Seconds that `rmq query` takes in all, in turns with a Python that does nothing but import Arrow."""
    rmq = os.path.join(os.path.dirname(sys.executable), "rmq")
    commands = {
        "rmq query --key as a command": [rmq, "--store", place, "query", "orders", "--key", key],
        "importing pyarrow.compute, nothing else": [sys.executable, "-c", "import pyarrow.compute"],
    }
    taken = {name: [] for name in commands}
    for _ in range(rounds):
        for name, arguments in commands.items():
            start = time.perf_counter()
            done = subprocess.run(arguments, capture_output=True, text=True, check=True)
            taken[name].append(time.perf_counter() - start)
            assert key in done.stdout or "rmq" not in name
    for name, seconds in taken.items():
        wanted = "wanted < 0.5" if "rmq" in name else ""
        report(f"{name}: median, best", f"{statistics.median(seconds):.2f} {min(seconds):.2f} s", wanted)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--keys", choices=("order", "uuid"), default="order")
    parser.add_argument("--keep", metavar="DIR", help="keep the store there")
    given = parser.parse_args()
    place = given.keep or tempfile.mkdtemp(prefix="rmq-bench-", dir=os.environ.get("RMQ_BENCH_DIR"))
    medians = []
    try:
        with Store.create(f"{place}/store", settings=LogSettings(flush=Flush.ASYNC)) as store:
            store.create_topic("orders", queues=QUEUES)
            first = 0
            for count in (given.messages // 10, given.messages):
                append(store, first, count, given.keys)
                roll(store.log())
                print(f"{count:,} messages")
                build(store, count - first)
                sizes(store, count)
                medians.append(latencies(store, count, given.queries, given.keys))
                first = count
            report("by key: p50 of all / p50 of a tenth", f"{medians[1] / medians[0]:.2f}", "wanted < 1.5")
            command(f"{place}/store", key_of(given.messages // 3, given.keys))
    finally:
        if given.keep is None:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
