"""Which tags each run of a file has, as the hash codes by which a reader prunes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.log.arrow_columns import equal_width, offsets_of
from rmq_spark.model import java_hash

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

TAGS_PER_RUN_MAX: Final = 64
"""A run with more distinct tags than this lists none of them, and is never pruned by tag."""
FEW_KINDS: Final = 16
"""Up to so many distinct tags are found by looking for each, and are a bit each of a row's number."""
WORDS_ROWS: Final = 2_000
"""In fewer rows than this, a look for each of the tags is not quicker than a dictionary."""


def tag_codes(tags: pa.StringArray, order: I64 | None, rows: I32) -> tuple[I32, I32]:
    """Distinct tag codes per run, as (count per run, codes concatenated), in the order in which they first appear.

    Args:
        tags: of each row, as the rows came.
        order: number of each sorted row among those; None when they are sorted.
        rows: per run, how many it has.
    """
    if len(rows) == 0:
        return rows, rows
    if len(rows) == 1:
        return _of_one_run(tags)
    tags = pc.fill_null(tags, "") if tags.null_count else tags
    found = _few_kinds(tags)
    if found is not None:
        return _of_few_kinds(_hashes_at(tags, found), list(found.values()), order, rows)
    encoded = tags.dictionary_encode()
    return _of_many_kinds(_hashes(encoded.dictionary), encoded.indices.to_numpy(zero_copy_only=False), order, rows)


def _of_one_run(tags: pa.StringArray) -> tuple[I32, I32]:
    found = None if tags.null_count else _few_kinds(tags)
    if found is not None:
        hashes = _hashes_at(tags, found)
    else:
        distinct = tags.unique()
        hashes = _hashes(distinct.fill_null("") if distinct.null_count else distinct)
        if tags.null_count and "" in distinct.to_pylist():
            hashes = np.unique(hashes)  # no tag and an empty one have the same code
    if len(hashes) > TAGS_PER_RUN_MAX:
        return np.array([-1], np.int32), hashes[:0]
    return np.array([len(hashes)], np.int32), hashes


def _of_few_kinds(hashes: I32, masks: list[npt.NDArray[np.bool_]], order: I64 | None, rows: I32) -> tuple[I32, I32]:
    """Given the codes of the distinct tags, and which rows have each."""
    # A few bytes a row: arrays of eight make malloc trim its heap after each append, and get it again page by page.
    bits = np.zeros(len(masks[0]), "<u2")
    for index, mask in enumerate(masks):
        bits |= np.left_shift(mask, index, dtype="<u2")
    if order is not None:
        bits = bits[order]
        ranks = np.argsort([int((bits == 1 << index).argmax()) for index in range(len(masks))])
    each = np.bitwise_or.reduceat(bits, np.cumsum(rows, dtype=np.int64) - rows)
    seen = np.unpackbits(each.view(np.uint8).reshape(-1, 2), axis=1, bitorder="little")[:, : len(masks)]
    if order is not None:
        hashes, seen = hashes[ranks], seen[:, ranks]
    codes = np.broadcast_to(hashes, seen.shape)[seen.view(np.bool_)]
    return seen.sum(axis=1, dtype=np.int32), codes


def _of_many_kinds(hashes: I32, kind: npt.NDArray[Any], order: I64 | None, rows: I32) -> tuple[I32, I32]:
    """Given the codes of the distinct tags, and per row which of them it has."""
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
    """The distinct values numbered anew, in the order in which they first appear among the rows."""
    first = np.empty(len(hashes), np.int64)
    first[kind[::-1]] = np.arange(len(kind))[::-1]  # of those that go to one place the last one stays
    order = np.argsort(first)
    rank = np.empty(len(hashes), kind.dtype)
    rank[order] = np.arange(len(hashes))
    return hashes[order], rank[kind]


def _few_kinds(tags: pa.StringArray) -> dict[int, npt.NDArray[np.bool_]] | None:
    """Which rows have each distinct value of a column without nulls, by the first of them; None: not worth the looks.

    A few short tags of one length are often what there is: a pass for each beats a hash for each row.
    """
    words = _as_words(tags) if len(tags) >= WORDS_ROWS else None
    if words is None:
        return None
    seen = words == words[0]
    found = {0: seen.copy()}
    while not seen.all():
        if len(found) == FEW_KINDS:
            return None
        first = int(seen.argmin())
        found[first] = words == words[first]
        seen |= found[first]
    return found


def _as_words(texts: pa.StringArray) -> npt.NDArray[Any] | None:
    """Texts that all have 1, 2, 4 or 8 bytes, as unsigned numbers; None for any other column."""
    offsets = offsets_of(texts)
    width = equal_width(offsets)
    if width not in (1, 2, 4, 8):
        return None
    return np.frombuffer(texts.buffers()[2], f"u{width}", len(texts), int(offsets[0]))


def _hashes_at(tags: pa.StringArray, rows: Iterable[int]) -> I32:
    return np.array([java_hash.java_hash(tags[row].as_py()) for row in rows], np.int32)


def _hashes(tags: pa.StringArray) -> I32:
    """The code of each tag."""
    if len(tags) <= TAGS_PER_RUN_MAX:
        return np.array([java_hash.java_hash(tag) for tag in tags.to_pylist()], np.int32)
    return java_hash.java_hashes(tags)
