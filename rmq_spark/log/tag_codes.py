"""Tags of each run of a file, as the hash codes by which a reader skips runs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.model import java_hash

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

TAGS_PER_RUN_MAX: Final = 64
"""A run with more distinct tags than this lists none of them, and is never skipped by tag."""


def tag_codes(tags: pa.StringArray, order: I64 | None, rows: I32) -> tuple[I32, I32]:
    """Distinct tag codes per run, as (count per run, codes concatenated), in the order in which they first appear.

    Args:
        tags: of each row, in the original order of rows.
        order: original number of each sorted row; None when the rows are sorted already.
        rows: number of rows of each run.
    """
    if len(rows) == 0:
        return rows, rows
    if len(rows) == 1:
        return _of_one_run(tags)
    tags = pc.fill_null(tags, "") if tags.null_count else tags
    encoded = tags.dictionary_encode()
    return _of_many_runs(_hashes(encoded.dictionary), encoded.indices.to_numpy(zero_copy_only=False), order, rows)


def _of_one_run(tags: pa.StringArray) -> tuple[I32, I32]:
    distinct = tags.unique()
    hashes = _hashes(distinct.fill_null("") if distinct.null_count else distinct)
    if tags.null_count and "" in distinct.to_pylist():
        hashes = np.unique(hashes)  # no tag and an empty one have the same code
    if len(hashes) > TAGS_PER_RUN_MAX:
        return np.array([-1], np.int32), hashes[:0]
    return np.array([len(hashes)], np.int32), hashes


def _of_many_runs(hashes: I32, kind: npt.NDArray[Any], order: I64 | None, rows: I32) -> tuple[I32, I32]:
    """Tag codes per run, from the hash of each distinct tag and, per row, the index of its tag among them."""
    runs, kinds = len(rows), len(hashes)
    if order is not None and kinds > 1:
        hashes, kind = _in_order(hashes, kind[order])
    if kinds == 1:
        return np.ones(runs, np.int32), np.full(runs, hashes[0], np.int32)
    cell = np.repeat(np.arange(0, runs * kinds, kinds, dtype=np.int64), rows)
    cell += kind
    if runs * kinds <= 16 * len(cell):
        seen = np.zeros(runs * kinds, np.bool_)
        seen[cell] = True
        cells = np.flatnonzero(seen)
    else:
        cells = np.unique(cell)
    owner = cells // kinds
    counts = np.bincount(owner, minlength=runs).astype(np.int32)
    crowded = counts > TAGS_PER_RUN_MAX
    codes = hashes[cells % kinds]
    if crowded.any():
        codes = codes[~crowded[owner]]
        counts[crowded] = -1
    return counts, codes.astype(np.int32)


def _in_order(hashes: I32, kind: npt.NDArray[Any]) -> tuple[I32, npt.NDArray[Any]]:
    """Renumber the distinct values in the order in which they first appear among the rows."""
    first = np.empty(len(hashes), np.int64)
    first[kind[::-1]] = np.arange(len(kind))[::-1]  # the last write to a place wins: the first row of each value
    order = np.argsort(first)
    rank = np.empty(len(hashes), kind.dtype)
    rank[order] = np.arange(len(hashes))
    return hashes[order], rank[kind]


def _hashes(tags: pa.StringArray) -> I32:
    """The code of each tag."""
    if len(tags) <= TAGS_PER_RUN_MAX:
        return np.array([java_hash.java_hash(tag) for tag in tags.to_pylist()], np.int32)
    return java_hash.java_hashes(tags)
