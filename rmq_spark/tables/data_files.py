"""Writing and reading a table's Parquet files: rows in the table's order, as `TableSpec` says they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rmq_spark.clock import Clock
from rmq_spark.errors import CorruptDataError
from rmq_spark.storage.base import Storage
from rmq_spark.tables.delta_actions import DataFile, describe
from rmq_spark.tables.schemas import TableSpec

I64 = npt.NDArray[np.int64]

COMPRESSION_LEVEL: Final = 1
"""Of zstd: higher levels take longer and save nothing on these columns."""


def join(batches: Sequence[pa.RecordBatch], spec: TableSpec) -> pa.Table:
    """Batches of the kernel as one table; their dictionaries become one for each column."""
    parts = [pa.Table.from_batches([batch]) for batch in batches]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return spec.schema.empty_table()
    return pa.concat_tables(map(_widened, parts)).unify_dictionaries().combine_chunks()


def _widened(part: pa.Table) -> pa.Table:
    """The part with dictionary indices of 32 bits.

    The kernel takes as few bytes as one batch needs: that can differ between batches, and be too few for all of them.
    """
    fields = [
        field.with_type(pa.dictionary(pa.int32(), field.type.value_type))
        if pa.types.is_dictionary(field.type)
        else field
        for field in part.schema
    ]
    return part.cast(pa.schema(fields))


def in_order(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """The rows in the table's order; rows that are equal in it keep theirs."""
    order = _order([_ranks(rows[name]) for name in spec.sort])
    if (np.diff(order) == 1).all():
        return rows
    return pa.table({name: _take(rows[name], order) for name in rows.column_names})


def _order(keys: list[I64]) -> I64:
    """Row numbers in the order of the keys, the first one first."""
    last = keys[-1]
    if len(keys) == 1 and last.dtype == np.int32 and len(last) and int(last.min()) >= 0:
        # One number for key and row: sorting those is several times as fast as sorting row numbers by key.
        packed = last.astype(np.int64) << 31 | np.arange(len(last))
        packed.sort()
        return packed & 0x7FFFFFFF
    if len(keys) == 1:
        return np.argsort(last, kind="stable")
    # Rows mostly come in the order of the last key, within each group of the others.
    group = np.lexsort(keys[-2::-1])
    edges = np.zeros(max(len(group) - 1, 0), np.bool_)
    for key in keys[:-1]:
        edges |= np.diff(key[group]) != 0
    if ((np.diff(last[group]) >= 0) | edges).all():
        return group
    return np.lexsort(keys[::-1])


def _take(column: pa.ChunkedArray, order: I64) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type) and column.num_chunks == 1 and not column.null_count:
        chunk = column.chunk(0)
        if len(chunk.dictionary) == 1:
            return column  # all rows have the same value
        indices = chunk.indices.to_numpy()[order]
        return pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array(indices), chunk.dictionary)])
    if column.null_count or not pa.types.is_primitive(column.type):
        return column.take(pa.array(order))
    whole = column.to_numpy()
    if pa.types.is_timestamp(column.type):
        whole = whole.view(np.int64)
    return pa.chunked_array([pa.array(whole[order]).cast(column.type)])


def _ranks(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Numbers that sort as the values do."""
    if pa.types.is_string(column.type):
        column = column.dictionary_encode()
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
        if not column.num_chunks:
            return np.zeros(0, np.int64)
        texts = column.chunk(0).dictionary.to_pylist()
        rank = np.empty(len(texts) + 1, np.int64)
        rank[sorted(range(len(texts)), key=texts.__getitem__)] = np.arange(len(texts))
        rank[-1] = -1  # null comes first
        codes = [chunk.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False) for chunk in column.chunks]
        ranks: I64 = rank[np.concatenate(codes)]
        return ranks
    numbers: I64 = column.to_numpy()
    return numbers


def write(storage: Storage, spec: TableSpec, rows: pa.Table, name: str, clock: Clock) -> DataFile:
    """Write `rows`, which are in the table's order, as a durable file that no version of the table names yet.

    Raises:
        StorageFullError, UnavailableError, OutcomeUnknownError: as `Storage.create_if_absent`.
    """
    sink = pa.BufferOutputStream()
    names = spec.schema.names
    pq.write_table(
        rows,
        sink,
        row_group_size=spec.row_group,
        compression={column: "none" if column in spec.plain else "zstd" for column in names},
        compression_level={column: COMPRESSION_LEVEL for column in names if column not in spec.plain},
        use_dictionary=list(spec.dictionary),
        column_encoding=spec.encodings,
        write_statistics=list(spec.footer_stats),
        sorting_columns=[pq.SortingColumn(names.index(column)) for column in spec.sort],
        store_schema=False,
    )
    data = sink.getvalue()
    path = f"{name}.parquet"
    written_ms = clock.now_ms()  # before it is there: whoever judges its age must not take it for younger
    storage.create_if_absent(f"{spec.root}/{path}", [data], durable=True)
    return describe(path, data.size, written_ms, rows, spec)


def file_name(broker: str, first: int, end: int, nonce: str) -> str:
    """What a file of the rows of [first, end) is called, without its ending; the nonce makes it unique."""
    return f"part-{broker}-{first:020d}-{end:020d}-{nonce[:16]}"


def read(storage: Storage, spec: TableSpec, file: DataFile, columns: list[str] | None = None) -> pa.Table:
    """All rows of a file, with the table's schema (or the named columns of it).

    Raises:
        NotFoundError: the file is gone; the table has a newer version.
        CorruptDataError: it is damaged.
    """
    path = f"{spec.root}/{file.path}"
    data = storage.read(path)
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(columns, use_threads=False)
        return table.cast(pa.schema([spec.schema.field(name) for name in table.column_names]))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise CorruptDataError(
            "a file of a table cannot be parsed; drop the table and build it again", file=path, reason=str(error)
        ) from error
