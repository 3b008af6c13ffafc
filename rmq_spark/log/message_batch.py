"""Messages to append, as Python values or as Arrow columns: checked against RocketMQ's limits, and merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import booleans_of, integers, integers_of
from rmq_spark.log.schema import Row
from rmq_spark.model import limits, names
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.properties import KEYS, TAGS

I64 = npt.NDArray[np.int64]

BODY: Final = schema.ROWS.get_field_index("body")
"""Where the body stands in a `Row`."""

# A copy of a message may have more properties than its sender gave it.
_PROPERTIES_BYTES_MAX: Final = limits.PROPERTIES_BYTES_MAX + limits.ENGINE_PROPERTIES_BYTES_MAX
_NEVER_NULL: Final = ("topic", "queueId", "msgId", "body")
_STRUCT: Final = pa.struct(list(schema.ROWS))


class MessageBatch:
    """Rows that are appended together: all of them land in one commit or none does.

    Appending the same object again after `OutcomeUnknownError` lands once.
    """

    __slots__ = ("_table", "rows")

    def __init__(self, rows: list[Row] | None = None, table: pa.Table | None = None) -> None:
        self.rows = rows
        """The messages as Python rows; None for a batch of Arrow columns."""
        self._table: pa.Table = table

    @classmethod
    def of(
        cls,
        *,
        topic: str,
        queue_id: int,
        msg_id: str,
        body: bytes,
        born_timestamp_ms: int,
        tags: str | None = None,
        keys: str | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_host: str | None = None,
        reconsume_times: int = 0,
        properties: Iterable[tuple[str, str]] = (),
    ) -> MessageBatch:
        """One message.

        Raises:
            InvalidRequestError: a value that RocketMQ would refuse: an illegal topic, queue, body, id or number.
        """
        row = MessageRow(
            topic,
            queue_id,
            msg_id,
            tags,
            keys,
            body,
            flag,
            sys_flag,
            born_timestamp_ms,
            born_host,
            reconsume_times,
            list(properties),
        )
        return cls.from_rows([row])

    @classmethod
    def from_rows(cls, rows: Sequence[MessageRow]) -> MessageBatch:
        """Messages as Python values.

        Raises:
            InvalidRequestError: as `of`.
        """
        for row in rows:
            _check_row(row)
        return cls(list(rows))

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch) -> MessageBatch:
        """Rows of an Arrow table with the columns of `schema.ROWS`; missing optional ones become defaults.

        Raises:
            InvalidRequestError: a required column is missing, or a column has another type.
        """
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        unknown = set(table.column_names) - set(schema.ROWS.names)
        if unknown:
            raise InvalidRequestError("unknown columns", columns=sorted(unknown), allowed=schema.ROWS.names)
        columns = []
        for field in schema.ROWS:
            if field.name in table.column_names:
                columns.append(_cast(table.column(field.name), field))
            elif field.name in (*_NEVER_NULL, "bornTimestamp"):
                raise InvalidRequestError("required column is missing", column=field.name)
            else:
                columns.append(_default(field, table.num_rows))
        whole = pa.Table.from_arrays(columns, schema=schema.ROWS)
        _check_table(whole)
        return cls(table=whole)

    @classmethod
    def merge(cls, batches: Sequence[MessageBatch]) -> MessageBatch:
        """All rows of `batches`, in order."""
        if len(batches) == 1:
            return batches[0]
        if all(batch.rows is not None for batch in batches):
            return cls([row for batch in batches for row in batch.rows or ()])
        return cls(table=pa.concat_tables([batch.table() for batch in batches]))

    @property
    def num_rows(self) -> int:
        """How many messages there are."""
        return len(self.rows) if self.rows is not None else int(self._table.num_rows)

    @property
    def body_bytes(self) -> int:
        """Approximate size in bytes, for the limits of a group commit."""
        if self.rows is not None:
            return sum(len(row[BODY]) for row in self.rows)
        return int(self._table.nbytes)

    def topics(self) -> list[str]:
        """The distinct topics of its messages."""
        if self.rows is not None:
            return list(dict.fromkeys(row[0] for row in self.rows))
        topics: list[str] = pc.unique(self._table.column("topic")).to_pylist()
        return topics

    def record_batch(self) -> pa.RecordBatch:
        """The rows, of which there is at least one, as one record batch of `schema.ROWS`."""
        if self.rows is not None:
            return to_record_batch(self.rows)
        batches = self._table.combine_chunks().to_batches()
        if len(batches) > 1:
            raise InvalidRequestError("batch has over 2 GB in one column; append it in parts")
        return batches[0]

    def table(self) -> pa.Table:
        """The rows as a table of `schema.ROWS`."""
        return self._table if self.rows is None else pa.Table.from_batches([to_record_batch(self.rows)])


def _check_row(row: MessageRow) -> None:
    topic, queue_id, msg_id, body = row.topic, row.queue_id, row.msg_id, row.body
    names.check_topic(topic)
    if not 0 <= queue_id < names.QUEUES_MAX:
        raise InvalidRequestError("queueId is 0 to 65535", topic=topic, queueId=queue_id)
    if not isinstance(body, bytes) or len(body) > limits.BODY_BYTES_MAX:
        raise InvalidRequestError("body is bytes, at most 4 MiB", topic=topic, type=type(body).__name__)
    if not isinstance(msg_id, str) or not msg_id:
        raise InvalidRequestError("msgId is a text that is not empty", topic=topic, msgId=msg_id)
    if row.properties and limits.property_bytes(row.properties) > _PROPERTIES_BYTES_MAX:
        raise InvalidRequestError("properties are over 32767 bytes", topic=topic, msgId=msg_id)
    for name, value, bits in (
        ("flag", row.flag, 31),
        ("sysFlag", row.sys_flag, 31),
        ("reconsumeTimes", row.reconsume_times, 31),
        ("bornTimestamp", row.born_ms, 63),
    ):
        if not -(1 << bits) <= value < 1 << bits:
            raise InvalidRequestError(f"{name} does not fit {bits + 1} bits", value=value)


def to_record_batch(rows: list[Row]) -> pa.RecordBatch:
    """Rows as a record batch; one conversion of structs costs a fifth of twelve conversions of columns."""
    return pa.RecordBatch.from_struct_array(pa.array(rows, _STRUCT))


def _default(field: pa.Field, count: int) -> pa.Array:
    if field.type == schema.PROPERTIES:
        empty = pa.nulls(0, pa.string())
        return pa.MapArray.from_arrays(integers(np.zeros(count + 1, np.int32)), empty, empty)
    if field.type == pa.int32():
        return integers(np.zeros(count, np.int32))
    return pa.nulls(count, field.type)


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRequestError(
            "column has a wrong type", column=field.name, type=str(column.type), expected=str(field.type)
        ) from error


def _check_table(table: pa.Table) -> None:
    """Refuse rows that RocketMQ would refuse, naming the first bad one."""

    def refuse(bad: pa.ChunkedArray, problem: str) -> None:
        if pc.any(bad).as_py():
            row = pc.index(bad, True).as_py()
            shown = table.select(["topic", "queueId", "msgId", "tags", "keys"]).slice(row, 1).to_pylist()[0]
            raise InvalidRequestError(problem, row=row, **shown)

    for name in _NEVER_NULL:
        refuse(pc.is_null(table[name]), f"{name} is null")
    for topic in pc.unique(table["topic"]).to_pylist():
        names.check_topic(topic)
        if topic in names.STATE_TOPICS:
            raise InvalidRequestError("state messages are appended one by one, not as a table", topic=topic)
    refuse(pc.less(table["queueId"], 0), "queueId is negative")
    refuse(pc.greater_equal(table["queueId"], names.QUEUES_MAX), "queueId is over 65535")
    refuse(pc.greater(pc.binary_length(table["body"]), limits.BODY_BYTES_MAX), limits.BODY_TOO_LARGE)
    if table.nbytes >= limits.PROPERTIES_BYTES_MAX:  # else no row's can be too large
        refuse(pc.greater(_property_bytes(table), limits.PROPERTIES_BYTES_MAX), limits.PROPERTIES_TOO_LARGE)


def _property_bytes(table: pa.Table) -> pa.Array:
    """Bytes of each row's property string as RocketMQ would encode it."""
    sizes = np.concatenate([property_sizes(chunk) for chunk in table["properties"].chunks])
    for name, column in ((TAGS, "tags"), (KEYS, "keys")):
        texts = np.concatenate([text_sizes(chunk) for chunk in table[column].chunks])
        sizes += texts + (texts > 0) * (len(name) + limits.PAIR_MARKS_BYTES)
    return integers(sizes)


def property_sizes(maps: pa.MapArray) -> I64:
    """Bytes of each map in a property string: names, values and marks. Pairs without a value are not stored."""
    offsets = integers_of(maps.offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    items = maps.items[first:last]
    pairs = text_sizes(maps.keys[first:last]) + text_sizes(items) + limits.PAIR_MARKS_BYTES
    if items.null_count:
        pairs *= booleans_of(items.is_valid())
    ends = np.concatenate(([0], np.cumsum(pairs)))
    sizes: I64 = np.diff(ends[offsets - first])
    if maps.null_count:
        # A null map may still span entries.
        sizes[booleans_of(maps.is_null())] = 0
    return sizes


def text_sizes(texts: pa.Array) -> I64:
    """Bytes of each text; 0 for null."""
    sizes: I64 = integers_of(pc.binary_length(texts)).astype(np.int64)
    if texts.null_count:
        sizes[booleans_of(texts.is_null())] = 0
    return sizes
