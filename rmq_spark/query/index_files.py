"""Look-ups in the files of the `index` table: from a key's hash to the places of messages, in a read or two a file.

Files are sorted by `keyHash` in small row groups. A file's footer is read once and kept; after that a look-up reads
the `keyHash` values of the one row group that can hold the hash. This project's engine writes them plain and
uncompressed, so they are taken as they lie in the file; files that another engine wrote in another way are decoded by
pyarrow. Only for a hit the row group's places are read, too.
"""

from __future__ import annotations

import io
import struct
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rmq_spark.errors import CorruptDataError
from rmq_spark.storage.base import Storage
from rmq_spark.tables.delta_actions import DataFile
from rmq_spark.tables.schemas import TABLES

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

SPEC: Final = TABLES["index"]
FILES_KEPT: Final = 1024
"""So many footers are kept: up to 500 KB each."""
_TAIL: Final = 256 * 1024
_PLACES: Final = ("topic", "commitOffset", "queueId", "queueOffset")
_BROKER: Final = "brokerName"
_HEADER_MARK: Final = 0x15
"""Thrift's mark of the next field when it is a 32-bit integer."""


@dataclass(slots=True)
class LookupStats:
    """What look-ups cost."""

    files: int = 0
    """Files that were looked into."""
    row_groups: int = 0
    """Row groups whose hashes were read."""
    bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class IndexHits:
    """Rows of the index; as many entries in each array."""

    commit: I64
    queue: I64
    offset: I64
    topic: tuple[str, ...]


class _Window(io.RawIOBase):
    """Parts of a file that look like the file: pyarrow reads only what lies in them."""

    def __init__(self, parts: list[tuple[int, bytes | memoryview]], size: int) -> None:
        self._parts = parts
        self._size = size
        self._at = 0

    def read(self, length: int = -1, /) -> bytes:
        low = self._at
        self._at = self._size if length < 0 else low + length
        for start, data in self._parts:
            if start <= low and self._at <= start + len(data):
                return bytes(data[low - start : self._at - start])
        raise OSError("read outside the parts that were fetched")

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class _Footer:
    """What is kept of one file."""

    def __init__(self, path: str, metadata: Any, size: int) -> None:
        self.path = path
        self.metadata = metadata
        self.size = size
        self._columns = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
        groups = metadata.num_row_groups
        self.low = np.full(groups, np.iinfo(np.int32).min, np.int64)
        self.high = np.full(groups, np.iinfo(np.int32).max, np.int64)
        self.chunk = np.zeros((groups, 3), np.int64)
        """Per row group: where the column chunk of hashes begins, its bytes, its rows; 0 bytes: not plain."""
        self.in_order = np.zeros(groups, np.bool_)
        """Per row group: whether its writer says that it is sorted by hash."""
        at = self._columns["keyHash"]
        for group in range(groups):
            rows = metadata.row_group(group)
            column = rows.column(at)
            stats = column.statistics
            if stats is not None and stats.has_min_max:
                self.low[group], self.high[group] = stats.min, stats.max
            plain = column.compression == "UNCOMPRESSED" and not column.has_dictionary_page
            self.chunk[group] = (column.data_page_offset, column.total_compressed_size * plain, column.num_values)
            order = rows.sorting_columns
            self.in_order[group] = bool(order) and order[0].column_index == at and not order[0].descending

    def groups_with(self, value: int) -> list[int]:
        """Row groups that can hold a hash."""
        return np.flatnonzero((self.low <= value) & (self.high >= value)).tolist()

    def spans(self, group: int, columns: Iterable[str]) -> list[tuple[int, int]]:
        """Where column chunks of a row group lie: first byte and end, neighbours joined."""
        rows = self.metadata.row_group(group)
        spans: list[tuple[int, int]] = []
        for chunk in sorted((rows.column(self._columns[name]) for name in columns), key=_start_of):
            start = _start_of(chunk)
            if spans and start == spans[-1][1]:
                start = spans.pop()[0]
            spans.append((start, _start_of(chunk) + chunk.total_compressed_size))
        return spans


def _start_of(chunk: Any) -> int:
    return int(chunk.dictionary_page_offset or chunk.data_page_offset)


class IndexFiles:
    """The files of the index, as far as they were looked into. Not safe for use by two threads at once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._kept: OrderedDict[str, _Footer] = OrderedDict()

    def find(
        self, files: Iterable[DataFile], broker: str, hashes: Mapping[int, set[str]], stats: LookupStats
    ) -> IndexHits:
        """Places of a broker's messages that have a key with one of the hashes in one of its topics, in no order.

        A hash is not a key: whoever asks compares the keys themselves.

        Raises:
            NotFoundError: a file is gone; the table has a newer version.
            CorruptDataError: a file is damaged.
        """
        hits: list[pa.Table] = []
        for file in files:
            wanted = [value for value in hashes if file.may_hold("keyHash", value, value)]
            if not wanted:
                continue
            footer = self._footer(file, stats)
            stats.files += 1
            # Another engine may have put rows of several brokers into one file; only then the rows say whose they are.
            owner = broker if file.broker is None else None
            for value in wanted:
                for group in footer.groups_with(value):
                    hits += self._hits(footer, group, value, hashes[value], stats, owner=owner)
        if not hits:
            none = np.empty(0, np.int64)
            return IndexHits(none, none, none, ())
        table = pa.concat_tables(hits)
        commit, queue, offset = (table[name].to_numpy().astype(np.int64) for name in _PLACES[1:])
        return IndexHits(commit, queue, offset, tuple(table["topic"].to_pylist()))

    def _hits(
        self, footer: _Footer, group: int, value: int, topics: set[str], stats: LookupStats, *, owner: str | None
    ) -> list[pa.Table]:
        """Places in a row group; of one broker's rows only where an owner is named."""
        rows = self._rows_with(footer, group, value, stats)
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        if not count:
            return []
        columns = _PLACES if owner is None else (*_PLACES, _BROKER)
        places = self._decoded(footer, group, columns, stats)
        places = places.slice(rows.start, count) if isinstance(rows, slice) else places.take(pa.array(rows))
        # Other topics have keys with this hash, too, now and then.
        mine = [topic in topics for topic in places["topic"].to_pylist()]
        if owner is not None:
            mine = [ours and name == owner for ours, name in zip(mine, places[_BROKER].to_pylist(), strict=True)]
            places = places.select(_PLACES)
        return [places if all(mine) else places.filter(pa.array(mine))]

    def _rows_with(self, footer: _Footer, group: int, value: int, stats: LookupStats) -> slice | I64:
        """Rows of a row group that have the hash; a slice where they lie together."""
        stats.row_groups += 1
        hashes = self._plain_hashes(footer, group, stats)
        if hashes is None:
            hashes = self._decoded(footer, group, ("keyHash",), stats)["keyHash"].to_numpy()
        if not footer.in_order[group]:
            return np.flatnonzero(hashes == value)
        low = int(np.searchsorted(hashes, value))
        return slice(low, low + int(np.searchsorted(hashes[low:], value, "right")))

    def _plain_hashes(self, footer: _Footer, group: int, stats: LookupStats) -> I32 | None:
        """The hashes of a row group if they lie in one page as they are; else None."""
        start, length, rows = footer.chunk[group].tolist()
        if not length:
            return None
        data = self._read(footer.path, start, length, stats)
        payload = _payload_of(data)
        # Levels (which say that nothing is null) come before the values, so the values are what the page ends with.
        if payload is None or not 4 * rows <= payload <= length or payload > 4 * rows + 64:
            return None
        return np.frombuffer(data, "<i4", rows, length - 4 * rows)

    def _decoded(self, footer: _Footer, group: int, columns: tuple[str, ...], stats: LookupStats) -> pa.Table:
        parts = [
            (start, self._read(footer.path, start, end - start, stats)) for start, end in footer.spans(group, columns)
        ]
        try:
            source = pa.PythonFile(_Window(parts, footer.size), "r")
            file = pq.ParquetFile(source, metadata=footer.metadata, pre_buffer=False)
            return file.read_row_group(group, columns=list(columns), use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(footer.path, str(error)) from error

    def _read(self, path: str, start: int, length: int, stats: LookupStats) -> bytes | memoryview:
        stats.bytes_read += length
        return self._storage.read_range(path, start, length)

    def _footer(self, file: DataFile, stats: LookupStats) -> _Footer:
        footer = self._kept.get(file.path)
        if footer is not None:
            self._kept.move_to_end(file.path)
            return footer
        path = f"{SPEC.root}/{file.path}"
        tail, size = self._storage.read_tail(path, _TAIL)
        if len(tail) < 12 or tail[-4:] != b"PAR1":
            raise _damaged(path, "it does not end as a Parquet file")
        length = int(struct.unpack_from("<I", tail, len(tail) - 8)[0]) + 8
        if length > len(tail):
            tail, size = self._storage.read_tail(path, length)
        stats.bytes_read += length
        try:
            footer = _Footer(path, pq.read_metadata(pa.BufferReader(tail)), size)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise _damaged(path, str(error)) from error
        self._kept[file.path] = footer
        while len(self._kept) > FILES_KEPT:
            self._kept.popitem(last=False)
        return footer


def _payload_of(chunk: bytes | memoryview) -> int | None:
    """Bytes of the first page behind its header (Parquet's PageHeader in Thrift's compact form); None if unreadable.

    Its first three fields are the page's kind and its uncompressed and compressed size, each a zigzag varint.
    """
    at, value = 0, 0
    for _ in range(3):
        if at >= len(chunk) or chunk[at] != _HEADER_MARK:
            return None
        at += 1
        value, shift = 0, 0
        while True:
            if at >= len(chunk):
                return None
            value |= (chunk[at] & 0x7F) << shift
            shift += 7
            at += 1
            if chunk[at - 1] < 0x80:
                break
    return value >> 1


def _damaged(path: str, reason: str) -> CorruptDataError:
    return CorruptDataError(
        "a file of the index cannot be read; run `rmq tables drop`, then `rmq tables build`", file=path, reason=reason
    )
