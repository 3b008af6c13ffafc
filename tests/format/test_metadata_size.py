"""A commit with ten thousand runs: its metadata stays small, and reading it takes no Python loop over runs."""

from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
from sample_log import meta_of

from rmq_spark.clock import ManualClock
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.file_format import TAIL_BYTES, FileMeta, parse
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.queues import Queues
from rmq_spark.log.scan import Query
from rmq_spark.storage import paths
from rmq_spark.storage.memory import MemoryStorage

DOCUMENT_BYTES_MAX = 64 * 1024
"""What the metadata of 10,000 runs may take; it stands in the footer, once."""

QUEUES = 100
"""Queues of each topic."""


def commit_of(runs: int, rows_per_run: int = 1) -> tuple[MemoryStorage, str]:
    """A log with one commit of `runs` runs, in shuffled order."""
    count = runs * rows_per_run
    run = np.random.default_rng(7).permutation(count) % runs
    table = pa.table(
        {
            "topic": [f"topic-{number:03d}" for number in run // QUEUES],
            "queueId": pa.array(run % QUEUES, pa.int32()),
            "msgId": [f"7F00000100010A0B0C0D{number:012X}" for number in range(count)],
            "tags": [f"tag-{number % 3}" for number in range(count)],
            "body": [b"payload"] * count,
            "bornTimestamp": pa.array([1_700_000_000_000] * count, pa.timestamp("ms", tz="UTC")),
        }
    )
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    CommitLog(storage, "brokers/b", "b", clock=clock).append(MessageBatch.from_arrow(table))
    return storage, paths.commit("brokers/b", 0)


def document_bytes(meta: FileMeta) -> int:
    return len(json.dumps(meta.doc, separators=(",", ":")))


def test_the_metadata_of_ten_thousand_runs_is_under_64_kib() -> None:
    storage, path = commit_of(10_000)
    meta = meta_of(storage, path)
    assert len(meta.runs.rows) == 10_000
    assert document_bytes(meta) < DOCUMENT_BYTES_MAX


def test_it_stays_under_64_kib_when_runs_differ_in_length_and_offset() -> None:
    storage, _ = commit_of(10_000)
    clock = ManualClock()
    log = CommitLog(storage, "brokers/b", "b", clock=clock)
    draw = np.random.default_rng(11)
    for _ in range(3):
        queue = draw.integers(0, 10_000, 30_000)
        table = pa.table(
            {
                "topic": [f"topic-{number:03d}" for number in queue // QUEUES],
                "queueId": pa.array(queue % QUEUES, pa.int32()),
                "msgId": [f"7F00000100010A0B0C0D{number:012X}" for number in range(len(queue))],
                "body": [b"payload"] * len(queue),
                "bornTimestamp": pa.array([1_700_000_000_000] * len(queue), pa.timestamp("ms", tz="UTC")),
            }
        )
        last = log.append(MessageBatch.from_arrow(table))
    assert last.commit_offsets is not None
    meta = meta_of(storage, paths.commit("brokers/b", int(last.commit_offsets.min())))
    assert len(meta.runs.rows) > 9_000
    assert document_bytes(meta) < DOCUMENT_BYTES_MAX


def python_calls(path: str, content: bytes, queues: Queues) -> int:
    """How many Python functions run while a file is parsed, its runs decoded and its queues numbered."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        meta = parse(path, content, len(content))
        runs = meta.runs
        runs.first_rows()
        queues.number(runs)
        assert len(meta.bases) == len(runs.rows)
    finally:
        sys.setprofile(None)
    return calls


def test_decoding_makes_about_as_many_python_calls_for_ten_thousand_runs_as_for_a_thousand() -> None:
    """One topic each: the only loop there is runs over the distinct topics of a commit."""
    calls = []
    for runs in (10, 1_000, 10_000):
        storage, path = one_topic_commit(runs)
        content = storage.read(path)
        queues = Queues()
        python_calls(path, content, queues)  # once before: the arrays of a new topic grow by doubling
        calls.append(python_calls(path, content, queues))
    # A few more: a tail with a long document is parsed as Arrow, not recognised by its template.
    assert abs(calls[1] - calls[2]) < 10
    assert calls[2] - calls[0] < 20, "a file with a block table takes a few calls more, whatever its size"


def one_topic_commit(runs: int) -> tuple[MemoryStorage, str]:
    table = pa.table(
        {
            "topic": ["orders"] * runs,
            "queueId": pa.array(range(runs), pa.int32()),
            "msgId": [f"{number:032X}" for number in range(runs)],
            "body": [b"payload"] * runs,
            "bornTimestamp": pa.array([0] * runs, pa.timestamp("ms", tz="UTC")),
        }
    )
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    CommitLog(storage, "brokers/b", "b", clock=clock).append(MessageBatch.from_arrow(table))
    return storage, paths.commit("brokers/b", 0)


def test_a_footer_that_is_larger_than_the_first_read_is_fetched_whole() -> None:
    """Thousands of keys make a large bloom: the tail that is read first does not hold the footer."""
    count = 60_000
    table = pa.table(
        {
            "topic": ["orders"] * count,
            "queueId": pa.array([0] * count, pa.int32()),
            "msgId": [f"{number:032X}" for number in range(count)],
            "keys": [f"key-{number}" for number in range(count)],
            "body": [b"payload"] * count,
            "bornTimestamp": pa.array([0] * count, pa.timestamp("ms", tz="UTC")),
        }
    )
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    log = CommitLog(storage, "brokers/b", "b", clock=clock)
    log.append(MessageBatch.from_arrow(table))
    meta = meta_of(storage, paths.commit("brokers/b", 0))
    assert meta.size - meta.data_end > TAIL_BYTES
    (batch,) = CommitLog(storage, "brokers/b", "b", clock=clock).scan(
        Query(keys=frozenset({"key-4711"}), columns=("queueOffset",))
    )
    assert batch.column(0).to_pylist() == [4711]
