"""Whatever rows go into a commit come out of a scan: the same values, in order, with dense offsets."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_spark.clock import ManualClock
from rmq_spark.log import schema
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import write_row_file
from rmq_spark.log.verify import verify
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage.memory import MemoryStorage

ROOT, BROKER = "brokers/b", "b"
PROFILE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

topics = st.text("%|aZ9_-", min_size=1, max_size=8)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
maybe = st.none() | texts
int32 = st.integers(-(2**31), 2**31 - 1)
row = st.fixed_dictionaries(
    {
        "topic": topics,
        "queueId": st.integers(0, 5) | st.integers(0, 65_535),
        "msgId": st.text("0123456789ABCDEF", min_size=1, max_size=32),
        "tags": maybe,
        "keys": maybe,
        "body": st.binary(max_size=300),
        "flag": st.none() | int32,
        "sysFlag": st.none() | int32,
        "bornTimestamp": st.none() | st.integers(-(10**12), 4 * 10**12),
        "bornHost": maybe,
        "reconsumeTimes": st.none() | int32,
        "properties": st.none() | st.dictionaries(texts, texts, max_size=4).map(lambda pairs: list(pairs.items())),
    }
)
batches = st.lists(st.lists(row, min_size=1, max_size=25), min_size=1, max_size=4)


def to_arrow(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table({field.name: pa.array([row[field.name] for row in rows], field.type) for field in schema.ROWS})


def open_log(storage: MemoryStorage, clock: ManualClock) -> CommitLog:
    small = LogSettings(block_bytes=512, segment_bytes=2_000, delete_grace_ms=0)
    return CommitLog(storage, ROOT, BROKER, settings=small, clock=clock)


def by_queue(rows: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for each in rows:
        found.setdefault((each["topic"], each["queueId"]), []).append(each)
    return found


def check(storage: MemoryStorage, clock: ManualClock, given_rows: list[dict[str, Any]]) -> None:
    """A fresh handle returns exactly these rows: each queue in order, offsets dense, log offsets all there."""
    table = pa.Table.from_batches(open_log(storage, clock).scan())
    expected = by_queue(to_arrow(given_rows).to_pylist())
    got = by_queue(table.to_pylist())
    assert got.keys() == expected.keys()
    for queue, rows in got.items():
        assert [row["queueOffset"] for row in rows] == list(range(len(rows)))
        assert all(after["commitOffset"] > row["commitOffset"] for row, after in pairwise(rows))
        for message in rows:
            assert message.pop("brokerName") == BROKER
            for name in ("queueOffset", "commitOffset", "storeTimestamp"):
                del message[name]
        assert rows == expected[queue]
    assert sorted(table.column("commitOffset").to_pylist()) == list(range(len(given_rows)))
    report = verify(storage, ROOT, BROKER)
    assert report.findings == []
    assert report.messages == len(given_rows)


@PROFILE
@given(batches)
def test_commits_return_what_was_appended_before_and_after_a_roll(batches: list[list[dict[str, Any]]]) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    log = open_log(storage, clock)
    for rows in batches:
        result = log.append(MessageBatch.from_arrow(to_arrow(rows)))
        assert result.commit_offsets is not None
        assert len(result.commit_offsets) == len(rows)
        clock.advance(1)
    every = [row for rows in batches for row in rows]
    check(storage, clock, every)
    roll(log, min_commits=1)
    check(storage, clock, every)


@PROFILE
@given(batches)
def test_row_files_return_what_was_written_before_and_after_a_roll(batches: list[list[dict[str, Any]]]) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    log = open_log(storage, clock)
    files = [
        write_row_file(storage, ROOT, MessageBatch.from_arrow(to_arrow(rows)), nonce=clock.token(), block_bytes=512)
        for rows in batches
    ]
    log.append_files(files)
    every = [row for rows in batches for row in rows]
    check(storage, clock, every)
    roll(log, min_commits=1)
    table = pa.Table.from_batches(open_log(storage, clock).scan())
    assert table.num_rows == len(every)


@PROFILE
@given(batches)
def test_the_offsets_of_a_result_are_those_of_the_rows_as_given(batches: list[list[dict[str, Any]]]) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    log = open_log(storage, clock)
    for rows in batches:
        result = log.append(MessageBatch.from_arrow(to_arrow(rows)))
        table = pa.Table.from_batches(log.scan()).to_pylist()
        found = {row["commitOffset"]: row for row in table}
        assert result.commit_offsets is not None
        assert result.queue_offsets is not None
        pairs = zip(result.commit_offsets.tolist(), result.queue_offsets.tolist(), rows, strict=True)
        for commit_offset, queue_offset, wanted in pairs:
            stored = found[commit_offset]
            assert (stored["topic"], stored["queueId"], stored["queueOffset"]) == (
                wanted["topic"],
                wanted["queueId"],
                queue_offset,
            )
            assert (stored["msgId"], stored["body"]) == (wanted["msgId"], wanted["body"])
