"""Prepares rows for a file: sorts them into runs, cuts blocks, builds key filter and check-sums. Once per append.

Nothing here depends on the rows' place in the log, so a lost race does not repeat it. Row files in `data/`, which
Spark tasks write long before their commit, are prepared in the same way.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import bloom, schema
from rmq_spark.log.arrow_columns import RowReorderer, copied_bytes, offsets_of
from rmq_spark.log.file_encoder import SMALL_BYTES, Blocks, Encoded, make_blocks, make_part, one_block
from rmq_spark.log.file_format import FileMeta, pack
from rmq_spark.log.file_reader import read_meta
from rmq_spark.log.message_batch import MessageBatch, to_record_batch
from rmq_spark.log.run_index import Runs, find_order, sort_rows
from rmq_spark.log.schema import Row
from rmq_spark.log.small_batch import to_message
from rmq_spark.model import names
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

I64 = npt.NDArray[np.int64]
S = TypeVar("S")
T = TypeVar("T")

RUN_BLOCKS: Final = 8
"""A block within one run may be this many times larger than the target, which is for blocks of several runs."""
FEW_ROWS: Final = 128
"""Up to this many Python rows are sorted and encoded in plain Python."""

PART_BYTES: Final = 2 * 1024 * 1024
"""Rows that have to be reordered are copied and serialised in parts of about this size."""

_MSG_ID: Final = schema.ROWS.get_field_index("msgId")
_KEYS: Final = schema.ROWS.get_field_index("keys")


@dataclass(frozen=True, slots=True)
class RowFile:
    """A file in `data/` that a commit may refer to."""

    name: str
    digest: str
    rows: int
    bytes: int
    runs: int


class PreparedRows(NamedTuple):
    """Everything about an append that does not depend on its place in the log."""

    blocks: Blocks
    runs: Runs
    order: I64 | None
    """Original row of each sorted row; None when nothing moved."""
    doc: dict[str, Any]
    """The entries of the metadata document that do not depend on the place."""


def prepare(batch: MessageBatch, block_bytes: int, kind: str = "commit") -> PreparedRows:
    """Sort, cut and check-sum the rows of an inline commit or of a row file.

    Raises:
        InvalidRequestError: there are no rows.
    """
    if batch.num_rows == 0:
        raise InvalidRequestError("an append needs at least one message")
    if batch.rows is not None and batch.num_rows <= FEW_ROWS:
        return _prepare_few(batch.rows, block_bytes, kind)
    record_batch = batch.record_batch()
    row_order = find_order(record_batch)
    if row_order.order is None:
        blocks = make_blocks(kind, cut(record_batch, row_order.rows, block_bytes))
    else:
        # Begun before the tags and keys are read: a worker copies rows meanwhile.
        blocks = _reordered_blocks(kind, record_batch, row_order.rows, row_order.order, block_bytes)
    runs = row_order.runs(record_batch.column("tags"))
    # Neither the range of ids nor the key filter depends on the order of rows.
    return PreparedRows(blocks, runs, row_order.order, describe(record_batch, runs))


def _reordered_blocks(
    kind: str, batch: pa.RecordBatch, run_rows: npt.NDArray[np.int32], order: I64, block_bytes: int
) -> Blocks:
    """The blocks of rows that have to be reordered: a worker makes parts while earlier ones are written.

    With 100,000 rows in 10,000 queues that halves the time of a `sync` append (docs/decisions/0012).
    """
    edges = block_edges(batch, run_rows, block_bytes, order=order)
    source, size = RowReorderer(batch), copied_bytes(batch)
    rows_per_part: int = -(-batch.num_rows // max(1, size // PART_BYTES))

    def batches_of(part: list[tuple[int, int]]) -> list[pa.RecordBatch]:
        """The blocks of a part, given where they begin and end, with their rows in the new order."""
        first, end = part[0][0], part[-1][1]
        rows = source.take(order[first:end])
        return [rows.slice(low - first, high - low) for low, high in part]

    parts = [list(part) for _, part in groupby(pairwise(edges), key=lambda block: block[0] // rows_per_part)]
    if len(parts) == 1:
        return make_blocks(kind, batches_of(parts[0]))
    made = _in_background(lambda part: make_part(kind, batches_of(part)), parts)
    return Blocks(kind, made, batch.num_rows, size)


def _in_background(make: Callable[[S], T], items: Sequence[S]) -> list[Callable[[], T]]:
    """Start to make something of each item, in a worker thread. Each returned function waits for its result."""
    pool = ThreadPoolExecutor(1, "rmq-reorder")
    try:
        futures = [pool.submit(make, item) for item in items]
    except RuntimeError:  # the interpreter is exiting, or the system starts no more threads
        return [cache(partial(make, item)) for item in items]
    pool.shutdown(wait=False)
    return [future.result for future in futures]


def _prepare_few(unsorted: list[Row], block_bytes: int, kind: str) -> PreparedRows:
    """As `prepare`, for a few Python rows: plain Python is faster than arrays there."""
    rows, runs, order = sort_rows(unsorted)
    ids = [row[_MSG_ID] for row in rows]
    keys = [key for row in rows if row[_KEYS] for key in row[_KEYS].split(" ") if key]
    doc = _described(runs, (min(ids), max(ids)), bloom.build_few(keys))
    message = to_message(rows)
    if len(message) <= SMALL_BYTES:
        blocks = one_block(kind, message, len(rows))
    else:
        blocks = make_blocks(kind, cut(to_record_batch(rows), runs.rows, block_bytes))
    return PreparedRows(blocks, runs, order, doc)


def describe(batch: pa.RecordBatch, runs: Runs) -> dict[str, Any]:
    """Run index, tag codes, key filter and id range, as they stand in the metadata document."""
    ids = pc.min_max(batch.column("msgId"))
    return _described(runs, (ids["min"].as_py(), ids["max"].as_py()), bloom.build(batch.column("keys")))


def _described(runs: Runs, ids: Sequence[str], keys: bytes) -> dict[str, Any]:
    return {
        "topics": runs.topics,
        "runs": pack(np.concatenate([runs.topic, runs.queue, runs.rows])),
        "tagn": pack(runs.tag_counts),
        "tags": pack(runs.tag_codes),
        "bloom": binascii.b2a_base64(keys, newline=False).decode(),
        "ids": list(ids),
    }


def cut(
    batch: pa.RecordBatch, run_rows: npt.NDArray[np.int32], block_bytes: int, run_bytes: int | None = None
) -> list[pa.RecordBatch]:
    """Cut sorted rows into blocks, where `block_edges` says."""
    edges = block_edges(batch, run_rows, block_bytes, run_bytes)
    return [batch.slice(low, high - low) for low, high in pairwise(edges)]


def block_edges(
    batch: pa.RecordBatch,
    run_rows: npt.NDArray[np.int32],
    block_bytes: int,
    run_bytes: int | None = None,
    order: I64 | None = None,
) -> list[int]:
    """Where to cut rows into blocks of about `block_bytes`, between runs where that is possible: 0, ..., all rows.

    A run that is larger than `run_bytes`, by default a few blocks, is cut inside; smaller runs share a block. Rows that
    are not sorted yet are going to be in `order`.
    """
    run_bytes = run_bytes or RUN_BLOCKS * block_bytes
    # A last part that is much smaller than the others is not worth a block.
    most = run_bytes + run_bytes // 4
    count, total = batch.num_rows, copied_bytes(batch)
    sizes = np.diff(offsets_of(batch.column("body")))
    # The other columns are taken for equal shares.
    sizes += max(1, (total - int(sizes.sum())) // count)
    weights = np.concatenate(([0], np.cumsum(sizes if order is None else sizes[order], dtype=np.int64)))
    run_ends = np.cumsum(run_rows)
    end_weights = weights[run_ends]
    edges = [0]
    while (at := edges[-1]) < count:
        run = int(end_weights.searchsorted(weights[at] + block_bytes))
        end = int(run_ends[min(run, len(run_ends) - 1)])
        if weights[end] - weights[at] > most:
            end = int(weights.searchsorted(weights[at] + run_bytes))
        edges.append(min(max(end, at + 1), count))
    return edges


def write_row_file(storage: Storage, root: str, batch: MessageBatch, *, nonce: str, block_bytes: int) -> RowFile:
    """Write `batch` as a durable file in `data/` that a later commit can refer to.

    Raises:
        InvalidRequestError: there are no rows, or some are state messages.
    """
    rows = prepare(batch, block_bytes, "rows")
    _refuse_state(rows.runs.topics)
    encoded = Encoded(rows.blocks, {**rows.doc, "nonce": nonce})
    name = f"{nonce}.arrow"
    storage.create_if_absent(paths.data_file(root, name), encoded, durable=True)
    return RowFile(name, encoded.tail.digest, rows.blocks.rows, encoded.tail.file_size, len(rows.runs.rows))


def prepare_references(storage: Storage, root: str, files: Sequence[RowFile]) -> PreparedRows:
    """A commit that refers to row files: reads their metadata, checks that they are what was named.

    Raises:
        NotFoundError: a file is gone.
        CorruptDataError: a file is damaged or another one.
        InvalidRequestError: there are no rows in them, some are state messages, or a file is named twice.
    """
    metas = []
    if len({file.name for file in files}) < len(files):
        raise InvalidRequestError("a row file is named twice", files=[file.name for file in files][:5])
    for file in files:
        meta = read_meta(storage, paths.data_file(root, file.name), "rows")
        if meta.digest != file.digest:
            raise meta.corrupt("not the row file that was named", expected=file.digest, actual=meta.digest)
        if int(meta.runs.rows.sum()) != meta.rows:
            raise meta.corrupt("run index does not cover the rows")
        _refuse_state(meta.runs.topics)
        metas.append(meta)
    total = sum(meta.rows for meta in metas)
    if not total:
        raise InvalidRequestError("an append needs at least one message")
    runs, ids = join_described(metas)
    # Each row file has a bloom of its own; one over all would have to be rebuilt from the keys.
    doc = _described(runs, ids, b"")
    # What the file says counts, not what the caller believes: readers skip and number by these.
    doc["files"] = [
        [file.name, meta.digest, meta.rows, meta.size, len(meta.runs.rows)]
        for file, meta in zip(files, metas, strict=True)
    ]
    return PreparedRows(Blocks("commit", [], total, 0), runs, None, doc)


def join_described(metas: Sequence[FileMeta]) -> tuple[Runs, list[str]]:
    """Run index and id range of a commit that refers to these row files."""
    topics = sorted({topic for meta in metas for topic in meta.runs.topics})
    rank = {topic: index for index, topic in enumerate(topics)}
    remap = [np.array([rank[topic] for topic in meta.runs.topics], np.int32)[meta.runs.topic] for meta in metas]
    runs = Runs(
        topics,
        np.concatenate(remap),
        np.concatenate([meta.runs.queue for meta in metas]),
        np.concatenate([meta.runs.rows for meta in metas]),
        np.concatenate([meta.runs.tag_counts for meta in metas]),
        np.concatenate([meta.runs.tag_codes for meta in metas]),
    )
    return runs, [min(meta.doc["ids"][0] for meta in metas), max(meta.doc["ids"][1] for meta in metas)]


def _refuse_state(topics: list[str]) -> None:
    """State messages must be inline, where every reader of the chain meets them."""
    if state_topics := sorted(names.STATE_TOPICS.intersection(topics)):
        raise InvalidRequestError("state messages must not be in row files; append them", topics=state_topics)
