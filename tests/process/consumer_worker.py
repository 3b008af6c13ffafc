"""A push consumer in a process of its own, which reports what its listener sees until its input is closed.

A report is a file that is appended to with `os.write`: what was handed to the kernel survives `kill -9`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

from rmq_spark import ConsumerSettings, PushConsumer, ReceivedMessage, Store


def main() -> None:
    job = json.loads(sys.argv[1])
    report = os.open(job["report"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    rng = random.Random(os.getpid())

    def say(*values: object) -> None:
        os.write(report, json.dumps(values).encode() + b"\n")

    def listen(message: ReceivedMessage) -> None:
        place = (message.queue_id, message.queue_offset, message.msg_id)
        say("enter", time.clock_gettime(time.CLOCK_BOOTTIME), *place)
        time.sleep(rng.random() * job["pause"])
        say("exit", time.clock_gettime(time.CLOCK_BOOTTIME), *place)

    with Store.open(job["store"]) as store:
        consumer = PushConsumer(
            store,
            "g",
            orderly=job["orderly"],
            threads=4,
            consume_from="earliest",
            settings=ConsumerSettings(**job["settings"]),
        )
        with consumer.subscribe("t").start(listen):
            print("started", flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
