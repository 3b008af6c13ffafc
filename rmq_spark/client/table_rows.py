"""From a table of messages to rows of the log: one topic, columns instead of message objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.hex_ids import hex_ids
from rmq_spark.client.reading import nearest_column
from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import schema
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.model.message_id import UniqueIds
from rmq_spark.rules import routing

COLUMNS: Final = ("body", "tags", "keys", "flag", "properties", "queueId", "msgId", "bornTimestamp")
"""What a table may have; only `body` must be there."""
PART_ROWS: Final = 100_000
PART_BYTES: Final = 32 * 1024 * 1024
"""A larger table is sent as several commits."""


def check_table(table: pa.Table) -> None:
    """Check the columns of a table of messages.

    Raises:
        InvalidRequestError: it is no table, `body` is missing, or a column is not known.
    """
    if not isinstance(table, pa.Table):
        raise InvalidRequestError("send_table takes a pyarrow Table or RecordBatch", type=type(table).__name__)
    for name in table.column_names:
        if name not in COLUMNS:
            raise InvalidRequestError(
                "unknown column of messages", column=name, **nearest_column(name, COLUMNS), known=list(COLUMNS)
            )
    if "body" not in table.column_names:
        raise InvalidRequestError("required column is missing", column="body")


def parts(table: pa.Table) -> Iterator[pa.Table]:
    """The table in parts that a commit may hold."""
    rows = max(1, min(PART_ROWS, int(table.num_rows * PART_BYTES / max(1, table.nbytes))))
    for at in range(0, table.num_rows, rows):
        yield table.slice(at, rows)


def table_batch(
    table: pa.Table, topic: str, queues: int, turn: int, *, ids: UniqueIds, host: str, now_ms: int
) -> MessageBatch:
    """Rows of a table as a batch for one broker; rows without a queue are dealt out evenly, in neighbouring slices.

    Raises:
        InvalidRequestError: a value that RocketMQ would refuse, or a queue that the topic does not have.
    """
    count = table.num_rows
    columns = {name: table.column(name) for name in table.column_names}
    if "queueId" in columns:
        known = pc.fill_null(pc.less(columns["queueId"], queues), False)
        if not pc.all(known).as_py():
            wrong = columns["queueId"][pc.index(known, False).as_py()].as_py()
            raise InvalidRequestError("no such queue", topic=topic, queue=wrong, queues=queues)
    else:
        columns["queueId"] = pa.array(routing.even_slices(count, queues, turn % queues).astype(np.int32))
    if "msgId" not in columns:
        columns["msgId"] = hex_ids(*ids.reserve(count), count)
    born = columns.get("bornTimestamp")
    if born is None:
        columns["bornTimestamp"] = pa.repeat(pa.scalar(now_ms, pa.int64()), count).cast(schema.TIMESTAMP)
    columns["topic"] = pa.repeat(topic, count)
    columns["bornHost"] = pa.repeat(host, count)
    return MessageBatch.from_arrow(pa.table(columns))
