"""Large durable files are written past the page cache, in whole blocks, whatever the pieces are like."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmq_spark.errors import RmqError, StorageFullError
from rmq_spark.storage import local_write
from rmq_spark.storage.base import Bytes
from rmq_spark.storage.local import FileOps, LocalStorage
from rmq_spark.storage.local_write import CALL_BYTES_MAX, DIRECT_BYTES, DIRECT_CALL_BYTES

BLOCK = 4096


class Watching(FileOps):
    """Notes each write: whether it went past the cache, where it began, and its length."""

    def __init__(self) -> None:
        self.bypass = False
        self.writes: list[tuple[bool, int, int]] = []
        self._at = 0

    def bypass_cache(self, fd: int, on: bool) -> bool:
        self.bypass = super().bypass_cache(fd, on)
        return self.bypass

    def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
        taken = super().writev(fd, pieces)
        self.writes.append((self.bypass, self._at, taken))
        self._at += taken
        return taken


class Refusing(Watching):
    """A file system that has no such thing."""

    def bypass_cache(self, fd: int, on: bool) -> bool:
        return False


class Unwilling(Watching):
    """A file system that says yes and then refuses to write."""

    def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
        if self.bypass:
            raise OSError(errno.EINVAL, "no")
        return super().writev(fd, pieces)


class Short(Watching):
    """Takes less than it is given: whole blocks, then a part of one."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
        whole = memoryview(b"".join(pieces))
        if not self.bypass or self._most % BLOCK == 0:
            return super().writev(fd, [whole[: self._most]])
        # A direct write of part of a block is nothing that a disk can do; a file system that says it did so has turned
        # to the cache for it.
        FileOps().bypass_cache(fd, False)
        taken = super().writev(fd, [whole[: self._most]])
        FileOps().bypass_cache(fd, True)
        return taken


def pieces_of(size: int, seed: int) -> list[Bytes]:
    """Pieces of all lengths, empty ones among them, and one with items of eight bytes."""
    draw = random.Random(seed)
    left, pieces = size, list[Bytes]()
    while left:
        step = min(left, draw.choice([0, 1, 7, 4095, 4096, 100_000, 3_000_000, DIRECT_CALL_BYTES]))
        piece: Bytes = draw.randbytes(step)
        pieces.append(memoryview(piece).cast("Q") if step and step % 8 == 0 else piece)
        left -= step
    return pieces


SIZES = [DIRECT_BYTES, DIRECT_BYTES + 1, DIRECT_BYTES + BLOCK, 3 * DIRECT_CALL_BYTES - 1, 3 * DIRECT_CALL_BYTES + 777]


@pytest.mark.parametrize("size", SIZES)
def test_blocks_go_past_the_cache_and_the_rest_through_it(tmp_path: Path, size: int) -> None:
    ops = Watching()
    data = pieces_of(size, size)
    LocalStorage(tmp_path, ops=ops).create_if_absent("a/x", data)
    assert (tmp_path / "a/x").read_bytes() == b"".join(data)
    assert sum(taken for _, _, taken in ops.writes) == size
    direct = [(at, taken) for past, at, taken in ops.writes if past]
    if not direct:
        pytest.skip("this file system cannot write past the cache")
    assert all(at % BLOCK == 0 == taken % BLOCK for at, taken in direct)
    assert sum(taken for _, taken in direct) > size - BLOCK
    assert len(direct) < size // 1_000_000 + 4, "not in small steps"


@pytest.mark.parametrize("size", [CALL_BYTES_MAX, CALL_BYTES_MAX + 1, 5 * CALL_BYTES_MAX - 1, 7_654_321])
def test_calls_through_the_cache_begin_with_a_page(tmp_path: Path, size: int) -> None:
    ops = Watching()
    data = pieces_of(size, size)
    LocalStorage(tmp_path, ops=ops).create_if_absent("a/x", data, durable=False)
    assert (tmp_path / "a/x").read_bytes() == b"".join(data)
    assert [at for _, at, _ in ops.writes] == list(range(0, size, CALL_BYTES_MAX))


def test_other_files_go_through_the_cache(tmp_path: Path) -> None:
    ops = Watching()
    storage = LocalStorage(tmp_path, ops=ops)
    storage.create_if_absent("a/small", [bytes(DIRECT_BYTES - 1)])
    storage.create_if_absent("a/not durable", [bytes(DIRECT_BYTES)], durable=False)
    assert not any(past for past, _, _ in ops.writes)


@pytest.mark.parametrize(
    "ops", [Refusing(), Unwilling(), Short(1 << 20), Short(BLOCK * 300), Short(1_000_001), Short(BLOCK * 300 + 1)]
)
def test_what_a_file_system_may_do(tmp_path: Path, ops: Watching) -> None:
    data = pieces_of(DIRECT_BYTES + 12_345, 5)
    LocalStorage(tmp_path, ops=ops).create_if_absent("a/x", data)
    assert (tmp_path / "a/x").read_bytes() == b"".join(data)


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StorageFullError), (errno.EIO, RmqError)])
def test_an_error_on_the_way_leaves_nothing(tmp_path: Path, number: int, kind: type[RmqError]) -> None:
    class Full(Watching):
        def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
            if len(self.writes) == 2:
                self.writes.append((False, 0, 0))
                raise OSError(number, os.strerror(number))
            return super().writev(fd, pieces)

    storage = LocalStorage(tmp_path, ops=Full())
    data = pieces_of(3 * DIRECT_CALL_BYTES, 6)
    with pytest.raises(kind):
        storage.create_if_absent("a/x", data)
    assert os.listdir(tmp_path / "a") == []
    storage.create_if_absent("a/x", data)
    assert (tmp_path / "a/x").read_bytes() == b"".join(data)


def test_threads_do_not_share_memory(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    wanted = {name: bytes([name]) * (DIRECT_BYTES + name) for name in range(1, 9)}

    def work(names: Sequence[int]) -> None:
        for name in names:
            storage.create_if_absent(f"a/{name}", [wanted[name]])

    workers = [threading.Thread(target=work, args=(range(first, 9, 4),)) for first in range(1, 5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all((tmp_path / f"a/{name}").read_bytes() == data for name, data in wanted.items())
    assert len(local_write._free) <= 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12: fork beside threads, on purpose
def test_a_forked_child_does_not_share_memory(tmp_path: Path) -> None:
    """What a child writes into the memory that its parent keeps must not get into the parent's files."""
    storage = LocalStorage(tmp_path)
    storage.create_if_absent("a/first", [b"1" * DIRECT_BYTES])  # memory is kept from here on
    inside, go_on = os.pipe(), os.pipe()
    child = os.fork()

    class Waiting(FileOps):
        def writev(self, fd: int, pieces: Sequence[Bytes]) -> int:
            os.write(inside[1], b"x")
            os.read(go_on[0], 1)
            return super().writev(fd, pieces)

    if child == 0:
        LocalStorage(tmp_path, ops=Waiting()).create_if_absent("a/child", [b"2" * DIRECT_BYTES])
        os._exit(0)
    os.read(inside[0], 1)  # the child has copied its first bytes, and has not written them
    storage.create_if_absent("a/parent", [b"3" * DIRECT_BYTES])
    os.write(go_on[1], b"x" * 1000)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "a/parent").read_bytes() == b"3" * DIRECT_BYTES
    assert (tmp_path / "a/child").read_bytes() == b"2" * DIRECT_BYTES
