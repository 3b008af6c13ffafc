"""A producer, a push consumer or a store's services in a process of its own, until its input is closed.

A report is a file that is appended to with `os.write`: what was handed to the kernel survives `kill -9`.
"""

from __future__ import annotations

import json
import logging
import os
import random
import select
import sys
import time
from typing import Any

from rmq_spark import (
    ConsumeResult,
    ConsumerSettings,
    LitePullConsumer,
    Message,
    PreconditionFailedError,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RmqError,
    Store,
)
from rmq_spark.services.runner import ServiceRunner
from rmq_spark.services.timer import TimerService

FAIL = b"fail"
"""Listeners of a group that is told to fail do so on messages with this body."""


class Report:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def say(self, kind: str, *values: object) -> None:
        line = json.dumps([kind, time.clock_gettime(time.CLOCK_BOOTTIME), *values])
        os.write(self._file, line.encode() + b"\n")


class LostLeases(logging.Handler):
    """Reports that this process lost a lease: a machine that is too busy stops a process like a signal does."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        if "lease of a queue was lost" in record.getMessage():
            self._report.say("lost")


def wait_for_the_end() -> None:
    sys.stdin.read()


def produce(store: Store, job: dict[str, Any], report: Report) -> None:
    rng = random.Random(os.getpid())
    with Producer(store) as producer:
        print("started", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            body = FAIL if rng.random() < job["failing"] else b"x"
            try:
                report.say("sent", producer.send(Message("t", body)).msg_id)
            except RmqError as error:
                assert error.retriable, error  # the store is busy: nothing was promised
            time.sleep(rng.random() * job["pause"])


def consume(store: Store, job: dict[str, Any], report: Report) -> None:
    rng = random.Random(os.getpid())
    logging.getLogger("rmq_spark").addHandler(LostLeases(report))

    def listen(message: ReceivedMessage) -> ConsumeResult:
        fails = job["fails"] and message.body == FAIL
        place = (message.queue_id, message.queue_offset, message.msg_id, message.reconsume_times)
        report.say("enter", *place)
        time.sleep(rng.random() * job["pause"])
        report.say("exit", *place, not fails)
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS

    consumer = PushConsumer(
        store,
        job["group"],
        orderly=job["orderly"],
        threads=4,
        consume_from="earliest",
        settings=ConsumerSettings(**job["settings"]),
    )
    with consumer.subscribe("t").start(listen):
        print("started", flush=True)
        wait_for_the_end()


def transform(store: Store, job: dict[str, Any], report: Report) -> None:
    """Poll, and send what was polled to another topic in one commit with the offsets."""
    rng = random.Random(os.getpid())
    settings = ConsumerSettings(**job["settings"])
    options = {"consume_from": "earliest", "auto_commit": False, "settings": settings}
    with LitePullConsumer(store, job["group"], **options).subscribe("t") as consumer:
        print("started", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            try:
                with consumer.transaction() as tx:
                    for _ in range(rng.randint(1, 2)):  # queues may change hands between two polls
                        for message in consumer.poll(0.2, max_messages=5):
                            tx.send(Message("out", message.body))
                    time.sleep(rng.random() * job["pause"])
                report.say("landed", len(tx.results))
            except PreconditionFailedError:
                report.say("refused")
            except RmqError as error:
                assert error.retriable, error


def serve(store: Store, _: dict[str, Any], __: Report) -> None:
    with ServiceRunner([TimerService(store)], store.clock):
        print("started", flush=True)
        wait_for_the_end()


def main() -> None:
    job = json.loads(sys.argv[1])
    with Store.open(job["store"]) as store:
        {"produce": produce, "consume": consume, "serve": serve, "transform": transform}[job["role"]](
            store, job, Report(job["report"])
        )


if __name__ == "__main__":
    main()
