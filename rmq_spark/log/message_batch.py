"""Messages to append, as Python values or as Arrow columns: checked against RocketMQ's limits, and merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import schema
from rmq_spark.log.schema import Row
from rmq_spark.model import names

BODY: Final = schema.ROWS.get_field_index("body")
"""Where the body stands in a `Row`."""

_STRUCT: Final = pa.struct(list(schema.ROWS))


class MessageBatch:
    """Rows that are appended together: all of them land in one commit or none does.

    Appending the same object again after `OutcomeUnknownError` lands once.
    """

    __slots__ = ("_rows", "_table")

    def __init__(self, rows: list[Row] | None = None, table: pa.Table | None = None) -> None:
        self._rows = rows
        self._table = table

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
        pairs = list(properties)
        _check_row(topic, queue_id, msg_id, body, pairs)
        _check_numbers(flag, sys_flag, reconsume_times, born_timestamp_ms)
        row = (
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
            pairs,
        )
        return cls([row])

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
            elif field.name in ("topic", "queueId", "msgId", "body"):
                raise InvalidRequestError("required column is missing", column=field.name)
            else:
                columns.append(_default(field, table.num_rows))
        batch = cls(table=pa.Table.from_arrays(columns, schema=schema.ROWS))
        batch._check()
        return batch

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
        return len(self._rows) if self._rows is not None else int(self._arrow().num_rows)

    @property
    def body_bytes(self) -> int:
        """Approximate size in bytes, for the limits of a group commit."""
        if self._rows is not None:
            return sum(len(row[BODY]) for row in self._rows)
        return int(self._arrow().nbytes)

    @property
    def rows(self) -> list[Row] | None:
        """The messages as Python rows; None for a batch of Arrow columns."""
        return self._rows

    def topics(self) -> list[str]:
        """The distinct topics of its messages."""
        if self._rows is not None:
            return list(dict.fromkeys(row[0] for row in self._rows))
        topics: list[str] = pc.unique(self._arrow().column("topic")).to_pylist()
        return topics

    def record_batch(self) -> pa.RecordBatch:
        """The rows as one record batch of `schema.ROWS`."""
        if self._rows is not None:
            return to_record_batch(self._rows)
        batches = self._arrow().combine_chunks().to_batches()
        if not batches:
            return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema.ROWS], schema=schema.ROWS)
        if len(batches) > 1:
            raise InvalidRequestError("batch has over 2 GB in one column; append it in parts")
        return batches[0]

    def _arrow(self) -> pa.Table:
        return self._table

    def table(self) -> pa.Table:
        """The rows as a table of `schema.ROWS`."""
        return self._table if self._table is not None else pa.Table.from_batches([self.record_batch()])

    def _check(self) -> None:
        """Refuse rows that RocketMQ would refuse, naming the first bad one."""
        table = self.table()
        if table.num_rows == 0:
            return
        for name in ("topic", "queueId", "msgId", "body"):
            _refuse(table, pc.is_null(table[name]), f"{name} is null")
        for topic in pc.unique(table["topic"]).to_pylist():
            names.check_topic(topic)
            if topic in names.STATE_TOPICS:
                raise InvalidRequestError("state messages are appended one by one, not as a table", topic=topic)
        _refuse(table, pc.less(table["queueId"], 0), "queueId is negative")
        _refuse(table, pc.greater_equal(table["queueId"], names.QUEUES_MAX), "queueId is over 65535")
        _refuse(table, pc.greater(pc.binary_length(table["body"]), names.BODY_BYTES_MAX), "body is over 4 MiB")
        sizes = _property_bytes(table)
        if sizes is not None:
            _refuse(table, pc.greater(sizes, names.PROPERTIES_BYTES_MAX), "properties are over 32767 bytes")


@lru_cache(4096)
def _is_topic(name: str) -> bool:
    return bool(names.check_topic(name))


def _check_row(topic: str, queue_id: int, msg_id: str, body: bytes, pairs: list[tuple[str, str]]) -> None:
    _is_topic(topic)
    if not 0 <= queue_id < names.QUEUES_MAX:
        raise InvalidRequestError("queueId is 0 to 65535", topic=topic, queueId=queue_id)
    if not isinstance(body, bytes) or len(body) > names.BODY_BYTES_MAX:
        raise InvalidRequestError("body is bytes, at most 4 MiB", topic=topic, type=type(body).__name__)
    if not isinstance(msg_id, str) or not msg_id:
        raise InvalidRequestError("msgId is a text that is not empty", topic=topic, msgId=msg_id)
    if pairs and sum(len(name) + len(value) for name, value in pairs) > names.PROPERTIES_BYTES_MAX:
        raise InvalidRequestError("properties are over 32767 bytes", topic=topic, msgId=msg_id)


def _check_numbers(flag: int, sys_flag: int, reconsume_times: int, born_ms: int) -> None:
    for name, value, bits in (
        ("flag", flag, 31),
        ("sysFlag", sys_flag, 31),
        ("reconsumeTimes", reconsume_times, 31),
        ("bornTimestamp", born_ms, 63),
    ):
        if not -(1 << bits) <= value < 1 << bits:
            raise InvalidRequestError(f"{name} does not fit {bits + 1} bits", value=value)


def to_record_batch(rows: list[Row]) -> pa.RecordBatch:
    """Rows as a record batch; one conversion of structs costs a fifth of twelve conversions of columns."""
    return pa.RecordBatch.from_struct_array(pa.array(rows, _STRUCT))


def _default(field: pa.Field, count: int) -> pa.Array:
    if field.name == "properties":
        empty = pa.array([], pa.string())
        return pa.MapArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), empty, empty)
    if pa.types.is_integer(field.type):
        return pa.array(np.zeros(count, np.int32))
    if pa.types.is_timestamp(field.type):
        raise InvalidRequestError("required column is missing", column=field.name)
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


def _refuse(table: pa.Table, bad: pa.ChunkedArray, problem: str) -> None:
    bad = pc.fill_null(bad, True)
    if pc.any(bad).as_py():
        row = pc.index(bad, True).as_py()
        shown = table.select(["topic", "queueId", "msgId", "tags", "keys"]).slice(row, 1).to_pylist()[0]
        raise InvalidRequestError(problem, row=row, **shown)


def _property_bytes(table: pa.Table) -> pa.Array | None:
    """Bytes of each row's property string as RocketMQ would encode it; None when surely small."""
    properties = table["properties"].combine_chunks()
    if isinstance(properties, pa.ChunkedArray):
        properties = properties.chunk(0) if properties.num_chunks else pa.array([], schema.PROPERTIES)
    offsets = properties.offsets.to_numpy()
    if table.nbytes < names.PROPERTIES_BYTES_MAX:
        return None
    pair = np.zeros(len(properties.keys) + 1, np.int64)
    lengths = pc.add(pc.binary_length(properties.keys), pc.fill_null(pc.binary_length(properties.items), 0))
    pair[1:] = np.cumsum(lengths.to_numpy(zero_copy_only=False) + 2)
    sizes = pair[offsets[1:]] - pair[offsets[:-1]]
    for name in ("tags", "keys"):
        sizes = sizes + pc.fill_null(pc.binary_length(table[name]), 0).to_numpy() + 6
    return pa.chunked_array([pa.array(sizes)])
