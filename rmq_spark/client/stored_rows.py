"""Rows that were read from the log as message objects."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pyarrow as pa

from rmq_spark.errors import CorruptDataError
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import sys_flag


def stored_messages(batch: pa.RecordBatch) -> list[StoredMessage]:
    """The messages of a batch with all columns of `schema.MESSAGE`, as they are stored."""
    times = {
        name: batch.column(name).cast(pa.int64()).to_pylist() for name in ("bornTimestamp", "storeTimestamp")
    }  # fmt: skip
    return [
        StoredMessage(
            topic=row["topic"],
            broker=row["brokerName"],
            queue_id=row["queueId"],
            queue_offset=row["queueOffset"],
            commit_offset=row["commitOffset"],
            msg_id=row["msgId"],
            tags=row["tags"],
            keys=row["keys"],
            body=row["body"],
            flag=row["flag"] or 0,
            sys_flag=row["sysFlag"] or 0,
            born_ms=born or 0,
            born_host=row["bornHost"],
            store_ms=store,
            reconsume_times=row["reconsumeTimes"] or 0,
            properties=dict(row["properties"] or ()),
        )
        for row, born, store in zip(
            batch.drop_columns(list(times)).to_pylist(), times["bornTimestamp"], times["storeTimestamp"], strict=True
        )
    ]


def decompressed(message: StoredMessage) -> StoredMessage:
    """The message with a plain body, and flags that say so.

    Raises:
        CorruptDataError: the body is not what its flags say, or packed by a method that is not known here.
    """
    if not message.sys_flag & sys_flag.COMPRESSED:
        return message
    if not sys_flag.is_zlib(message.sys_flag):
        raise CorruptDataError("body is compressed by a method that is not known here", sysFlag=message.sys_flag)
    try:
        body = zlib.decompress(message.body)
    except zlib.error as error:
        raise CorruptDataError("body cannot be decompressed", msg_id=message.msg_id) from error
    plain = message.sys_flag & ~(sys_flag.COMPRESSED | sys_flag.COMPRESSION_MASK)
    return replace(message, body=body, sys_flag=plain)
