"""What the parts of `store.py` share: fresh directories, messages, and how times are taken and printed."""

import os
import statistics
import tempfile
import time
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from _settle import settler

from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage.local import LocalStorage

BODY = b"x" * 100


@cache
def place_of_all():
    """Where everything is written; removed at the end, not before: for a while after that, new files take longer."""
    return tempfile.TemporaryDirectory(prefix="rmq-bench-", dir=os.environ.get("RMQ_BENCH_DIR"))


def directory():
    return tempfile.mkdtemp(dir=place_of_all().name)


def open_log(place, folds=(), **settings):
    return CommitLog(LocalStorage(place), "brokers/b", "b", settings=LogSettings(**settings), folds=folds)


def report(name, value, unit, wanted):
    print(f"  {name:<58} {value:>12,.2f} {unit:<10} wanted {wanted}", flush=True)


class Seconds(NamedTuple):
    median: float
    least: float

    def over(self, other):
        """How many times as long as `other`, by medians and by least times."""
        return Seconds(self.median / other.median, self.least / other.least)


def compare(name, ratio, wanted):
    report(f"{name} ({ratio.least:.2f})", ratio.median, "x", wanted)


def interleave(peers, rounds, warm=5):
    """What each peer takes, called in turn, on a machine whose memory is full of files at the start."""
    settler()()
    times = {name: [] for name in peers}
    for turn in range(rounds + warm):
        for name, call in peers.items():
            started = time.perf_counter()
            call()
            if turn >= warm:
                times[name].append(time.perf_counter() - started)
    return {name: Seconds(statistics.median(values), min(values)) for name, values in times.items()}


def table(rows, queues, first=0):
    number = np.arange(first, first + rows)
    return pa.table(
        {
            "topic": pa.repeat("orders", rows),
            "queueId": pa.array((number % queues).astype(np.int32)),
            "msgId": [f"7F0000010BAD{value:020X}" for value in number.tolist()],
            "tags": pa.array(["paid", "open", "late", "lost"]).take(pa.array(number % 4)),
            "keys": [f"order-{value}" for value in number.tolist()],
            "body": pa.repeat(pa.scalar(BODY, pa.binary()), rows),
            "bornTimestamp": pa.array(np.full(rows, 1_700_000_000_000)).cast(pa.timestamp("ms", "UTC")),
            "bornHost": pa.repeat("127.0.0.1", rows),
        }
    )


def one(number, queue=0):
    return MessageBatch.of(
        topic="orders",
        queue_id=queue,
        msg_id=f"7F0000010BAD{number:020X}",
        body=BODY,
        born_timestamp_ms=1_700_000_000_000,
        tags="paid",
        keys=f"order-{number}",
        born_host="127.0.0.1",
    )
