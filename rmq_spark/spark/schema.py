"""Columns as Spark sees them: which ones a user may ask for, and the one function that shapes Arrow for Spark.

Spark takes an Arrow batch only if its schema is exactly what it would build itself: order, types, nullability.
A user's schema may name any columns of a message in any order; what it does not name is never read.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq_spark.client.compression import decompress
from rmq_spark.errors import CorruptDataError, InvalidRequestError
from rmq_spark.log import schema
from rmq_spark.log.arrow_columns import offsets_of
from rmq_spark.model.kafka_names import KAFKA_NAMES

READ_SCHEMA: Final = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("brokerName", StringType(), nullable=False),
        StructField("queueId", IntegerType(), nullable=False),
        StructField("queueOffset", LongType(), nullable=False),
        StructField("commitOffset", LongType(), nullable=False),
        StructField("msgId", StringType(), nullable=False),
        StructField("tags", StringType()),
        StructField("keys", StringType()),
        StructField("body", BinaryType(), nullable=False),
        StructField("flag", IntegerType(), nullable=False),
        StructField("sysFlag", IntegerType(), nullable=False),
        StructField("bornTimestamp", TimestampType()),
        StructField("bornHost", StringType()),
        StructField("storeTimestamp", TimestampType(), nullable=False),
        StructField("reconsumeTimes", IntegerType(), nullable=False),
        StructField("properties", MapType(StringType(), StringType())),
    ]
)
"""What a read returns when no schema is given. Spark asks of each value whether it is null, except where it is told
that none can be."""

_OTHER_TYPES: Final = {
    "body": {"string"},
    "queueId": {"bigint"},
    "flag": {"bigint"},
    "sysFlag": {"bigint"},
    "reconsumeTimes": {"bigint"},
    "bornTimestamp": {"bigint"},
    "storeTimestamp": {"bigint"},
}
"""Types that a user's schema may ask for beside a column's own; a time as bigint is milliseconds since 1970."""

_ZERO_FOR_NULL: Final = {"flag", "sysFlag", "reconsumeTimes"}
"""Numbers that a writer may leave out, which means 0."""


@dataclass(frozen=True)
class Shape:
    """The columns to return, in Spark's order, and those to read for it."""

    target: pa.Schema
    """With the names as the user wrote them."""
    names: tuple[str, ...]
    """The messages' columns that they are."""
    decompress: bool
    """Whether compressed bodies are returned plain; needs sysFlag beside body."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What a scan must return."""
        if self.decompress and "body" in self.names and "sysFlag" not in self.names:
            return (*self.names, "sysFlag")
        return self.names

    def to_spark_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Shape a scan's batch exactly as Spark wants it.

        Raises:
            InvalidRequestError: a body was asked for as string and is not UTF-8.
            CorruptDataError: a body says it is compressed and is not, or a value is missing that every message has.
        """
        if self.decompress and "body" in batch.schema.names:
            batch = decompress(batch)
        arrays = [
            _to_type(_without_null(batch.column(name), name, field), name, field)
            for name, field in zip(self.names, self.target, strict=True)
        ]
        if "properties" in self.names:
            index = self.names.index("properties")
            arrays[index] = _null_if_empty(arrays[index])
        return pa.RecordBatch.from_arrays(arrays, schema=self.target)


def shape_of(wanted: StructType, *, decompress: bool) -> Shape:
    """Check a user's schema and return how to make batches for it; names are compared without regard to case.

    Raises:
        InvalidRequestError: an unknown column, or one with another type.
    """
    types = {field.name: field.dataType.simpleString() for field in READ_SCHEMA}
    may_be_null = {field.name for field in READ_SCHEMA if field.nullable}
    known = {name.lower(): name for name in types}
    names: list[str] = []
    for field in wanted:
        name = known.get(field.name.lower())
        if name is None:
            near = difflib.get_close_matches(field.name.lower(), known, 1, 0.0)
            nearest = KAFKA_NAMES.get(field.name.lower(), known[near[0]])
            raise InvalidRequestError("unknown column in the schema", column=field.name, nearest=nearest)
        names.append(name)
        asked = field.dataType.simpleString()
        allowed = {types[name]} | _OTHER_TYPES.get(name, set())
        if asked not in allowed:
            raise InvalidRequestError(
                "column cannot be read as this type", column=field.name, type=asked, allowed=sorted(allowed)
            )
        if not field.nullable and name in may_be_null:
            raise InvalidRequestError("column may be null; leave NOT NULL out of the schema", column=field.name)
    if not names:
        raise InvalidRequestError("the schema names no column; Arrow cannot count rows without one", known=list(types))
    if len(set(names)) < len(names):
        raise InvalidRequestError("a column is named twice in the schema", columns=[field.name for field in wanted])
    return Shape(to_arrow_schema(wanted, timezone="UTC"), tuple(names), decompress)


def join_small(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches as one: Spark pays for each batch, and small commits give small ones."""
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _without_null(column: pa.Array, name: str, field: pa.Field) -> pa.Array:
    if field.nullable or not column.null_count:
        return column
    if name in _ZERO_FOR_NULL:
        return pc.fill_null(column, 0)
    # Spark would take what lies in the column's memory for a value.
    raise CorruptDataError("a message has no value in a column that is never null", column=name)


def _null_if_empty(maps: pa.MapArray) -> pa.MapArray:
    """Maps without entries as nulls: Spark copies a map twice before a query sees it, whether anything is in it or not.

    A quarter of the time of reading messages without properties, which Kafka's connector leaves null for that.
    """
    offsets = offsets_of(maps)
    if len(maps) == 0 or offsets[0] == offsets[-1]:
        return _no_maps(len(maps), maps.type)
    filled = offsets[1:] != offsets[:-1]
    if maps.null_count:
        filled &= maps.is_valid().to_numpy(zero_copy_only=False)
    if filled.all():
        return maps
    bits = pa.py_buffer(np.packbits(filled, bitorder="little"))
    # Whole columns have offset 0, so that the bitmap and the other buffers begin with the same row.
    ends = maps.buffers()[1].slice(4 * maps.offset)
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], fields=list(maps.type.field(0).type))
    return pa.Array.from_buffers(maps.type, len(maps), [bits, ends], len(maps) - int(filled.sum()), 0, [entries])


@lru_cache(16)
def _no_maps(count: int, type_: pa.DataType) -> pa.MapArray:
    return pa.nulls(count, type_)


def _to_type(column: pa.Array, name: str, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    if column.type == schema.TIMESTAMP and pa.types.is_int64(field.type):
        return column.cast(pa.int64())
    try:
        return pc.cast(column, field.type)
    except pa.ArrowInvalid as error:
        instead = "binary" if name == "body" else "bigint"
        raise InvalidRequestError(
            f"a value cannot be read as this type; ask for the column as {instead} by a schema",
            column=name,
            type=str(field.type),
            reason=str(error),
        ) from error
