"""Tags of each run of a file, as the hash codes by which a reader skips runs."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.log.arrow_columns import integers_of
from rmq_spark.model import java_hash

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

TAGS_PER_RUN_MAX: Final = 64
"""A run with more distinct tags than this lists none of them, and is never skipped by tag."""


def tag_codes(tags: pa.StringArray, order: I64 | None, rows: I32) -> tuple[I32, I32]:
    """Distinct tag codes per run, as (count per run, codes concatenated), sorted within a run.

    Args:
        tags: of each row, in the original order of rows.
        order: original number of each sorted row; None when the rows are sorted already.
        rows: number of rows of each run.
    """
    encoded = tags.dictionary_encode("encode")
    # No tag and an empty one have the same code; others may share theirs, too.
    codes, rank = np.unique(_hashes(encoded.dictionary), return_inverse=True)
    runs, distinct = len(rows), len(codes)
    if runs == 1 or distinct == 1:
        cells = np.arange(runs * distinct)  # every run has every code
    else:
        code_of_row = rank[integers_of(encoded.indices)]
        in_order = code_of_row if order is None else code_of_row[order]
        cells = _distinct(np.repeat(np.arange(runs) * distinct, rows) + in_order, runs * distinct)
    run, code = np.divmod(cells, distinct)
    counts = np.bincount(run, minlength=runs).astype(np.int32)
    crowded = counts > TAGS_PER_RUN_MAX
    listed = codes[code[~crowded[run]]]
    counts[crowded] = -1
    return counts, listed


def _distinct(values: I64, end: int) -> I64:
    """The distinct ones of numbers below `end`, sorted."""
    if end > 16 * len(values):
        return np.unique(values)
    seen = np.zeros(end, np.bool_)  # several times faster than to sort them
    seen[values] = True
    return np.flatnonzero(seen)


def _hashes(tags: pa.StringArray) -> I32:
    """The code of each tag."""
    if len(tags) <= TAGS_PER_RUN_MAX:
        return np.array([java_hash.java_hash(tag or "") for tag in tags.to_pylist()], np.int32)
    return java_hash.java_hashes(tags)
