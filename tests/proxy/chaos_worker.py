"""A producer or consumer that may be killed at any time: `python chaos_worker.py produce|consume NAME DIRECTORY`.

It finds proxies in `DIRECTORY/proxies.json`, ends when `DIRECTORY/stop-ROLE` exists, and writes what it knows to
`DIRECTORY/NAME.jsonl`, a line each: `sent`, `received` (with the time before the call and after it), `acking`, `acked`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from proxy_process import RawClient, message

from rmq_spark.proxy.status import Code

TOPIC = "chaos"
GROUP = "chaos-group"
INVISIBLE_SECONDS = 5
CALL_SECONDS = 10


class Journal:
    """Lines that outlive their writer: each is one write to a file that the system holds."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, **facts: Any) -> None:
        os.write(self._file, json.dumps(facts).encode() + b"\n")


def proxies(directory: Path) -> list[str]:
    addresses: list[str] = json.loads((directory / "proxies.json").read_text())
    return addresses


def produce(name: str, directory: Path, journal: Journal) -> None:
    number = 0
    while not (directory / "stop-produce").exists():
        try:
            with RawClient(random.choice(proxies(directory)), name) as client:
                for _ in range(20):
                    number += 1
                    body = f"{name}-{number}"
                    answer = client.call(
                        "SendMessage", messages=[message(TOPIC, body.encode(), msg_id=body)], timeout=CALL_SECONDS
                    )
                    # A message whose send ended otherwise is not sent again: it may be there, or not.
                    if answer.status.code == Code.OK:
                        journal.note(kind="sent", body=body)
                    time.sleep(0.005)
        except grpc.RpcError:
            time.sleep(0.1)


def consume(name: str, directory: Path, journal: Journal) -> None:
    while not (directory / "stop-consume").exists():
        try:
            with RawClient(random.choice(proxies(directory)), name) as client:
                for _ in range(20):
                    receive(client, directory, journal)
        except grpc.RpcError:
            time.sleep(0.1)


def receive(client: RawClient, directory: Path, journal: Journal) -> None:
    began = time.monotonic()
    answers = client.call(
        "ReceiveMessage",
        group={"name": GROUP},
        message_queue={"topic": {"name": TOPIC}, "id": -1, "broker": {"name": "broker-0"}},
        batch_size=16,
        invisible_duration={"seconds": INVISIBLE_SECONDS},
        long_polling_timeout={"seconds": 1},
        timeout=CALL_SECONDS,
    )
    ended = time.monotonic()
    received = [each.message for each in answers if each.HasField("message")]
    for each in received:
        journal.note(kind="received", body=each.body.decode(), began=began, ended=ended)
    finishing = (directory / "stop-produce").exists()
    chosen = [each for each in received if finishing or random.random() < 0.8]
    if not chosen:
        return
    entries = [
        {"message_id": each.system_properties.message_id, "receipt_handle": each.system_properties.receipt_handle}
        for each in chosen
    ]
    # Should this process or the proxy be killed before the answer is noted, nobody knows whether it was acknowledged.
    for each in chosen:
        journal.note(kind="acking", body=each.body.decode())
    answer = client.call(
        "AckMessage", group={"name": GROUP}, topic={"name": TOPIC}, entries=entries, timeout=CALL_SECONDS
    )
    for each, result in zip(chosen, answer.entries, strict=True):
        if result.status.code == Code.OK:
            journal.note(kind="acked", body=each.body.decode(), ended=time.monotonic())


if __name__ == "__main__":
    role, name, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    {"produce": produce, "consume": consume}[role](name, directory, Journal(directory / f"{name}.jsonl"))
