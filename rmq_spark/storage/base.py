"""The one door to shared storage: what a backend must offer, and what each call promises.

A path is relative to the store's root, uses `/`, and never starts with it. Backends know nothing of
logs, commits or messages; the log knows nothing of disks, buckets or name nodes.

Why the set is so small: the whole log stands on `create_if_absent`, so each backend has to argue in its
module docstring why that call is *atomic* (one winner) and *complete* (no reader sees part of a file).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeAlias, overload, runtime_checkable

from rmq_spark.errors import CorruptDataError, InvalidRequestError, NotFoundError, RmqError

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Anything that `os.write` takes."""


class Pieces(Sequence[Bytes]):
    """What a file consists of, while some of it may still be in the making: whoever goes through it waits for each."""

    about_bytes: int
    """All pieces together have about so many bytes."""

    @abstractmethod
    def __iter__(self) -> Iterator[Bytes]:
        """The pieces in order."""

    def __len__(self) -> int:
        """How many there are."""
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, index: int) -> Bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Bytes]: ...
    def __getitem__(self, index: int | slice) -> Bytes | Sequence[Bytes]:
        """Some of them; waits for all."""
        return list(iter(self))[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One file as a listing shows it."""

    name: str
    """The file's name inside the listed directory (no `/`)."""
    size: int
    """Its length in bytes."""
    modified_ms: int
    """When the storage says it was written, by the storage's own clock."""


class Watch(Protocol):
    """Wakes one waiting thread when a name appears in a directory; see `Storage.watch`."""

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until a name has appeared since the last `wait` returned True, or since the watch began.

        A name that appears between two waits ends the next one at once. Names that start with a dot do not count.
        True may come without a new name (after a fork, or when the kernel dropped notices): it means "look".

        Returns False after `timeout_seconds` (0: do not wait), and at once when the watch is or gets closed.

        Raises:
            UnavailableError: a forked child could not get a watch of its own; poll instead.
        """

    def close(self) -> None:
        """End the watch and wake who waits. Closing twice is no error."""


@runtime_checkable
class Storage(Protocol):
    """A directory tree of immutable files at a URI.

    Every method may raise `UnavailableError` (could not reach the storage; nothing was changed).
    All methods are safe to call from any thread.
    """

    @property
    def uri(self) -> str:
        """Where this is, in the form that `open_storage` takes."""

    def read(self, path: str) -> bytes:
        """Return the whole file.

        Raises:
            NotFoundError: there is no such file.
        """

    def read_range(self, path: str, start: int, length: int) -> bytes | memoryview:
        """Return exactly `length` bytes from `start`.

        Raises:
            NotFoundError: there is no such file.
            CorruptDataError: the file ends before `start + length`.
        """

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """Return what `read_range` gives for each (start, length), in this order.

        Raises:
            NotFoundError: there is no such file.
            CorruptDataError: the file ends before one of the ranges does.
        """

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """Return the last `min(length, size)` bytes of the file, and its size.

        Raises:
            NotFoundError: there is no such file.
        """

    def read_tails(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, int] | None]:
        """Return what `read_tail` gives for each path, in this order; None where there is no such file.

        Storages behind a network read several at a time. The answers are not of one moment. Everything is held in
        memory, so whoever has many paths asks for some hundred at a time.
        """

    def exists(self, path: str) -> bool:
        """Whether the file is there now (never a cached answer)."""

    def list(self, directory: str) -> Iterator[ObjectInfo]:
        """Yield the files directly in `directory`, in no order; nothing if it does not exist.

        A listing is a hint. On some storages it may be stale, so no promise may rest on it.
        """

    def create_if_absent(self, path: str, data: Sequence[Bytes], *, durable: bool = True) -> None:
        """Create the file with the joined pieces of `data`, or raise; never replace anything.

        The last piece may take a while to come: whoever writes piece by piece does well to ask for it last.

        Returning normally means: exactly these bytes are at `path` now, a reader sees all of them or no
        file, and with `durable` they survive power loss. The bytes must hold a nonce that no other
        attempt has (every caller in this project draws one): an unclear answer is then resolved by
        reading back, and finding the own bytes is success.

        Raises:
            ExistsError: somebody else's bytes are at `path`; nothing was written.
            StorageFullError: no room; nothing was written.
            ReadOnlyError: not permitted; nothing was written.
            UnavailableError: certainly nothing was written.
            OutcomeUnknownError: the storage neither confirmed nor denied, and reading back failed too.
        """

    def sync(self, paths: Sequence[str]) -> None:
        """Make files that were created with `durable=False` survive power loss."""

    def delete(self, path: str) -> None:
        """Remove the file; an absent one is not an error."""

    def delete_many(self, paths: Sequence[str]) -> None:
        """Remove the files, several at a time behind a network; absent ones are not an error.

        Every path is tried; then the first failure is raised, if there was one.
        """

    def disk_usage(self) -> tuple[int, int] | None:
        """Return (used, total) bytes of the medium, or None where that has no meaning.

        `total` is what this process can fill: room that the system keeps for root counts in neither. The reserve
        counts as used.
        """

    def keep_reserve(self) -> int:
        """Set a little room aside for maintenance on a full disk, if there is plenty; return its size in bytes.

        0: there is none, for lack of room or because this storage has no use for one. Calling it again costs little.
        """

    def release_reserve(self) -> int:
        """Give the reserve back to the disk, so that a few small files can be written; return the bytes it had."""

    def turn(self, directory: str, timeout: float) -> AbstractContextManager[bool]:
        """Wait for one's turn among the writers on this machine; a courtesy, never a guarantee.

        It keeps racing processes from starving each other. It gives up after `timeout` seconds, because a stopped
        process must not stop the others, and does not wait again for a holder that has not moved since. Yields True
        if the turn was had; backends without a cheap lock yield False at once.
        """

    def watch(self, directory: str) -> Watch | None:
        """Begin to watch for new names in `directory`, which is created if it is missing.

        None: this storage cannot tell (or the system's limit is reached), so the caller has to poll. A watch is a hint
        and never the only source: wait with a timeout of a second or so, and look then too.

        Raises:
            ReadOnlyError, StorageFullError: the directory is missing and cannot be created.
        """

    def sweep_temp(self, older_than_ms: int, now_ms: int) -> int:
        """Remove temporary files that killed writers left behind; return how many there were.

        Only files last written before `now_ms - older_than_ms` go. A live writer that is slower than that
        loses its attempt (nothing is written, it gets `UnavailableError`), never its data.
        Returns 0 on storages that need no temporary files.
        """

    def close(self) -> None:
        """Release connections; the object is not used afterwards."""


class PlainStorage:
    """The optional calls of `Storage` for a backend that has nothing better to offer: one file after the other."""

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """See `Storage.read_tail`."""
        raise NotImplementedError

    def delete(self, path: str) -> None:
        """See `Storage.delete`."""
        raise NotImplementedError

    def read_tails(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, int] | None]:
        return [tail_or_none(self.read_tail, path, length) for path in paths]

    def delete_many(self, paths: Sequence[str]) -> None:
        failed: RmqError | None = None
        for path in paths:
            try:
                self.delete(path)
            except RmqError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def disk_usage(self) -> tuple[int, int] | None:
        return None

    def keep_reserve(self) -> int:
        return 0

    def release_reserve(self) -> int:
        return 0

    def turn(self, directory: str, timeout: float) -> AbstractContextManager[bool]:
        del directory, timeout
        return nullcontext(False)

    def watch(self, directory: str) -> Watch | None:
        del directory
        return None

    def sweep_temp(self, older_than_ms: int, now_ms: int) -> int:
        del older_than_ms, now_ms
        return 0


def tail_or_none(
    read_tail: Callable[[str, int], tuple[bytes, int]], path: str, length: int
) -> tuple[bytes, int] | None:
    """What `read_tail` returns, or None if there is no such file."""
    try:
        return read_tail(path, length)
    except NotFoundError:
        return None


def check_ranges(ranges: Sequence[tuple[int, int]]) -> None:
    """Raise `InvalidRequestError` for a range that no file can have."""
    for start, length in ranges:
        if start < 0 or length < 0:
            raise InvalidRequestError("a range needs start >= 0 and length >= 0", start=start, length=length)


def too_short(path: str, start: int, length: int, size: int) -> CorruptDataError:
    """The error that says that a file has no such range."""
    return CorruptDataError("the file ends inside the range", path=path, start=start, length=length, size=size)
