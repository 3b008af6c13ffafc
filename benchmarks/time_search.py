"""Finding a moment among many messages: the search itself, a reset, and the time to the first message after it.

    python benchmarks/time_search.py             # 10 million messages, some 3 GB in a temporary directory
    python benchmarks/time_search.py 1000000

Messages of 100 bytes in 8 queues, one commit of 10,000 each 10 ms, all but the last 100 commits rolled. RocketMQ's
broker answers searchOffset in 0.57 ms (p50) over 2.2 million messages on this kind of machine.
"""

import os
import random
import shutil
import statistics
import sys
import tempfile
import time

import pyarrow as pa
from _made import QUEUES, TOPIC, table

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.store import Store
from rmq_spark.client.time_search import QueueTimes
from rmq_spark.clock import ManualClock
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.scan import Query
from rmq_spark.model.settings import Flush, LogSettings

BATCH = 10_000
TAIL = 100
BROKER = "broker-0"


def report(name, value, unit, wanted):
    print(f"  {name:<58} {value:>12,.2f} {unit:<10} wanted {wanted}", flush=True)


def fill(place, messages):
    """A store with `messages` messages; returns the first and the last time in it."""
    clock = ManualClock()
    begin = clock.now_ms()
    # The clock stands still but for our steps, and the grace period with it: rolled files go at once.
    settings = LogSettings(flush=Flush.ASYNC, delete_grace_ms=0, snapshot_every_commits=10**9)
    with Store.create(place, clock=clock, settings=settings) as store:
        store.create_topic(TOPIC, queues=QUEUES)
        log = store.log()
        commits = messages // BATCH
        for number in range(commits):
            log.append(MessageBatch.from_arrow(table(number * BATCH, BATCH)))
            clock.advance(0.01)
            if number in (commits // 2, commits - TAIL - 1):
                roll(log)
        segments = len(log.view.mark.segments)
        print(f"  {messages:,} messages, {segments} segments and {len(log.view.state.commits.firsts)} commits")
        return begin, clock.now_ms() - 1


def percentiles(calls, act):
    """p50 and p99 of the time a call takes, and p50 of its processor time, in milliseconds."""
    seconds, busy = [], []
    for argument in calls:
        started, used = time.perf_counter(), time.process_time()
        act(argument)
        busy.append(time.process_time() - used)
        seconds.append(time.perf_counter() - started)
    seconds.sort()
    return statistics.median(seconds) * 1e3, seconds[int(len(seconds) * 0.99)] * 1e3, statistics.median(busy) * 1e3


def first_message(store, groups, ms):
    """Reset one group to a moment, and read the first message that it would be given."""
    changes = groups.reset("billing", TOPIC, to=ms, force=True)
    change = changes[0]
    query = Query(
        ranges={(TOPIC, change.queue): (change.after, change.after + 1)},
        from_ms=ms,
        columns=("storeTimestamp", "queueOffset", "body"),
    )
    row = next(iter(store.log().scan(query)), None)
    if row is None or row.column(0).cast(pa.int64())[0].as_py() < ms:
        raise SystemExit(f"the reset to {ms} is wrong: {change}, {row}")


def main():
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    place = tempfile.mkdtemp(prefix="rmq-bench-", dir=os.environ.get("RMQ_BENCH_DIR"))
    try:
        print("time search")
        low, high = fill(f"{place}/store", messages)
        draw = random.Random(7)
        moments = [draw.randrange(low, high) for _ in range(1000)]
        with Store.open(f"{place}/store") as store:
            key = (TOPIC, BROKER, 3)
            store.log()
            cold = percentiles(moments[:100], lambda ms: QueueTimes(store).search_queues([key], ms))
            report("one queue, nothing remembered, p50", cold[0], "ms", "< 20")
            report("one queue, nothing remembered, p99", cold[1], "ms", "< 20")
            report("one queue, nothing remembered, p50 of processor time", cold[2], "ms", "")
            times = QueueTimes(store)
            percentiles(moments, lambda ms: times.search_queues([key], ms))
            warm = percentiles(moments, lambda ms: times.search_queues([key], ms))
            report("one queue, p50", warm[0], "ms", "0.57 (RocketMQ)")
            report("one queue, p99", warm[1], "ms", "< 20")
            every = percentiles(moments, lambda ms: times.search(TOPIC, ms))
            report(f"all {QUEUES} queues, p50", every[0], "ms", "< 20")
            report("spans of all queues", percentiles(range(50), lambda _: times.spans(TOPIC))[0], "ms", "< 20")
            groups = GroupOffsets(store)
            first = percentiles(moments[:100], lambda ms: first_message(store, groups, ms))
            report("reset of a group, durable, and its first message, p50", first[0], "ms", "< 20")
            report("reset of a group, durable, and its first message, p99", first[1], "ms", "")
            report("reset of a group and its first message, p50 of processor time", first[2], "ms", "")
            report("lag of the group, p50", percentiles(range(50), lambda _: groups.lag("billing"))[0], "ms", "")
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
