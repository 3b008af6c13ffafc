"""A process that works on a log until it is killed: writes, rolls or expires, and reports what it was told.

Run as `python worker.py`: it reads one JSON object a line from its input and forks a child for each, so that two
hundred kills do not cost two hundred imports. It answers each line with the child's process id.

A report is a file that the child appends to with `os.write`: what was handed to the kernel survives `kill -9`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmq_spark.log.commit_log import AppendResult, CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage.local import LocalStorage

ROOT = "brokers/broker-0"
BROKER = "broker-0"
LARGE_ROWS = 5_000


class Report:
    """Lines of JSON, each written by one call."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def write(self, *values: object) -> None:
        os.write(self._fd, json.dumps(values, separators=(",", ":")).encode() + b"\n")


def make_batch(
    name: str, number: int, rng: random.Random, share: float
) -> tuple[MessageBatch, list[tuple[str, int, str, bytes]]]:
    """A batch over several topics and queues; mostly small, now and then large enough for several blocks.

    `share` of them have `LARGE_ROWS` messages.
    """
    rows = []
    many = rng.random() < share
    for index in range(LARGE_ROWS if many else rng.choice((1, 1, 2, 3, 8, 40))):
        msg_id = f"{name}-{number:06d}-{index:03d}"
        size = 4 if many else rng.choice((4, 30, 200, 3000)) if rng.random() < 0.98 else 60_000
        body = (msg_id.encode() * (size // len(msg_id) + 1))[:size]
        rows.append((f"topic-{rng.randrange(3)}", rng.randrange(4), msg_id, body))
    parts = [
        MessageBatch.of(topic=topic, queue_id=queue, msg_id=msg_id, body=body, born_timestamp_ms=0)
        for topic, queue, msg_id, body in rows
    ]
    return MessageBatch.merge(parts), rows


def ack(report: Report, writer: str, rows: list[tuple[str, int, str, bytes]], result: AppendResult) -> None:
    queue_offsets = [None] * len(rows) if result.queue_offsets is None else result.queue_offsets.tolist()
    commit_offsets = [None] * len(rows) if result.commit_offsets is None else result.commit_offsets.tolist()
    report.write(
        "ack",
        writer,
        [
            [topic, queue, queue_offset, commit_offset, msg_id, body.decode()]
            for (topic, queue, msg_id, body), queue_offset, commit_offset in zip(
                rows, queue_offsets, commit_offsets, strict=True
            )
        ],
    )


def write(log: CommitLog, report: Report, name: str, rng: random.Random, job: dict[str, Any]) -> None:
    for number in range(job.get("appends", 1 << 30)):
        batch, rows = make_batch(name, number, rng, job.get("many", 0.0))
        report.write("try", f"{name}-{number}", [row[2] for row in rows])
        ack(report, name, rows, log.append(batch))
        if pause := job.get("pause", 0.0):
            time.sleep(rng.random() * pause)


def write_in_threads(log: CommitLog, report: Report, job: dict[str, Any]) -> None:
    """Several callers of one handle, which share commits."""
    failures: list[str] = []

    def run(thread: int) -> None:
        try:
            write(log, report, f"{job['name']}-{thread}", random.Random(f"{job['seed']}-{thread}"), job)
        except BaseException:
            failures.append(traceback.format_exc())
            raise

    threads = [threading.Thread(target=run, args=(index,)) for index in range(job.get("threads", 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(failures[0])


def count(log: CommitLog, report: Report, job: dict[str, Any]) -> None:
    """Append single messages until a given time; for fairness."""
    name, body = job["name"], b"x" * 64
    while time.time() < job["start"]:
        time.sleep(0.001)
    number, longest = 0, 0.0
    while (began := time.time()) < job["stop"]:
        batch = MessageBatch.of(topic="t", queue_id=0, msg_id=f"{name}-{number}", body=body, born_timestamp_ms=0)
        log.append(batch)
        number += 1
        longest = max(longest, time.time() - began)
    report.write("count", name, number, longest)


def maintain(log: CommitLog, report: Report, job: dict[str, Any]) -> None:
    """Roll (and expire) again and again."""
    rng = random.Random(job["seed"])
    while True:
        result = roll(log, min_commits=rng.choice((1, 2, 10)))
        report.write("roll", result.commits, len(result.segments), result.deleted)
        if age := job.get("expire_age_ms"):
            gone = expire(log, before_ms=log.clock.now_ms() - age)
            report.write("expire", len(gone.segments), gone.log_start)
        log.refresh()
        log.snapshot()
        time.sleep(rng.random() * job.get("pause", 0.02))


ROLES = {"write": write_in_threads, "maintain": maintain, "count": count}


def child(job: dict[str, Any]) -> int:
    report = Report(job["report"])
    try:
        settings = LogSettings.from_mapping(job.get("settings", {}))
        with CommitLog(LocalStorage(job["store"]), ROOT, BROKER, settings=settings) as log:
            report.write("open", log.view.state.offset)
            ROLES[job["role"]](log, report, job)
        report.write("done")
    except Exception:
        report.write("error", traceback.format_exc())
        return 1
    return 0


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the children
    pa.array([0]).to_numpy()  # pyarrow imports pandas with the first such call, if it is there: once, not in each child
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(child(job))
        print(pid, flush=True)


def read_report(path: Path) -> list[list[Any]]:
    """The lines of a report; what was cut off by a kill is not one."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


if __name__ == "__main__":
    main()
