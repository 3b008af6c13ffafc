"""Messages of the log as Python values, from the columns that a read of a queue gives."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import Final

import pyarrow as pa

from rmq_spark.errors import CorruptDataError
from rmq_spark.log import schema
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules import sys_flag as flags

_TIMES: Final = ("bornTimestamp", "storeTimestamp")


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
            sys_flag=sys_flag or 0,
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
            sys_flag,
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
        CorruptDataError: the body is not what its flags say, or packed by a method that is not known here.
    """
    if not message.sys_flag & flags.COMPRESSED:
        return message
    if not flags.is_zlib(message.sys_flag):
        raise CorruptDataError("body is compressed by a method that is not known here", sysFlag=message.sys_flag)
    try:
        body = zlib.decompress(message.body)
    except zlib.error as error:
        raise CorruptDataError("body cannot be decompressed", msg_id=message.msg_id) from error
    plain = message.sys_flag & ~(flags.COMPRESSED | flags.COMPRESSION_MASK)
    return replace(message, body=body, sys_flag=plain)
