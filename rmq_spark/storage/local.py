"""A store in a directory of this machine (or of a POSIX-like network mount with hard links).

Why `create_if_absent` is *atomic*: the final name comes into being by `link(2)`, which fails with EEXIST if
the name is taken, in the kernel, for every process. `rename` would replace; `O_EXCL` on the final name
would show a half-written file.
Why it is *complete*: the linked file was written in full (and with `durable` fsynced) under a hidden
name first, and nobody writes to it afterwards.

Temporary files stand in the same directory as the final name, because a link cannot leave its file system.
Names that start with a dot belong to this module and never show in listings.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final

from rmq_spark.clock import Clock, SystemClock
from rmq_spark.errors import (
    CorruptDataError,
    InvalidRequestError,
    OutcomeUnknownError,
    RmqError,
    UnavailableError,
    UnsafeStorageError,
)
from rmq_spark.storage.base import Bytes, Watch
from rmq_spark.storage.local_ops import FileOps
from rmq_spark.storage.local_read import LocalReader, translate
from rmq_spark.storage.local_reserve import make_reserve, remove_reserve
from rmq_spark.storage.local_turn import Turn
from rmq_spark.storage.local_watch import open_watch
from rmq_spark.storage.local_write import write_all
from rmq_spark.storage.readback import Occupant, exists_error, join, look

__all__ = ["TEMP_PREFIX", "FileOps", "LocalStorage"]

MANY_FILES: Final = 8
"""From so many files on, `sync` flushes the whole file system at once."""

TEMP_PREFIX: Final = ".rmq-tmp-"
"""How the name of an unfinished file starts."""

_TURN_FILE: Final = ".turn"
_RESERVE_FILE: Final = ".reserve"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK})
_TEMP_TRIES: Final = 100
# Short names are quicker, and a clash is noticed: the file is opened exclusively.
_TOKEN_DIGITS: Final = 12


class LocalStorage(LocalReader):
    """Files below a directory, created by hard link.

    Network mounts: NFS is safe as to exclusive creation (a lost reply of `link` is resolved by reading
    back) but its attribute cache may hide new files from readers for seconds; mount it with
    `lookupcache=none`. SMB and FUSE mounts of buckets have no hard links and are refused at the first create.

    Args:
        root: the store's directory; created by the first `create_if_absent`, not before.
        ops: the calls that change or flush files, replaceable to record or fail them.
        clock: for waiting, and for names of temporary files.
    """

    def __init__(self, root: str | os.PathLike[str], *, ops: FileOps | None = None, clock: Clock | None = None) -> None:
        super().__init__(root)
        self._ops = ops if ops is not None else FileOps()
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._token = self._clock.token()[-_TOKEN_DIGITS:]
        self._count = itertools.count()
        # Directory as the caller names it -> its absolute path with a slash. Only grows; a lost update
        # between threads costs a second look, so no lock is needed.
        self._known: dict[str, str] = {}
        self._anchored: set[str] = set()
        self._made: set[str] = set()
        self._unflushed: set[str] = set()
        self._passed_over: dict[str, bytes] = {}

    def create_if_absent(self, path: str, data: Sequence[Bytes], *, durable: bool = True) -> None:
        directory, _, name = path.rpartition("/")
        prefix = self._known.get(directory) or self._make_directory(directory)
        if not name or name[0] == "." or path[0] == "/":
            raise InvalidRequestError("paths are relative and no name in them starts with a dot", path=path)
        ops = self._ops
        temp, fd = self._open_temp(directory, prefix, path)
        linking = False
        try:
            try:
                write_all(ops, fd, data, durable=durable)
                if durable:
                    ops.fsync(fd)
                    if directory not in self._anchored:
                        self._anchor(directory, prefix)
            finally:
                ops.close(fd)
            linking = True
            ops.link(temp, prefix + name)
        except BaseException as error:
            # First remove the temporary file, then look: without it a delayed request cannot link any more.
            with suppress(OSError):
                ops.unlink(temp)
            if not isinstance(error, OSError):
                raise
            if not linking:
                raise translate(error, path) from error
            self._resolve_link(error, path, data)
            if durable:  # it is ours, but nothing says that the first attempt came as far as flushing
                self.sync([path])
            return
        with suppress(OSError):  # a second name of a finished file does no harm; the sweep will find it
            ops.unlink(temp)
        if durable:
            self._flush_directory(prefix, path)

    def sync(self, paths: Sequence[str]) -> None:
        # Each fsync of a small new file is a journal commit of its own; one flush of all is a single one.
        if len(paths) >= MANY_FILES and self._flush_everything():
            return
        directories: dict[str, str] = {}
        for path in paths:
            full = self._full(path)
            self._flush_file(full, path)
            directory = path.rpartition("/")[0]
            directories[directory] = full.rpartition("/")[0] + "/"
        for directory, prefix in directories.items():
            if directory not in self._anchored:
                self._anchor(directory, prefix)
            self._flush_directory(prefix, directory)

    def delete(self, path: str) -> None:
        try:
            self._ops.unlink(self._full(path))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise translate(error, path) from error

    def turn(self, directory: str, timeout: float) -> AbstractContextManager[bool]:
        prefix = self._known.get(directory) or self._make_directory(directory)
        return Turn(prefix + _TURN_FILE, timeout, self._clock, self._passed_over)

    def watch(self, directory: str) -> Watch | None:
        # Always looked for: a directory that somebody removed cannot be watched.
        return open_watch(self._make_directory(directory))

    def keep_reserve(self) -> int:
        return make_reserve(self._prefix + _RESERVE_FILE, self._ops)

    def release_reserve(self) -> int:
        return remove_reserve(self._prefix + _RESERVE_FILE, self._ops)

    def sweep_temp(self, older_than_ms: int, now_ms: int) -> int:
        limit_ns = (now_ms - older_than_ms) * 1_000_000
        removed = 0

        def fail(error: OSError) -> None:
            if error.errno != errno.ENOENT:  # a directory that went away meanwhile needs no sweep
                raise translate(error, self._root) from error

        for place, _, names in os.walk(self._root, onerror=fail):
            for name in names:
                if not name.startswith(TEMP_PREFIX):
                    continue
                full = f"{place}/{name}"
                try:
                    if os.stat(full).st_mtime_ns < limit_ns:
                        self._ops.unlink(full)
                        removed += 1
                except FileNotFoundError:
                    continue  # its owner or another sweep removed it
                except OSError as error:
                    raise translate(error, full) from error
        return removed

    def close(self) -> None:
        """Nothing is held between calls."""

    def _open_temp(self, directory: str, prefix: str, path: str) -> tuple[str, int]:
        """Open a new temporary file; make the directory again if somebody removed it."""
        for _ in range(_TEMP_TRIES):
            # The process id keeps the names of forked children apart, which share token and counter.
            temp = f"{prefix}{TEMP_PREFIX}{self._token}-{os.getpid()}-{next(self._count)}"
            try:
                return temp, self._ops.open_new(temp)
            except FileExistsError:
                self._token = self._clock.token()[-_TOKEN_DIGITS:]
            except FileNotFoundError:
                self._known.pop(directory, None)
                self._anchored.discard(directory)
                self._make_directory(directory)
            except OSError as error:
                raise translate(error, path) from error
        raise UnavailableError("no temporary file could be created; nothing was written", path=path)

    def _resolve_link(self, error: OSError, path: str, data: Sequence[Bytes]) -> None:
        """Return if our bytes are at `path` although `link` raised `error`; else raise what that means."""
        if error.errno in _NO_LINKS:
            raise UnsafeStorageError(
                "this file system has no hard links, so a name cannot be created exclusively; "
                "use a local disk, NFS, HDFS or an object store",
                path=path,
                reason=error.strerror,
            ) from error
        if error.errno == errno.EEXIST and os.path.isdir(self._full(path)):
            raise exists_error(path) from error
        try:
            occupant = look(self.read, path, join(data))
        except InvalidRequestError:  # a name the file system cannot have, so nothing can be there
            raise
        except RmqError as unreadable:
            raise OutcomeUnknownError(
                "the link was not confirmed and the name cannot be read back; retry with the same handle",
                path=path,
                reason=error.strerror,
            ) from unreadable
        if occupant is Occupant.OTHER or (occupant is Occupant.ABSENT and error.errno == errno.EEXIST):
            # Taken when we tried, even if it was deleted since: somebody else's, and not a fault of the storage.
            raise exists_error(path) from error
        if occupant is Occupant.ABSENT:
            raise translate(error, path) from error

    def _make_directory(self, directory: str) -> str:
        """Create what is missing of the directory; return its absolute path with a slash."""
        parts = directory.split("/") if directory else []
        if any(part in ("", "..") or part[0] == "." for part in parts):
            raise InvalidRequestError("directory names are not empty and do not start with a dot", path=directory)
        target = self._prefix + directory
        missing = []
        place = target.rstrip("/")
        while place and not os.path.isdir(place):
            missing.append(place)
            place = os.path.dirname(place)
        for place in reversed(missing):
            try:
                self._ops.mkdir(place)
            except FileExistsError:
                if not os.path.isdir(place):
                    raise self._not_directory(place) from None
            except OSError as error:
                raise translate(error, directory) from error
            self._made.add(place)
        prefix = target if target.endswith("/") else target + "/"
        self._known[directory] = prefix
        return prefix

    def _anchor(self, directory: str, prefix: str) -> None:
        """Flush the entries of `directory` and of its ancestors, once per handle.

        Up to the store's parent always: whoever made those directories may not have come as far as
        flushing them. Above it only what this handle made.
        """
        place = prefix.rstrip("/")
        while place and (len(place) >= len(self._root) or place in self._made):
            parent = os.path.dirname(place)
            try:
                self._ops.fsync_dir(parent or "/")
            except OSError as error:
                # Whoever may not open the root's parent has not made the root in it: nothing to flush there.
                if error.errno != errno.EACCES or place != self._root or place in self._made:
                    raise translate(error, directory) from error
            if parent == place:
                break
            place = parent
        self._anchored.add(directory)

    def _flush_file(self, full: str, path: str) -> None:
        try:
            fd = self._ops.open_existing(full)
        except OSError as error:
            raise self._read_error(error, path) from error
        try:
            self._flush_once(full, path, lambda: self._ops.fsync(fd))
        finally:
            self._ops.close(fd)

    def _flush_everything(self) -> bool:
        flushed = False

        def flush() -> None:
            nonlocal flushed
            flushed = self._ops.flush_file_system(self._root)

        self._flush_once(self._root, "", flush)
        return flushed

    def _flush_directory(self, prefix: str, path: str) -> None:
        self._flush_once(prefix, path, lambda: self._ops.fsync_dir(prefix))

    def _not_directory(self, place: str) -> RmqError:
        if self._prefix.startswith(f"{place}/"):
            return InvalidRequestError("a store is a directory, and a file stands there; name another path", path=place)
        return CorruptDataError("a file stands where a directory of the store belongs; move it away", path=place)

    def _flush_once(self, full: str, path: str, flush: Callable[[], None]) -> None:
        """Flush; once that has failed, fail for as long as this handle lives.

        After a failed flush the kernel may drop the unwritten pages and report the next flush as a success.
        """
        reason: str | None = "an earlier flush failed"
        cause: OSError | None = None
        if full not in self._unflushed:
            try:
                flush()
            except OSError as error:
                self._unflushed.add(full)
                reason, cause = error.strerror, error
            else:
                return
        raise OutcomeUnknownError(
            "the file is visible, but flushing failed, so it may not survive power loss; "
            "check the disk, then open the store again",
            path=path,
            reason=reason,
        ) from cause
