"""A bloom filter over message keys, built and asked with numpy, and the string hash beneath it.

The hash is part of the file format (docs/format.md): it depends on a key's UTF-8 bytes only, never on Python's salted
`hash`. It mixes the first eight bytes, the last eight bytes and the length, so its cost does not grow with the key;
keys that differ only in their middle are told apart when the row is read. The filter has 2^n bits and four probes a
key, 8 to 16 bits a key, so at most one look-up in forty is a false alarm, which costs a read, never an
answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.log.arrow_columns import booleans, bytes_of, has_byte, integers_of, offsets_of

PROBES: Final = 4
BITS_PER_KEY: Final = 8
_MULTIPLY: Final = 0x9E3779B97F4A7C15
_MIX: Final = 0xBF58476D1CE4E5B9
_ALL: Final = (1 << 64) - 1

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
    if len(values) == 0:
        return np.empty(0, np.uint64)
    offsets = offsets_of(values).astype(np.int64)
    ends = offsets - offsets[0]
    # Eight bytes around the data let every read stay inside the buffer; whatever they are, they are not used.
    data = np.concatenate((np.zeros(8, np.uint8), bytes_of(values), np.zeros(8, np.uint8)))
    # The 16 bytes around every byte. Strings lie side by side, so what is around an end is the last eight bytes of one
    # and the first eight of the next: one gather for both.
    around = np.ndarray((len(data) - 15,), "V16", data.data, strides=(1,))
    words: U64 = around[ends].view("<u8")
    first, last, lengths = words[1:-1:2], words[2::2], np.diff(ends)
    short = lengths < 8
    keep = (np.uint64(1) << (lengths[short] << 3).view(np.uint64)) - np.uint64(1)
    first[short] = last[short] = first[short] & keep
    value = first ^ lengths.view(np.uint64) * np.uint64(_MULTIPLY)
    value = (value ^ value >> np.uint64(29)) * np.uint64(_MIX)
    value = (value ^ value >> np.uint64(32) ^ last) * np.uint64(_MULTIPLY)
    mixed: U64 = value ^ value >> np.uint64(29)
    return mixed


def build(keys: pa.StringArray) -> bytes:
    """Return the filter of all keys in a `keys` column; empty bytes when there is none."""
    single = split_keys(keys)
    if len(single) == 0:
        return b""
    bits = _size(len(single))
    flags = np.zeros(bits, np.bool_)
    for places in _probes(hash_strings(single), bits):
        flags[places] = True
    return np.packbits(flags, bitorder="little").tobytes()


def build_few(keys: list[str]) -> bytes:
    """As `build`, for the single keys of a few messages: plain Python is quicker than arrays there."""
    if not keys:
        return b""
    bits = _size(len(keys))
    flags = 0
    for key in keys:
        for place in _places(hash_text(key), bits):
            flags |= 1 << place
    return flags.to_bytes(bits // 8, "little")


def may_contain(bloom: bytes, key: str) -> bool:
    """Whether `key` can be in the filter; False is certain. An empty filter holds nothing."""
    if not bloom:
        return False
    return all(bloom[place >> 3] >> (place & 7) & 1 for place in _places(hash_text(key), len(bloom) * 8))


def holds_all(blooms: Sequence[bytes], owners: I64, keys: pa.StringArray) -> bool:
    """Whether every key of a `keys` column can be in the filter of its row's owner, a number of one of `blooms`.

    An empty key, which no query has, does not count.
    """
    lists = pc.split_pattern(keys, " ")
    single = pc.list_flatten(lists)
    real = integers_of(pc.binary_length(single)) > 0
    if not real.any():
        return True
    owner = owners[integers_of(pc.list_parent_indices(lists))[real]]
    bits = np.array([8 * len(bloom) for bloom in blooms], np.int64)
    begin = np.cumsum(bits) - bits
    flags = np.unpackbits(np.frombuffer(b"".join(blooms), np.uint8), bitorder="little")
    probes = _probes(hash_strings(single.filter(booleans(real))), bits[owner])
    return bool(bits[owner].all()) and all(flags[begin[owner] + places].all() for places in probes)


def split_keys(keys: pa.StringArray) -> pa.StringArray:
    """Return every single key of a `keys` column: split at spaces, without nulls and empty pieces."""
    if keys.null_count:
        keys = keys.drop_null()
    if len(keys) and has_byte(keys, " "):
        keys = pc.list_flatten(pc.split_pattern(keys, " "))
        keys = keys.filter(pc.greater(pc.binary_length(keys), 0))
    return keys


def _size(keys: int) -> int:
    return 1 << max(6, (keys * BITS_PER_KEY - 1).bit_length())


def _probes(hashes: U64, bits: int | I64) -> Iterator[I64]:
    """The bits of each hash in a filter of so many (its own, if they are several), one probe after the other."""
    # Signed numbers are indices as they are; sums that wrap, and sign bits, are above the bits that count.
    place: I64 = hashes.view(np.int64)
    step = place >> 32 | 1
    for _ in range(PROBES):
        yield place & bits - 1
        place = place + step


def _places(value: int, bits: int) -> list[int]:
    low, step = value & 0xFFFFFFFF, value >> 32 | 1
    return [low + probe * step & bits - 1 for probe in range(PROBES)]
