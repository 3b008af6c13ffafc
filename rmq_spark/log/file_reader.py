"""Reading files of a log: metadata from the tail, then only the blocks and columns that are asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.log import ipc_file
from rmq_spark.log.file_format import (
    TAIL_BYTES,
    FileMeta,
    NeedMoreError,
    check_block,
    check_column,
    check_header,
    check_whole,
    parse,
)
from rmq_spark.log.file_layout import column_places, head, newest_schema
from rmq_spark.storage.base import Storage

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

Tail = tuple[bytes, int]
"""A file's last bytes, and its size."""

READ_AHEAD_BYTES: Final = 4 * 1024 * 1024
"""Neighbouring whole blocks are fetched together up to this size; it bounds a scan's memory."""
STRETCH_ROWS: Final = 16_384
STRETCH_BYTES: Final = 4 * 1024 * 1024
"""Neighbouring blocks are put together up to so many rows and bytes."""
_PARSING: Final = (pa.ArrowException, IndexError, ValueError, StopIteration, struct.error)
"""What a header that is no header of ours leads to."""
GAP_BYTES: Final = 16 * 1024
"""Two wanted ranges with no more than this between them are fetched as one."""


def read_meta(storage: Storage, path: str, kind: str, tail: Tail | None = None) -> FileMeta:
    """Return the checked metadata of the file at `path`, which must be of the given kind.

    `tail` is what `Storage.read_tail` has given for `TAIL_BYTES`, if that was read before.

    Raises:
        NotFoundError: there is no such file.
        CorruptDataError: it is damaged, foreign or of another kind.
        UnsupportedVersionError: it was written by a newer version.
    """
    data, size = storage.read_tail(path, TAIL_BYTES) if tail is None else tail
    try:
        meta = parse(path, data, size)
    except NeedMoreError as more:
        meta = parse(path, *storage.read_tail(path, more.length))
    if meta.kind != kind:
        raise meta.corrupt("file is of another kind", kind=meta.kind, expected=kind)
    return meta


def blocks_with(meta: FileMeta, first: I64, last: I64) -> BOOL:
    """Which blocks of a file hold rows of the ranges [first, last), none of which is empty."""
    starts = meta.block_rows
    touched = np.zeros(len(starts), np.int64)
    np.add.at(touched, np.searchsorted(starts, first, "right") - 1, 1)
    np.add.at(touched, np.searchsorted(starts, last, "left"), -1)
    return np.cumsum(touched)[:-1] > 0


_Piece = tuple[int, pa.Buffer]
"""Some bytes of a block, and where they stand in it."""


class FileReader:
    """Reads rows of one file. Counts what it fetched, so that pruning can be seen and tested."""

    def __init__(self, storage: Storage, meta: FileMeta) -> None:
        self._storage = storage
        self._meta = meta
        self._schema = meta.schema
        self._names, self._types = self._schema.names, self._schema.types
        self.bytes_read = 0
        """Bytes fetched of blocks (metadata not counted)."""

    def read_blocks(self, blocks: Sequence[int], names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (block number, its rows with only the columns `names`) in the order of `blocks`.

        Raises:
            CorruptDataError: a column's check-sum is wrong; none of its values is returned.
            NotFoundError: the file is gone.
        """
        absent = set(names).difference(self._names)
        if absent:
            yield from self._read_with_nulls(blocks, names, absent)
            return
        wanted = [self._schema.get_field_index(name) for name in names]
        if "blocks" not in self._meta.doc:
            yield from ((block, self._only_block().select(wanted)) for block in blocks)
            return
        whole_row = 2 * len(wanted) > len(self._schema)
        sizes = self._meta.places.size.tolist() if whole_row else self._wanted_bytes(names)
        at = 0
        while at < len(blocks):
            group = self._group(blocks, at, sizes, neighbours=whole_row)
            if whole_row:
                for block, data in zip(group, self._fetch_whole(group), strict=True):
                    yield block, self._decode(block, data, wanted)
            else:
                for block, pieces in zip(group, self._fetch_columns(group, wanted), strict=True):
                    yield block, self._assemble(block, pieces, wanted)
            at += len(group)

    def _read_with_nulls(
        self, blocks: Sequence[int], names: Sequence[str], absent: set[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """As `read_blocks`; columns that the file's format version does not have are null."""
        newest = newest_schema(self._meta.kind)
        present = [name for name in names if name not in absent]
        for block, batch in self.read_blocks(blocks, present):
            rows = int(self._meta.places.rows[block])
            columns = [
                pa.nulls(rows, newest.field(name).type) if name in absent else batch.column(name) for name in names
            ]
            yield block, pa.RecordBatch.from_arrays(columns, names=list(names))

    def read_stretches(self, blocks: Sequence[int], names: Sequence[str]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """As `read_blocks`, with neighbours put together: yield (first block, the one behind the last, their rows).

        Whatever is done with a batch has a price for each batch, and a block may hold a few hundred rows only.
        """
        sizes = self._wanted_bytes(names)
        waiting: list[pa.RecordBatch] = []
        first = rows = size = 0
        for block, batch in self.read_blocks(blocks, names):
            full = rows + batch.num_rows > STRETCH_ROWS or size + sizes[block] > STRETCH_BYTES
            if waiting and (full or block != first + len(waiting)):
                yield first, first + len(waiting), _join(waiting)
                waiting = []
            if not waiting:
                first, rows, size = block, 0, 0
            waiting.append(batch)
            rows += batch.num_rows
            size += sizes[block]
        if waiting:
            yield first, first + len(waiting), _join(waiting)

    def _wanted_bytes(self, names: Sequence[str]) -> list[int]:
        """Per block: bytes of the wanted columns."""
        places = self._meta.places
        if "blocks" not in self._meta.doc:
            sizes: list[int] = places.size.tolist()
            return sizes
        widths = np.diff(places.ends.astype(np.int64), axis=1, prepend=0)
        stored = [self._names.index(name) for name in names if name in self._names]
        wanted: list[int] = widths[:, stored].sum(axis=1).tolist()
        return wanted

    def _only_block(self) -> pa.RecordBatch:
        """The rows of a file that has no block table: read whole, its check-sum checked."""
        meta = self._meta
        data = meta.whole
        if data is None:
            data = self._storage.read(meta.path)
            if check_whole(meta.path, data).digest != meta.digest:
                raise meta.corrupt("file changed while it was read")
        self.bytes_read += len(data)
        try:
            begin = head(meta.doc["v"], meta.kind)
            if data.startswith(begin):
                rows = pa.py_buffer(data).slice(len(begin), meta.data_end - len(begin))
                batch = pa.ipc.read_record_batch(rows, self._schema)
            else:  # laid out by another version of pyarrow
                batch = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)
        except (pa.ArrowException, IndexError, OSError, ValueError) as error:
            raise meta.corrupt("rows cannot be parsed", reason=str(error)) from error
        if batch.num_rows != meta.rows:
            raise meta.corrupt("file has another number of rows than its metadata says")
        return batch

    def _group(self, blocks: Sequence[int], at: int, sizes: list[int], *, neighbours: bool) -> list[int]:
        """The blocks from `at` on that are fetched together."""
        group = [blocks[at]]
        total = sizes[blocks[at]]
        for block in blocks[at + 1 :]:
            total += sizes[block]
            if total > READ_AHEAD_BYTES or (neighbours and block != group[-1] + 1):
                break
            group.append(block)
        return group

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """The bytes of each (start, length)."""
        self.bytes_read += sum(length for _, length in ranges)
        if self._meta.whole is not None:
            whole = memoryview(self._meta.whole)
            return [whole[start : start + length] for start, length in ranges]
        return self._storage.read_ranges(self._meta.path, ranges)

    def _fetch_whole(self, group: list[int]) -> list[pa.Buffer]:
        starts, sizes = self._meta.block_starts, self._meta.places.size
        base = int(starts[group[0]])
        length = int(starts[group[-1]]) + int(sizes[group[-1]]) - base
        if base < 0:
            raise self._meta.corrupt("block table does not fit the file")
        data = pa.py_buffer(self._fetch([(base, length)])[0])
        return [data.slice(int(starts[block]) - base, int(sizes[block])) for block in group]

    def _fetch_columns(self, group: list[int], wanted: list[int]) -> Iterator[list[_Piece]]:
        """For each block the pieces of it that hold its header and the wanted columns."""
        ranges = [self._column_ranges(block, wanted) for block in group]
        starts = self._meta.block_starts
        fetched = iter(
            self._fetch(
                [
                    (int(starts[block]) + low, high - low)
                    for block, mine in zip(group, ranges, strict=True)
                    for low, high in mine
                ]
            )
        )
        for mine in ranges:
            yield [(low, pa.py_buffer(next(fetched))) for low, _ in mine]

    def _column_ranges(self, block: int, wanted: list[int]) -> list[tuple[int, int]]:
        """Where the header and the wanted columns of a block lie in it, near ones joined."""
        places = self._meta.places
        body, ends = int(places.body[block]), places.ends[block].tolist()
        if self._meta.block_starts[block] < 0 or body > places.size[block]:
            raise self._meta.corrupt("block table does not fit the file", block=block)
        ranges = [(0, body)]
        for column in sorted(wanted):
            low = body + (ends[column - 1] if column else 0)
            high = body + ends[column]
            if low - ranges[-1][1] <= GAP_BYTES:
                ranges[-1] = (ranges[-1][0], max(high, ranges[-1][1]))
            else:
                ranges.append((low & -8, high))  # so that values are aligned in memory as they are in the file
        return ranges

    def _assemble(self, block: int, pieces: list[_Piece], wanted: list[int]) -> pa.RecordBatch:
        """The wanted columns, put together from their buffers: the message as a whole is not there to be decoded."""
        meta = self._meta
        body, ends = int(meta.places.body[block]), meta.places.ends[block].tolist()
        header = memoryview(pieces[0][1])[:body]
        check_header(meta, block, header)
        try:
            nodes, buffers = (pairs.tolist() for pairs in ipc_file.nodes_and_buffers(header))
        except _PARSING as error:
            raise meta.corrupt("block cannot be parsed", block=block, reason=str(error)) from error
        first = column_places(meta.doc["v"], meta.kind)
        arrays: dict[int, pa.Array] = {}
        at = 0
        for column in sorted(wanted):
            low, high = (ends[column - 1] if column else 0), ends[column]
            while at + 1 < len(pieces) and pieces[at + 1][0] <= body + low:
                at += 1
            start, data = pieces[at]
            shift = body - start
            check_column(meta, block, column, memoryview(data)[shift + low : shift + high])
            node, buffer = first[column]
            try:
                arrays[column] = ipc_file.column_array(
                    self._types[column], iter(nodes[node:]), iter(buffers[buffer:]), data, shift
                )
            except _PARSING as error:
                raise meta.corrupt("block cannot be parsed", block=block, reason=str(error)) from error
            if len(arrays[column]) != meta.places.rows[block]:
                raise meta.corrupt("block has another number of rows than its table says", block=block)
        return pa.RecordBatch.from_arrays(
            [arrays[column] for column in wanted], names=[self._names[column] for column in wanted]
        )

    def _decode(self, block: int, data: pa.Buffer, wanted: list[int]) -> pa.RecordBatch:
        meta = self._meta
        check_block(meta, block, memoryview(data), wanted)
        try:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(data), self._schema)
        except (pa.ArrowInvalid, OSError, ValueError) as error:
            raise meta.corrupt("block cannot be parsed", block=block, reason=str(error)) from error
        if batch.num_rows != int(meta.places.rows[block]):
            raise meta.corrupt("block has another number of rows than its table says", block=block)
        return batch.select(wanted)


def _join(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
