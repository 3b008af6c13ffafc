"""Processes that consume by POP or revive until they are killed, and report what they were told.

A report is a file that is appended to with `os.write`: what was handed to the kernel survives `kill -9`.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from rmq_spark.client.consume_result import ConsumeResult
from rmq_spark.client.consumer_settings import ConsumerSettings
from rmq_spark.client.push_consumer import PushConsumer
from rmq_spark.client.simple_consumer import SimpleConsumer
from rmq_spark.client.store import Store
from rmq_spark.errors import PreconditionFailedError
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules.receipt import parse_receipt
from rmq_spark.services.revive import ReviveService

GROUP, TOPIC = "jobs", "work"
PUSH_INVISIBLE_MS = 400


class Report:
    """Lines of JSON, each written by one call."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def write(self, kind: str, messages: list[ReceivedMessage]) -> None:
        values = [(message.msg_id, *_times(message)) for message in messages]
        os.write(self._fd, json.dumps([kind, values]).encode() + b"\n")

    def error(self, text: str) -> None:
        os.write(self._fd, json.dumps(["error", text]).encode() + b"\n")


def _times(message: ReceivedMessage) -> tuple[int, int]:
    assert message.receipt is not None
    receipt = parse_receipt(message.receipt)
    return receipt.pop_ms, receipt.visible_again_ms


def read_report(path: Path) -> list[Any]:
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]  # what follows the last line end was cut off by a kill


def work(store: str, report: str, seed: int, share_acked: float) -> None:
    """Receive with several threads; acknowledge some, keep some longer, leave the others."""
    out = Report(report)
    try:
        with Store.open(store, services="off") as opened, SimpleConsumer(opened, GROUP).subscribe(TOPIC) as consumer:
            threads = [
                threading.Thread(target=_consume, args=(consumer, out, random.Random(seed + number), share_acked))
                for number in range(2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    except BaseException:
        out.error(traceback.format_exc())
        raise


def _consume(consumer: SimpleConsumer, out: Report, rng: random.Random, share_acked: float) -> None:
    try:
        while True:
            messages = consumer.receive(rng.randrange(1, 33), rng.uniform(0.3, 1.0), 0.2)
            if not messages:
                continue
            out.write("got", messages)
            if rng.random() < 0.1:
                # Only longer: a change that is not reported any more must not look like a claim that ended early.
                out.write("changed", [consumer.change_invisible_duration(rng.choice(messages), 2.0)])
            if rng.random() < share_acked:
                out.write("try", messages)
                _ack(consumer, out, messages)
    except BaseException:
        out.error(traceback.format_exc())
        raise


def _ack(consumer: SimpleConsumer, out: Report, messages: list[ReceivedMessage]) -> None:
    try:
        consumer.ack(messages)
        out.write("acked", messages)
    except PreconditionFailedError as error:  # this process was too slow for some
        late = {msg_id for ids in error.context.values() if isinstance(ids, list) for msg_id in ids}
        out.write("acked", [message for message in messages if message.msg_id not in late])


def push(store: str, report: str, seed: int, share_acked: float) -> None:
    """Consume with listeners: some fail the first time, some take longer than a message is held without renewal."""
    out, rng = Report(report), random.Random(seed)

    def listen(message: ReceivedMessage) -> ConsumeResult | None:
        out.write("got", [message])
        time.sleep(rng.choice([0, 0, 0, 0.01, 2 * PUSH_INVISIBLE_MS / 1000]) if rng.random() < 0.2 else 0)
        out.write("changed", [message])  # its receipt is the newest
        if rng.random() > share_acked and not message.reconsume_times:
            out.write("failed", [message])
            return ConsumeResult.FAILURE
        out.write("try", [message])
        return None

    try:
        settings = ConsumerSettings(invisible_ms=PUSH_INVISIBLE_MS)
        with Store.open(store) as opened:
            consumer = PushConsumer(opened, GROUP, pop=True, threads=2, settings=settings).subscribe(TOPIC)
            consumer.start(listen).join()
    except BaseException:
        out.error(traceback.format_exc())
        raise


def revive(store: str, report: str) -> None:
    """Give back what is overdue, for ever."""
    out = Report(report)
    try:
        with Store.open(store, services="off") as opened:
            service = ReviveService(opened)
            while True:
                time.sleep(min(0.1, service.run_once()))
    except BaseException:
        out.error(traceback.format_exc())
        raise
