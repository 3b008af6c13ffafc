"""A part of `store.py`: processes that each send one message at a time into one log."""

import multiprocessing
import time

from _store_kit import directory, one, open_log, report

SECONDS = 5
"""How long the processes send, after all of them have opened the log."""


def writers():
    for flush in ("async", "sync"):
        print(f"processes that each send one message at a time, {flush}")
        alone = max(_run(flush, 1)[0] for _ in range(2))
        report("   messages/s of one process", alone, "", "")
        for count in (8, 32):
            rate, slowest = _run(flush, count)
            report(f"{count} processes / one", rate / alone, "x", ">= 0.5")
            report("   messages/s together", rate, "", "")
            report("   slowest send", slowest, "s", "< 1")


def _run(flush, count):
    """Messages a second of all together, and the longest send."""
    context = multiprocessing.get_context("fork")
    place, barrier, results = directory(), context.Barrier(count), context.Queue()
    workers = [context.Process(target=_send, args=(place, flush, index, barrier, results)) for index in range(count)]
    for worker in workers:
        worker.start()
    answers = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    return sum(sent for sent, _ in answers) / SECONDS, max(slowest for _, slowest in answers)


def _send(place, flush, index, barrier, results):
    log = open_log(place, flush=flush)
    log.append(one(index, index % 8))
    barrier.wait()
    stop = time.perf_counter() + SECONDS
    sent, slowest = 0, 0.0
    while (started := time.perf_counter()) < stop:
        log.append(one(sent, index % 8))
        sent += 1
        slowest = max(slowest, time.perf_counter() - started)
    log.close()
    results.put((sent, slowest))
