"""Where rows are cut into blocks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.log.rows import cut

BODY = 100
KB = 1024


def segment(times: list[int]) -> pa.RecordBatch:
    return pa.record_batch(
        {"body": pa.array([b"x" * BODY] * len(times)), "storeTimestamp": pa.array(times, pa.timestamp("ms", "UTC"))}
    )


def sizes(batches: list[pa.RecordBatch]) -> list[int]:
    return [batch.num_rows for batch in batches]


@pytest.mark.parametrize("commits", [[400, 90, 700], [50] * 40, [1000], [130, 131, 129, 1000, 7]])
def test_blocks_of_a_segment_end_with_commits(commits: list[int]) -> None:
    times = np.repeat(np.arange(len(commits)), commits).tolist()
    blocks = cut(segment(times), np.array([len(times)], np.int32), 5 * KB, 10 * KB)
    ends = np.cumsum(sizes(blocks))
    assert ends[-1] == len(times)
    # Rows have some 112 bytes, so a block has at most 91 rows; a commit of fewer than 46 may share one.
    assert max(sizes(blocks)) <= 92
    edges = [edge for edge, commit in zip(np.cumsum(commits), commits, strict=True) if commit >= 46]
    assert set(edges) <= set(ends.tolist())


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_every_row_is_in_one_block_of_a_fair_size(runs: list[int], steps: list[int]) -> None:
    rows = sum(runs)
    times = np.repeat(np.arange(len(steps)), steps)
    times = np.sort(np.resize(times, rows))
    batch = segment(times.tolist())
    blocks = cut(batch, np.array(runs, np.int32), KB, 2 * KB)
    assert pa.Table.from_batches(blocks).equals(pa.Table.from_batches([batch]))
    assert min(sizes(blocks)) >= 1
    assert max(block.num_rows for block in blocks) * (BODY + 12) <= 2 * KB + 60 * (BODY + 12)
