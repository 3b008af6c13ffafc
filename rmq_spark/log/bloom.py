"""A bloom filter over message keys, built and asked with numpy, and the string hash beneath it.

The hash is part of the file format (docs/format.md): it depends on the key's UTF-8 bytes only, never on
Python's salted `hash`. The filter has 2^n bits and six probes a key, 10 to 20 bits a key, so about one
look-up in a hundred is a false alarm; a false alarm costs a read, never an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

PROBES: Final = 6
BITS_PER_KEY: Final = 10
_MULTIPLY: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT: Final = np.uint64(32)
_ALL: Final = (1 << 64) - 1

U64 = npt.NDArray[np.uint64]


def hash_strings(values: pa.StringArray) -> U64:
    """Return a 64-bit hash of each string's UTF-8 bytes; nulls are not allowed.

    Eight bytes at a time over all strings at once: the number of numpy steps depends on the longest
    string, not on how many there are.
    """
    count = len(values)
    if count == 0:
        return np.empty(0, np.uint64)
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + count + 1]
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    total = int(offsets[-1])
    # Zero bytes behind the data let every eight-byte read, and the word after it, stay inside the buffer.
    data = np.zeros((total + 23) // 8 * 8, np.uint8)
    if total:
        data[:total] = np.frombuffer(values.buffers()[2], np.uint8)[:total]
    words: U64 = data.view("<u8")
    hashes = lengths.astype(np.uint64) * _MULTIPLY + _MIX
    # The first words of all strings need no index of those that are still going on: most keys end there.
    word, short = _read(words, starts), lengths < 8
    if short.any():
        word = _cut(word, lengths, short)
    hashes = np.where(lengths > 0, _mix(hashes ^ (word * _MULTIPLY)), hashes)
    done = 8
    live = np.flatnonzero(lengths > 8)
    while len(live):
        left = lengths[live] - done
        word, short = _read(words, starts[live] + done), left < 8
        if short.any():
            word = _cut(word, left, short)
        hashes[live] = _mix(hashes[live] ^ (word * _MULTIPLY))
        done += 8
        live = live[left > 8]
    return hashes


def _read(words: U64, at: npt.NDArray[np.int64]) -> U64:
    """Eight bytes from each byte position, put together from two aligned words: numpy is slow at unaligned ones."""
    index = at >> 3
    shift = ((at & 7) << 3).astype(np.uint64)
    # Two shifts, because a shift by all 64 bits is not defined.
    found: U64 = words[index] >> shift | words[index + 1] << np.uint64(1) << (np.uint64(63) - shift)
    return found


def _cut(word: U64, left: npt.NDArray[np.int64], short: npt.NDArray[np.bool_]) -> U64:
    """Zero the bytes behind the end of strings that have fewer than eight left."""
    keep = np.left_shift(np.uint64(1), (np.minimum(left, 7) * 8).astype(np.uint64)) - np.uint64(1)
    return np.where(short, word & keep, word)


def hash_text(text: str) -> int:
    """The same hash of one string, without numpy: a single message has no use for arrays."""
    data = text.encode()
    value = (len(data) * int(_MULTIPLY) + int(_MIX)) & _ALL
    for at in range(0, len(data), 8):
        value ^= int.from_bytes(data[at : at + 8], "little") * int(_MULTIPLY) & _ALL
        value = (value ^ (value >> 29)) * int(_MIX) & _ALL
        value ^= value >> 32
    return value


def build_few(keys: list[str]) -> bytes:
    """As `build`, for the single keys of a few messages."""
    if not keys:
        return b""
    bits = _size(len(keys))
    flags = 0
    for key in keys:
        for position in _places(hash_text(key), bits):
            flags |= 1 << position
    return flags.to_bytes(bits // 8, "little")


def split_keys(keys: pa.StringArray) -> pa.StringArray:
    """Return every single key of a `keys` column: split at spaces, without nulls and empty pieces."""
    if keys.null_count:
        keys = keys.drop_null()
    if len(keys) and _has_space(keys):
        keys = pc.list_flatten(pc.split_pattern(keys, " "))
        keys = keys.filter(pc.greater(pc.binary_length(keys), 0))
    return keys


def _has_space(keys: pa.StringArray) -> bool:
    offsets = np.frombuffer(keys.buffers()[1], np.int32)
    low, high = offsets[keys.offset], offsets[keys.offset + len(keys)]
    return low < high and bool((np.frombuffer(keys.buffers()[2], np.uint8)[low:high] == ord(" ")).any())


def build(keys: pa.StringArray) -> bytes:
    """Return the filter of all keys in a `keys` column; empty bytes when there is none."""
    single = split_keys(keys)
    if len(single) == 0:
        return b""
    bits = _size(len(single))
    flags = np.zeros(bits, np.bool_)
    for position in _positions(hash_strings(single), bits):
        flags[position] = True
    return np.packbits(flags, bitorder="little").tobytes()


def may_contain(bloom: bytes, key: str) -> bool:
    """Whether `key` can be in the filter; False is certain. An empty filter holds nothing."""
    if not bloom:
        return False
    return all(bloom[place >> 3] >> (place & 7) & 1 for place in _places(hash_text(key), len(bloom) * 8))


def _size(keys: int) -> int:
    return 1 << max(6, (keys * BITS_PER_KEY - 1).bit_length())


def _places(value: int, bits: int) -> list[int]:
    low, step = value & 0xFFFFFFFF, value >> 32 | 1
    return [low + probe * step & bits - 1 for probe in range(PROBES)]


def _positions(hashes: U64, bits: int) -> Iterator[npt.NDArray[np.uint32]]:
    # 32 bits are enough: only the low ones count, and sums wrap alike.
    place = hashes.astype(np.uint32)
    step = (hashes >> _SHIFT).astype(np.uint32) | np.uint32(1)
    for _ in range(PROBES):
        yield place & np.uint32(bits - 1)
        place += step


def _mix(value: U64) -> U64:
    value = (value ^ (value >> np.uint64(29))) * _MIX
    return value ^ (value >> _SHIFT)
