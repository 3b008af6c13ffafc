"""The bits of `sysFlag`: compression, transaction state, kinds of addresses (facts 1.6)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

COMPRESSED: Final = 0x1
"""The body is compressed."""
BORN_IPV6: Final = 0x10
"""The producer's address is IPv6."""
STORE_IPV6: Final = 0x20
"""The broker's address is IPv6."""

TRANSACTION_MASK: Final = 0xC
COMPRESSION_MASK: Final = 0x700


class Transaction(IntEnum):
    """What a message is to its transaction."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class Compression(IntEnum):
    """How a compressed body is packed. Old clients set none, and mean zlib."""

    OLD_ZLIB = 0x0
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def transaction(flags: int) -> Transaction:
    """The transaction state."""
    return Transaction(flags & TRANSACTION_MASK)


def with_transaction(flags: int, state: Transaction) -> int:
    """The flags with another transaction state."""
    return flags & ~TRANSACTION_MASK | state


def compressed_by_zlib(flags: int = 0) -> int:
    """The flags with the bits of a body that is compressed by zlib."""
    return flags & ~COMPRESSION_MASK | COMPRESSED | Compression.ZLIB


def is_zlib(flags: int) -> bool:
    """Whether a compressed body is compressed by zlib."""
    return flags & COMPRESSION_MASK in (Compression.OLD_ZLIB, Compression.ZLIB)
