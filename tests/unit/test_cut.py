"""Where rows are cut into blocks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
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
