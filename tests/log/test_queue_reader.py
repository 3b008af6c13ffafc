"""A queue is read by its offsets, the same whether its messages are in small commits, large ones, or segments."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from faulty import BROKER, ROOT
from test_point_read import SETTINGS, everything, grown, table

from rmq_spark.clock import ManualClock
from rmq_spark.errors import DataExpiredError
from rmq_spark.log import queue_reader, scan
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.file_format import pack
from rmq_spark.log.queue_reader import QueueFilter, read_queue
from rmq_spark.log.roll import roll
from rmq_spark.log.tail_index import TailIndex
from rmq_spark.storage.memory import MemoryStorage

QUEUES = [(f"t{topic}", queue) for topic in range(3) for queue in range(4)]
SHORT = QueueFilter(
    predicate=lambda rows: np.array([len(body) < 100 for body in rows.column("body").to_pylist()], np.bool_),
    columns=("body",),
)


def read_all(log: CommitLog, topic: str, queue: int, draw: random.Random, wanted: QueueFilter) -> pa.Table:
    """The queue from its beginning on, a few messages at a time."""
    batches, offset, place = [], 0, 0
    end = log.look(lambda view: view.state.queues.bounds(topic, queue)[1])
    while offset < end:
        got = read_queue(log, topic, queue, offset, rows_max=draw.choice([1, 7, 50]), wanted=wanted, place=place)
        assert got.next_offset > offset
        batches.append(got.messages)
        offset, place = got.next_offset, got.place
    return pa.Table.from_batches(batches) if batches else pa.table({})


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("wanted", [queue_reader.ALL, SHORT], ids=["all", "filtered"])
def test_messages_are_those_of_a_scan_in_order(seed: int, wanted: QueueFilter) -> None:
    draw = random.Random(seed)
    log = grown(seed)
    rows = everything(log)
    rows = rows.filter(pa.array([len(body) < 100 for body in rows["body"].to_pylist()])) if wanted is SHORT else rows
    with CommitLog(log.storage, ROOT, BROKER, settings=SETTINGS, clock=ManualClock()) as reader:
        for topic, queue in QUEUES:
            mine = [row for row in rows.to_pylist() if (row["topic"], row["queueId"]) == (topic, queue)]
            assert read_all(reader, topic, queue, draw, wanted).to_pylist() == mine


def test_commits_of_a_snapshot_that_does_not_list_their_queues_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As older versions wrote them: none at all, or not those of commits with very many."""
    dump = TailIndex.dump
    older = [
        lambda self: {name: dump(self)[name] for name in ("firsts", "times", "sizes", "prints")},
        lambda self: {**dump(self), "wide": pack(np.array([0, 6], np.int64))},
    ]
    for old in older:
        clock = ManualClock()
        storage = MemoryStorage(None, clock=clock)
        with CommitLog(storage, ROOT, BROKER, settings=SETTINGS, clock=clock) as log:
            draw = random.Random(1)
            for rows in (6, 1, 6, 1, 6):
                log.append(table(draw, rows))
            ends = {queue: log.view.state.queues.bounds(*queue)[1] for queue in QUEUES}
            monkeypatch.setattr(TailIndex, "dump", old)
            assert log.snapshot() is not None
            monkeypatch.setattr(TailIndex, "dump", dump)
            log.append(table(draw, 1))
        with CommitLog(storage, ROOT, BROKER, settings=SETTINGS, clock=clock) as log:
            assert log.view.state.commits.lists_runs
            for (topic, queue), end in ends.items():
                read = read_all(log, topic, queue, draw, queue_reader.ALL)
                assert not end or read["queueOffset"].to_pylist()[:end] == list(range(end))


class TestTail:
    """A consumer that keeps up."""

    @pytest.fixture
    def log(self) -> CommitLog:
        clock = ManualClock()
        return CommitLog(MemoryStorage(None, clock=clock), ROOT, BROKER, settings=SETTINGS, clock=clock)

    def send(self, log: CommitLog, count: int) -> None:
        draw = random.Random(count)
        for _ in range(count):
            log.append(table(draw, 3))

    def test_small_commits_are_read_without_a_scan(self, log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.send(log, 20)
        whole = [row for row in everything(log).to_pylist() if (row["topic"], row["queueId"]) == ("t1", 2)]
        monkeypatch.delattr(scan, "read_plan")
        assert read_all(log, "t1", 2, random.Random(0), queue_reader.ALL).to_pylist() == whole

    def test_a_message_that_came_since_the_last_look_is_read(self, log: CommitLog) -> None:
        self.send(log, 5)
        with CommitLog(log.storage, ROOT, BROKER, settings=SETTINGS, clock=ManualClock()) as reader:
            end = reader.look(lambda view: view.state.queues.bounds("t0", 0)[1])
            self.send(log, 20)
            assert read_queue(reader, "t0", 0, end, rows_max=1).messages["queueOffset"].to_pylist() == [end]

    def test_messages_that_were_rolled_since_the_last_look_are_read(self, log: CommitLog) -> None:
        self.send(log, 20)
        with CommitLog(log.storage, ROOT, BROKER, settings=SETTINGS, clock=ManualClock()) as reader:
            reader.refresh()
            roll(log)
            for meta in list(reader.files._kept):
                reader.files._kept.pop(meta)  # as if there had been no room for them
            assert read_queue(reader, "t0", 0, 0, rows_max=1).messages["queueOffset"].to_pylist() == [0]

    def test_expired_messages_are_an_error(self, log: CommitLog) -> None:
        self.send(log, 20)
        roll(log)
        self.send(log, 20)
        roll(log)
        log.clock.advance(1000)
        expire(log, before_ms=log.clock.now_ms())
        with pytest.raises(DataExpiredError) as error:
            read_queue(log, "t0", 0, 0, rows_max=1)
        first = int(str(error.value.context["first"]))
        assert first == log.refresh().state.queues.bounds("t0", 0)[0] > 0

    def test_an_unconfirmed_state_is_not_peeked_at(self, log: CommitLog) -> None:
        self.send(log, 3)
        assert log.peek(lambda view: view.state.offset) == 9
        log.view.confirmed -= 1
        assert log.peek(lambda view: view.state.offset) is None
