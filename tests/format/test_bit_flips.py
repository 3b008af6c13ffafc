"""One flipped bit anywhere in a log is found by `verify`, and is never returned as data by a read."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import sample_log
from sample_log import BROKER, ROOT, Sample, meta_of

from rmq_spark.errors import RmqError
from rmq_spark.log.verify import verify
from rmq_spark.storage.memory import MemoryStorage

SEED = 20_240_501
FLIPS = 1_000
FEW_COLUMNS = ("queueId", "commitOffset", "properties")
"""Less than half of the columns: they are fetched one by one, which is another way through the reader."""

pytestmark = pytest.mark.filterwarnings("ignore")  # a damaged snapshot is logged, and that is all


@pytest.fixture(scope="module")
def sample() -> Sample:
    return sample_log.build(large_rows=130)


def replace(storage: MemoryStorage, path: str, content: bytes) -> None:
    """Put other bytes under a name: what no caller of the storage can do, and a failing disk can."""
    directory, _, name = path.rpartition("/")
    files = storage._tree.directories[directory]
    files[name] = (content, files[name][1])


def with_flipped_bit(sample: Sample, path: str, position: int, bit: int) -> Iterator[None]:
    content = sample.storage.read(path)
    damaged = bytearray(content)
    damaged[position] ^= 1 << bit
    replace(sample.storage, path, bytes(damaged))
    yield
    replace(sample.storage, path, content)


def check_verify(sample: Sample, path: str, where: str) -> None:
    report = verify(sample.storage, ROOT, BROKER)
    found = [finding for finding in report.findings if finding.path == path]
    assert found, f"verify found nothing in the damaged file: {where}"
    # Snapshots are no part of the truth: readers skip a damaged one, so it costs nothing.
    assert any(finding.damage for finding in found) or "/snapshots/" in path, where


def check_read(sample: Sample, columns: tuple[str, ...] | None, where: str) -> bool:
    """A read gives the original rows or an error of this project; return whether it gave rows."""
    expected = sample.messages if columns is None else sample.messages.select(columns)
    try:
        table = sample_log.read_all(sample.storage, sample.clock, columns)
    except RmqError:
        return False
    assert table.equals(expected), f"damaged data was returned: {where}, columns={columns}"
    return True


def places(sample: Sample, seed: int, count: int) -> Iterator[tuple[str, int, int]]:
    """Positions drawn over all bytes of all files."""
    draw = random.Random(seed)
    sizes = {path: len(sample.storage.read(path)) for path in sample.files()}
    for _ in range(count):
        position = draw.randrange(sum(sizes.values()))
        for path, size in sizes.items():
            if position < size:
                yield path, position, draw.randrange(8)
                break
            position -= size


def test_the_sample_has_every_kind_of_file_and_verifies(sample: Sample) -> None:
    kinds = {path.split("/")[2] for path in sample.files()}
    assert kinds == set(sample_log.DIRECTORIES)
    metas = [meta_of(sample.storage, path) for path in sample.files()]
    for kind in ("commit", "segment", "rows"):
        tables = {"blocks" in meta.doc for meta in metas if meta.kind == kind and not meta.doc.get("files")}
        assert tables == {True, False}, f"{kind}: both a small file and one with a block table are wanted"
        assert any(len(meta.places.rows) > 2 for meta in metas if meta.kind == kind)
        assert any(meta.whole is None for meta in metas if meta.kind == kind), f"{kind}: one is larger than the tail"
    report = verify(sample.storage, ROOT, BROKER)
    assert report.findings == []
    assert report.messages == sample.messages.num_rows


def test_a_thousand_flipped_bits_are_all_found_and_never_returned(sample: Sample) -> None:
    served = 0
    for number, (path, position, bit) in enumerate(places(sample, SEED, FLIPS)):
        where = f"seed={SEED}, flip={number}, file={path}, byte={position}, bit={bit}"
        for _ in with_flipped_bit(sample, path, position, bit):
            check_verify(sample, path, where)
            served += check_read(sample, (None, FEW_COLUMNS)[number % 2], where)
    assert 0 < served < FLIPS, "reads must both have met damage and have been spared it (padding, other columns)"
    assert sample_log.read_all(sample.storage, sample.clock).equals(sample.messages)


def test_flipped_bits_in_block_headers_and_footers_are_errors_or_harmless(sample: Sample) -> None:
    """Those bytes steer Arrow's own parser, so they are flipped more often than chance would have it."""
    draw = random.Random(SEED)
    for path in sample.files():
        meta = meta_of(sample.storage, path)
        if meta.whole is not None:
            continue
        start = int(meta.block_starts[0])
        spots = [draw.randrange(start, start + int(meta.places.body[0])) for _ in range(60)]
        spots += [draw.randrange(meta.data_end, meta.size) for _ in range(60)]
        for position in spots:
            bit = draw.randrange(8)
            for _ in with_flipped_bit(sample, path, position, bit):
                where = f"seed={SEED}, file={path}, byte={position}, bit={bit}"
                check_read(sample, (None, FEW_COLUMNS)[bit % 2], where)


def test_two_damaged_files_are_both_reported(sample: Sample) -> None:
    paths = [path for path in sample.files() if "/commitlog/" in path]
    for _ in with_flipped_bit(sample, paths[0], 1_000, 3):
        for _ in with_flipped_bit(sample, paths[-1], 2_000, 5):
            report = verify(sample.storage, ROOT, BROKER)
    damaged = [finding for finding in report.findings if finding.damage]
    assert [finding.path for finding in damaged] == [paths[0], paths[-1]]
    firsts = [int(path[-26:-6]) for path in paths]
    assert (damaged[0].first, damaged[0].end) == (firsts[0], firsts[1])
    assert verify(sample.storage, ROOT, BROKER).ok
