"""`verify` finds what is wrong with snapshots, whatever else is wrong with others."""

from __future__ import annotations

from faulty import BROKER, ROOT, message, open_log

from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.snapshot import write_snapshot
from rmq_spark.log.state import LogState
from rmq_spark.log.verify import Finding, verify
from rmq_spark.storage import paths
from rmq_spark.storage.memory import MemoryStorage


def damage(storage: MemoryStorage) -> list[Finding]:
    return [finding for finding in verify(storage, ROOT, BROKER).findings if finding.damage]


def test_a_snapshot_that_says_other_than_the_log_is_found_behind_one_that_is_of_no_commit() -> None:
    storage = MemoryStorage()
    with open_log(storage) as log:
        for number in range(4):
            log.append(MessageBatch.merge([message(f"a{number}"), message(f"b{number}")]))
        wrong, _ = LogState.load(log.view.state.dump())
        stray, _ = LogState.load(log.view.state.dump())
    for topic in wrong.queues.topics():
        wrong.queues.truncate(topic)
    write_snapshot(storage, ROOT, wrong, "wrong0000001")
    stray.offset = 3  # within the second commit
    write_snapshot(storage, ROOT, stray, "stray0000001")
    [found] = damage(storage)
    assert found.path.endswith("wrong0000001.arrow")
    assert "says other than the log (queues)" in found.problem


def test_a_snapshot_whose_name_tells_another_offset_is_damage() -> None:
    storage = MemoryStorage()
    with open_log(storage) as log:
        for number in range(3):
            log.append(message(f"m{number}"))
        path = log.snapshot()
    assert path is not None
    storage.create_if_absent(paths.snapshot(ROOT, 99, "renamed00001"), [storage.read(path)])
    storage.delete(path)
    [found] = damage(storage)
    assert found.problem == "snapshot is of offset 3, its name tells another; delete this snapshot"
