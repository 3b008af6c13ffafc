"""Messages on their way into the log: as Python values or as Arrow, merged, checked, sorted into runs.

A run is one queue's rows within a file: contiguous, in the order they were given. Everything here works on
whole columns; the only Python loops are over distinct topics and tags.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import BODY, Mover, is_constant
from rmq_spark.log.property_sizes import property_sizes, text_sizes
from rmq_spark.log.tag_codes import TAGS_PER_RUN_MAX, tag_codes
from rmq_spark.model import java_hash, limits, names
from rmq_spark.model.message_row import MessageRow
from rmq_spark.model.properties import KEYS, TAGS

Row = tuple[Any, ...]
"""One message: its values in the order of `schema.ROWS`."""

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

# A copy of a message may have more properties than its sender gave it.
_PROPERTIES_BYTES_MAX: Final = limits.PROPERTIES_BYTES_MAX + limits.ENGINE_PROPERTIES_BYTES_MAX
_TAGS: Final = schema.ROWS.get_field_index("tags")
_STRUCT: Final = pa.struct(list(schema.ROWS))
_ZERO: Final = np.frombuffer(bytes(4), np.int32)
_NOT_NEEDED: Final = np.zeros(1, np.int32)  # as the codes of an only value: it is added to arrays of any length
_ONE: Final = np.frombuffer((1).to_bytes(4, sys.byteorder), np.int32)


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
        """Roughly what it weighs, for the limits of a group commit."""
        if self._rows is not None:
            return sum(len(row[BODY]) for row in self._rows)
        return int(self._arrow().nbytes)

    @property
    def rows(self) -> list[Row] | None:
        """The messages as tuples in the order of `schema.ROWS`, if that is how they came."""
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
        _refuse(table, pc.greater(pc.binary_length(table["body"]), limits.BODY_BYTES_MAX), limits.BODY_TOO_LARGE)
        sizes = _property_bytes(table)
        if sizes is not None:
            _refuse(table, pc.greater(sizes, limits.PROPERTIES_BYTES_MAX), limits.PROPERTIES_TOO_LARGE)


@dataclass(frozen=True, slots=True)
class Runs:
    """The run index: one entry for each queue's rows in a file, in row order."""

    topics: list[str]
    """Distinct topics of the file, sorted."""
    topic: I32
    """Per run: index into `topics`."""
    queue: I32
    """Per run: queue id."""
    rows: I32
    """Per run: number of rows."""
    tag_counts: I32
    """Per run: how many codes of `tag_codes` are its own; -1 when it has too many to list."""
    tag_codes: I32
    """Distinct tag hash codes of the runs, concatenated; 0 stands for messages without a tag."""

    def first_rows(self) -> I64:
        """Per run: index of its first row in the file."""
        ends: I64 = np.cumsum(self.rows, dtype=np.int64)
        return ends - self.rows


def sort_into_runs(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Runs, I64 | None]:
    """Return the rows stably sorted by (topic, queueId), their run index, and the number that each had in `batch`."""
    found = find_order(batch)
    moved = batch if found.order is None else Mover(batch).take(found.order)
    return moved, found.runs(batch.column("tags")), found.order


class Sorted(NamedTuple):
    """Rows sorted by (topic, queueId), as far as these tell; their tags have not been looked at."""

    topics: list[str]
    topic: I32
    queue: I32
    rows: I32
    order: I64 | None
    """Number of each sorted row among the given ones; None when they are sorted already."""

    def runs(self, tags: pa.StringArray) -> Runs:
        """The run index, given the tags of the rows as they came."""
        counts, codes = tag_codes(tags, self.order, self.rows)
        return Runs(self.topics, self.topic, self.queue, self.rows, counts, codes)


def find_order(batch: pa.RecordBatch) -> Sorted:
    """Which row goes where when the rows are stably sorted by (topic, queueId), and what runs that gives."""
    count = batch.num_rows
    if count == 0:
        none = np.empty(0, np.int32)
        return Sorted([], none, none, none, None)
    topics, topic = _sorted_dictionary(batch.column("topic"))
    queue = batch.column("queueId").to_numpy(zero_copy_only=False)
    if len(topics) == 1 and queue[0] == queue[-1] and (queue == queue[0]).all():
        return Sorted(topics, _ZERO, queue[:1].copy(), np.array([count], np.int32), None)
    # With one topic, which most batches have, the queue alone tells rows apart.
    group = queue if len(topics) == 1 else topic.astype(np.int64) << 32 | queue
    order = None
    if np.any(group[1:] < group[:-1]):
        order = _stable_order(topic, queue, len(topics), group)
        group = group[order]
    steps = np.flatnonzero(group[1:] != group[:-1])
    starts = np.concatenate(([0], steps + 1))
    rows = np.diff(starts, append=count).astype(np.int32)
    heads = group[starts].astype(np.int64)
    return Sorted(topics, (heads >> 32).astype(np.int32), (heads & 0xFFFFFFFF).astype(np.int32), rows, order)


def sort_rows(rows: list[Row]) -> tuple[list[Row], Runs, I64 | None]:
    """As `sort_into_runs`, for the few messages of a group commit that came as Python values."""
    if len(rows) == 1:
        topic, queue_id, tags = rows[0][0], rows[0][1], rows[0][_TAGS]
        return rows, _one_run(topic, queue_id, tags or ""), None
    order = None
    places = [(row[0], row[1]) for row in rows]
    if any(place > after for place, after in pairwise(places)):
        given = sorted(range(len(rows)), key=places.__getitem__)
        rows = [rows[index] for index in given]
        order = np.array(given, np.int64)
    topics = sorted({place[0] for place in places})
    topic, queue, count, tag_counts, tag_codes = [], [], [], [], []
    for place, group in groupby(rows, key=lambda row: (row[0], row[1])):
        members = list(group)
        topic.append(topics.index(place[0]))
        queue.append(place[1])
        count.append(len(members))
        codes = {java_hash.java_hash(row[_TAGS] or "") for row in members}
        tag_counts.append(len(codes) if len(codes) <= TAGS_PER_RUN_MAX else -1)
        tag_codes += sorted(codes) if len(codes) <= TAGS_PER_RUN_MAX else []
    numbers = [np.array(values, np.int32) for values in (topic, queue, count, tag_counts, tag_codes)]
    return rows, Runs(topics, *numbers), order


@lru_cache(4096)
def _one_run(topic: str, queue_id: int, tags: str) -> Runs:
    """The run index of one message; most messages share theirs with many others."""
    code = java_hash.java_hash(tags)
    return Runs([topic], _ZERO, np.array([queue_id], np.int32), _ONE, _ONE, np.array([code], np.int32))


@lru_cache(4096)
def _is_topic(name: str) -> bool:
    return bool(names.check_topic(name))


def _check_row(row: MessageRow) -> None:
    topic, queue_id, msg_id, body = row.topic, row.queue_id, row.msg_id, row.body
    _is_topic(topic)
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


def _stable_order(topic: I32, queue: I32, topics: int, group: I64) -> I64:
    # numpy sorts 16-bit integers by radix: several times faster than its merge sort of 64-bit ones.
    width = int(queue.max()) + 1
    key: npt.NDArray[Any]
    if topics * width <= 65_536:
        key = (topic * width + queue).astype(np.uint16)
    else:
        distinct, code = np.unique(group, return_inverse=True)
        key = code.astype(np.uint16) if len(distinct) <= 65_536 else code
    order: I64 = np.argsort(key, kind="stable")
    return order


def _sorted_dictionary(column: pa.StringArray) -> tuple[list[str], I32]:
    if is_constant(column):
        return [column[0].as_py()], _NOT_NEEDED
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    order = sorted(range(len(values)), key=values.__getitem__)
    rank = np.empty(len(values), np.int32)
    rank[order] = np.arange(len(values), dtype=np.int32)
    return [values[index] for index in order], rank[codes]


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
    if table.nbytes < limits.PROPERTIES_BYTES_MAX:
        return None
    sizes = np.concatenate([property_sizes(chunk) for chunk in table["properties"].chunks])
    for name, column in ((TAGS, "tags"), (KEYS, "keys")):
        texts = np.concatenate([text_sizes(chunk) for chunk in table[column].chunks])
        sizes += texts + (texts > 0) * (len(name) + limits.PAIR_MARKS_BYTES)
    return pa.chunked_array([pa.array(sizes)])
