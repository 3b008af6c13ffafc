"""Messages as listeners get them: plain bodies, and the topic that they were first sent to."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from rmq_spark.client.compression import decompress
from rmq_spark.client.stored_rows import stored_messages
from rmq_spark.log.arrow_columns import integers_of
from rmq_spark.model.stored_message import ReceivedMessage
from rmq_spark.rules import retry, sys_flag, system_topics


def plain_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with bodies decompressed, and with flags that say so: a copy of a message can be stored as it is."""
    flags = integers_of(rows.column("sysFlag").fill_null(0))
    compressed = (flags & sys_flag.COMPRESSED) != 0
    if not compressed.any():
        return rows
    plain = decompress(rows)
    flags = flags.copy()
    flags[compressed] &= ~(sys_flag.COMPRESSED | sys_flag.COMPRESSION_MASK)
    at = plain.schema.get_field_index("sysFlag")
    return plain.set_column(at, plain.schema.field(at), pa.array(flags, pa.int32()))


def received_messages(rows: pa.RecordBatch, topic: str) -> list[ReceivedMessage]:
    """One message for each row of a queue of `topic`; a retried one shows its first topic."""
    messages = stored_messages(plain_rows(rows))
    if not system_topics.is_retry(topic):
        return messages
    return [replace(message, topic=retry.original_topic(message)) for message in messages]
