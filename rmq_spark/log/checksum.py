"""CRC-32 of the file format (docs/format.md): by isal where that is installed, else by zlib, with the same values.

Every byte is check-summed once when it is written and once when it is read. isal (the extra `fast`) does so several
times faster: 2 MB in 0.17 ms instead of 0.68 ms on the machine of docs/benchmarks.md.
"""

from __future__ import annotations

import zlib
from typing import Final, Protocol

import pyarrow as pa

__all__ = ["crc32"]


class Crc32(Protocol):
    """`zlib.crc32`, or a function that gives the same values."""

    def __call__(self, data: bytes | bytearray | memoryview | pa.Buffer, value: int = 0, /) -> int:
        """CRC-32 of `data`, going on from `value`, the CRC-32 of what stands before it."""


def _choose() -> Crc32:
    try:
        from isal import isal_zlib  # an extra: the core works without it
    except ImportError:
        return zlib.crc32
    return isal_zlib.crc32


crc32: Final[Crc32] = _choose()
"""CRC-32 as in zlib and gzip."""
