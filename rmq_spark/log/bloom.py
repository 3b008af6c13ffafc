"""A bloom filter over message keys, built and asked with numpy, and the string hash beneath it.

The hash is part of the file format (docs/format.md): it depends on a key's UTF-8 bytes only, never on Python's salted
`hash`. It mixes the first eight bytes, the last eight bytes and the length, so its cost does not grow with the key;
keys that differ only in their middle are told apart when the row is read. The filter has 2^n bits and four probes a
key, 8 to 16 bits a key, so at most one look-up in forty is a false alarm, which costs a read, never an
answer.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.log.arrow_columns import bytes_of, has_byte, offsets_of

PROBES: Final = 4
BITS_PER_KEY: Final = 8
_MULTIPLY: Final = 0x9E3779B97F4A7C15
_MIX: Final = 0xBF58476D1CE4E5B9
_ALL: Final = (1 << 64) - 1
_CHUNK: Final = 10_240
"""Rows at a time: arrays that fit the cache, and that malloc does not return to the system after each step."""

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


def hash_text(text: str) -> int:
    """A 64-bit hash of a string's UTF-8 bytes."""
    data = text.encode()
    first = int.from_bytes(data[:8], "little")
    last = int.from_bytes(data[-8:], "little")
    value = (first ^ len(data) * _MULTIPLY) & _ALL
    value = (value ^ value >> 29) * _MIX & _ALL
    value = (value ^ value >> 32 ^ last) * _MULTIPLY & _ALL
    return value ^ value >> 29


def hash_strings(values: pa.StringArray) -> U64:
    """The same hash of each string; nulls are not allowed."""
    count = len(values)
    if count == 0:
        return np.empty(0, np.uint64)
    offsets = offsets_of(values)
    begin, total = int(offsets[0]), int(offsets[-1] - offsets[0])
    # Eight bytes around the data let every read stay inside the buffer; whatever they are, `_hash` does not use them.
    data = _scratch(total // 8 + 3).view(np.uint8)[: total + 16]
    data[8:-8] = bytes_of(values)
    # The 16 bytes around every byte. Strings lie side by side, so what is around an end is the last eight bytes of one
    # and the first eight of the next: one gather for both. numpy gathers unaligned items at a third of its speed, and
    # that is still quicker than putting each together from two aligned ones.
    around = np.ndarray((total + 1,), "V16", data.data, strides=(1,))
    hashes = _scratch(count)
    for at in range(0, count, _CHUNK):
        ends = offsets[at : at + _CHUNK + 1].astype(np.int64) - begin
        words: U64 = around[ends].view("<u8")
        hashes[at : at + _CHUNK] = _hash(words[1:-1:2], words[2::2], ends[1:] - ends[:-1])
    return hashes


def build(keys: pa.StringArray) -> bytes:
    """Return the filter of all keys in a `keys` column; empty bytes when there is none."""
    single = split_keys(keys)
    if len(single) == 0:
        return b""
    hashes = hash_strings(single)
    bits = _size(len(single))
    flags = _scratch(bits // 8).view(np.bool_)
    flags[:] = False
    for at in range(0, len(hashes), _CHUNK):
        # Signed numbers are indices as they are; sums that wrap, and sign bits, are above the bits that count.
        place = hashes[at : at + _CHUNK].view(np.int64)
        step = place >> 32 | 1
        for _ in range(PROBES):
            flags[place & bits - 1] = True
            place = place + step
    return np.packbits(flags, bitorder="little").tobytes()


def build_few(keys: list[str]) -> bytes:
    """As `build`, for the single keys of a few messages: plain Python is quicker than arrays there."""
    if not keys:
        return b""
    bits = _size(len(keys))
    flags = 0
    for key in keys:
        place = hash_text(key)
        step = place >> 32 | 1
        for _ in range(PROBES):
            flags |= 1 << (place & bits - 1)
            place += step
    return flags.to_bytes(bits // 8, "little")


def may_contain(bloom: bytes, key: str) -> bool:
    """Whether `key` can be in the filter; False is certain. An empty filter holds nothing."""
    if not bloom:
        return False
    return all(bloom[place >> 3] >> (place & 7) & 1 for place in _places(hash_text(key), len(bloom) * 8))


def split_keys(keys: pa.StringArray) -> pa.StringArray:
    """Return every single key of a `keys` column: split at spaces, without nulls and empty pieces."""
    if keys.null_count:
        keys = keys.drop_null()
    if len(keys) and has_byte(keys, " "):
        keys = pc.list_flatten(pc.split_pattern(keys, " "))
        keys = keys.filter(pc.greater(pc.binary_length(keys), 0))
    return keys


def _hash(first: U64, last: U64, lengths: I64) -> U64:
    """The hash of strings, given the eight bytes from their starts and the eight before their ends; changes these."""
    multiply, mix = np.uint64(_MULTIPLY), np.uint64(_MIX)
    short = np.flatnonzero(lengths < 8)
    if len(short):
        keep = (np.uint64(1) << (lengths[short] << 3).view(np.uint64)) - np.uint64(1)
        first[short] = last[short] = first[short] & keep
    value, shifted = _scratch(len(lengths)), _scratch(len(lengths))
    np.multiply(lengths.view(np.uint64), multiply, out=value)
    value ^= first
    value ^= np.right_shift(value, np.uint64(29), out=shifted)
    value *= mix
    value ^= np.right_shift(value, np.uint64(32), out=shifted)
    value ^= last
    value *= multiply
    value ^= np.right_shift(value, np.uint64(29), out=shifted)
    return value


def _scratch(count: int) -> U64:
    """Memory from Arrow's pool, which keeps what it is given back.

    Large arrays of numpy make malloc return memory to the system, and getting it again, page by page, costs more than
    a filter.
    """
    return np.frombuffer(pa.allocate_buffer(8 * count), np.uint64)


def _size(keys: int) -> int:
    return 1 << max(6, (keys * BITS_PER_KEY - 1).bit_length())


def _places(value: int, bits: int) -> list[int]:
    low, step = value & 0xFFFFFFFF, value >> 32 | 1
    return [low + probe * step & bits - 1 for probe in range(PROBES)]
