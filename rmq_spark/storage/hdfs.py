"""A store on HDFS, spoken to without a JVM (`hdfs-native`).

Why `create_if_absent` is *atomic*: the final name comes into being by the NameNode's `rename2` without
overwrite, one transaction under its lock, which fails if the name is taken. `create(overwrite=false)` on the
final name would show an empty file, and leave it there with a lease if the writer dies.
Why it is *complete*: only a closed file is renamed (renaming an open one works, and must not happen), and
DataNodes fsync the blocks of this client's files when they close them, so `durable` costs nothing extra.

The client's own `close` takes 500 ms nearly always: it asks the NameNode once, before the DataNode has
reported the block, and then sleeps. We do not wait for that. While the client sleeps, `_write` watches
the file until the NameNode counts every block as complete; then asking for lease recovery has nothing to
recover and just closes the file. A create takes about 10 ms that way. Where the watch cannot tell (erasure
coding, a file that fills its last block, a proxy that does not answer), it waits for the client's close.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from rmq_spark.clock import Clock, SystemClock
from rmq_spark.errors import (
    CorruptDataError,
    InvalidRequestError,
    MissingExtraError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    RmqError,
    StorageFullError,
    UnavailableError,
)
from rmq_spark.storage.base import Bytes, ObjectInfo, check_ranges, too_short
from rmq_spark.storage.parallel import ParallelStorage
from rmq_spark.storage.readback import Occupant, exists_error, join, look

TEMP_PREFIX: Final = ".rmq-tmp-"
"""How the name of an unfinished file starts; such names never show in listings."""

_CLIENT_OPTIONS: Final = frozenset({"config_dir", "kerberos_principal", "kerberos_keytab", "kerberos_cache"})
_CLOSERS: Final = 32
_FIRST_LOOK_S: Final = 0.002
_NEXT_LOOK_S: Final = 0.001
_LOOKS: Final = 100

# Java exception names in the client's messages -> what they mean to the caller.
_MEANINGS: Final[Sequence[tuple[str, type[RmqError], str]]] = (
    # The NameNode reports it as a lack of permission, so it comes before that.
    ("(is not a directory)", CorruptDataError, "a file stands where a directory belongs; move it away"),
    ("AccessControlException", ReadOnlyError, "HDFS does not permit this; check owner and mode"),
    ("QuotaExceeded", StorageFullError, "the HDFS quota is used up; nothing was written"),
    ("DiskOutOfSpace", StorageFullError, "the DataNodes have no room; nothing was written"),
    ("InvalidPathException", InvalidRequestError, "HDFS does not take this name (no colon, for example)"),
    ("PathComponentTooLong", InvalidRequestError, "HDFS does not take a name this long"),
)

_BROKEN_OFF: Final = "DataTransferError"
_READ_PAUSES_S: Final = (0.1, 0.4)
"""Pauses before a read that a DataNode broke off is tried again."""


class HdfsStorage(ParallelStorage):
    """Files on HDFS, created by rename.

    Args:
        uri: `hdfs://host:port/path`, `hdfs://nameservice/path`, or `hdfs:///path` for the default file system
            of the Hadoop configuration.
        options: Hadoop settings (names with a dot), or `config_dir`, `kerberos_principal`,
            `kerberos_keytab`, `kerberos_cache` of the client.
        clock: for pauses and names of temporary files.

    Raises:
        MissingExtraError: hdfs-native is not installed.
    """

    def __init__(self, uri: str, *, options: Mapping[str, str] | None = None, clock: Clock | None = None) -> None:
        try:
            import hdfs_native
        except ImportError as error:
            raise MissingExtraError('HDFS needs hdfs-native; run: pip install "rmq-spark[hdfs]"') from error
        parts = urlsplit(uri)
        if parts.query or parts.fragment:
            raise InvalidRequestError("an hdfs:// URI takes no query; pass options instead", uri=uri)
        configuration = dict(options or {})
        named = {key: configuration.pop(key) for key in _CLIENT_OPTIONS & configuration.keys()}
        unknown = sorted(key for key in configuration if "." not in key)
        if unknown:
            raise InvalidRequestError(f"unknown HDFS options: {', '.join(unknown)}")
        self._uri = uri.rstrip("/")
        self._prefix = unquote(parts.path).rstrip("/") + "/"
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._closers = ThreadPoolExecutor(_CLOSERS, thread_name_prefix="rmq-hdfs-close")
        self._write_options: Any = hdfs_native.WriteOptions(create_parent=True, overwrite=False)
        url = f"hdfs://{parts.netloc}" if parts.netloc else None
        try:
            self._client: Any = hdfs_native.Client(url, configuration or None, **named)
        except (OSError, RuntimeError, ValueError) as error:
            raise translate(error, self._uri) from error

    @property
    def uri(self) -> str:
        return self._uri

    def read(self, path: str) -> bytes:
        reader = self._open(path)
        return self._range(path, reader, 0, len(reader))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self.read_ranges(path, [(start, length)])[0]

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        check_ranges(ranges)
        reader = self._open(path)
        # Checked here because the client does not return an error for it: it panics.
        for start, length in ranges:
            if start + length > len(reader):
                raise too_short(path, start, length, len(reader))
        return [self._range(path, reader, start, length) for start, length in ranges]

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        if length < 0:
            raise InvalidRequestError("a tail needs length >= 0", length=length)
        reader = self._open(path)
        size = len(reader)
        wanted = min(length, size)
        return self._range(path, reader, size - wanted, wanted), size

    def exists(self, path: str) -> bool:
        try:
            return not self._client.get_file_info(self._full(path)).isdir
        except (OSError, RuntimeError) as error:
            if _is_absent(error):
                return False
            raise translate(error, path) from error

    def list(self, directory: str) -> Iterator[ObjectInfo]:
        place = self._full(directory).rstrip("/") or "/"
        try:
            for status in self._client.list_status(place):
                name = status.path.rpartition("/")[2]
                if not status.isdir and name[:1] != "." and status.path != place:
                    yield ObjectInfo(name=name, size=status.length, modified_ms=status.modification_time)
        except (OSError, RuntimeError) as error:
            if not _is_absent(error):
                raise translate(error, directory) from error

    def create_if_absent(self, path: str, data: Sequence[Bytes], *, durable: bool = True) -> None:
        """See `Storage.create_if_absent`; always durable, because DataNodes fsync on close."""
        del durable
        directory, _, name = path.rpartition("/")
        if not name or name[0] == ".":
            raise InvalidRequestError("file names are not empty and do not start with a dot", path=path)
        final = self._full(path)
        temp = f"{self._full(directory).rstrip('/')}/{TEMP_PREFIX}{self._clock.token()}"
        content = join(data)
        try:
            self._write(temp, content)
        except BaseException as error:
            with suppress(OSError, RuntimeError):  # the sweep will find it
                self._client.delete(temp)
            if isinstance(error, (OSError, RuntimeError)):
                raise translate(error, path) from error
            raise
        try:
            self._client.rename(temp, final, overwrite=False)
        except (OSError, RuntimeError) as error:
            self._resolve_rename(error, path, temp, content)
        except BaseException:
            with suppress(OSError, RuntimeError):
                self._client.delete(temp)
            raise

    def sync(self, paths: Sequence[str]) -> None:
        """Do nothing: files were flushed when they were closed, before they got their names."""

    def delete(self, path: str) -> None:
        try:
            self._client.delete(self._full(path))
        except (OSError, RuntimeError) as error:
            if not _is_absent(error):
                raise translate(error, path) from error

    def sweep_temp(self, older_than_ms: int, now_ms: int) -> int:
        limit_ms = now_ms - older_than_ms
        removed = 0
        try:
            for status in self._client.list_status(self._prefix.rstrip("/") or "/", recursive=True):
                name = status.path.rpartition("/")[2]
                if status.isdir or not name.startswith(TEMP_PREFIX) or status.modification_time >= limit_ms:
                    continue
                removed += bool(self._client.delete(status.path))
        except (OSError, RuntimeError) as error:
            if not _is_absent(error):
                raise translate(error, self._uri) from error
        return removed

    def close(self) -> None:
        """Take no more work; closes of the client that are still asleep end by themselves."""
        self._closers.shutdown(wait=False)

    def _full(self, path: str) -> str:
        if path[:1] == "/" or (".." in path and ".." in path.split("/")):
            raise InvalidRequestError("paths are relative to the store and stay inside it", path=path)
        return self._prefix + path

    def _open(self, path: str) -> Any:
        try:
            return self._client.read(self._full(path))
        except (OSError, RuntimeError) as error:
            if _is_absent(error):
                raise NotFoundError("there is no such file", path=path, store=self._uri) from error
            raise translate(error, path) from error

    def _range(self, path: str, reader: Any, start: int, length: int) -> bytes:
        for pause in (*_READ_PAUSES_S, None):
            try:
                return bytes(reader.read_range(start, length)) if length else b""
            except FileNotFoundError as error:
                raise NotFoundError("the file was deleted while it was read", path=path) from error
            except (OSError, RuntimeError) as error:
                # A DataNode that is busy breaks off; with one replica that is all of them, and the client gives up.
                if pause is None or _BROKEN_OFF not in str(error):
                    raise translate(error, path) from error
                self._clock.sleep(pause)
        raise AssertionError("unreachable")

    def _write(self, temp: str, content: bytes) -> None:
        """Create, fill and close the temporary file; it is closed and complete when this returns."""
        writer = self._client.create(temp, self._write_options)
        if content:
            writer.write(content)
        closing = self._closers.submit(writer.close)
        pause = _FIRST_LOOK_S
        for _ in range(_LOOKS if content else 0):
            self._clock.sleep(pause)
            pause = _NEXT_LOOK_S
            if closing.done():
                break
            if self._close_early(temp, len(content)):
                return
        closing.result()

    def _close_early(self, temp: str, size: int) -> bool:
        """Close the file if the NameNode has every block of it; False means: look again.

        The NameNode charges an incomplete block with the whole block size, so a charge of exactly
        `size * replication` means that all blocks are complete. Before that, lease recovery must not be
        asked for: it would start a block recovery and fence our own writer.
        """
        try:
            status = self._client.get_file_info(temp)
            if status.blocksize and size % status.blocksize == 0:
                return False
            summary = self._client.get_content_summary(temp)
            if summary.length != size or summary.space_consumed != size * (status.replication or 0):
                return False
            return bool(self._client.recover_lease(temp))
        except (OSError, RuntimeError):
            return False  # the client's own close goes on and will tell

    def _resolve_rename(self, error: Exception, path: str, temp: str, content: bytes) -> None:
        """Return if our bytes are at `path` although `rename` raised `error`; else raise what that means.

        A request may still be on its way after its answer was lost. Deleting the temporary file settles it:
        if the file was there to delete, no rename has happened and none can any more.
        """
        occupant = self._look(path, content, error)
        if occupant is Occupant.ABSENT:
            try:
                if self._client.delete(temp):
                    if isinstance(error, FileExistsError):  # taken when we tried, and deleted since
                        raise exists_error(path) from error
                    raise translate(error, path) from error
            except (OSError, RuntimeError) as failed:
                raise _unknown(path, error) from failed
            occupant = self._look(path, content, error)
            if occupant is Occupant.ABSENT:
                raise _unknown(path, error) from error
        with suppress(OSError, RuntimeError):  # the sweep will find it
            self._client.delete(temp)
        if occupant is Occupant.OTHER:
            raise exists_error(path) from error

    def _look(self, path: str, content: bytes, error: Exception) -> Occupant:
        try:
            if self._client.get_file_info(self._full(path)).isdir:
                return Occupant.OTHER
            return look(self.read, path, content)
        except FileNotFoundError:
            return Occupant.ABSENT
        except (OSError, RuntimeError, RmqError) as failed:
            raise _unknown(path, error) from failed


def _is_absent(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) or "(is not a directory)" in str(error)


def translate(error: Exception, path: str) -> RmqError:
    """The error a caller can act on, for a call that changed nothing."""
    text = str(error)
    reason = text.partition("\\n")[0].partition("\n")[0]
    for sign, kind, problem in _MEANINGS:
        if sign in text:
            return kind(problem, path=path, reason=reason)
    if isinstance(error, PermissionError):
        return ReadOnlyError("HDFS does not permit this; check owner and mode", path=path, reason=reason)
    return UnavailableError("HDFS could not be reached or refused the call", path=path, reason=reason)


def _unknown(path: str, error: Exception) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "HDFS did not confirm the rename and the name cannot be read back; retry with the same handle",
        path=path,
        reason=str(error).partition("\\n")[0].partition("\n")[0],
    )
