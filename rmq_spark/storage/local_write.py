"""How the local backend writes a file's bytes: small ones in one call, large ones in parts, the largest past the cache.

A large file that has to be on the disk before it gets its name gains nothing from the page cache on its way there: the
kernel would find a page for every four kilobytes, copy, and write them out when asked to flush, all of it with a
processor that others could use. So it is copied into a piece of aligned memory and written from there
(docs/decisions/0011).
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from rmq_spark.storage.base import Bytes, Pieces
from rmq_spark.storage.local_ops import FileOps

CALL_BYTES_MAX: Final = 256 * 1024
"""What one call writes at the most, through the cache. Past a few hundred kilobytes a call, Linux looks for huge pages
to hold the file, which may take many times as long as the writing."""
ALLOCATE_BYTES: Final = 64 * 1024
"""From so many bytes on a file's room is set aside at once: a fifth quicker than page by page (ext4, 2 MB)."""
DIRECT_BYTES: Final = 8 * 1024 * 1024
"""From so many bytes on a durable file is written past the cache. What close followers read is in smaller ones."""
DIRECT_CALL_BYTES: Final = 4 * 1024 * 1024
"""What one call writes past the cache at the most."""
DIRECT_CALL_LEAST: Final = 1024 * 1024
"""So much is written without waiting for more."""

_BLOCK: Final = 4096
"""Places in file and memory, and lengths, are multiples of this past the cache: no disk asks for more."""
_IOV_MAX: Final[int] = os.sysconf("SC_IOV_MAX")
_FREE_MAX: Final = 4

_free: list[mmap.mmap] = []
"""Memory that was used before and is kept, for the next who needs some."""


def write_all(ops: FileOps, fd: int, data: Sequence[Bytes], *, durable: bool) -> None:
    """Write every byte of every piece, however many calls it takes; those of a large file are asked for one by one.

    Args:
        ops: what calls the system.
        fd: a file, new and empty.
        data: the pieces, in order.
        durable: whether the file is going to be flushed.
    """
    about = data.about_bytes if isinstance(data, Pieces) else _size(data)
    if about < ALLOCATE_BYTES:
        data = list(iter(data))  # a list of the sequence itself would first count what is in it
        total = _size(data)
        if total >= ALLOCATE_BYTES:
            ops.allocate(fd, total)
        if len(data) > _IOV_MAX or total > CALL_BYTES_MAX:
            _write_rest(ops, fd, data, 0)
        elif total and (taken := ops.writev(fd, data)) < total:
            _write_rest(ops, fd, data, taken)
        return
    ops.allocate(fd, about)
    if durable and about >= DIRECT_BYTES and ops.bypass_cache(fd, True):
        written = _write_direct(ops, fd, data)
    else:
        written = _write_cached(ops, fd, data)
    if written < about:
        ops.truncate(fd, written)


def _size(pieces: Sequence[Bytes]) -> int:
    total = 0
    for piece in pieces:
        total += piece.nbytes if isinstance(piece, memoryview) else len(piece)
    return total


def _write_cached(ops: FileOps, fd: int, pieces: Iterable[Bytes]) -> int:
    """Write the pieces through the cache; returns how many bytes that were."""
    total = held = 0
    waiting: list[memoryview] = []
    for piece in pieces:
        view = memoryview(piece).cast("B")
        total += len(view)
        held += len(view)
        waiting.append(view)
        if held >= CALL_BYTES_MAX:
            # Calls begin and end with a page of the file: others take up to twice as long. What is left is part of
            # this piece, as those before have less than a call together.
            held %= CALL_BYTES_MAX
            waiting[-1] = view[: len(view) - held]
            _write_rest(ops, fd, waiting, 0)
            waiting = [view[len(view) - held :]]
    _write_rest(ops, fd, waiting, 0)
    return total


def _write_rest(ops: FileOps, fd: int, data: Sequence[Bytes], taken: int) -> None:
    """Go on after the first `taken` bytes; a call may take part of a piece."""
    rest = [memoryview(piece).cast("B") for piece in data if len(piece)]
    done = 0
    while True:
        while done < len(rest) and taken >= len(rest[done]):
            taken -= len(rest[done])
            done += 1
        if done == len(rest):
            return
        if taken:
            rest[done] = rest[done][taken:]
        taken = _taken(ops.writev(fd, _call(rest, done)))


def _call(rest: list[memoryview], done: int) -> list[memoryview]:
    """What the next call writes: pieces from `done` on, up to the limits of a call."""
    pieces: list[memoryview] = []
    room = CALL_BYTES_MAX
    for piece in rest[done : done + _IOV_MAX]:
        pieces.append(piece[:room])
        room -= len(piece)
        if room <= 0:
            break
    return pieces


def _taken(count: int) -> int:
    if count <= 0:
        raise OSError(errno.EIO, "the file system takes no more bytes and gives no reason")
    return count


def _write_direct(ops: FileOps, fd: int, pieces: Iterable[Bytes]) -> int:
    """Write the pieces past the cache, but for less than a block at the end; returns how many bytes that were."""
    try:
        memory = _free.pop()
    except IndexError:
        memory = mmap.mmap(-1, DIRECT_CALL_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    used = total = 0
    for piece in pieces:
        rest = memoryview(piece).cast("B")
        total += len(rest)
        while len(rest):
            step = min(len(rest), DIRECT_CALL_BYTES - used)
            # Arrow lets other threads run while it copies; setting the slice would not.
            pa.FixedSizeBufferWriter(pa.py_buffer(memoryview(memory)[used : used + step])).write(rest[:step])
            rest = rest[step:]
            used += step
            if used == DIRECT_CALL_BYTES or (used >= DIRECT_CALL_LEAST and not len(rest)):
                # Before asking for the next piece, which may not be there yet.
                used = _write_blocks(ops, fd, memory, used)
    used = _write_blocks(ops, fd, memory, used)
    ops.bypass_cache(fd, False)
    _write_rest(ops, fd, [memory[:used]], 0)
    if len(_free) < _FREE_MAX:
        _free.append(memory)
    return total


def _write_blocks(ops: FileOps, fd: int, memory: mmap.mmap, used: int) -> int:
    """Write the whole blocks among the first `used` bytes; returns how many are left, which then come first."""
    end = used - used % _BLOCK
    view = memoryview(memory)[:end]
    while len(view):
        try:
            taken = _taken(ops.writev(fd, [view]))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # It wants this through the cache after all, or it has taken part of a block before.
            ops.bypass_cache(fd, False)
            taken = _taken(ops.writev(fd, [view]))
        view = view[taken:]
    memory.move(0, end, used - end)
    return used - end
