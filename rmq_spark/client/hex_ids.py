"""Message ids of many rows at once, as a column."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

_DIGITS: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_HEX: Final = _DIGITS[np.arange(65_536)[:, None] >> np.array([12, 8, 4, 0]) & 15].view(np.uint32).ravel()
"""Four hex digits for each 16-bit number, as one word."""


def hex_ids(prefix: str, first: int, count: int) -> pa.Array:
    """Ids of 32 digits: `prefix` (20 digits) and 12 hex digits that count from the low 48 bits of `first`."""
    words = np.empty((count, 8), np.uint32)
    at = 0
    while at < count:  # as long as only the last four digits change, they are a slice of the table
        number = first + at
        low = number & 0xFFFF
        rows = min(count - at, len(_HEX) - low)
        head = f"{prefix}{(number >> 16) & 0xFFFFFFFF:08X}0000".encode("ascii")
        words[at : at + rows] = np.frombuffer(head, np.uint32)
        words[at : at + rows, 7] = _HEX[low : low + rows]
        at += rows
    offsets = np.arange(0, 32 * count + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(words))
