"""Parts of `store.py` about state: decisions that share commits, and records that are folded."""

import gc
import threading
import time

from _store_kit import directory, one, open_log, report

from rmq_spark.log.fast import json_text
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision
from rmq_spark.rules.offsets import ConsumerOffsets

TOPIC = ConsumerOffsets.topics[0]
SECONDS = 3
THREADS = 16


def decisions():
    print(f"{THREADS} threads: decisions that commit an offset, against plain appends of one message, async")
    rates = {"append": [], "decide": []}
    for _ in range(4):
        for kind, found in rates.items():
            found.append(_rate(kind))
    report("decisions / plain appends", max(rates["decide"]) / max(rates["append"]), "x", ">= 0.7")
    report("   plain appends/s", max(rates["append"]), "", "")
    report("   decisions/s", max(rates["decide"]), "", "")


def _rate(kind):
    log = open_log(directory(), [ConsumerOffsets], flush="async")
    stop = time.perf_counter() + SECONDS
    done = [0] * THREADS

    def append(index):
        log.append(one(done[index], index % 8))

    def decide(index):
        record = {"group": f"g{index}", "topic": "orders", "offsets": {"0": done[index]}}
        log.decide(lambda state: _commit(state, record))

    def work(index, call=append if kind == "append" else decide):
        while time.perf_counter() < stop:
            call(index)
            done[index] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    log.close()
    return sum(done) / SECONDS


def _commit(state, record):
    """Looks at the folded state, as real rules do, and appends one record."""
    before = state.fold(ConsumerOffsets).of(record["group"], "orders").get(0, -1)
    return Decision(before, records=[(TOPIC, record)])


def folds():
    count, batch = 400_000, 10_000
    print(f"records folded: {count:,} in batches of {batch:,}, then one in each commit; async")
    place = directory()
    log = open_log(place, [ConsumerOffsets], flush="async")
    batches = [
        MessageBatch.merge([_record(number) for number in range(first, first + batch)])
        for first in range(0, count, batch)
    ]
    plain = [
        MessageBatch.merge([_record(number, "orders") for number in range(first, first + batch)])
        for first in range(0, count, batch)
    ]
    bare = open_log(directory(), flush="async")
    gc.collect()
    gc.freeze()  # what the benchmark itself holds is no matter of the log: 800,000 rows, looked at again and again
    started = time.perf_counter()
    for rows in plain:
        bare.append(rows)
    unfolded = time.perf_counter() - started
    started = time.perf_counter()
    for rows in batches:
        log.append(rows)
    folded = time.perf_counter() - started
    report("writer: batched records, with their append", count / folded, "records/s", "")
    report("   the same rows as plain messages", count / unfolded, "rows/s", "")
    report("writer: batched records, beyond the plain append", count / (folded - unfolded), "records/s", ">= 200,000")
    log.flush()
    started = time.perf_counter()
    reader = open_log(place, [ConsumerOffsets], flush="async")
    report("reader: batched records", count / (time.perf_counter() - started), "records/s", ">= 200,000")
    started = time.perf_counter()
    open_log(place, flush="async")
    report("   the same log without the fold", count / (time.perf_counter() - started), "records/s", "")
    del plain, batches, rows
    gc.unfreeze()
    gc.collect()
    singles = 20_000
    started = time.perf_counter()
    for number in range(singles):
        log.append(_record(number))
    report("writer: single records, with their append", singles / (time.perf_counter() - started), "commits/s", "")
    started = time.perf_counter()
    reader.refresh()
    report("reader: single records", singles / (time.perf_counter() - started), "commits/s", ">= 8,000")
    log.close()


def _record(number, topic=TOPIC):
    body = json_text({"group": f"g{number % 100}", "topic": "orders", "offsets": {str(number % 8): number}})
    return MessageBatch.of(topic=topic, queue_id=0, msg_id=f"{number:032X}", body=body, born_timestamp_ms=1)
