"""Maintenance keeps what it promises when files are foreign, records are poison, or others work at the same time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from counters import Counters, adding, value_of
from faulty import BROKER, ROOT, Wrapped, ids, message, open_log

from rmq_spark import Message, Producer, Store
from rmq_spark.client import store as store_module
from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.errors import (
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    ReadOnlyError,
    UnavailableError,
    UnsupportedVersionError,
)
from rmq_spark.log import file_encoder, file_layout, files, verify_files
from rmq_spark.log import roll as roll_module
from rmq_spark.log import view as view_module
from rmq_spark.log.collect import collect
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.core_folds import RowFiles, SinkBatches, Truncations
from rmq_spark.log.expire import expire
from rmq_spark.log.file_format import pack
from rmq_spark.log.fold import Fold
from rmq_spark.log.marks import Mark, SnapshotRef
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.recover import recover
from rmq_spark.log.roll import roll
from rmq_spark.log.rows import PreparedRows, RowFile, prepare, prepare_references, write_row_file
from rmq_spark.log.scan import Query
from rmq_spark.log.snapshot import write_snapshot
from rmq_spark.log.state import LogState
from rmq_spark.log.verify import Finding, verify
from rmq_spark.log.view import LogView
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.rules.topics import GroupConfigs, TopicConfigs
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage
from rmq_spark.storage.local import LocalStorage
from rmq_spark.storage.memory import MemoryStorage

OFFSETS = ConsumerOffsets.topics[0]
FOLDS = (TopicConfigs, GroupConfigs, ConsumerOffsets)


def damage(storage: Storage) -> list[Finding]:
    return [finding for finding in verify(storage, ROOT, BROKER, folds=FOLDS).findings if finding.damage]


def warnings(storage: Storage) -> dict[str, str]:
    found = verify(storage, ROOT, BROKER).findings
    return {finding.path.rpartition("/")[2]: finding.problem for finding in found if not finding.damage}


def filled(storage: Storage | None = None, count: int = 6, **settings: Any) -> CommitLog:
    log = open_log(storage, **settings)
    for number in range(count):
        log.append(message(f"m{number}"))
    return log


def plant(log: CommitLog, rows: PreparedRows, /, **changed: Any) -> str:
    """Create the next commit as another version of this program might: whole, well linked, and unchecked."""
    state = log.refresh().state
    doc = {
        **rows.doc,
        "broker": BROKER,
        "first": state.offset,
        "ts": state.store_ms,
        "prev": state.digest,
        "writer": "planted",
        "epoch": 0,
        "seq": state.offset,
        "handle": "planted",
        "flush": "sync",
        "base": pack(state.queues.number(rows.runs)),
        **changed,
    }
    path = paths.commit(ROOT, state.offset)
    log.storage.create_if_absent(path, file_encoder.Encoded(rows.blocks, doc))
    return path


def tagged(msg_id: str, tags: str, keys: str) -> MessageBatch:
    return MessageBatch.of(topic="t", queue_id=0, msg_id=msg_id, body=b"x", born_timestamp_ms=0, tags=tags, keys=keys)


GOOD_RECORDS = [
    (TopicConfigs, {"topic": "t", "queues": {"b": 4}, "perm": 6}),
    (TopicConfigs, {"topic": "t", "deleted": True}),
    (GroupConfigs, {"group": "g", "any": 1}),
    (GroupConfigs, {"group": "g", "deleted": True}),
    (ConsumerOffsets, {"group": "g", "topic": "t", "offsets": {"0": 5}}),
    (ConsumerOffsets, {"group": "g", "deleted": True}),
    (Truncations, {"topic": "t"}),
    (RowFiles, {"claim": ["a.arrow"]}),
    (RowFiles, {"gone": ["a.arrow"]}),
    (SinkBatches, {"app": "a", "batch": 3}),
]
BAD_RECORDS = [
    (TopicConfigs, {"queues": {}}),
    (TopicConfigs, {"topic": "t"}),
    (TopicConfigs, {"topic": "t", "queues": ["b", 1]}),
    (TopicConfigs, {"topic": "t", "queues": {"b": "4"}}),
    (TopicConfigs, {"topic": [], "deleted": True}),
    (GroupConfigs, {}),
    (GroupConfigs, {"group": 1}),
    (ConsumerOffsets, {}),
    (ConsumerOffsets, {"group": "g", "topic": "t"}),
    (ConsumerOffsets, {"group": "g", "topic": "t", "offsets": [1]}),
    (ConsumerOffsets, {"group": "g", "topic": "t", "offsets": {"x": 1}}),
    (ConsumerOffsets, {"group": "g", "topic": "t", "offsets": {"0": None}}),
    (ConsumerOffsets, {"deleted": True}),
    (Truncations, {}),
    (Truncations, {"topic": None}),
    (RowFiles, {"claim": "a.arrow"}),
    (RowFiles, {"gone": [[]]}),
    (SinkBatches, {"app": "a"}),
    (SinkBatches, {"app": "a", "batch": "3"}),
    (SinkBatches, {"app": "a", "batch": True}),
]
POISON = [b"not json", b"\xff", b"{}", b"[1]", b"null", b'"x"', b"[" * 100_000]


class TestStateMessages:
    @pytest.mark.parametrize(("fold", "value"), GOOD_RECORDS)
    def test_a_good_record_passes(self, fold: type[Fold], value: object) -> None:
        log = open_log(folds=FOLDS)
        body = json.dumps(value).encode()
        log.append(message("x", topic=fold.topics[0], body=body))
        assert open_log(log.storage, folds=FOLDS).view.state.offset == log.view.state.offset

    @pytest.mark.parametrize(("fold", "value"), BAD_RECORDS)
    def test_a_bad_record_is_refused(self, fold: type[Fold], value: object) -> None:
        log = open_log(folds=FOLDS)
        with pytest.raises(InvalidRequestError, match=r"state message.*topic="):
            log.append(message("x", topic=fold.topics[0], body=json.dumps(value).encode()))
        assert log.refresh().state.offset == 0

    @pytest.mark.parametrize("body", POISON, ids=lambda body: repr(body[:10]))
    def test_a_body_that_is_no_record_is_refused(self, body: bytes) -> None:
        log = open_log(folds=FOLDS)
        with pytest.raises(InvalidRequestError):
            log.append(message("x", topic=OFFSETS, body=body))
        assert log.refresh().state.offset == 0

    def test_messages_of_other_topics_are_not_looked_at(self) -> None:
        log = open_log(folds=FOLDS)
        log.append(message("x", topic="orders", body=b"not json"))
        assert ids(log) == ["x"]

    @pytest.mark.parametrize("body", POISON, ids=lambda body: repr(body[:10]))
    def test_one_in_the_log_is_damage_that_names_topic_and_offset(self, body: bytes) -> None:
        log = filled(count=2)
        path = plant(log, prepare(message("x", topic=OFFSETS, body=body), 1 << 18))
        with pytest.raises(CorruptDataError, match=rf"topic='{OFFSETS}', offset=2"):
            open_log(log.storage, folds=FOLDS)
        assert [(finding.path, finding.first) for finding in damage(log.storage)] == [(path, 2)]

    def test_records_before_one_in_the_log_are_folded_once(self) -> None:
        log = open_log(folds=[Counters])
        for number in range(5):
            log.append(adding("a", number))
        end = log.refresh().state.offset
        path = plant(log, prepare(message("x", topic=Counters.topics[0], body=b"not json"), 1 << 18))
        view = LogView(log.files, BROKER, [Counters])
        view.load_floor()
        for _ in range(2):
            with pytest.raises(CorruptDataError, match=f"offset={end}"):
                view.walk()
            assert (view.state.offset, value_of(view.state, "a")) == (end, 10)
        found = verify(log.storage, ROOT, BROKER, folds=[Counters]).findings
        assert [(finding.path, finding.first) for finding in found] == [(path, end)]

    def test_they_never_go_into_row_files(self) -> None:
        log = filled(count=1)
        body = json.dumps({"group": "g", "topic": "t", "offsets": {"0": 1}}).encode()
        batch = MessageBatch.merge([message("a"), message("x", topic=OFFSETS, body=body)])
        with pytest.raises(InvalidRequestError, match="state messages"):
            write_row_file(log.storage, ROOT, batch, nonce="n1", block_bytes=1 << 18)
        assert list(log.storage.list(paths.data(ROOT))) == []
        rows = prepare(batch, 1 << 18, "rows")
        encoded = file_encoder.Encoded(rows.blocks, {**rows.doc, "nonce": "n2"})
        log.storage.create_if_absent(paths.data_file(ROOT, "n2.arrow"), encoded)
        file = RowFile("n2.arrow", encoded.tail.digest, 2, encoded.tail.file_size, 2)
        with pytest.raises(InvalidRequestError, match="state messages"):
            log.append_files([file])
        log.append(message("m1"))
        assert ids(open_log(log.storage)) == ["m0", "m1"] and damage(log.storage) == []


class TestRowFiles:
    def test_the_file_says_what_is_in_it(self) -> None:
        log = open_log()
        batch = MessageBatch.merge([message(f"r{number}", queue=number % 2) for number in range(4)])
        file = write_row_file(log.storage, ROOT, batch, nonce="n1", block_bytes=1 << 18)
        log.append_files([replace(file, rows=1, bytes=7, runs=9)])
        log.append(message("after"))
        meta = verify(log.storage, ROOT, BROKER)
        assert meta.ok and sorted(ids(open_log(log.storage))) == ["after", "r0", "r1", "r2", "r3"]
        prepared = prepare_references(log.storage, ROOT, [replace(file, rows=1, bytes=7, runs=9)])
        assert prepared.doc["files"] == [[file.name, file.digest, 4, file.bytes, 2]]

    def test_the_same_file_twice_is_refused(self) -> None:
        log = open_log()
        file = write_row_file(log.storage, ROOT, message("r"), nonce="n1", block_bytes=1 << 18)
        with pytest.raises(InvalidRequestError, match="twice"):
            log.append_files([file, file])
        assert ids(log) == []


class TestRecover:
    def test_a_commit_of_a_newer_version_is_not_moved(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = filled(count=1)
        with monkeypatch.context() as newer:
            newer.setattr(file_layout, "VERSION", 3)
            newer.setitem(file_layout.SCHEMAS, 3, file_layout.SCHEMAS[1])
            plant(log, prepare(message("newer"), 1 << 18))
        names = sorted(info.name for info in log.storage.list(paths.commitlog(ROOT)))
        for force in (False, True):
            with pytest.raises(UnsupportedVersionError):
                recover(log.storage, ROOT, BROKER, SystemClock(), force=force)
        assert sorted(info.name for info in log.storage.list(paths.commitlog(ROOT))) == names

    def test_one_behind_a_hole_is_not_moved_either(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = filled(count=3, flush=Flush.ASYNC)
        with monkeypatch.context() as newer:
            newer.setattr(file_layout, "VERSION", 3)
            newer.setitem(file_layout.SCHEMAS, 3, file_layout.SCHEMAS[1])
            plant(log, prepare(message("newer"), 1 << 18))
        log.storage.delete(paths.commit(ROOT, 1))
        with pytest.raises(UnsupportedVersionError):
            recover(log.storage, ROOT, BROKER, SystemClock())
        assert len(list(log.storage.list(paths.commitlog(ROOT)))) == 3

    def test_snapshots_of_what_is_cut_off_go_too(self) -> None:
        log = filled(count=8, flush=Flush.ASYNC)
        log.snapshot()
        log.close()
        log.storage.delete(paths.commit(ROOT, 5))
        recover(log.storage, ROOT, BROKER, SystemClock())
        assert list(log.storage.list(paths.snapshots(ROOT))) == []
        with open_log(log.storage) as again:
            again.append(message("n"))
            path = again.snapshot()
            assert path is not None and log.storage.exists(path)


class TestOrderOfDeletion:
    def test_the_mark_is_durable_before_anything_is_deleted(self) -> None:
        steps: list[tuple[str, str]] = []

        class Recording(Wrapped):
            def sync(self, paths: Sequence[str]) -> None:
                steps.extend(("sync", path) for path in paths)
                super().sync(paths)

            def delete(self, path: str) -> None:
                steps.append(("delete", path))
                super().delete(path)

        storage = Recording(MemoryStorage())
        clock = ManualClock()
        log = filled(storage, count=3, clock=clock, delete_grace_ms=1000)
        batch = message("r")
        log.append_files([write_row_file(storage, ROOT, batch, nonce="n1", block_bytes=1 << 18)])
        roll(log)
        assert steps == []  # the mark's maker has synced it, and nothing is old enough
        clock.wall_ms += 10 * 365 * 24 * 3_600_000
        log = open_log(storage, clock=clock, delete_grace_ms=0, clock_ahead_max_ms=10**15)
        roll(log)
        assert steps[0] == ("sync", paths.mark(ROOT, 1)) and steps[1][0] == "delete"
        steps.clear()
        assert collect(log) == 1
        assert steps[0] == ("sync", paths.mark(ROOT, 1)) and ("delete", paths.data_file(ROOT, "n1.arrow")) in steps


class TestVerifyBesideOthers:
    def test_a_roll_meanwhile_is_no_damage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(view_module, "JOINED_COMMITS", 1)  # else all commits are in memory by then
        log = filled()
        rolled: list[int] = []

        def progress(done: int, total: int) -> None:
            if done == 2 and not rolled:
                rolled.append(done)
                roll(log)

        report = verify(log.storage, ROOT, BROKER, progress)
        assert rolled and report.ok and report.messages == 6 and report.segments == 1

    def test_it_ends_even_if_the_log_never_rests(self) -> None:
        log = filled()
        log.storage.delete(paths.commit(ROOT, 0))
        runs: list[int] = []

        def progress(done: int, total: int) -> None:
            if done == 2:
                runs.append(done)
                previous = roll_module.Mark(epoch=len(runs) - 1)
                roll_module.write_mark(log.storage, ROOT, roll_module.Mark(), previous, f"n{len(runs)}")

        assert not verify(log.storage, ROOT, BROKER, progress).ok
        assert 1 < len(runs) < 10

    def test_commits_that_come_meanwhile_are_checked_too(self) -> None:
        log = filled(count=2)

        class Growing(Wrapped):
            def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
                try:
                    return super().read_tail(path, length)
                except NotFoundError:
                    if path == paths.commit(ROOT, 2):
                        log.append(message("late"))
                        log.append(message("later"))
                        log.snapshot()
                    raise

        report = verify(Growing(log.storage), ROOT, BROKER)
        assert report.ok and report.log_end == 4

    @pytest.mark.parametrize("ahead", [1, 3, 128])
    def test_commits_are_read_ahead_and_each_once(self, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "NEAR_COMMITS", 0)
        monkeypatch.setattr(files, "AHEAD_COMMITS", ahead)
        log = filled(count=5)
        log.append(message("large", body=bytes(100_000)))
        log.append(message("last"))
        calls: list[list[str]] = []

        class Noting(Wrapped):
            def read_tails(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, int] | None]:
                calls.append(list(paths))
                return super().read_tails(paths, length)

        report = verify(Noting(log.storage), ROOT, BROKER)
        assert report.ok and report.commits == 7
        assert [name for call in calls for name in call] == [paths.commit(ROOT, number) for number in range(7)]
        assert max(map(len, calls)) == min(ahead, 7)


class TestVerifyLooksDeeper:
    def test_queue_offsets_that_jump_between_segments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = filled(count=4, segment_bytes=1)
        read_rows = roll_module._read_rows

        def shifted(log: CommitLog, view: LogView, first: int, end: int) -> pa.RecordBatch:
            batch = read_rows(log, view, first, end)
            if first < 2:
                return batch
            at = batch.schema.get_field_index("queueOffset")
            moved = pa.array([offset + 1000 for offset in batch.column(at).to_pylist()], pa.int64())
            return batch.set_column(at, batch.schema.field(at), moved)

        monkeypatch.setattr(roll_module, "_read_rows", shifted)
        assert len(roll(log).segments) == 4
        assert [finding.first for finding in damage(log.storage)] == [2], "one jump is one finding"

    def test_a_mark_that_describes_a_segment_wrongly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = filled(count=4)
        write_mark = roll_module.write_mark

        def wrong(storage: Storage, root: str, mark: Mark, *rest: Any) -> Mark:
            segments = tuple(each._replace(max_ms=each.max_ms + 1) for each in mark.segments)
            return write_mark(storage, root, replace(mark, segments=segments), *rest)

        monkeypatch.setattr(roll_module, "write_mark", wrong)
        roll(log)
        assert ["mark describes" in finding.problem for finding in damage(log.storage)] == [True]

    def test_a_mark_that_names_another_predecessor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = filled(count=4)
        roll(log)
        log.append(message("x"))
        write_mark = roll_module.write_mark

        def wrong(storage: Storage, root: str, mark: Mark, previous: Mark, nonce: str) -> Mark:
            return write_mark(storage, root, mark, replace(previous, digest="f" * 32), nonce)

        monkeypatch.setattr(roll_module, "write_mark", wrong)
        roll(log, min_commits=1)
        assert ["does not follow" in finding.problem for finding in damage(log.storage)] == [True]

    def test_segments_that_do_not_hang_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = filled(count=2, segment_bytes=1)
        digest_at, asked = roll_module._digest_at, list[int]()

        def wrong(log: CommitLog, view: LogView, offset: int) -> str:
            asked.append(offset)
            return "f" * 32 if asked == [0, 1, 1] else digest_at(log, view, offset)

        monkeypatch.setattr(roll_module, "_digest_at", wrong)
        roll(log)
        assert ["chain is broken" in finding.problem for finding in damage(log.storage)] == [True]

    def test_a_floor_whose_state_counts_wrongly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = filled(count=4)
        floor_snapshots = roll_module.floor_snapshots

        def wrong(log: CommitLog, view: LogView, *named: Any) -> tuple[SnapshotRef, ...]:
            view.state.queues.advance(prepare(message("x"), 1 << 18).runs)
            return floor_snapshots(log, view, *named)

        monkeypatch.setattr(roll_module, "floor_snapshots", wrong)
        roll(log)
        assert ["state" in finding.problem for finding in damage(log.storage)] == [True]

    @pytest.mark.parametrize("expired", [False, True])
    def test_good_segments_pass(self, expired: bool) -> None:
        clock = ManualClock()
        log = open_log(segment_bytes=1, clock=clock)
        for number in range(6):
            clock.wall_ms += 1000
            log.append(
                MessageBatch.merge([tagged(f"m{number}{part}", f"T{part}", f"k{part} j{number}") for part in (1, 2)])
            )
        roll(log)
        if expired:
            assert expire(log, before_ms=clock.wall_ms - 2500).segments
        log.append(message("tail", topic="u"))
        roll(log, min_commits=1)
        assert damage(log.storage) == []

    @pytest.mark.parametrize(
        ("field", "of"),
        [("bloom", tagged("a", "T", "other")), ("ids", tagged("a", "T", "k")), ("tags", tagged("m", "other", "k"))],
    )
    @pytest.mark.parametrize("count", [1, 9])
    def test_metadata_that_would_hide_rows_of_a_commit(self, field: str, of: MessageBatch, count: int) -> None:
        log = filled(count=1)
        rows = prepare(MessageBatch.merge([tagged("m", "T", "k")] * count), 1 << 18)
        path = plant(log, rows, **{field: prepare(of, 1 << 18).doc[field]})
        assert [finding.path for finding in damage(log.storage)] == [path]

    @pytest.mark.parametrize("field", ["bloom", "ids", "tags"])
    @pytest.mark.parametrize("count", [1, 9])
    def test_metadata_that_would_hide_rows_of_a_row_file(self, field: str, count: int) -> None:
        log = filled(count=1)
        rows = prepare(MessageBatch.merge([tagged("m", "T", "k")] * count), 1 << 18, "rows")
        wrong = prepare(tagged("a", "other", "other"), 1 << 18).doc[field]
        encoded = file_encoder.Encoded(rows.blocks, {**rows.doc, field: wrong, "nonce": "n1"})
        path = paths.data_file(ROOT, "n1.arrow")
        log.storage.create_if_absent(path, encoded)
        log.append_files([RowFile("n1.arrow", encoded.tail.digest, count, encoded.tail.file_size, 1)])
        assert path in [finding.path for finding in damage(log.storage)]

    @pytest.mark.parametrize("field", ["bloom", "ids", "tags"])
    def test_metadata_that_would_hide_rows_of_a_segment(self, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
        log = open_log()
        for number in range(3):
            log.append(tagged(f"m{number}", "T", "k"))
        describe = roll_module.describe
        wrong = prepare(tagged("a", "other", "other"), 1 << 18).doc[field]
        monkeypatch.setattr(roll_module, "describe", lambda *given: {**describe(*given), field: wrong})
        roll(log)
        assert [(finding.first, finding.end) for finding in damage(log.storage)] == [(0, 3)]

    @pytest.mark.parametrize("count", [1, 9])
    def test_a_run_index_of_another_queue_or_topic(self, count: int) -> None:
        for other in (message("m", queue=3), message("m", topic="u")):
            log = filled(count=1)
            rows = prepare(MessageBatch.merge([message("m")] * count), 1 << 18)
            wrong = prepare(MessageBatch.merge([other] * count), 1 << 18).doc
            path = plant(log, rows, runs=wrong["runs"], topics=wrong["topics"], base=pack(np.zeros(1, np.int64)))
            assert [finding.path for finding in damage(log.storage)] == [path]

    def test_row_counts_that_are_right_together_and_wrong_each(self) -> None:
        log = filled(count=1)
        one, two = (prepare(MessageBatch.merge([message("m")] * count), 1 << 18) for count in (1, 2))
        wrong = [
            plant(log, one._replace(blocks=two.blocks), rows=1),
            plant(log, two._replace(blocks=one.blocks), rows=2),
        ]
        assert [finding.path for finding in damage(log.storage)] == wrong

    def test_run_indexes_that_are_right_together_and_wrong_each(self) -> None:
        log = filled(count=1)
        one, two = (prepare(MessageBatch.merge([message("m")] * count), 1 << 18) for count in (1, 2))
        wrong = [plant(log, one, runs=two.doc["runs"]), plant(log, two, runs=one.doc["runs"])]
        assert [finding.path for finding in damage(log.storage)] == wrong

    def test_a_large_commit_with_fewer_rows_than_its_metadata_says(self) -> None:
        log = filled(count=1)
        three, four = (
            prepare(MessageBatch.merge([message("m", body=bytes(20_000))] * rows), 1 << 18) for rows in (3, 4)
        )
        path = plant(log, three, rows=4, runs=four.doc["runs"])
        assert [finding.path for finding in damage(log.storage)] == [path]

    @pytest.mark.parametrize(
        ("column", "values", "problem"),
        [
            ("queueOffset", [0, 1, 3], "queue offsets are not dense"),
            ("queueOffset", [0, None, 2], "ArrowInvalid"),
            ("commitOffset", [0, 1, 1], "log offsets are not each there once"),
            ("storeTimestamp", [5, 7, 6], "storeTimestamp goes backwards"),
        ],
    )
    def test_rows_of_a_segment_that_are_not_as_it_says(
        self, column: str, values: list[int | None], problem: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = open_log()
        for number in range(3):
            log.append(message(f"m{number}"))
        read_rows = roll_module._read_rows

        def shifted(*given: Any) -> pa.RecordBatch:
            batch = read_rows(*given)
            field = batch.schema.field(column)
            return batch.set_column(
                batch.schema.names.index(column), field, pa.array(values, pa.int64()).cast(field.type)
            )

        monkeypatch.setattr(roll_module, "_read_rows", shifted)
        roll(log)
        assert [problem in finding.problem for finding in damage(log.storage)] == [True]

    def test_sound_small_commits_are_checked_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = filled(count=5)
        monkeypatch.setattr(verify_files, "FileReader", None)  # reads one file by itself
        assert damage(log.storage) == []

    def test_block_bounds_that_would_hide_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = filled(count=3)
        bounds = roll_module.block_bounds
        monkeypatch.setattr(roll_module, "block_bounds", lambda block: bounds(block) + np.array([1, 0, 0, 0]))
        roll(log)
        assert ["bounds" in finding.problem for finding in damage(log.storage)] == [True]

    def test_empty_keys_and_many_tags_hide_nothing(self) -> None:
        log = open_log(block_bytes=4096)
        rows = [tagged(f"m{number}", f"T{number % 90}", ("", " ", "k  j")[number % 3]) for number in range(900)]
        rows += [message(f"n{number}", queue=number % 7) for number in range(900)]
        for part in (rows[:5], rows[5:]):
            log.append(MessageBatch.merge(part))
        file = write_row_file(log.storage, ROOT, MessageBatch.merge(rows), nonce="n1", block_bytes=4096)
        log.append_files([file])
        assert damage(log.storage) == []
        roll(log)
        assert damage(log.storage) == []

    def test_a_commit_that_describes_its_row_files_wrongly(self) -> None:
        log = filled(count=1)
        file = write_row_file(log.storage, ROOT, tagged("m", "T", "k"), nonce="n1", block_bytes=1 << 18)
        rows = prepare_references(log.storage, ROOT, [file])
        path = plant(log, rows, tags=prepare(tagged("m", "other", "k"), 1 << 18).doc["tags"])
        assert [finding.path for finding in damage(log.storage)] == [path]


class TestVerifySnapshots:
    def test_a_newest_commit_that_is_missing_is_damage_if_a_snapshot_knows_it(self) -> None:
        log = filled(count=3)
        log.append(MessageBatch.merge([message("x"), message("y")]))
        snapshot = log.snapshot()
        assert snapshot is not None
        assert damage(log.storage) == []
        log.storage.delete(paths.commit(ROOT, 3))
        (found,) = damage(log.storage)
        assert (found.path, found.first, found.end) == (paths.commit(ROOT, 3), 3, 5)
        assert snapshot.rpartition("/")[2] in found.problem
        # Once the offset is used again, nothing can be lost by it any more: the snapshot is of another history.
        open_log(log.storage).append(message("z"))
        assert damage(log.storage) == []
        assert "does not vouch" in warnings(log.storage)[snapshot.rpartition("/")[2]]

    def test_who_opens_a_log_to_write_is_told_that_a_snapshot_knows_more(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = filled(count=3)
        log.snapshot()
        open_log(log.storage).close()
        assert not caplog.records
        log.storage.delete(paths.commit(ROOT, 2))
        open_log(log.storage).close()
        (told,) = caplog.messages
        assert "up to 3" in told and "ends at 2" in told and "rmq verify" in told

    def test_an_only_commit_that_is_missing_is_damage_too(self) -> None:
        log = filled(count=1)
        log.snapshot()
        log.storage.delete(paths.commit(ROOT, 0))
        assert [(found.first, found.end) for found in damage(log.storage)] == [(0, 1)]

    @pytest.mark.parametrize("floor", [False, True])
    def test_one_that_differs_from_the_log_is_damage(self, floor: bool) -> None:
        log = filled(count=3)
        wrong, _ = LogState.load(log.refresh().state.dump())
        wrong.queues.advance(prepare(message("x"), 1 << 18).runs)
        if floor:
            roll(log)
        path = write_snapshot(log.storage, ROOT, wrong, "5" * 32)
        (found,) = damage(log.storage)
        assert found.path == path and "delete this snapshot" in found.problem and found.first is None

    def test_one_with_other_folds_is_damage(self) -> None:
        log = filled(count=3)
        wrong, _ = LogState.load(log.refresh().state.dump())
        wrong.fold(SinkBatches).land("app", 7)
        write_snapshot(log.storage, ROOT, wrong, "5" * 32)
        assert len(damage(log.storage)) == 1

    def test_good_ones_pass_whatever_was_rolled_or_expired_since(self) -> None:
        clock = ManualClock()
        log = open_log(segment_bytes=1, clock=clock)
        for number in range(6):
            clock.wall_ms += 1000
            log.append(message(f"m{number}", queue=number % 3), app=("app", number))
        log.snapshot()
        truncate = json.dumps({"topic": "t"}).encode()
        assert damage(log.storage) == []
        other = open_log(log.storage, segment_bytes=1, clock=clock)
        roll(other)
        expire(other, before_ms=clock.wall_ms - 2500)
        assert damage(log.storage) == []
        log.append(message("cut", topic=Truncations.topics[0], body=truncate))
        log.snapshot()
        log.append(message("end"))
        log.snapshot()
        report = verify(log.storage, ROOT, BROKER)
        assert report.ok and report.snapshots == 3, "the last two, and the one at the floor"


class TestForeignFiles:
    @pytest.mark.parametrize("suffix", [".bak", "~", ".arrow", "-copy"])
    def test_copies_under_other_names_are_left_alone(self, tmp_path: Path, suffix: str) -> None:
        log = filled(LocalStorage(tmp_path), count=4)
        log.snapshot()
        roll(log)
        log.append(message("m4"))
        log.append(message("m5"))
        log.snapshot()
        foreign = []
        for place in ("commitlog", "marks", "segments", "snapshots"):
            directory = tmp_path / ROOT / place
            for file in sorted(directory.glob("0*.arrow")):
                copy = file.with_name(file.name + suffix)
                shutil.copy(file, copy)
                foreign.append(copy)
        for number in (1, 4, 9):
            copy = tmp_path / ROOT / "commitlog" / f"{number:020d}.arrow{suffix}"
            copy.write_bytes(b"foreign")
            foreign.append(copy)
        found = verify(log.storage, ROOT, BROKER)
        assert found.ok
        assert {finding.path.rpartition("/")[2] for finding in found.findings} >= {copy.name for copy in foreign}
        with open_log(LocalStorage(tmp_path)) as again:
            roll(again)
            again.append(message("m6"))
            roll(again, min_commits=1)
            recover(again.storage, ROOT, BROKER, SystemClock())
            assert ids(again) == [f"m{number}" for number in range(7)]
        assert all(copy.exists() for copy in foreign)

    def test_names_are_read_exactly(self) -> None:
        number = f"{7:020d}"
        assert paths.file_number(f"{number}.arrow") == 7
        assert paths.snapshot_offset(f"{number}-00ff.arrow") == 7
        assert paths.segment_range(f"{number}-{9:020d}-00ff.arrow") == (7, 9)
        for name in (number, f"{number}.arrow\n", f"{number}.arrow.bak", f"{number}-x.arrow", "\u0660" * 20 + ".arrow"):
            assert paths.file_number(name) is None
        for name in (f"{number}.arrow", f"{number}-.arrow", f"{number}-x.arrow.bak", f"x{number}-x.arrow"):
            assert paths.snapshot_offset(name) is None and paths.segment_range(name) is None
        assert paths.segment_range(f"{number}-00ff.arrow") is None


def test_a_log_with_a_hole_is_not_opened_for_writing() -> None:
    log = filled(count=4)
    log.storage.delete(paths.commit(ROOT, 1))
    with pytest.raises(CorruptDataError, match=paths.commit(ROOT, 1)):
        open_log(log.storage)
    assert [(finding.first, finding.end) for finding in damage(log.storage)] == [(1, 2)]


class TestReadOnly:
    def test_no_upkeep_through_a_handle_for_reading(self) -> None:
        log = filled(count=3)
        file = write_row_file(log.storage, ROOT, message("r"), nonce="n1", block_bytes=1 << 18)
        before = {path: log.storage.read(path) for path in _every(log.storage)}
        reader = CommitLog(log.storage, ROOT, BROKER, read_only=True, settings=LogSettings(delete_grace_ms=0))
        for act in (roll, expire, lambda given: collect(given, orphan_age_ms=0)):
            with pytest.raises(ReadOnlyError):
                act(reader)
        assert {path: log.storage.read(path) for path in _every(log.storage)} == before and file.rows == 1


def _every(storage: Storage) -> list[str]:
    places = (paths.commitlog, paths.marks, paths.segments, paths.data, paths.snapshots)
    return [f"{place(ROOT)}/{info.name}" for place in places for info in storage.list(place(ROOT))]


class TestStore:
    def wrap(self, monkeypatch: pytest.MonkeyPatch) -> Wrapped:
        storage = Wrapped(MemoryStorage())
        monkeypatch.setattr(store_module, "open_storage", lambda *given, **named: storage)
        return storage

    def test_deleting_a_topic_can_be_repeated(self, monkeypatch: pytest.MonkeyPatch) -> None:
        storage = self.wrap(monkeypatch)
        store = Store.create("memory://x", settings=LogSettings(append_timeout_ms=50))
        for down in ("brokers/", "nameserver/"):
            store.create_topic("t", queues=1)
            Producer(store).send(Message(topic="t", body=b"secret"))

            def refuse(path: str, down: str = down) -> None:
                if path.startswith(down):
                    raise UnavailableError("down")

            storage.before_create = refuse
            with pytest.raises(UnavailableError):
                store.delete_topic("t")
            storage.before_create = None
            store.delete_topic("t")
            assert store.find_topic("t") is None
            store.create_topic("t", queues=1)
            bodies = [
                body
                for batch in store.log().scan(Query(topics=frozenset({"t"}), columns=("body",)))
                for body in batch.column(0)
            ]
            assert bodies == []

    def test_closing_closes_every_log_and_says_what_failed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        storage = self.wrap(monkeypatch)
        settings = LogSettings(flush=Flush.BUFFERED, linger_ms=60_000, append_timeout_ms=50)
        store = Store.create("memory://x", settings=settings)
        for broker in ("a", "b"):
            store.log(broker).append(message(broker))

        def refuse(path: str) -> None:
            if path.startswith("brokers/a"):
                raise UnavailableError("down")

        storage.before_create = refuse
        with pytest.raises(UnavailableError):
            store.close()
        storage.before_create = None
        with Store.open("memory://x") as again:
            assert ids(again.log("b")) == ["b"]
        store.close()
