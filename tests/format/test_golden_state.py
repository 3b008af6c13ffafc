"""State that format version 1 kept: today's code folds it to what the code of that time did, and carries it on.

`golden_state/v1` was written by the last version that had the state in the segments: `golden.json` is what it folded
from `golden/v1`, `expired` a store whose state messages have all expired but the newest, `expired.json` what it folded
from that.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import create_golden
import pytest

from rmq_spark.client.store import NAMESERVER_FOLDS
from rmq_spark.clock import ManualClock
from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.core_folds import SinkBatches
from rmq_spark.log.expire import expire
from rmq_spark.log.fold import Fold
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.roll import roll
from rmq_spark.log.state import LogState
from rmq_spark.log.verify import verify
from rmq_spark.model.settings import LogSettings
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.storage import paths
from rmq_spark.storage.open import open_storage

KEPT = Path(__file__).parent / "golden_state" / "v1"
LOGS: dict[str, tuple[str, tuple[type[Fold], ...]]] = {
    "nameserver": (paths.NAMESERVER, tuple(NAMESERVER_FOLDS)),
    "broker-0": (paths.broker_root("broker-0"), (ConsumerOffsets,)),
}
STORES = ("golden", "expired")


class Old:
    """A copy of one log that version 1 wrote."""

    def __init__(self, store: str, log: str, place: Path) -> None:
        source = create_golden.GOLDEN / "v1" / "store" if store == "golden" else KEPT / "expired"
        self.storage = open_storage(str(shutil.copytree(source, place / "store")))
        self.broker = log
        self.root, self.folds = LOGS[log]
        self.clock = ManualClock(1_800_000_000_000)
        told = json.loads((KEPT / f"{store}.json").read_text("utf-8"))[log]
        self.told: dict[str, Any] = told

    def open(self, *folds: type[Fold]) -> CommitLog:
        settings = LogSettings(
            segment_bytes=1,
            delete_grace_ms=0,
            retention_ms=3_600_000,
            disk_reclaim_ratio=1.0,
            disk_force_ratio=1.0,
            disk_full_ratio=1.0,
            clock_ahead_max_ms=1 << 50,
        )
        return CommitLog(self.storage, self.root, self.broker, settings=settings, clock=self.clock, folds=folds)

    def append(self, log: CommitLog, msg_id: str) -> None:
        self.clock.advance(2 * 3_600)
        log.append(MessageBatch.of(topic="new", queue_id=0, msg_id=msg_id, body=b"b", born_timestamp_ms=0))

    def check(self, state: LogState) -> None:
        """The folds hold what version 1 said."""
        for kind in (*self.folds, *(type(fold) for fold in state.folds.values())):
            before = [self.told["folds"][topic] for topic in kind.topics if topic in self.told["folds"]]
            if before:
                now = json.loads(json.dumps(state.fold(kind).dump()))
                if kind is SinkBatches:
                    now = now["last"]  # version 2 has fingerprints beside it, of which version 1 knew nothing
                assert now == before[0], kind.name


@pytest.fixture(params=[(store, log) for store in STORES for log in LOGS], ids="-".join)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    return Old(*request.param, tmp_path)


def test_it_folds_to_the_same_state(old: Old) -> None:
    state = old.open(*old.folds).view.state
    assert (state.offset, state.digest, state.store_ms) == (old.told["offset"], old.told["digest"], old.told["time"])
    queues = {topic: [list(place) for place in state.queues.of_topic(topic)] for topic in state.queues.topics()}
    assert queues == old.told["queues"]
    old.check(state)


def test_a_fold_that_is_declared_later_is_the_same(old: Old) -> None:
    log = old.open()
    log.use(*old.folds)
    old.check(log.view.state)


def test_it_is_written_rolled_and_expired_without_a_loss(old: Old) -> None:
    log = old.open(*old.folds)
    for number in range(3):
        old.append(log, f"A{number}")
    roll(log)
    old.check(old.open(*old.folds).view.state)
    old.append(log, "B")
    assert expire(log).segments
    for name in [info.name for info in old.storage.list(paths.snapshots(old.root))]:
        old.storage.delete(f"{paths.snapshots(old.root)}/{name}")
    old.check(old.open(*old.folds).view.state)
    late = old.open()
    late.use(*old.folds)
    old.check(late.view.state)
    assert verify(old.storage, old.root, old.broker, folds=old.folds).ok


def test_a_roll_by_a_process_without_the_folds_loses_nothing(old: Old) -> None:
    plain = old.open()
    old.append(plain, "A")
    roll(plain, min_commits=1)
    old.append(plain, "B")
    roll(plain, min_commits=1)
    old.check(old.open(*old.folds).view.state)
    late = old.open()
    late.use(*old.folds)
    old.check(late.view.state)


def test_an_expiry_by_a_process_without_the_folds_is_refused(old: Old) -> None:
    plain = old.open()
    for number in range(3):
        old.append(plain, f"A{number}")
    with pytest.raises(InvalidRequestError, match="does not fold all state"):
        expire(plain)
    old.check(old.open(*old.folds).view.state)
    full = old.open(*old.folds)
    assert expire(full).messages
    old.check(old.open(*old.folds).view.state)
