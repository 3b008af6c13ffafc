"""Rows of many small files at once: their record batches are one Arrow stream behind a common schema.

Opening each file by itself takes many times as long as reading its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.errors import CorruptDataError
from rmq_spark.log import file_layout, ipc_file, schema
from rmq_spark.log.arrow_columns import booleans, integers, repeated
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.run_index import find_order, queue_offsets

I64 = npt.NDArray[np.int64]


def is_small(meta: FileMeta) -> bool:
    """Whether a file came whole with its metadata, carries its rows itself, and begins as those that are written."""
    return (
        meta.whole is not None
        and meta.whole.startswith(file_layout.head(file_layout.VERSION, meta.kind))
        and "blocks" not in meta.doc
        and "files" not in meta.doc
    )


def decode_small(metas: Sequence[FileMeta]) -> pa.RecordBatch:
    """The stored columns of small files of one kind, in their order; together they have less than 2 GB.

    Raises:
        CorruptDataError: a file's rows cannot be parsed, or are not as many as it says.
    """
    kind = metas[0].kind
    before = len(file_layout.head(file_layout.VERSION, kind))
    messages = [meta.whole[before : meta.data_end] for meta in metas if meta.whole is not None]
    stream = [file_layout.schema_message(file_layout.VERSION, kind), *messages, ipc_file.END_OF_STREAM]
    try:
        with pa.ipc.open_stream(b"".join(stream)) as opened:
            batches = list(opened)
        if [batch.num_rows for batch in batches] != [meta.rows for meta in metas]:
            raise CorruptDataError("a file has another number of rows than its metadata says", files=len(metas))
        return pa.concat_batches(batches)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptDataError("rows cannot be decoded", kind=kind, files=len(metas), reason=str(error)) from error


def queue_offsets_of(metas: Sequence[FileMeta]) -> I64:
    """Queue offset of each row of these commits."""
    return queue_offsets(
        np.concatenate([meta.runs.rows for meta in metas]), np.concatenate([meta.bases for meta in metas])
    )


def join_rows(metas: Sequence[FileMeta], broker: str) -> pa.RecordBatch:
    """The messages of neighbouring small commits as one batch of `schema.MESSAGE`, in the order of a segment.

    Raises:
        CorruptDataError: a commit's rows cannot be parsed, or are not as many as it says.
    """
    messages = _messages(metas, broker)
    order = find_order(messages).order
    return messages if order is None else messages.take(integers(order))


def queue_rows(metas: Sequence[FileMeta], broker: str, topic: str, queue: int) -> pa.RecordBatch:
    """The messages of one queue in small commits, each of which has some, as a batch of `schema.MESSAGE`.

    Raises:
        CorruptDataError: a commit's rows cannot be parsed, or are not as many as it says.
    """
    messages = _messages(metas, broker)
    if all(len(meta.runs.rows) == 1 for meta in metas):
        return messages
    mine = np.concatenate([np.repeat(meta.runs.is_of_queue(topic, queue), meta.runs.rows) for meta in metas])
    return messages.filter(booleans(mine))


def _messages(metas: Sequence[FileMeta], broker: str) -> pa.RecordBatch:
    """The messages of small commits, in the order of the log."""
    rows = decode_small(metas)
    firsts, counts, times = np.array([(meta.doc["first"], meta.rows, meta.doc["ts"]) for meta in metas], np.int64).T
    commit = np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(len(rows))
    derived = {
        "brokerName": repeated(broker, len(rows)),
        "commitOffset": integers(commit),
        "queueOffset": integers(queue_offsets_of(metas)),
        "storeTimestamp": integers(np.repeat(times, counts)).view(schema.TIMESTAMP),
    }
    columns = [derived[name] if name in derived else rows.column(name) for name in schema.MESSAGE.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema.MESSAGE)
