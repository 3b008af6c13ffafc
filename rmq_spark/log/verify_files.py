"""Files for `verify`: every bit and every row checked, small commits together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import RmqError
from rmq_spark.log import bloom
from rmq_spark.log.arrow_columns import integers
from rmq_spark.log.file_format import FileMeta, check_whole
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.queues import Queues
from rmq_spark.log.rows import check_described, join_described, tags_listed
from rmq_spark.log.run_index import Runs
from rmq_spark.log.small_commits import decode_commits, is_small
from rmq_spark.storage.base import Storage

UNREADABLE: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What metadata raises whose check-sums are right and whose content is not."""

SMALL_BYTES: Final = 128 * 1024
"""Files up to this size are read ahead."""

AHEAD_FILES: Final = 128
"""How many at once: together 16 MiB at most, and enough to keep a bucket's 16 connections busy."""

DESCRIBED: Final = ("topic", "queueId", "msgId", "tags", "keys")
"""The columns of which a file's metadata says something."""


class CheckedFiles:
    """Whole files with every bit checked; those that somebody goes through in the order of a listing, many at a time.

    Args:
        storage: where they are.
        on_read: called with the size of each file that was asked for.
    """

    def __init__(self, storage: Storage, on_read: Callable[[int], None]) -> None:
        self._storage = storage
        self._on_read = on_read
        self._paths: list[str] = []
        self._place: dict[str, int] = {}
        self._ready: dict[str, FileMeta] = {}
        self._described: set[str] = set()
        """Paths of small commits whose rows are as their metadata says."""

    def expect(self, files: Sequence[tuple[str, int]]) -> None:
        """Name the (path, size) of commits in the order in which they will be read; others can be read at any time."""
        self._paths = [path for path, size in files if size <= SMALL_BYTES]
        self._place = {path: place for place, path in enumerate(self._paths)}

    def read(self, path: str) -> FileMeta:
        """The metadata of a file, of which every byte has its check-sum.

        Raises:
            NotFoundError: there is no such file.
            CorruptDataError: some bit is not what was written, or it is no file of this project's.
            UnsupportedVersionError: written by a newer version.
        """
        if path not in self._ready and path in self._place:
            self._read_ahead(self._place[path])
        meta = self._ready.pop(path, None)
        if meta is None:
            data = self._storage.read(path)
            self._on_read(len(data))
            meta = check_whole(path, data)
            meta.whole = data
        else:
            self._on_read(meta.size)
        return meta

    def check_rows(self, meta: FileMeta) -> None:
        """Check every row of a file that was read here against everything that the metadata says of them.

        Raises:
            CorruptDataError: rows cannot be parsed, or are not as the metadata says.
        """
        if meta.path not in self._described:
            for _ in self.described_rows(meta, DESCRIBED):
                pass

    def described_rows(self, meta: FileMeta, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Every block, after checking its rows against everything that the metadata says of them.

        Raises:
            CorruptDataError: rows cannot be parsed, or are not as the metadata says.
        """
        if int(meta.runs.rows.sum()) != meta.rows:
            raise meta.corrupt("run index does not cover the rows")
        at = 0
        # All columns, for their check-sums; then only those that are asked for.
        every = FileReader(self._storage, meta).read_blocks(range(len(meta.places.rows)), meta.schema.names)
        for _, block in every:
            batch = block.select(list(columns))
            if not _in_runs(meta.runs, batch, at):
                raise meta.corrupt("run index does not describe the rows", row=at)
            check_described(meta, batch, at)
            yield batch
            at += batch.num_rows
        if at != meta.rows:
            raise meta.corrupt("file has another number of rows than its metadata says", rows=at)

    def _read_ahead(self, place: int) -> None:
        """Read the files from `place` on. What is absent, damaged or has grown is left for the plain call to tell."""
        paths = self._paths[place : place + AHEAD_FILES]
        self._ready = {}
        for path, tail in zip(paths, self._storage.read_tails(paths, SMALL_BYTES), strict=True):
            if tail is not None and len(tail[0]) == tail[1]:
                with suppress(RmqError, *UNREADABLE):
                    self._ready[path] = check_whole(path, tail[0])
        small = [meta for meta in self._ready.values() if is_small(meta)]
        self._described = set()
        with suppress(RmqError, *UNREADABLE):
            if small and _are_described(small):
                self._described = {meta.path for meta in small}


def _are_described(metas: Sequence[FileMeta]) -> bool:
    """Whether all rows of small commits are as their metadata says: run index, tag codes, id ranges, key filters.

    Raises:
        CorruptDataError: rows cannot be parsed, or are not as many as the metadata says.
    """
    rows = decode_commits(metas).select(DESCRIBED)
    runs, _ = join_described(metas)
    counts = [meta.rows for meta in metas]
    if [sum(meta.runs.rows.tolist()) for meta in metas] != counts:
        return False
    file_of = integers(np.repeat(np.arange(len(metas)), counts))
    least, greatest = (pa.array([meta.doc["ids"][end] for meta in metas]).take(file_of) for end in (0, 1))
    ids, keys = rows.column("msgId"), rows.column("keys").to_pylist()
    return (
        _in_runs(runs, rows, 0)
        and tags_listed(runs, rows.column("tags"), 0)
        and pc.all(pc.and_(pc.less_equal(least, ids), pc.less_equal(ids, greatest))).as_py()
        and all(
            bloom.may_contain(metas[file].bloom, key)
            for file, text in zip(file_of.to_pylist(), keys, strict=True)
            for key in (text or "").split(" ")
            if key
        )
    )


def _in_runs(runs: Runs, batch: pa.RecordBatch, first_row: int) -> bool:
    """Whether the columns `topic` and `queueId` of rows (`first_row` on) say the same as the run index."""
    rows = np.arange(first_row, first_row + batch.num_rows)
    run = np.searchsorted(runs.first_rows(), rows, "right") - 1
    topics = pa.array(runs.topics, pa.string()).take(pa.array(runs.topic[run]))
    queues = batch.column("queueId").to_numpy()
    return bool(batch.column("topic").equals(topics)) and np.array_equal(queues, runs.queue[run])


def check_counts(meta: FileMeta, before: Queues | None) -> None:
    """A segment goes on where `before` ended (None: not known, for damage), which then counts its rows, too."""
    if before is None:
        return
    if not np.array_equal(before.number(meta.runs), meta.bases):
        raise meta.corrupt("queue offsets do not continue where the log left them")
    before.advance(meta.runs)


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
