"""The tables: their columns, and how their rows lie in Parquet files.

Every column is nullable and of a type that Spark, Delta and Arrow agree on. Times are in microseconds because Delta's
`timestamp` is; their values are whole milliseconds.

Layout, which docs/tables.md explains with the measurements behind it: a file holds the rows of one log range of one
broker. Index files are sorted by `keyHash`, in small row groups, and `keyHash` itself lies there plain and
uncompressed, so that a look-up is one read of 32 KiB and a binary search, without decoding anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rmq_spark.errors import InvalidRequestError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

CONSUMEQUEUE: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("brokerName", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("queueOffset", pa.int64()),
        pa.field("commitOffset", pa.int64()),
        pa.field("size", pa.int32()),
        pa.field("tagsCode", pa.int64()),
        pa.field("storeTimestamp", TIMESTAMP),
    ]
)
"""One row a message: RocketMQ's ConsumeQueue."""

INDEX: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("key", pa.string()),
        pa.field("keyHash", pa.int32()),
        pa.field("kind", pa.string()),
        pa.field("commitOffset", pa.int64()),
        pa.field("queueId", pa.int32()),
        pa.field("queueOffset", pa.int64()),
        pa.field("storeTimestamp", TIMESTAMP),
        pa.field("brokerName", pa.string()),
    ]
)
"""One row for each key of a message and one for its id: RocketMQ's IndexFile, with the key's text."""

CONSUMER_OFFSETS: Final = pa.schema(
    [
        pa.field("group", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("brokerName", pa.string()),
        pa.field("queueId", pa.int32()),
        pa.field("committedOffset", pa.int64()),
        pa.field("maxOffset", pa.int64()),
        pa.field("lag", pa.int64()),
        pa.field("lagMs", pa.int64()),
        pa.field("commitOffset", pa.int64()),
        pa.field("updatedAt", TIMESTAMP),
    ]
)
"""One row for each queue of each offset commit, for ever: the history of RocketMQ's consumerOffset.json.

`commitOffset` is the place of the commit in the log, `updatedAt` its time. A group that was deleted leaves a row with
nothing but its name, place and time.
"""

POSITION: Final = "commitOffset"
"""The column that says where in the log a row comes from; every table has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """One table: what it holds and how its files are written."""

    name: str
    """Directory below `tables/`."""
    schema: pa.Schema
    sort: tuple[str, ...]
    """Rows of a file are in this order."""
    row_group: int
    """Rows a row group."""
    dictionary: tuple[str, ...]
    """Columns that are stored by dictionary."""
    encodings: dict[str, str]
    """Encodings of the others."""
    plain: tuple[str, ...] = ()
    """Columns that are not compressed."""
    footer_stats: tuple[str, ...] = ()
    """Columns with least and greatest value for each row group; Delta's log has those of each file."""

    @property
    def root(self) -> str:
        """Where the table is, relative to the store."""
        return f"tables/{self.name}"

    def app_id(self, broker: str) -> str:
        """Delta's transaction id under which a broker's log enters the table; its version is the log offset reached."""
        return f"rmq-{self.name}-{broker}"


_DELTA: Final = "DELTA_BINARY_PACKED"

TABLES: Final = {
    spec.name: spec
    for spec in (
        TableSpec(
            name="consumequeue",
            schema=CONSUMEQUEUE,
            sort=("topic", "queueId", "queueOffset"),
            row_group=128 * 1024,
            dictionary=("topic", "brokerName", "queueId", "size", "tagsCode", "storeTimestamp"),
            encodings={"queueOffset": _DELTA, "commitOffset": _DELTA},
            footer_stats=("topic", "queueId", "queueOffset", "commitOffset", "tagsCode", "storeTimestamp"),
        ),
        TableSpec(
            name="index",
            schema=INDEX,
            sort=("keyHash",),
            row_group=8 * 1024,
            dictionary=("topic", "kind", "queueId", "storeTimestamp", "brokerName"),
            encodings={
                "key": "DELTA_BYTE_ARRAY",
                "keyHash": "PLAIN",
                "commitOffset": _DELTA,
                "queueOffset": _DELTA,
            },
            plain=("keyHash",),
            footer_stats=("keyHash",),
        ),
        TableSpec(
            name="consumer_offsets",
            schema=CONSUMER_OFFSETS,
            sort=("commitOffset",),
            row_group=128 * 1024,
            dictionary=("group", "topic", "brokerName", "queueId", "updatedAt"),
            encodings={
                "committedOffset": _DELTA,
                "maxOffset": _DELTA,
                "lag": _DELTA,
                "lagMs": _DELTA,
                "commitOffset": _DELTA,
            },
            footer_stats=("group", "topic", "commitOffset", "updatedAt"),
        ),
    )
}
"""Every table, by name, in the order in which a range enters them."""


def spec_of(table: str) -> TableSpec:
    """The table of that name.

    Raises:
        InvalidRequestError: there is none.
    """
    if table not in TABLES:
        raise InvalidRequestError("no such table", table=table, known=list(TABLES))
    return TABLES[table]
