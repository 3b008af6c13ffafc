"""Files for `verify`: whole and checked, read ahead where there are many small ones; and its check of a few rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from rmq_spark.log import bloom
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.queues import Queues
from rmq_spark.log.rows import join_described
from rmq_spark.model.java_hash import java_hash
from rmq_spark.storage.base import Storage

SMALL_BYTES: Final = 128 * 1024
"""Files up to this size are read ahead."""

AHEAD_FILES: Final = 128
"""How many at once: together 16 MiB at most, and enough to keep a bucket's 16 connections busy."""

_ONE_PART: Final = [-1]
FEW_ROWS: Final = 8
"""Up to so many rows plain Python is quicker than arrays: 15 times for one row."""

DESCRIBED: Final = ("topic", "queueId", "msgId", "tags", "keys")
"""The columns of which a file's metadata says something."""


class ReadAhead:
    """Reads whole files that somebody goes through in the order of a listing, many small ones at a time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._paths: list[str] = []
        self._place: dict[str, int] = {}
        self._ready: dict[str, bytes] = {}

    def expect(self, files: Sequence[tuple[str, int]]) -> None:
        """Name the (path, size) of files in the order in which they will be read; others can be read at any time."""
        self._paths = [path for path, size in files if size <= SMALL_BYTES]
        self._place = {path: place for place, path in enumerate(self._paths)}

    def read(self, path: str) -> bytes:
        """The whole file.

        Raises:
            NotFoundError: there is no such file.
        """
        data = self._ready.pop(path, None)
        if data is not None:
            return data
        place = self._place.get(path)
        if place is not None:
            paths = self._paths[place : place + AHEAD_FILES]
            tails = self._storage.read_tails(paths, SMALL_BYTES)
            # Whatever is not there, or has grown, is for the plain call to tell.
            self._ready = {
                path: tail[0] for path, tail in zip(paths, tails, strict=True) if tail and len(tail[0]) == tail[1]
            }
            data = self._ready.pop(path, None)
        return self._storage.read(path) if data is None else data


def check_few_rows(meta: FileMeta, batch: pa.RecordBatch) -> None:
    """Check all rows of a small file against what its metadata says of them, as `check_described` does for many.

    Raises:
        CorruptDataError: run index, tag codes, id range or key bloom do not describe them.
    """
    topics, queues, ids, tags, keys = [column.to_pylist() for column in batch.columns]
    runs = meta.runs
    if sum(runs.rows.tolist()) != meta.rows:
        raise meta.corrupt("run index does not cover the rows")
    least, greatest = meta.doc["ids"]
    names, codes, row = runs.topics, runs.tag_codes.tolist(), 0
    described = zip(runs.topic.tolist(), runs.queue.tolist(), runs.rows.tolist(), runs.tag_counts.tolist(), strict=True)
    for topic, queue, rows, tag_count in described:
        # A run with too many tags lists none and hides nothing.
        listed = codes[:tag_count] if tag_count >= 0 else None
        del codes[: max(tag_count, 0)]
        for at in range(row, row + rows):
            if topics[at] != names[topic] or queues[at] != queue:
                raise meta.corrupt("run index does not describe the rows", row=at)
            if not least <= ids[at] <= greatest:
                raise meta.corrupt("an id is outside the range that the metadata names", ids=[least, greatest])
            if listed is not None and java_hash(tags[at] or "") not in listed:
                raise meta.corrupt("a tag is not among those that the metadata names for its run")
            if keys[at] and not all(bloom.may_contain(meta.bloom, key) for key in keys[at].split(" ") if key):
                raise meta.corrupt("a key is not in the key filter")
        row += rows


def check_counts(meta: FileMeta, before: Queues | None) -> None:
    """A segment goes on where `before` ended (None: not known, for damage), which then counts its rows, too."""
    if before is None:
        return
    if not np.array_equal(before.number(meta.runs, _ONE_PART), meta.bases):
        raise meta.corrupt("queue offsets do not continue where the log left them")
    before.advance(meta.runs, _ONE_PART)


def check_references(meta: FileMeta, files: list[FileMeta]) -> None:
    """A commit says of its row files what they say themselves; not checked if one is damaged."""
    named = meta.doc["files"]
    if len(files) < len(named):
        return
    runs, ids = join_described(files)
    said = meta.runs
    same = said.topics == runs.topics and meta.doc["ids"] == ids
    for name in ("topic", "queue", "rows", "tag_counts", "tag_codes"):
        same = same and np.array_equal(getattr(said, name), getattr(runs, name))
    counts = [[file.rows, file.size, len(file.runs.rows)] for file in files]
    if not same or [entry[2:5] for entry in named] != counts or sum(file.rows for file in files) != meta.rows:
        raise meta.corrupt("commit describes its row files wrongly")
