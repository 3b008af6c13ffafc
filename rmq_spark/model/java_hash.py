"""Java's `String.hashCode`: RocketMQ's tag code and key hash, so ours equal the broker's.

The hash runs over UTF-16 code units (a character beyond U+FFFF counts as two), modulo 2^32, signed. The
scalar and the column form give the same numbers; the column form has no loop over rows.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]

_MULTIPLIER: Final = 31
_CHUNK_BYTES: Final = 1 << 18
"""Text hashed at once: the scratch memory, about 16 bytes per byte of text, stays in the cache."""


def java_hash(text: str) -> int:
    """Return `text.hashCode()` as Java would: a signed 32-bit integer; the empty text gives 0."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (value * _MULTIPLIER + unit) & 0xFFFFFFFF
    else:
        # A lone surrogate is a legal Java char, hence `surrogatepass`.
        for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
            value = (value * _MULTIPLIER + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def java_hashes(texts: pa.Array | pa.ChunkedArray) -> I32:
    """Return the hash of every row of a string column; null gives 0, as RocketMQ's code of "no tag" is.

    Args:
        texts: A column of type string, large_string, string_view, or a dictionary of one of them.
    """
    if isinstance(texts, pa.ChunkedArray):
        chunks = [java_hashes(chunk) for chunk in texts.chunks]
        return np.concatenate(chunks) if chunks else np.zeros(0, np.int32)
    if pa.types.is_dictionary(texts.type):
        hashes = np.append(java_hashes(texts.dictionary), np.int32(0))
        indices = pc.fill_null(texts.indices.cast(pa.int64()), len(hashes) - 1)
        picked: I32 = hashes[indices.to_numpy(zero_copy_only=False)]
        return picked
    if len(texts) == 0:
        return np.zeros(0, np.int32)
    if not pa.types.is_large_string(texts.type):
        texts = texts.cast(pa.large_string())
    if texts.null_count:
        texts = pc.fill_null(texts, "")
    offsets, data = _text_buffers(texts)
    result = np.zeros(len(texts), np.uint32)
    start = 0
    while start < len(texts):
        # At least one row, and as many as fit into the chunk.
        stop = int(np.searchsorted(offsets, offsets[start] + _CHUNK_BYTES, side="right")) - 1
        stop = min(max(stop, start + 1), len(texts))
        begin, end = int(offsets[start]), int(offsets[stop])
        result[start:stop] = _hash_rows(offsets[start : stop + 1] - begin, data[begin:end])
        start = stop
    return result.view(np.int32)


def _text_buffers(texts: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return offsets, data


def _hash_rows(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> U32:
    """Hash the texts `data[offsets[i]:offsets[i + 1]]`: sum of unit * 31^(units that follow it)."""
    units: npt.NDArray[Any] = data
    if data.size and int(data.max()) >= 0x80:
        # UTF-16 units that a UTF-8 byte stands for: none for a continuation byte, two for the first byte
        # of a four-byte character (a surrogate pair), one for every other first byte.
        counts = ((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0)
        offsets = np.concatenate(([0], np.cumsum(counts)))[offsets]
        units = np.frombuffer(data.tobytes().decode("utf-8").encode("utf-16-le"), np.uint16)
    lengths = np.diff(offsets)
    hashes = np.zeros(len(lengths), np.uint32)
    filled = np.flatnonzero(lengths)
    if not filled.size:
        return hashes
    # Weight of a unit: by its distance to the end of its own text.
    ends = np.repeat(offsets[1:][filled], lengths[filled])
    weights = _powers(int(lengths.max()))[ends - 1 - np.arange(len(units))]
    # Rows without text are left out: reduceat gives the next row's first unit for an empty range.
    hashes[filled] = np.add.reduceat(units.astype(np.uint32) * weights, offsets[:-1][filled])
    return hashes


def _powers(count: int) -> U32:
    powers = np.full(count, _MULTIPLIER, np.uint32)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint32)
