"""Messages of the log as Python values, from the columns that a read of a queue gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import Final

import pyarrow as pa

from rmq_spark.client.compression import decompress, decompress_body
from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import integers_of
from rmq_spark.model.stored_message import ReceivedMessage, StoredMessage
from rmq_spark.rules import retry, sys_flag, system_topics

_TIMES: Final = ("bornTimestamp", "storeTimestamp")
_COMPRESSION: Final = sys_flag.COMPRESSED | sys_flag.COMPRESSION_MASK


def stored_messages(
    batch: pa.RecordBatch,
    *,
    topic: str | None = None,
    reconsume_times: Sequence[int] | None = None,
    receipts: Sequence[str] | None = None,
) -> list[StoredMessage]:
    """One value for each row of `batch`, which has the columns of `schema.MESSAGE`; bodies are as they are there.

    Args:
        batch: the rows.
        topic: shown instead of the one that is stored.
        reconsume_times: of each, instead of those that are stored.
        receipts: of each.
    """
    columns = {}
    for name in schema.MESSAGE.names:
        column = batch.column(name)
        columns[name] = (column.view(pa.int64()) if name in _TIMES else column).to_pylist()
    if reconsume_times is not None:
        columns["reconsumeTimes"] = reconsume_times
    return [
        StoredMessage(
            topic=topic or name,
            broker=broker,
            queue_id=queue,
            queue_offset=offset,
            commit_offset=commit,
            msg_id=msg_id,
            tags=tags,
            keys=keys,
            body=body,
            flag=flag or 0,  # a batch that came as Arrow may have nulls for numbers
            sys_flag=flags or 0,
            born_ms=born or 0,
            born_host=host,
            store_ms=store,
            reconsume_times=times or 0,
            properties=dict(properties) if properties else {},
            receipt=receipt,
        )
        for (
            name,
            broker,
            queue,
            offset,
            commit,
            msg_id,
            tags,
            keys,
            body,
            flag,
            flags,
            born,
            host,
            store,
            times,
            properties,
        ), receipt in zip(zip(*columns.values(), strict=True), receipts or repeat(None), strict=False)
    ]


def decompressed(message: StoredMessage) -> StoredMessage:
    """The message with a plain body, and flags that say so.

    Raises:
        CorruptDataError: as `plain_rows`.
    """
    bits = message.sys_flag
    if not bits & sys_flag.COMPRESSED:
        return message
    body = decompress_body(message.body, bits, msg_id=message.msg_id)
    return replace(message, body=body, sys_flag=bits & ~_COMPRESSION)


def plain_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with bodies decompressed, and with flags that say so: a copy of a message can be stored as it is.

    Raises:
        CorruptDataError: a body is not what its flags say, or packed by a method that is not known here.
    """
    flags = rows.column("sysFlag")
    bits = integers_of(flags.fill_null(0) if flags.null_count else flags)
    compressed = (bits & sys_flag.COMPRESSED) != 0
    if not compressed.any():
        return rows
    plain = decompress(rows)
    bits = bits.copy()
    bits[compressed] &= ~_COMPRESSION
    at = plain.schema.get_field_index("sysFlag")
    return plain.set_column(at, plain.schema.field(at), pa.array(bits, pa.int32()))


def received_messages(rows: pa.RecordBatch, topic: str) -> list[ReceivedMessage]:
    """What listeners get for the rows of a queue of `topic`: plain bodies; a retried message shows its first topic."""
    messages = stored_messages(plain_rows(rows))
    if not system_topics.is_retry(topic):
        return messages
    return [replace(message, topic=retry.original_topic(message)) for message in messages]
