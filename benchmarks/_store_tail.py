"""Parts of `store.py` about a tail of small commits: reading, rolling and checking it, and waiting at its end."""

import multiprocessing
import os
import statistics
import time

from _store_kit import directory, one, open_log, report

from rmq_spark.log.queue_reader import read_queue
from rmq_spark.log.roll import collect_garbage, roll
from rmq_spark.log.verify import verify

LARGE = 10**9
BARE_FILES = 10_000


def _fill(commits, queue_of):
    """A log of one-message commits; returns its place and an open handle."""
    place = directory()
    log = open_log(place, flush="async", snapshot_every_commits=LARGE, flush_interval_ms=60_000, delete_grace_ms=0)
    log.storage.sync = lambda paths: None  # the making of the log is not what is measured
    for number in range(commits):
        log.append(one(number, queue_of(number)))
    return place, log


def small():
    count = int(os.environ.get("RMQ_BENCH_COMMITS", "50000"))
    print(f"{count:,} commits of one message")
    place, log = _fill(count, lambda number: number % 8)
    log.snapshot()
    reader = open_log(place)
    started = time.perf_counter()
    rows = sum(batch.num_rows for batch in reader.scan())
    assert rows == count
    report("scanned", count / (time.perf_counter() - started), "commits/s", ">= 8,000")
    started = time.perf_counter()
    assert verify(log.storage, log.root, log.broker).ok
    report("verified", count / (time.perf_counter() - started), "commits/s", ">= 8,000")
    started = time.perf_counter()
    assert roll(log, tidy=False).commits == count
    report("rolled, without the deletion of the commits", count / (time.perf_counter() - started), "commits/s", "")
    log.refresh()
    assert collect_garbage(log, log.view.mark) >= count
    report("rolled, with the deletion of the commits", count / (time.perf_counter() - started), "commits/s", ">= 8,000")
    bare = directory()
    for number in range(BARE_FILES):
        with open(f"{bare}/{number}", "wb") as file:
            file.write(b"x" * 3600)
    os.sync()  # as those of the log, most of which the system has written by now: freeing their room is work, too
    started = time.perf_counter()
    for number in range(BARE_FILES):
        os.unlink(f"{bare}/{number}")
    report("   bare deletions of such files", BARE_FILES / (time.perf_counter() - started), "files/s", "")


def tail():
    count = 20_000
    print(f"the newest message of a queue behind {count:,} commits that are not rolled, in an open handle")
    _, log = _fill(count, lambda number: number % 8)
    times = []
    for queue in range(8):
        end = log.view.state.queues.bounds("orders", queue)[1]
        started = time.perf_counter()
        found = read_queue(log, "orders", queue, end - 1, rows_max=1)
        times.append(time.perf_counter() - started)
        assert found.messages.num_rows == 1
    report("median", statistics.median(times) * 1e3, "ms", "< 5")
    report("slowest", max(times) * 1e3, "ms", "< 5")


def wake():
    print("a process that waits for the next commit of another one, on a local disk")
    context = multiprocessing.get_context("fork")
    place, to_us, from_us = directory(), context.Queue(), context.Queue()
    child = context.Process(target=_wait, args=(place, to_us, from_us))
    child.start()
    log = open_log(place, flush="async")
    to_us.get()
    delays = []
    for number in range(300):
        time.sleep(0.01)
        log.append(one(number))
        landed = time.perf_counter()
        delays.append(to_us.get() - landed)
    report("from the return of the send to the wake-up: median", statistics.median(delays) * 1e3, "ms", "< 1")
    report("   the slowest of a hundred", sorted(delays)[-3] * 1e3, "ms", "")
    from_us.put("idle")
    report("idle follower, share of a core", to_us.get() * 100, "%", "< 1")
    child.join()
    log.close()


def _wait(place, to_parent, from_parent):
    log = open_log(place)
    at = log.refresh().state.offset
    to_parent.put(0.0)
    for _ in range(300):
        assert log.wait(at, 30)
        to_parent.put(time.perf_counter())
        at += 1
    from_parent.get()
    busy = time.process_time()
    log.wait(at, 10)
    to_parent.put((time.process_time() - busy) / 10)
    log.close()
