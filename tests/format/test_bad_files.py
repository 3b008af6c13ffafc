"""Files that are truncated, swapped, foreign, empty or duplicated: an error names the file, and nothing changes."""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa
import pytest
import sample_log
from sample_log import BROKER, ROOT, Sample, meta_of

from rmq_spark.client.store import Store
from rmq_spark.clock import ManualClock
from rmq_spark.errors import CorruptDataError, RmqError, UnsupportedVersionError
from rmq_spark.log import file_encoder, file_format, schema
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.file_format import NeedMoreError, parse
from rmq_spark.log.file_layout import VERSION
from rmq_spark.log.verify import verify
from rmq_spark.storage import paths
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.testing.whole_file import check_whole


@pytest.fixture
def sample() -> Sample:
    return sample_log.build(large_rows=90)


def replace(storage: MemoryStorage, path: str, content: bytes) -> None:
    directory, _, name = path.rpartition("/")
    storage._tree.directories.setdefault(directory, {})[name] = (content, 0)


def contents(sample: Sample) -> dict[str, bytes]:
    return {path: sample.storage.read(path) for path in sample.files()}


def commits(sample: Sample) -> list[str]:
    return [path for path in sample.files() if "/commitlog/" in path]


def assert_refused(sample: Sample, path: str) -> None:
    """Reading and verifying both name the file, and no file changes."""
    before = contents(sample)
    with pytest.raises(CorruptDataError) as caught:
        sample_log.read_all(sample.storage, sample.clock)
    assert path in str(caught.value)
    if path >= commits(sample)[-1]:  # else the snapshot lies behind the damage, and writers may go on from it
        with pytest.raises(CorruptDataError):
            sample_log.open_log(sample.storage, sample.clock).append(sample_log.small(sample.clock, 99))
    report = verify(sample.storage, ROOT, BROKER)
    assert path in {finding.path for finding in report.findings if finding.damage}
    assert contents(sample) == before


def plain_arrow() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"a": [1, 2, 3]})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


FOREIGN: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "one byte": lambda: b"A",
    "magic only": lambda: b"ARROW1\x00\x00ARROW1",
    "text": lambda: b"this is not an Arrow file, but it is long enough to look for a footer in it\n" * 4,
    "zeros": lambda: bytes(4096),
    "plain Arrow": plain_arrow,
}


# ---------------------------------------------------------------- truncated


def test_a_small_commit_cut_at_any_length_is_refused(sample: Sample) -> None:
    path = commits(sample)[-1]
    content = sample.storage.read(path)
    assert parse(path, content, len(content)).rows == 3
    for length in range(len(content)):
        cut = content[:length]
        with pytest.raises(CorruptDataError):
            parse(path, cut, length)
        with pytest.raises(CorruptDataError):
            check_whole(path, cut)


@pytest.mark.parametrize("which", [0, -1], ids=["first commit", "last commit"])
def test_a_log_with_a_cut_commit_is_refused(sample: Sample, which: int) -> None:
    path = commits(sample)[which]
    content = sample.storage.read(path)
    for length in (0, 1, 19, 20, 100, len(content) // 2, len(content) - 1):
        replace(sample.storage, path, content[:length])
        assert_refused(sample, path)


def test_a_large_file_cut_anywhere_is_refused(sample: Sample) -> None:
    for path in sample.files():
        content = sample.storage.read(path)
        for length in range(0, len(content), 997):
            try:
                parse(path, content[:length][-file_format.TAIL_BYTES :], length)
            except (CorruptDataError, NeedMoreError):
                continue
            pytest.fail(f"{path} was accepted when cut to {length} bytes")


def test_a_file_with_bytes_behind_its_end_is_refused(sample: Sample) -> None:
    path = commits(sample)[-1]
    replace(sample.storage, path, sample.storage.read(path) + b"\x00" * 8)
    assert_refused(sample, path)


# ---------------------------------------------------------------- swapped and duplicated


def test_two_commits_that_changed_places_are_refused(sample: Sample) -> None:
    first, second = commits(sample)[:2]
    one, other = sample.storage.read(first), sample.storage.read(second)
    assert len(meta_of(sample.storage, first).doc["topics"]) == len(meta_of(sample.storage, second).doc["topics"])
    replace(sample.storage, first, other)
    replace(sample.storage, second, one)
    assert_refused(sample, first)


def test_a_copy_of_a_commit_at_the_next_name_is_refused(sample: Sample) -> None:
    path = commits(sample)[-1]
    after = paths.commit(ROOT, meta_of(sample.storage, path).doc["first"] + 3)
    replace(sample.storage, after, sample.storage.read(path))
    assert_refused(sample, after)


def test_a_copy_of_a_commit_behind_the_end_is_never_read(sample: Sample) -> None:
    stray = paths.commit(ROOT, 10_000)
    replace(sample.storage, stray, sample.storage.read(commits(sample)[-1]))
    assert sample_log.read_all(sample.storage, sample.clock).equals(sample.messages)
    report = verify(sample.storage, ROOT, BROKER)
    assert not report.ok
    assert stray in {finding.path for finding in report.findings}


def test_a_copy_of_a_commit_below_the_floor_is_never_read(sample: Sample) -> None:
    stray = paths.commit(ROOT, 0)
    replace(sample.storage, stray, sample.storage.read(commits(sample)[-1]))
    assert sample_log.read_all(sample.storage, sample.clock).equals(sample.messages)
    report = verify(sample.storage, ROOT, BROKER)
    assert report.ok
    assert [finding.path for finding in report.findings] == [stray]


def test_copies_of_segments_and_row_files_are_never_read(sample: Sample) -> None:
    copies = set()
    for path in sample.files():
        if "/segments/" in path or "/data/" in path:
            copies.add(path.replace(".arrow", "0.arrow"))
            replace(sample.storage, path.replace(".arrow", "0.arrow"), sample.storage.read(path))
    assert sample_log.read_all(sample.storage, sample.clock).equals(sample.messages)
    report = verify(sample.storage, ROOT, BROKER)
    assert report.ok
    assert {finding.path for finding in report.findings} == copies


def test_two_row_files_that_changed_places_are_refused(sample: Sample) -> None:
    one, other = [path for path in sample.files() if "/data/" in path]
    first, second = sample.storage.read(one), sample.storage.read(other)
    replace(sample.storage, one, second)
    replace(sample.storage, other, first)
    with pytest.raises(CorruptDataError, match="another one stands in its place"):
        sample_log.read_all(sample.storage, sample.clock)
    report = verify(sample.storage, ROOT, BROKER)
    assert {finding.path for finding in report.findings if finding.damage} == {one, other}


def test_two_segments_that_changed_places_are_refused(sample: Sample) -> None:
    one, other = [path for path in sample.files() if "/segments/" in path]
    first, second = sample.storage.read(one), sample.storage.read(other)
    replace(sample.storage, one, second)
    replace(sample.storage, other, first)
    with pytest.raises(CorruptDataError):
        sample_log.read_all(sample.storage, sample.clock)
    report = verify(sample.storage, ROOT, BROKER)
    assert {one, other} <= {finding.path for finding in report.findings if finding.damage}


def test_a_segment_replaced_by_another_of_its_range_is_refused(sample: Sample) -> None:
    """The first segment is not the one that carries the state, so only the read itself can notice."""
    one, other = [path for path in sample.files() if "/segments/" in path]
    replace(sample.storage, one, sample.storage.read(other))
    with pytest.raises(CorruptDataError):
        sample_log.read_all(sample.storage, sample.clock)


# ---------------------------------------------------------------- foreign


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("place", ["commitlog", "segments", "data", "marks"])
def test_a_foreign_file_in_place_of_one_of_the_log_is_refused(sample: Sample, kind: str, place: str) -> None:
    path = [path for path in sample.files() if f"/{place}/" in path][-1]
    replace(sample.storage, path, FOREIGN[kind]())
    with pytest.raises(CorruptDataError):
        sample_log.read_all(sample.storage, sample.clock)
    report = verify(sample.storage, ROOT, BROKER)
    assert path in {finding.path for finding in report.findings if finding.damage}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_in_place_of_a_snapshot_costs_nothing(sample: Sample, kind: str) -> None:
    path = next(path for path in sample.files() if "/snapshots/" in path)
    replace(sample.storage, path, FOREIGN[kind]())
    assert sample_log.read_all(sample.storage, sample.clock).equals(sample.messages)
    report = verify(sample.storage, ROOT, BROKER)
    assert report.ok
    assert [finding.path for finding in report.findings] == [path]


def test_a_file_of_another_kind_in_a_commits_place_is_refused(sample: Sample) -> None:
    target = commits(sample)[-1]
    for path in sample.files():
        if "/commitlog/" not in path:
            replace(sample.storage, target, sample.storage.read(path))
            assert_refused(sample, target)


def test_a_commit_of_another_log_is_refused(sample: Sample) -> None:
    """The same broker's name, offset and messages, but another history before it."""
    clock = ManualClock(sample_log.START_MS)
    other = MemoryStorage(clock=clock)
    log = CommitLog(other, ROOT, BROKER, clock=clock)
    for number in range(200):
        log.append(sample_log.small(clock, number))
    target = commits(sample)[0]
    first = meta_of(sample.storage, target).doc["first"]
    theirs = next(n for n in range(first, 600) if other.exists(paths.commit(ROOT, n)))
    replace(sample.storage, target, other.read(paths.commit(ROOT, theirs)))
    assert_refused(sample, target)


def test_a_commit_of_another_broker_is_refused() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    CommitLog(storage, "brokers/b", "b", clock=clock).append(sample_log.small(clock, 1))
    replace(storage, paths.commit(ROOT, 0), storage.read(paths.commit("brokers/b", 0)))
    with pytest.raises(CorruptDataError, match="commit is of another log"):
        CommitLog(storage, ROOT, BROKER, clock=clock)


def test_a_snapshot_of_another_history_is_passed_over(sample: Sample) -> None:
    path = next(path for path in sample.files() if "/snapshots/" in path)
    meta = meta_of(sample.storage, path)
    clock = ManualClock(sample_log.START_MS + 1)
    other = sample_log.build(clock=clock, large_rows=90)
    theirs = next(file for file in other.files() if "/snapshots/" in file)
    replace(sample.storage, path, other.storage.read(theirs))
    assert meta_of(sample.storage, path).digest != meta.digest
    assert sample_log.read_all(sample.storage, sample.clock).equals(sample.messages)
    assert [finding.damage for finding in verify(sample.storage, ROOT, BROKER).findings] == [False]


def test_a_newer_version_is_refused_as_such(sample: Sample) -> None:
    path = commits(sample)[-1]
    doc = dict(meta_of(sample.storage, path).doc)
    blocks = file_encoder.make_blocks("commit", [pa.RecordBatch.from_pylist([], schema=schema.ROWS)])
    encoded = file_encoder.Encoded(blocks, {**doc, "v": VERSION + 1})
    replace(sample.storage, path, b"".join(encoded))
    with pytest.raises(UnsupportedVersionError, match="upgrade rmq-spark"):
        sample_log.open_log(sample.storage, sample.clock)
    assert not verify(sample.storage, ROOT, BROKER).ok


# ---------------------------------------------------------------- missing


def test_a_missing_commit_is_found_with_what_it_costs(sample: Sample) -> None:
    first, second = commits(sample)[1:3]
    sample.storage.delete(first)
    report = verify(sample.storage, ROOT, BROKER)
    (finding,) = report.findings
    assert (finding.path, finding.damage) == (first, True)
    assert (finding.first, finding.end) == (int(first[-26:-6]), int(second[-26:-6]))


@pytest.mark.parametrize("place", ["segments", "data"])
def test_a_missing_segment_or_row_file_is_an_error_of_the_read(sample: Sample, place: str) -> None:
    path = next(path for path in sample.files() if f"/{place}/" in path)
    sample.storage.delete(path)
    with pytest.raises(CorruptDataError, match="missing"):
        sample_log.read_all(sample.storage, sample.clock)
    report = verify(sample.storage, ROOT, BROKER)
    assert path in {finding.path for finding in report.findings if finding.damage}


# ---------------------------------------------------------------- store.json


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", CorruptDataError),
        (b"{", CorruptDataError),
        (b"[]", CorruptDataError),
        (b"{}", CorruptDataError),
        (b"\xff\xfe", CorruptDataError),
        (b'{"format": 2}', UnsupportedVersionError),
    ],
)
def test_a_bad_store_file_is_refused(content: bytes, expected: type[RmqError]) -> None:
    MemoryStorage.forget("bad-store")
    storage = MemoryStorage("bad-store")
    storage.create_if_absent(paths.STORE_FILE, [content])
    with pytest.raises(expected):
        Store.open("memory://bad-store")
    assert storage.read(paths.STORE_FILE) == content
