"""Delta's actions as this project uses them: data files with their statistics, and the JSON and Parquet forms.

The tables use version 1 for readers and 2 for writers of Delta's protocol: no column mapping, no deletion vectors, no
partitions. So every engine reads them, and a file is either part of the table or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import CorruptDataError, UnsupportedVersionError
from rmq_spark.tables.schemas import POSITION, TableSpec

READER_VERSION: Final = 1
WRITER_VERSION: Final = 2
DELETED_FILES_KEPT_MS: Final = 3_600_000
"""Files that are no longer part of a table are kept so long for readers that still hold its older version."""
LOG_KEPT_MS: Final = 24 * 3_600_000
"""Entries of Delta's log that a checkpoint covers are kept so long."""

CONFIGURATION: Final = {
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.logRetentionDuration": "interval 1 days",
}
"""The table's properties: other engines that clean up shall keep files as long as this one does."""

_TEXT_MAX: Final = 64
"""Texts in statistics are cut to so many characters."""
_BROKER: Final = "brokerName"
"""Never cut: from a file's least and greatest broker one sees whether its rows are of one broker, and of which."""
_LAST: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_DELTA_TYPES: Final = {
    pa.string(): "string",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One Parquet file of a table, and what Delta's log says of it."""

    path: str
    """Relative to the table."""
    size: int
    """Bytes."""
    modified_ms: int
    rows: int | None = None
    """None: not counted."""
    least: dict[str, Any] = field(default_factory=dict)
    """Least value of columns, times in ms."""
    greatest: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)
    stats_text: str | None = None
    """The statistics as they stand in Delta's log."""

    @property
    def broker(self) -> str | None:
        """Whose log its rows are of; None when that is not known, or there are several."""
        low, high = self.least.get(_BROKER), self.greatest.get(_BROKER)
        return low if low == high else None

    @property
    def span(self) -> tuple[int, int]:
        """Log offsets [first, end) between which its rows lie; everything when that is not known."""
        low, high = self.least.get(POSITION), self.greatest.get(POSITION)
        return (0, 1 << 62) if low is None or high is None else (low, high + 1)

    def may_hold(self, column: str, low: Any, high: Any) -> bool:
        """Whether a value in [low, high] can be in `column`; False is certain."""
        least, greatest = self.least.get(column), self.greatest.get(column)
        return not ((least is not None and least > high) or (greatest is not None and greatest < low))

    def add(self, *, data_change: bool) -> dict[str, Any]:
        """The action that makes it part of the table."""
        return {
            "add": {
                "path": quote(self.path),
                "partitionValues": {},
                "size": self.size,
                "modificationTime": self.modified_ms,
                "dataChange": data_change,
                "stats": self.stats_text or "",
            }
        }

    def remove(self, *, data_change: bool, now_ms: int) -> dict[str, Any]:
        """The action that takes it out of the table."""
        return {
            "remove": {
                "path": quote(self.path),
                "deletionTimestamp": now_ms,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": self.size,
            }
        }


def describe(path: str, size: int, modified_ms: int, rows: pa.Table, spec: TableSpec) -> DataFile:
    """The data file that holds `rows`, with statistics of all columns.

    All: delta-rs takes a column that has a count of nulls and no bounds for one in which nothing can be found.
    """
    least, greatest, nulls = {}, {}, {}
    for name in spec.schema.names:
        column = rows[name]
        nulls[name] = column.null_count
        if column.null_count == len(column):
            continue
        if pa.types.is_dictionary(column.type):
            column = pa.chunked_array([chunk.dictionary.take(chunk.indices.unique()) for chunk in column.chunks])
        extremes = pc.min_max(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).as_py()
        scale = 1000 if pa.types.is_timestamp(rows[name].type) else 1
        least[name], greatest[name] = (value // scale if scale > 1 else value for value in extremes.values())
        if isinstance(least[name], str) and name != _BROKER:
            least[name], greatest[name] = least[name][:_TEXT_MAX], _bounded(greatest[name])
    text = json.dumps(
        {
            "numRecords": rows.num_rows,
            "minValues": _stat_texts(least, spec),
            "maxValues": _stat_texts(greatest, spec),
            "nullCount": nulls,
        },
        separators=(",", ":"),
    )
    return DataFile(
        path=path,
        size=size,
        modified_ms=modified_ms,
        rows=rows.num_rows,
        least=least,
        greatest=greatest,
        nulls=nulls,
        stats_text=text,
    )


def data_file(value: dict[str, Any], spec: TableSpec, where: str) -> DataFile:
    """The file of an `add` action, whoever wrote it.

    Raises:
        UnsupportedVersionError: it has a deletion vector.
        CorruptDataError: its statistics are no JSON.
        KeyError, TypeError, ValueError: it is not what Delta's protocol says.
    """
    if value.get("deletionVector"):
        raise UnsupportedVersionError(
            "the table has deletion vectors, which this project does not read; rebuild it", file=where
        )
    text = value.get("stats") or None
    try:
        stats: dict[str, Any] = json.loads(text) if text else {}
    except ValueError as error:
        raise CorruptDataError("statistics of a table's file are no JSON", file=where, path=value["path"]) from error
    return DataFile(
        path=unquote(value["path"]),
        size=number(value["size"]),
        modified_ms=number(value["modificationTime"]),
        rows=None if stats.get("numRecords") is None else number(stats["numRecords"]),
        least=_stat_values(stats.get("minValues", {}), spec),
        greatest=_stat_values(stats.get("maxValues", {}), spec),
        nulls=stats.get("nullCount", {}),
        stats_text=text,
    )


def metadata(spec: TableSpec, table_id: str, now_ms: int) -> dict[str, Any]:
    """The action that creates the table."""
    columns = [
        {"name": column.name, "type": _DELTA_TYPES[column.type], "nullable": True, "metadata": {}}
        for column in spec.schema
    ]
    return {
        "metaData": {
            "id": table_id,
            "name": spec.name,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": columns}, separators=(",", ":")),
            "partitionColumns": [],
            "configuration": CONFIGURATION,
            "createdTime": now_ms,
        }
    }


def protocol() -> dict[str, Any]:
    """The action that says which features readers and writers need: none."""
    return {"protocol": {"minReaderVersion": READER_VERSION, "minWriterVersion": WRITER_VERSION}}


def transaction(app_id: str, version: int, now_ms: int) -> dict[str, Any]:
    """The action that notes how far an application has come."""
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": now_ms}}


def _bounded(text: str) -> str:
    """A text that is not less, and not much longer than `_TEXT_MAX`."""
    if len(text) <= _TEXT_MAX or text[_TEXT_MAX] == _LAST:
        return text
    return text[:_TEXT_MAX] + _LAST


def _stat_texts(values: dict[str, Any], spec: TableSpec) -> dict[str, Any]:
    times = _times(spec)
    return {name: _iso(value) if name in times else value for name, value in values.items()}


def _stat_values(values: dict[str, Any], spec: TableSpec) -> dict[str, Any]:
    return {
        name: _stat_value(value, spec.schema.field(name).type)
        for name, value in values.items()
        if value is not None and name in spec.schema.names
    }


def _stat_value(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind):
        return _ms(value)
    if pa.types.is_integer(kind):
        return number(value)
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def number(value: object) -> int:
    """The value, which must be an integer; others do not belong where Delta's protocol has one."""
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value


def _times(spec: TableSpec) -> frozenset[str]:
    return frozenset(column.name for column in spec.schema if pa.types.is_timestamp(column.type))


def _iso(ms: int) -> str:
    moment = _EPOCH + ms * _MILLISECOND
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def _ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


# ------------------------------------------------------------ checkpoints

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_CHECKPOINT: Final = pa.schema(
    [
        pa.field(
            "txn",
            pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
        ),
        pa.field(
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                ]
            ),
        ),
        pa.field(
            "remove",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("deletionTimestamp", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("extendedFileMetadata", pa.bool_()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                ]
            ),
        ),
        pa.field(
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", _TEXTS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        pa.field("protocol", pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])),
    ]
)


def checkpoint_table(actions: Iterable[dict[str, Any]]) -> pa.Table:
    """Actions as the rows of a checkpoint."""
    rows = list(actions)
    return pa.table(
        [pa.array([_pairs(row.get(column.name), column.type) for row in rows], column.type) for column in _CHECKPOINT],
        schema=_CHECKPOINT,
    )


def checkpoint_actions(table: pa.Table) -> Iterable[dict[str, Any]]:
    """The inverse of `checkpoint_table`, for checkpoints of any writer; what is not known here is left out."""
    for name in _CHECKPOINT.names:
        if name in table.column_names:
            for value in table[name].drop_null().to_pylist():
                yield {name: value}


def _pairs(value: Any, kind: pa.DataType) -> Any:
    """Maps as Arrow takes them."""
    if pa.types.is_map(kind) and value is not None:
        return list(value.items())
    if pa.types.is_struct(kind) and value is not None:
        return {column.name: _pairs(value.get(column.name), column.type) for column in kind}
    return value
