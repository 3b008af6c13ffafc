"""The store against the bare work it stands on, as ratios within one run.

    python benchmarks/store.py            # everything, about a quarter of an hour
    python benchmarks/store.py single     # some parts, by name: see PARTS at the end

Peers are measured in the same process, interleaved with the store, into fresh directories of the same file system.
A ratio is one of medians, and in brackets one of least times: the disk and the neighbours are in both, but neighbours
slow down what computes more than what waits, so on a busy machine the second is nearer to what an idle one shows.
"""

import gc
import os
import resource
import sys
import threading
import time

import pyarrow as pa
from _store_kit import compare, directory, interleave, one, open_log, report, table
from _store_state import decisions, folds
from _store_tail import small, tail, wake
from _store_writers import writers

from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.scan import Query, ScanStats


def batch():
    print("append of 10,000 messages of 100 B, against pyarrow writing the same table as an IPC file")
    for queues in (1, 8):
        rows = MessageBatch.from_arrow(table(10_000, queues))
        same = rows.record_batch()
        for flush in ("sync", "async"):
            place = directory()
            log = open_log(place, flush=flush)
            count = iter(range(10**9))

            def peer(place=place, sync=flush == "sync", same=same, count=count):
                path = f"{place}/peer-{next(count)}"
                with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, same.schema) as writer:
                    writer.write_batch(same)
                if sync:
                    handle = os.open(path, os.O_RDWR)
                    os.fsync(handle)
                    os.close(handle)

            found = interleave({"peer": peer, "log": lambda log=log, rows=rows: log.append(rows)}, 60)
            log.close()
            compare(f"{flush}, {queues} queue(s): rate / pyarrow's", found["peer"].over(found["log"]), ">= 0.4")
            report("   messages/s", 10_000 / found["log"].median, "", "")


def single():
    print("a commit of one message, against its bare system calls in Python")
    data = os.urandom(4_000)
    for flush, limit in (("sync", 1.5), ("async", 5.0)):
        place = directory()
        log = open_log(place, flush=flush)
        bare_place = f"{place}/bare"
        os.mkdir(bare_place)
        count = iter(range(10**9))

        def bare(place=bare_place, sync=flush == "sync", count=count):
            number = next(count)
            temp, final = f"{place}/.tmp-{number}", f"{place}/{number:020d}.arrow"
            handle = os.open(temp, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            os.write(handle, data)
            if sync:
                os.fsync(handle)
            os.close(handle)
            os.link(temp, final)
            os.unlink(temp)
            if sync:
                handle = os.open(place, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)

        number = iter(range(10**9))
        found = interleave({"bare": bare, "log": lambda log=log, number=number: log.append(one(next(number)))}, 600)
        log.close()
        compare(f"{flush}: time / bare calls'", found["log"].over(found["bare"]), f"<= {limit}")
        report("   microseconds a commit", found["log"].median * 1e6, "us", "")


def threads():
    print("threads that each send one message at a time, sync")
    rates = {}
    for count in (1, 16, 1, 16):
        log = open_log(directory(), flush="sync")
        stop = time.perf_counter() + 3
        sent = [0] * count

        def work(index, log=log, stop=stop, sent=sent):
            while time.perf_counter() < stop:
                log.append(one(sent[index], index % 8))
                sent[index] += 1

        workers = [threading.Thread(target=work, args=(index,)) for index in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        log.close()
        rates.setdefault(count, []).append(sum(sent) / 3)
    report("16 threads / 1 thread", max(rates[16]) / max(rates[1]), "x", ">= 7")
    report("   messages/s with 16 threads", max(rates[16]), "", "")


def queues():
    print("append of 100,000 rows spread over 1, 100 and 10,000 queues, sync")
    peers, logs = {}, []
    for count in (1, 100, 10_000):
        rows = MessageBatch.from_arrow(table(100_000, count))
        log = open_log(directory(), flush="sync")
        logs.append(log)
        peers[count] = lambda log=log, rows=rows: log.append(rows)
    found = interleave(peers, 12, warm=2)
    for count in (100, 10_000):
        compare(f"time with {count} queues / with 1", found[count].over(found[1]), "<= 1.2" if count > 100 else "")
    report("   rows/s with 1 queue", 100_000 / found[1].median, "", "")


def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def scan():
    size = float(os.environ.get("RMQ_BENCH_GB", "2")) * 1e9
    print(f"scan of a log of {size / 1e9:.1f} GB")
    log = open_log(directory(), flush="async", segment_bytes=64 << 20)
    rows, written, first = 50_000, 0, 0
    while written < size:
        batch_ = table(rows, 8, first)
        written += batch_.nbytes
        first += rows
        log.append(MessageBatch.from_arrow(batch_))
    for layout in ("commits", "segments"):
        if layout == "segments":
            roll(log)
        gc.collect()
        before, peak = resident_mb(), 0.0
        everything = ScanStats()
        started = time.perf_counter()
        for _ in log.scan(stats=everything):
            peak = max(peak, resident_mb())
        seconds = time.perf_counter() - started
        part = ScanStats()
        for _ in log.scan(Query(queues=frozenset([3])), part):
            pass
        share = part.bytes_read / everything.bytes_read
        report(f"{layout}: bytes of one queue of 8 / of all", share, "", "about 0.125")
        report(f"{layout}: memory above the start while scanning", peak - before, "MB", "flat")
        report(f"{layout}: rows/s", everything.rows_read / seconds, "", "")
    log.close()


def open_():
    count = int(os.environ.get("RMQ_BENCH_COMMITS", "100000"))
    print(f"opening a store of {count:,} commits")
    place = directory()
    log = open_log(place, flush="async", snapshot_every_commits=10**9, flush_interval_ms=60_000)
    log.storage.sync = lambda paths: None  # the making of the log is not what is measured
    for number in range(count):
        log.append(one(number, number % 8))
    started = time.perf_counter()
    open_log(place)
    cold = time.perf_counter() - started
    report("fold without a snapshot", count / cold, "commits/s", ">= 5,000")
    log.snapshot()
    started = time.perf_counter()
    open_log(place)
    report("open with a snapshot", time.perf_counter() - started, "s", "< 1")


PARTS = {
    "batch": batch,
    "single": single,
    "threads": threads,
    "queues": queues,
    "scan": scan,
    "open": open_,
    "decisions": decisions,
    "folds": folds,
    "writers": writers,
    "small": small,
    "tail": tail,
    "wake": wake,
}

if __name__ == "__main__":
    chosen = sys.argv[1:] or list(PARTS)
    for name in chosen:
        PARTS[name]()
