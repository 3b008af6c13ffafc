"""What `verify` checks of one file: that its rows are as its metadata says, small commits together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.log import bloom
from rmq_spark.log.arrow_columns import integers, integers_of
from rmq_spark.log.file_format import FileMeta, parse
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.rows import join_described
from rmq_spark.log.run_index import Runs
from rmq_spark.model import java_hash
from rmq_spark.storage.base import Storage

I64 = npt.NDArray[np.int64]


def read_whole(storage: Storage, path: str) -> FileMeta:
    """The metadata of a file, with all its bytes; those outside of its blocks are checked, the others when it is read.

    Raises:
        NotFoundError: there is no such file.
        CorruptDataError: some bit is not what was written, or it is no file of this project's.
        UnsupportedVersionError: written by a newer version.
    """
    data = storage.read(path)
    return parse(path, data, len(data))


def check_blocks(storage: Storage, meta: FileMeta, columns: Sequence[str] = ()) -> list[pa.RecordBatch]:
    """Check every row of a whole file, as `check_rows`, and return these columns of each block.

    Raises:
        CorruptDataError: rows cannot be parsed, or are not as the metadata says.
    """
    at = 0
    blocks = []
    reader = FileReader(storage, meta)
    for number in range(len(meta.places.rows)):
        [(_, _, batch)] = reader.read([number], meta.schema.names)  # all columns, for their check-sums
        check_rows([meta], meta.runs, batch, at)
        blocks.append(batch.select(list(columns)))
        at += batch.num_rows
    if at != meta.rows or at != meta.runs.rows.sum():
        raise meta.corrupt("file has another number of rows than its metadata says", rows=at)
    return blocks


def check_rows(metas: Sequence[FileMeta], runs: Runs, rows: pa.RecordBatch, first_row: int = 0) -> None:
    """Check rows (`first_row` on) of files, whose runs together are `runs`, against all that the metadata says of them.

    Raises:
        CorruptDataError: it says other than the rows, or would hide one from a reader that asks for it. Of several
            files the error does not say which one is damaged.
    """
    counts = [meta.rows for meta in metas]
    numbers = np.arange(first_row, first_row + rows.num_rows)
    file = np.searchsorted(np.cumsum(counts), numbers, "right")
    run = np.searchsorted(runs.first_rows(), numbers, "right") - 1
    problem = None
    if [meta.runs.rows.sum() for meta in metas] != counts or first_row + rows.num_rows > sum(counts):
        problem = "run index does not cover the rows"
    elif not rows.num_rows:
        pass
    elif not _in_runs(runs, run, rows):
        problem = "run index does not describe the rows"
    elif not _tags_listed(runs, run, rows.column("tags")):
        problem = "a tag is not among those that the metadata names for its run"
    elif not _ids_named(metas, file, rows.column("msgId")):
        problem = "an id is outside the range that the metadata names"
    elif not bloom.holds_all([meta.bloom for meta in metas], file, rows.column("keys")):
        problem = "a key is not in the key filter"
    if problem is not None:
        raise metas[0].corrupt(problem, row=first_row, commits=len(metas))


def _in_runs(runs: Runs, run: I64, rows: pa.RecordBatch) -> bool:
    """Whether the columns `topic` and `queueId` of rows say the same as their runs."""
    topics = pa.array(runs.topics, pa.string()).take(pa.array(runs.topic[run]))
    queues = rows.column("queueId").to_numpy()
    return bool(rows.column("topic").equals(topics)) and np.array_equal(queues, runs.queue[run])


def _tags_listed(runs: Runs, run: I64, tags: pa.StringArray) -> bool:
    """Whether the run index lists the codes of these rows' tags, each for its run."""
    encoded = tags.dictionary_encode("encode")
    codes = java_hash.java_hashes(encoded.dictionary).astype(np.int64)[integers_of(encoded.indices)]
    low, high = int(run[0]), int(run[-1]) + 1
    listed = np.maximum(runs.tag_counts, 0)
    begin, end = int(listed[:low].sum()), int(listed[:high].sum())
    owner = np.repeat(np.arange(low, high), listed[low:high])
    # A run and a code as one number; a run with too many tags lists none and hides nothing.
    pairs = owner << 32 | runs.tag_codes[begin:end].astype(np.int64) & 0xFFFFFFFF
    wanted = (run << 32 | codes & 0xFFFFFFFF)[runs.tag_counts[run] >= 0]
    return bool(np.isin(wanted, pairs).all())


def _ids_named(metas: Sequence[FileMeta], file: I64, ids: pa.StringArray) -> bool:
    """Whether these ids lie in the ranges that their files name."""
    least, greatest = (pa.array([meta.doc["ids"][end] for meta in metas]).take(integers(file)) for end in (0, 1))
    return bool(pc.all(pc.and_(pc.less_equal(least, ids), pc.less_equal(ids, greatest))).as_py())


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
