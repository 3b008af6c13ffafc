"""Stores that an earlier version wrote are still read, verified and continued; today's writer still writes the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import create_golden
import numpy as np
import pytest
import sample_log

from rmq_spark.client.store import Store
from rmq_spark.clock import ManualClock
from rmq_spark.log.file_format import parse
from rmq_spark.log.file_layout import VERSION
from rmq_spark.log.run_index import Runs
from rmq_spark.log.verify import verify
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.storage.open import open_storage

VERSIONS = sorted(path.name for path in create_golden.GOLDEN.iterdir())
SETTINGS = replace(sample_log.SETTINGS, disk_reclaim_ratio=1.0, disk_force_ratio=1.0, disk_full_ratio=1.0)
"""The same, on however full a disk the tests run."""


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a golden directory."""
    return Path(shutil.copytree(create_golden.GOLDEN / request.param, tmp_path / "golden"))


def expected(golden: Path) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads((golden / "messages.json").read_text("utf-8"))
    return found


def test_there_is_a_golden_store_of_the_current_version() -> None:
    assert f"v{VERSION}" in VERSIONS


def test_every_message_of_a_golden_store_is_read(golden: Path) -> None:
    with Store.open(str(golden / "store"), read_only=True) as store:
        assert create_golden.messages(store.nameserver) == expected(golden)["nameserver"]
        assert create_golden.messages(store.log()) == expected(golden)["broker-0"]
        assert [topic.name for topic in store.topics()] == ["orders"]
        state = store.log("broker-0", ConsumerOffsets).view.state
        assert state.fold(ConsumerOffsets).of("billing", "orders") == {0: 3, 1: 5}
        assert state.queues.bounds("gone", 0) == (1, 1)


def test_it_is_read_without_its_snapshots_too(golden: Path) -> None:
    shutil.rmtree(golden / "store" / sample_log.ROOT / "snapshots")
    with Store.open(str(golden / "store"), read_only=True) as store:
        assert create_golden.messages(store.log()) == expected(golden)["broker-0"]


def test_a_golden_store_verifies(golden: Path) -> None:
    storage = open_storage(str(golden / "store"))
    for root, name in (("nameserver", "nameserver"), (sample_log.ROOT, sample_log.BROKER)):
        report = verify(storage, root, name)
        assert report.findings == []
        assert report.commits
    assert min(report.segments, report.row_files, report.marks, report.snapshots, report.log_start) > 0


def test_a_golden_store_is_continued_and_its_files_stay_as_they_are(golden: Path) -> None:
    before = {path: path.read_bytes() for path in (golden / "store").rglob("*.arrow")}
    clock = ManualClock(sample_log.START_MS + 10 * sample_log.HOUR_MS)
    with Store.open(str(golden / "store"), settings=SETTINGS, clock=clock, read_only=True) as store:
        first = store.log().view.state.offset
    log = sample_log.CommitLog(
        open_storage(str(golden / "store")), sample_log.ROOT, sample_log.BROKER, settings=SETTINGS, clock=clock
    )
    result = log.append(sample_log.small(clock, 100))
    assert result.commit_offsets is not None
    assert sorted(result.commit_offsets.tolist()) == [first, first + 1, first + 2]
    assert len(create_golden.messages(log)) == len(expected(golden)["broker-0"]) + 3
    assert {path: path.read_bytes() for path in before} == before
    assert verify(log.storage, log.root, log.broker).findings == []


def sorted_tag_codes(runs: Runs) -> list[list[int]]:
    """Per run: its tag codes, which have no order in the file."""
    ends = np.cumsum(np.maximum(runs.tag_counts, 0))
    return [sorted(codes.tolist()) for codes in np.split(runs.tag_codes, ends[:-1])]


def test_todays_writer_gives_the_same_files() -> None:
    """Names, and what the documents say. Bytes may differ: Arrow's framing and zlib's output are not ours to fix."""
    made = create_golden.files(create_golden.build())
    kept = {
        path.relative_to(create_golden.GOLDEN / f"v{VERSION}" / "store").as_posix(): path.read_bytes()
        for path in (create_golden.GOLDEN / f"v{VERSION}" / "store").rglob("*")
        if path.is_file()
    }
    assert made.keys() == kept.keys()
    for path, content in kept.items():
        if not path.endswith(".arrow"):
            continue
        old, new = parse(path, content, len(content)), parse(path, made[path], len(made[path]))
        assert old.doc.keys() == new.doc.keys(), path
        for key in (
            "v",
            "kind",
            "rows",
            "first",
            "end",
            "ts",
            "topics",
            "bloom",
            "ids",
            "writer",
            "epoch",
            "seq",
            "app",
        ):
            assert old.doc.get(key) == new.doc.get(key), (path, key)
        if "runs" in old.doc:
            for name in ("topic", "queue", "rows", "tag_counts"):
                assert getattr(old.runs, name).tolist() == getattr(new.runs, name).tolist(), (path, name)
            assert sorted_tag_codes(old.runs) == sorted_tag_codes(new.runs), path
        if "base" in old.doc:
            assert old.bases.tolist() == new.bases.tolist(), path
