"""The table `consumer_offsets` where retention, or an odd record, meets the making of its rows."""

from __future__ import annotations

from typing import Any

import pytest
from sample_messages import HOUR_MS, Sample

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.errors import DataExpiredError
from rmq_spark.log.expire import expire
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.run_table import RunIndex
from rmq_spark.rules import offsets as offset_rules
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.tables import engine
from rmq_spark.tables.consumer_offsets import OffsetHistory

B = "broker-0"


def put(sample: Sample, topic: str, count: int) -> None:
    for _ in range(count):
        message = MessageBatch.of(
            topic=topic, queue_id=0, msg_id=sample.clock.token().upper(), body=b"x", born_timestamp_ms=0
        )
        sample.store.log().append(message)


def idle_queue() -> Sample:
    """A queue whose ten messages retention may delete, behind them others and a commit of offsets at 4."""
    sample = Sample.new(1)
    log = sample.store.log()
    for topic in ("idle", "busy"):
        sample.store.create_topic(topic, queues=1)
    put(sample, "idle", 10)
    roll(log)
    sample.clock.advance(1.1 * HOUR_MS / 1000)
    roll(log)
    put(sample, "busy", 5)
    sample.clock.advance(2 * HOUR_MS / 1000)
    roll(log)
    put(sample, "busy", 5)
    engine.reput(sample.store)
    GroupOffsets(sample.store).commit("g", {("idle", B, 0): 4})
    sample.clock.advance(1.2 * HOUR_MS / 1000)
    return sample


def rows(sample: Sample) -> list[dict[str, Any]]:
    columns = ["committedOffset", "maxOffset", "lag", "lagMs"]
    found: list[dict[str, Any]] = engine.read_table(sample.store, "consumer_offsets").select(columns).to_pylist()
    return found


def expire_before_runs(sample: Sample, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Let retention come just before the next look at a log's runs."""
    look = RunIndex.list_runs

    def late(self: RunIndex, *args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        assert expire(sample.store.log(), **options).segments
        return look(self, *args, **more)

    monkeypatch.setattr(RunIndex, "list_runs", late)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_an_idle_queue_that_expires_keeps_its_end(meanwhile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = idle_queue()
    if meanwhile:
        expire_before_runs(sample, monkeypatch)
    else:
        assert expire(sample.store.log()).segments
    engine.reput(sample.store)
    assert sample.bounds()[0] == 10
    assert rows(sample) == [{"committedOffset": 4, "maxOffset": 10, "lag": 6, "lagMs": None}]


def test_a_range_that_expires_while_its_rows_are_made_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # The queue gets more messages behind the range: where the log starts now, it ends elsewhere than in the range.
    sample = idle_queue()
    log = sample.store.log()
    start = sample.bounds()[1] - 2  # behind it stands that the log has offsets
    roll(log, min_commits=1)
    put(sample, "idle", 3)
    sample.clock.advance(2 * HOUR_MS / 1000)
    roll(log, min_commits=1)
    put(sample, "busy", 1)
    roll(log, min_commits=1)
    expire_before_runs(sample, monkeypatch, before_ms=sample.clock.now_ms())
    with pytest.raises(DataExpiredError):
        OffsetHistory(log).rows(start, start + 1)
    assert sample.bounds()[0] > start
    engine.reput(sample.store)
    assert rows(sample) == []


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("split", [1000, 3, 1])
def test_a_topic_that_was_deleted_since_has_the_same_rows_from_any_split(split: int, rolled: bool) -> None:
    sample = Sample.new(3)
    sample.store.create_topic("orders", queues=1)
    put(sample, "orders", 5)
    sample.clock.advance(1)
    GroupOffsets(sample.store).commit("g", {("orders", B, 0): 2})
    sample.store.delete_topic("orders")
    if rolled:
        sample.clock.advance(1.1 * HOUR_MS / 1000)
        roll(sample.store.log(), min_commits=1)
    engine.reput(sample.store, range_messages=split)
    assert rows(sample) == [{"committedOffset": 2, "maxOffset": 5, "lag": 3, "lagMs": 1000}]


def test_numbers_that_no_column_holds_do_not_stop_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    # Logs of older versions may hold such records; now they are refused.
    sample = Sample.new(2)
    sample.store.create_topic("orders", queues=1)
    put(sample, "orders", 3)
    with monkeypatch.context() as patched:
        patched.setattr(offset_rules, "check_bounds", lambda offsets: None)
        for offsets in ({"0": 2**63}, {"0": -1}, {"0": 2, str(2**31): 1}):
            sample._state(B, ConsumerOffsets.topics[0], {"group": "g", "topic": "orders", "offsets": offsets})
    engine.reput(sample.store)
    found = [(row["committedOffset"], row["maxOffset"], row["lag"]) for row in rows(sample)]
    assert found == [(2**63 - 1, 3, 0), (0, 3, 3), (2, 3, 1)]
