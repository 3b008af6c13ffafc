"""What a task reads from storage: only the files, blocks and columns that it must. No Spark runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from store_world import World, read_rows

from rmq_spark.clock import ManualClock
from rmq_spark.log import scan
from rmq_spark.log.scan import ScanStats
from rmq_spark.model.settings import LogSettings
from rmq_spark.spark import task_reader
from rmq_spark.spark.batch_reader import RocketMQBatchReader
from rmq_spark.spark.options import parse_read
from rmq_spark.spark.schema import READ_SCHEMA
from rmq_spark.storage.memory import MemoryStorage

NOW = 1_700_000_000_000
COMMITS, QUEUES, EACH, BODY = 20, 4, 100, 2_000
BLOCK = 128 * 1024
NARROW = StructType([StructField("queueOffset", LongType()), StructField("tags", StringType())])
BODIES = StructType([StructField("body", BinaryType())])


class Watch:
    """Statistics of the tasks of a read, and what was really fetched from storage meanwhile."""

    def __init__(self) -> None:
        self.tasks: list[ScanStats] = []
        self.fetched = 0

    def total(self, name: str) -> int:
        return sum(int(getattr(stats, name)) for stats in self.tasks)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    seen = Watch()

    def counted() -> ScanStats:
        seen.tasks.append(ScanStats())
        return seen.tasks[-1]

    class TaskScan:
        """`scan` as the task reader sees it, with statistics that are kept."""

        Query, Plan = scan.Query, scan.Plan
        run, queue_bounds = staticmethod(scan.run), staticmethod(scan.queue_bounds)
        ScanStats = staticmethod(counted)

    monkeypatch.setattr(task_reader, "scan", TaskScan)
    whole, part, tail = MemoryStorage.read, MemoryStorage.read_range, MemoryStorage.read_tail

    def read(self: MemoryStorage, path: str) -> bytes:
        data = whole(self, path)
        seen.fetched += len(data)
        return data

    def read_range(self: MemoryStorage, path: str, start: int, length: int) -> bytes:
        seen.fetched += length
        return part(self, path, start, length)

    def read_tail(self: MemoryStorage, path: str, length: int) -> tuple[bytes, int]:
        data, size = tail(self, path, length)
        seen.fetched += len(data)
        return data, size

    monkeypatch.setattr(MemoryStorage, "read", read)
    monkeypatch.setattr(MemoryStorage, "read_range", read_range)
    monkeypatch.setattr(MemoryStorage, "read_tail", read_tail)
    yield seen


@pytest.fixture(scope="module", params=["commits", "segments"])
def world(request: pytest.FixtureRequest) -> World:
    """20 commits, a second apart, of 400 messages of 2,000 bytes in 4 queues; rare tags, keys and ids among them."""
    clock = ManualClock(NOW)
    made = World.create(
        clock=clock, settings=LogSettings(segment_bytes=3_000_000, block_bytes=BLOCK, delete_grace_ms=0)
    )
    made.store.create_topic("t", queues=QUEUES)
    made.store.create_topic("small", queues=1)
    for commit in range(COMMITS):
        made.append(
            [
                made.message(
                    "t",
                    queue,
                    body=b"x" * BODY,
                    tags="rare" if (commit, queue) == (7, 2) else f"tag{row % 3}",
                    keys=f"key-{commit}-{queue}-{row}",
                )
                for queue in range(QUEUES)
                for row in range(EACH)
            ]
        )
        if commit == 11:
            made.send("small", 0)
        clock.advance(1)
    if request.param == "segments":
        made.roll(segment_bytes=3_000_000, block_bytes=BLOCK)
    return made


ALL = COMMITS * QUEUES * EACH
BYTES = ALL * BODY


def test_everything(world: World, watch: Watch) -> None:
    assert len(read_rows(world.options(topic="t"), BODIES)) == ALL
    assert watch.total("rows_read") == ALL
    assert watch.total("bytes_read") > BYTES


def test_columns_that_are_not_asked_for_are_not_read(world: World, watch: Watch) -> None:
    assert len(read_rows(world.options(topic="t"), NARROW)) == ALL
    assert watch.total("bytes_read") < 0.08 * BYTES


def test_bodies_are_not_even_fetched(world: World, watch: Watch) -> None:
    """Not only by the source's own count: what storage was asked for."""
    reader = RocketMQBatchReader(parse_read(world.options(topic="t"), streaming=False), NARROW)
    partitions = reader.partitions()
    watch.fetched = 0
    assert sum(batch.num_rows for part in partitions for batch in reader.read(part)) == ALL
    metadata = COMMITS * 64 * 1024
    assert watch.fetched < 0.08 * BYTES + metadata


def test_planning_reads_no_rows(world: World, watch: Watch) -> None:
    reader = RocketMQBatchReader(parse_read(world.options(topic="t"), streaming=False), READ_SCHEMA)
    watch.fetched = 0
    reader.partitions()
    assert watch.fetched < 0.5 * BYTES, "the run indexes at the ends of files, each fetched with 64 KiB"


def test_one_queue_is_a_quarter(world: World, watch: Watch) -> None:
    assert len(read_rows(world.options(assign='{"t": [1]}'), BODIES)) == ALL // QUEUES
    assert watch.total("rows_read") == ALL // QUEUES
    assert BYTES / QUEUES <= watch.total("bytes_read") < 1.3 * BYTES / QUEUES


def test_a_rare_topic_reads_its_own_block_only(world: World, watch: Watch) -> None:
    assert len(read_rows(world.options(topic="small"))) == 1
    assert watch.total("files_read") == 1
    assert watch.total("bytes_read") < 0.02 * BYTES


def test_a_range_of_offsets_reads_that_range(world: World, watch: Watch) -> None:
    low, high = 7 * EACH, 8 * EACH
    options = world.options(
        assign='{"t": [3]}', startingOffsets=f'{{"t": {{"3": {low}}}}}', endingOffsets=f'{{"t": {{"3": {high}}}}}'
    )
    assert len(read_rows(options, BODIES)) == EACH
    assert watch.total("files_read") == 1
    assert EACH * BODY <= watch.total("bytes_read") < 2.5 * EACH * BODY


def test_a_slice_of_time_reads_that_slice(world: World, watch: Watch) -> None:
    options = world.options(topic="t", startingTimestamp=NOW + 7_000, endingTimestamp=NOW + 8_000)
    assert len(read_rows(options, BODIES)) == QUEUES * EACH
    assert watch.total("files_read") == 1
    needed = QUEUES * EACH * BODY
    assert needed <= watch.total("bytes_read") < 2.5 * needed


def test_a_rare_tag_reads_its_runs_only(world: World, watch: Watch) -> None:
    assert len(read_rows(world.options(topic="t", subExpression="rare"), BODIES)) == EACH
    needed = EACH * BODY
    assert needed <= watch.total("bytes_read") < 2 * needed, "of the one run that lists the tag's code"


def test_a_tag_that_nobody_has_reads_nothing(world: World, watch: Watch) -> None:
    assert read_rows(world.options(topic="t", subExpression="unheard_of"), BODIES) == []
    assert watch.total("bytes_read") == 0
    assert watch.total("files_read") == 0


def test_a_key_reads_bodies_of_its_block_only(world: World, watch: Watch) -> None:
    rows = read_rows(world.options(topic="t", keys="key-7-2-50"), BODIES)
    assert len(rows) == 1
    assert watch.total("bytes_read") < 0.1 * BYTES


def test_a_key_that_nobody_has_is_told_by_the_key_filter(world: World, watch: Watch) -> None:
    assert read_rows(world.options(topic="t", keys="no-such-key"), BODIES) == []
    assert watch.total("bytes_read") < 0.1 * BYTES


def test_an_id_reads_files_whose_range_has_it(world: World, watch: Watch) -> None:
    wanted = next(sent for sent in world.of("t") if sent.queue_offset == 9 * EACH)
    bounds = {"startingOffsets": '{"t": {"0": 900}}', "endingOffsets": '{"t": {"0": 901}}'}
    row = read_rows(world.options(assign='{"t": [0]}', **bounds))
    found = read_rows(world.options(topic="t", msgId=row[0]["msgId"]))
    assert found[0]["commitOffset"] == wanted.commit_offset
    assert len(found) == 1
    assert watch.tasks[-1].files_read == 1
    assert read_rows(world.options(topic="t", msgId="Z" * 32)) == []
    assert watch.tasks[-1].files_read == 0


def test_what_was_read_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="rmq_spark.spark"):
        read_rows(world.options(topic="t", startingTimestamp=NOW + 7_000, endingTimestamp=NOW + 8_000), NARROW)
    plan = next(record.getMessage() for record in caplog.records if record.name.endswith("batch_reader"))
    task = next(record.getMessage() for record in caplog.records if record.name.endswith("task_reader"))
    assert "files; 1 tasks" in plan
    assert task.startswith("read 400 of ") and "bytes in 1 of 1 files" in task


def test_a_task_opens_no_log(tmp_path: Path) -> None:
    """Its files are named in the plan; the chain of commits is not walked again in every task."""
    made = World.create(str(tmp_path / "store"))
    made.store.create_topic("t", queues=1)
    for _ in range(5):
        made.send("t")
    reader = RocketMQBatchReader(parse_read(made.options(topic="t"), streaming=False), READ_SCHEMA)
    partitions = reader.partitions()
    for path in (tmp_path / "store/nameserver/commitlog").iterdir():
        path.unlink()
    (tmp_path / "store/store.json").unlink()
    assert sum(batch.num_rows for part in partitions for batch in reader.read(part)) == 5
