"""What `verify` checks of one file: that its rows are as its metadata says, small commits together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.log import bloom
from rmq_spark.log.arrow_columns import integers
from rmq_spark.log.file_format import FileMeta, parse
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.rows import check_described, join_described, tags_listed
from rmq_spark.log.run_index import Runs
from rmq_spark.log.small_commits import decode_small
from rmq_spark.storage.base import Storage

DESCRIBED: Final = ("topic", "queueId", "msgId", "tags", "keys")
"""The columns of which a file's metadata says something."""


def read_whole(storage: Storage, path: str) -> FileMeta:
    """The metadata of a file, with all its bytes; those outside of its blocks are checked, the others when it is read.

    Raises:
        NotFoundError: there is no such file.
        CorruptDataError: some bit is not what was written, or it is no file of this project's.
        UnsupportedVersionError: written by a newer version.
    """
    data = storage.read(path)
    return parse(path, data, len(data))


def check_rows(storage: Storage, meta: FileMeta) -> None:
    """Check every row of a whole file against everything that the metadata says of them.

    Raises:
        CorruptDataError: rows cannot be parsed, or are not as the metadata says.
    """
    for _ in described_rows(storage, meta, DESCRIBED):
        pass


def described_rows(storage: Storage, meta: FileMeta, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Every block, after checking its rows against everything that the metadata says of them.

    Raises:
        CorruptDataError: rows cannot be parsed, or are not as the metadata says.
    """
    if int(meta.runs.rows.sum()) != meta.rows:
        raise meta.corrupt("run index does not cover the rows")
    at = 0
    # All columns, for their check-sums; then only those that are asked for.
    reader = FileReader(storage, meta)
    for number in range(len(meta.places.rows)):
        [(_, _, block)] = reader.read([number], meta.schema.names)
        batch = block.select(list(columns))
        if not _in_runs(meta.runs, batch, at):
            raise meta.corrupt("run index does not describe the rows", row=at)
        check_described(meta, batch, at)
        yield batch
        at += batch.num_rows
    if at != meta.rows:
        raise meta.corrupt("file has another number of rows than its metadata says", rows=at)


def check_together(metas: Sequence[FileMeta], runs: Runs) -> None:
    """As `check_rows`, for small commits, whose runs are `runs`. The error does not say which one is damaged.

    Raises:
        CorruptDataError: rows of one cannot be parsed, or are not as its metadata says.
    """
    rows = decode_small(metas).select(DESCRIBED)
    counts = [meta.rows for meta in metas]
    file_of = integers(np.repeat(np.arange(len(metas)), counts))
    least, greatest = (pa.array([meta.doc["ids"][end] for meta in metas]).take(file_of) for end in (0, 1))
    ids, keys = rows.column("msgId"), rows.column("keys").to_pylist()
    if not (
        [sum(meta.runs.rows.tolist()) for meta in metas] == counts
        and _in_runs(runs, rows, 0)
        and tags_listed(runs, rows.column("tags"), 0)
        and pc.all(pc.and_(pc.less_equal(least, ids), pc.less_equal(ids, greatest))).as_py()
        and all(
            bloom.may_contain(metas[file].bloom, key)
            for file, text in zip(file_of.to_pylist(), keys, strict=True)
            for key in (text or "").split(" ")
            if key
        )
    ):
        raise metas[0].corrupt("this or a later commit has other rows than its metadata says", commits=len(metas))


def _in_runs(runs: Runs, batch: pa.RecordBatch, first_row: int) -> bool:
    """Whether the columns `topic` and `queueId` of rows (`first_row` on) say the same as the run index."""
    rows = np.arange(first_row, first_row + batch.num_rows)
    run = np.searchsorted(runs.first_rows(), rows, "right") - 1
    topics = pa.array(runs.topics, pa.string()).take(pa.array(runs.topic[run]))
    queues = batch.column("queueId").to_numpy()
    return bool(batch.column("topic").equals(topics)) and np.array_equal(queues, runs.queue[run])


def check_references(meta: FileMeta, files: Sequence[FileMeta]) -> None:
    """Check that a commit says of its row files what they say themselves.

    Raises:
        CorruptDataError: it does not.
    """
    runs, ids = join_described(files)
    said = meta.runs
    same = said.topics == runs.topics and meta.doc["ids"] == ids
    for name in ("topic", "queue", "rows", "tag_counts", "tag_codes"):
        same = same and np.array_equal(getattr(said, name), getattr(runs, name))
    counts = [[file.rows, file.size, len(file.runs.rows)] for file in files]
    named = [entry[2:5] for entry in meta.doc["files"]]
    if not same or named != counts or sum(file.rows for file in files) != meta.rows:
        raise meta.corrupt("commit describes its row files wrongly")
