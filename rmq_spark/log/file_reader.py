"""Reading files of a log: metadata from the tail, then only the blocks and columns that are asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.log import file_layout, ipc_file
from rmq_spark.log.file_format import (
    TAIL_BYTES,
    FileMeta,
    NeedMoreError,
    check_column,
    check_header,
    parse,
)
from rmq_spark.storage.base import Storage

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

Tail = tuple[bytes, int]
"""A file's last bytes, and its size."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""So many wanted bytes are fetched at once; it bounds a scan's memory."""
STRETCH_ROWS: Final = 16_384
"""Neighbouring blocks are put together up to so many rows."""
_PARSING: Final = (pa.ArrowException, IndexError, OSError, ValueError, StopIteration, struct.error)
"""What bytes lead to that are not as we write them."""
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


_Part = tuple[pa.Buffer, int, int]
"""A block's header or one of its columns: where it begins and ends in a buffer."""


class FileReader:
    """Reads rows of one file. Counts what it fetched, so that pruning can be seen and tested."""

    def __init__(self, storage: Storage, meta: FileMeta) -> None:
        self._storage = storage
        self._meta = meta
        self._schema = meta.schema
        self._names, self._types = self._schema.names, self._schema.types
        self.bytes_read = 0
        """Bytes fetched of blocks (metadata not counted)."""

    def read(self, blocks: Sequence[int], names: Sequence[str]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield the rows of `blocks` with only the columns `names`, neighbouring blocks put together.

        What is yielded: (first block, the one behind the last, their rows). Whatever is done with a batch has a price
        for each batch, and a block may hold a few hundred rows only. Columns that the file's format version does not
        have are null.

        Raises:
            CorruptDataError: a column's check-sum is wrong; none of its values is returned.
            NotFoundError: the file is gone.
        """
        if "blocks" not in self._meta.doc:
            yield from ((block, block + 1, self._select(self._only_block(), names)) for block in blocks)
            return
        # One column at least, to know how many rows there are.
        wanted = [column for column, name in enumerate(self._names) if name in names] or [0]
        lows, highs = self._parts(np.array(blocks, np.int64), wanted)
        for group in self._groups(blocks, lows, highs):
            batches = self._read_group(blocks[group], lows[group], highs[group], wanted)
            for stretch in self._stretches(blocks[group]):
                # No name here holds the rows: what they lie in is used again for those that are read next.
                yield stretch[0], stretch[-1] + 1, self._select(_join([next(batches) for _ in stretch]), names)

    def _select(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        if all(name in self._names for name in names):
            return batch.select(list(names))
        newest = file_layout.SCHEMAS[file_layout.VERSION][self._meta.kind]
        columns = [
            batch.column(name) if name in self._names else pa.nulls(batch.num_rows, newest.field(name).type)
            for name in names
        ]
        return pa.RecordBatch.from_arrays(columns, names=list(names))

    def _only_block(self) -> pa.RecordBatch:
        """The rows of a file that has no block table: read whole, its check-sum checked."""
        meta = self._meta
        data = meta.whole
        if data is None:
            data = self._storage.read(meta.path)
            if parse(meta.path, data, len(data)).digest != meta.digest:
                raise meta.corrupt("file changed while it was read")
        self.bytes_read += len(data)
        try:
            batch = pa.ipc.open_file(pa.BufferReader(data)).get_batch(0)
        except _PARSING as error:
            raise meta.corrupt("rows cannot be parsed", reason=str(error)) from error
        if batch.num_rows != meta.rows:
            raise meta.corrupt("file has another number of rows than its metadata says")
        return batch

    def _parts(self, blocks: I64, wanted: Sequence[int]) -> tuple[I64, I64]:
        """Where the header and each wanted column of each block begin, and where they end."""
        places = self._meta.places
        starts = self._meta.block_starts[blocks, None]
        bodies = starts + places.body[blocks, None]
        if np.any(starts < 0) or np.any(places.body > places.size):
            raise self._meta.corrupt("block table does not fit the file")
        edges = np.hstack([bodies, bodies + places.ends[blocks]])
        after = [column + 1 for column in wanted]
        return np.hstack([starts, edges[:, wanted]]), np.hstack([bodies, edges[:, after]])

    def _groups(self, blocks: Sequence[int], lows: I64, highs: I64) -> Iterator[slice]:
        """Which of the blocks are fetched together, in one call: a storage behind a network answers that at once."""
        gaps = _gaps(lows, highs)
        fetched = (highs - lows).ravel() + np.append(0, np.where(gaps <= GAP_BYTES, gaps, 0))
        sizes = fetched.reshape(lows.shape).sum(axis=1).tolist()
        first = size = 0
        for at, more in enumerate(sizes):
            if at > first and size + more > FETCH_BYTES:
                yield slice(first, at)
                first, size = at, 0
            size += more
        if first < len(blocks):
            yield slice(first, len(blocks))

    def _stretches(self, blocks: Sequence[int]) -> Iterator[Sequence[int]]:
        """The blocks, those put together that follow each other in the file, up to a number of rows."""
        starts = self._meta.block_rows
        first = 0
        for at in range(1, len(blocks)):
            many = starts[blocks[at] + 1] - starts[blocks[first]] > STRETCH_ROWS
            if many or blocks[at] != blocks[at - 1] + 1:
                yield blocks[first:at]
                first = at
        yield blocks[first:]

    def _read_group(
        self, blocks: Sequence[int], lows: I64, highs: I64, wanted: Sequence[int]
    ) -> Iterator[pa.RecordBatch]:
        """The wanted columns of each of these blocks, whose parts lie between `lows` and `highs`."""
        apart = _gaps(lows, highs) > GAP_BYTES
        # At a multiple of eight, so that values are aligned in memory as they are in the file.
        begins = lows.ravel()[np.append(True, apart)] & -8
        sizes = highs.ravel()[np.append(apart, True)] - begins
        pieces = [pa.py_buffer(data) for data in self._fetch(list(zip(begins.tolist(), sizes.tolist(), strict=True)))]
        piece = np.append(0, np.cumsum(apart)).reshape(lows.shape)
        places = np.stack([piece, lows - begins[piece], highs - begins[piece]], axis=2).tolist()
        for block, parts in zip(blocks, places, strict=True):
            yield self._decode(block, [(pieces[number], low, high) for number, low, high in parts], wanted)

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """The bytes of each (start, length)."""
        self.bytes_read += sum(length for _, length in ranges)
        if self._meta.whole is not None:
            whole = memoryview(self._meta.whole)
            return [whole[start : start + length] for start, length in ranges]
        return self._storage.read_ranges(self._meta.path, ranges)

    def _decode(self, block: int, parts: Sequence[_Part], wanted: Sequence[int]) -> pa.RecordBatch:
        """The wanted columns of a block, after checking them and its header: these are its parts."""
        meta = self._meta
        (data, start, body), *columns = parts
        check_header(meta, block, memoryview(data)[start:body])
        for column, (piece, low, high) in zip(wanted, columns, strict=True):
            check_column(meta, block, column, memoryview(piece)[low:high])
        size = int(meta.places.size[block])
        try:
            if start + size <= len(data):  # all of it is there: then pyarrow takes half as long
                batch = pa.ipc.read_record_batch(data.slice(start, size), self._schema).select(wanted)
            else:
                batch = self._assemble(block, data.slice(start, body - start), columns, wanted)
        except _PARSING as error:
            raise meta.corrupt("block cannot be parsed", block=block, reason=str(error)) from error
        if batch.num_rows != meta.places.rows[block]:
            raise meta.corrupt("block has another number of rows than its table says", block=block)
        return batch

    def _assemble(self, block: int, header: pa.Buffer, parts: Sequence[_Part], wanted: Sequence[int]) -> pa.RecordBatch:
        """The wanted columns, put together from their buffers: the message as a whole is not there to be decoded."""
        meta = self._meta
        nodes, buffers = (pairs.tolist() for pairs in ipc_file.nodes_and_buffers(header))
        first = file_layout.column_places(meta.doc["v"], meta.kind)
        begins = [0, *meta.places.ends[block].tolist()]
        arrays = []
        for column, (data, low, _) in zip(wanted, parts, strict=True):
            node, buffer = first[column]
            rest = iter(nodes[node:]), iter(buffers[buffer:])
            arrays.append(ipc_file.column_array(self._types[column], *rest, data, low - begins[column]))
        return pa.RecordBatch.from_arrays(arrays, names=[self._names[column] for column in wanted])


def _join(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _gaps(lows: I64, highs: I64) -> I64:
    """Bytes between each part and the one behind it."""
    return lows.ravel()[1:] - highs.ravel()[:-1]
