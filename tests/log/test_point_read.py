"""Single messages are read by their places, wherever rolling has put them."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from faulty import BROKER, ROOT, Wrapped, forget_files, open_log

from rmq_spark.clock import ManualClock
from rmq_spark.errors import CorruptDataError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.expire import expire
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.point_read import Places, fetch_messages
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import write_row_file
from rmq_spark.log.scan import Query, ScanStats
from rmq_spark.model.settings import LogSettings
from rmq_spark.storage import paths
from rmq_spark.storage.memory import MemoryStorage

SETTINGS = LogSettings(
    block_bytes=2048, segment_bytes=20_000, segment_span_ms=60_000, delete_grace_ms=0, snapshot_every_commits=10**9
)


def table(draw: random.Random, rows: int) -> MessageBatch:
    found = pa.table(
        {
            "topic": [f"t{draw.randrange(3)}" for _ in range(rows)],
            "queueId": pa.array([draw.randrange(4) for _ in range(rows)], pa.int32()),
            "msgId": [f"{draw.getrandbits(128):032X}" for _ in range(rows)],
            "body": pa.array([draw.randbytes(draw.randrange(1, 200)) for _ in range(rows)], pa.binary()),
            "bornTimestamp": pa.array([0] * rows, pa.timestamp("ms", tz="UTC")),
        }
    )
    return MessageBatch.from_arrow(found)


def grown(seed: int, storage: object = None) -> CommitLog:
    """A log with small and large commits, row files, and a segment or two."""
    draw = random.Random(seed)
    clock = ManualClock()
    log = CommitLog(storage or MemoryStorage(None, clock=clock), ROOT, BROKER, settings=SETTINGS, clock=clock)
    for number in range(24):
        if number == 15:
            roll(log)
        action = draw.choice(("one", "table", "files"))
        if action == "one":
            log.append(table(draw, 1))
        elif action == "table":
            log.append(table(draw, draw.randrange(2, 120)))
        else:
            parts = [table(draw, draw.randrange(2, 40)) for _ in range(draw.randrange(1, 4))]
            log.append_files(
                [write_row_file(log.storage, ROOT, part, nonce=clock.token(), block_bytes=1024) for part in parts]
            )
        clock.advance(draw.randrange(20))
    return log


def everything(log: CommitLog) -> pa.Table:
    return pa.Table.from_batches(log.scan(Query())).sort_by("commitOffset")


def places(rows: pa.Table, known: bool) -> Places:
    commit = rows["commitOffset"].to_numpy()
    if not known:
        return Places(commit)
    return Places(
        commit, tuple(zip(*(rows[name].to_pylist() for name in ("topic", "queueId", "queueOffset")), strict=True))
    )


@pytest.mark.parametrize("known", [True, False], ids=["by queue offset", "by log offset"])
@pytest.mark.parametrize("seed", range(3))
def test_any_messages_in_any_order(seed: int, known: bool) -> None:
    log = grown(seed)
    whole = everything(log)
    draw = random.Random(seed)
    for count in (1, 1, 1, 2, 5, 40, whole.num_rows):
        picked = whole.take(pa.array(draw.sample(range(whole.num_rows), count)))
        found = fetch_messages(log, places(picked, known))
        assert pa.Table.from_batches([found]).equals(picked.combine_chunks())
    roll(log)
    for count in (1, 30):
        picked = whole.take(pa.array(draw.sample(range(whole.num_rows), count)))
        found = fetch_messages(log, places(picked, known), ("msgId", "storeTimestamp", "brokerName"))
        assert found.to_pydict() == picked.select(["msgId", "storeTimestamp", "brokerName"]).to_pydict()


@pytest.mark.parametrize("known", [True, False])
def test_what_is_not_held_is_left_out(known: bool) -> None:
    log = grown(5)
    whole = everything(log)
    roll(log)
    assert expire(log, before_ms=log.view.state.store_ms - 60_000).log_start > 0
    start, end = log.view.mark.log_start, log.view.state.offset
    found = fetch_messages(log, places(whole, known))
    assert found.column("commitOffset").to_pylist() == list(range(start, end))
    assert fetch_messages(log, Places(np.array([start - 1, end, end + 5], np.int64))).num_rows == 0
    assert fetch_messages(log, Places(np.empty(0, np.int64))).num_rows == 0


def test_a_file_is_rolled_away_between_the_look_and_the_read() -> None:
    storage = Wrapped(MemoryStorage(None, clock=ManualClock()))
    log = grown(6, storage)
    other = open_log(storage, clock=log.clock)
    last = everything(log).slice(log.view.state.commits.firsts[-1])
    wanted = paths.commit(ROOT, log.view.state.commits.firsts[-1])
    read_tail = storage.read_tail
    rolled = []

    def roll_first(path: str, length: int) -> tuple[bytes, int]:
        if path == wanted and not rolled:
            rolled.append(path)
            roll(other)
            assert not storage.exists(wanted)
        return read_tail(path, length)

    storage.read_tail = roll_first  # type: ignore[method-assign]
    forget_files(log)
    found = fetch_messages(log, places(last, True))
    assert rolled
    assert pa.Table.from_batches([found]).equals(last.combine_chunks())


def test_a_wrong_place_is_an_error_not_another_message() -> None:
    log = grown(7)
    roll(log)
    whole = everything(log)
    first = whole.slice(10, 1)
    right = places(first, True)
    [(topic, queue, offset)] = right.known
    for wrong in (
        Places(right.commit, (("nope", queue, offset),)),
        Places(right.commit, ((topic, queue, offset + 100_000),)),
        Places(right.commit + 1, right.known),
    ):
        with pytest.raises(CorruptDataError):
            fetch_messages(log, wrong)


def test_metadata_is_read_once() -> None:
    storage = Wrapped(MemoryStorage(None, clock=ManualClock()))
    log = grown(8, storage)
    roll(log)
    whole = everything(log)
    fetch_messages(log, places(whole, True))
    read_tail = storage.read_tail
    tails: list[str] = []

    def noted(path: str, length: int) -> tuple[bytes, int]:
        tails.append(path)
        return read_tail(path, length)

    storage.read_tail = noted  # type: ignore[method-assign]
    stats = ScanStats()
    fetch_messages(log, places(whole.slice(20, 1), True), stats=stats)
    assert not [path for path in tails if paths.segments(ROOT) in path]
    assert (stats.rows_read, stats.files_read) == (1, 1)
    assert 0 < stats.bytes_read < 20_000
