"""A store in a bucket: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage (`obstore`).

Why `create_if_absent` is *atomic*: a conditional PUT (`If-None-Match: *`, on GCS `ifGenerationMatch=0`) is
decided by the service. Why it is *complete*: an object appears with its whole body or not at all.

Answers are not always what they seem, so no refusal is believed without reading the name back:
412 may be the echo of our own first attempt; S3's 409 means *undecided* and `obstore` reports it like 412;
after a 5xx, a timeout or a broken connection the object may or may not be there. Own bytes are success,
other bytes are `ExistsError`, and an absent object is tried again until the deadline. The library's own
retries are off for creates, so that every answer is seen here.

A connection that loses packets may stall for as long as one lets it, while a new one works at once. So no request waits
longer than `STALL_S` for the next byte (small uploads: for the answer) before it is tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from rmq_spark.clock import Clock, SystemClock
from rmq_spark.errors import (
    InvalidRequestError,
    MissingExtraError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    RmqError,
    StorageFullError,
    UnavailableError,
    UnsafeStorageError,
)
from rmq_spark.storage.base import Bytes, ObjectInfo, check_ranges, too_short
from rmq_spark.storage.parallel import ParallelStorage
from rmq_spark.storage.readback import Occupant, exists_error, join, look

CREATE_DEADLINE_S: Final = 60.0
"""How long one create goes on while the service neither accepts nor refuses."""

STALL_S: Final = 4.0
"""How long a request may stand still before it is tried again."""

SMALL_BYTES: Final = 256 * 1024
"""An upload up to this size is on its way at once, so that its answer is due within `STALL_S`."""

_LARGE_TIMEOUT: Final = timedelta(seconds=120)
_CONNECT_TIMEOUT: Final = timedelta(seconds=3)
_READ_RETRY_LIMIT: Final = timedelta(seconds=20)
_READ_PAUSES: Final = {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=1), "base": 2}
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_DELETE_TRIES: Final = 4

# Names that users of fsspec know -> names of obstore.
_ALIASES: Final = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
    "anon": "skip_signature",
}
_CLIENT_OPTIONS: Final = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "proxy_url",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
_FULL_SIGNS: Final = ("StorageFull", "QuotaExceeded", "InsufficientStorage", "507 ")
# What the library says when no connection was made: the request cannot have arrived.
_NOT_SENT_SIGN: Final = "kind: Connect,"


class ObjectStorage(ParallelStorage):
    """Objects below a prefix of a bucket, created by conditional PUT.

    Args:
        uri: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`; options may follow as
            a query.
        options: the store's and the HTTP client's settings (`endpoint`, `region`, `access_key_id`,
            `secret_access_key`, `allow_http`, `timeout` of a request, `read_timeout` ...), by the names of obstore or
            of fsspec; what is not given comes from the environment. They win over the query.
        clock: for pauses and deadlines.
        deadline_s: how long one create may stay undecided.

    Raises:
        MissingExtraError: obstore is not installed.
        InvalidRequestError: an option is unknown.
    """

    def __init__(
        self,
        uri: str,
        *,
        options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        deadline_s: float = CREATE_DEADLINE_S,
    ) -> None:
        try:
            import obstore
            import obstore.exceptions
            from obstore.store import from_url
        except ImportError as error:
            raise MissingExtraError('object stores need obstore; run: pip install "rmq-spark[s3]"') from error
        parts = urlsplit(uri)
        query = dict(parse_qsl(parts.query))
        settings = {_ALIASES.get(key, key): value for key, value in {**query, **(options or {})}.items()}
        client: dict[str, Any] = {"connect_timeout": _CONNECT_TIMEOUT}
        client |= {key: settings.pop(key) for key in _CLIENT_OPTIONS & settings.keys()}
        place = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        public = {key: value for key, value in query.items() if not _is_secret(key)}
        self._uri = f"{place}?{urlencode(public)}" if public else place
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._deadline_s = deadline_s
        self._library: Any = obstore
        self._errors: Any = obstore.exceptions
        self._suffix_ranges = parts.scheme != "az"  # Azure has no "last n bytes"
        stall = timedelta(seconds=STALL_S)
        reading = {"retry_timeout": _READ_RETRY_LIMIT, "backoff": _READ_PAUSES}
        creating = {"max_retries": 0}

        def connect(defaults: dict[str, timedelta], retries: dict[str, Any]) -> Any:
            options = {**defaults, **client}
            return from_url(place, config=settings, client_options=options, retry_config=retries)  # type: ignore[call-overload]

        try:
            self._store: Any = connect({"timeout": _LARGE_TIMEOUT, "read_timeout": stall}, reading)
            self._create_store: Any = connect({"timeout": stall}, creating)
            self._create_large_store: Any = connect({"timeout": _LARGE_TIMEOUT}, creating)
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise InvalidRequestError("the object store's options are wrong", uri=place, reason=_line(error)) from error

    @property
    def uri(self) -> str:
        """Where this is; keys and secrets of the original query are left out."""
        return self._uri

    def read(self, path: str) -> bytes:
        try:
            return bytes(self._library.get(self._store, _checked(path)).bytes())
        except (OSError, self._errors.BaseError) as error:
            raise self._read_error(error, path) from error

    def read_range(self, path: str, start: int, length: int) -> bytes:
        check_ranges([(start, length)])
        failure: Exception | None = None
        if length:
            try:
                content = bytes(self._library.get_range(self._store, _checked(path), start=start, length=length))
                if len(content) == length:
                    return content
            except FileNotFoundError as error:
                raise self._read_error(error, path) from error
            except (OSError, self._errors.BaseError) as error:
                failure = error
        # An empty range, or a refusal that does not say whether the file is too short.
        size = self._size(path)
        if start + length > size:
            raise too_short(path, start, length, size) from failure
        if failure is not None or length:
            raise UnavailableError("the range could not be read", path=path, reason=_line(failure)) from failure
        return b""

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        # Not by the library's own call for several ranges: where an object is too short for one, it panics.
        check_ranges(ranges)
        return [self.read_range(path, start, length) for start, length in ranges]

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        if length < 0:
            raise InvalidRequestError("a tail needs length >= 0", length=length)
        if length and self._suffix_ranges:
            try:
                answer = self._library.get(self._store, _checked(path), options={"range": {"suffix": length}})
                return bytes(answer.bytes()), answer.meta["size"]
            except FileNotFoundError as error:
                raise self._read_error(error, path) from error
            except (OSError, self._errors.BaseError) as error:
                if self._size(path):  # an empty object has no last bytes, which is no failure
                    raise self._read_error(error, path) from error
        size = self._size(path)
        wanted = min(length, size)
        return self.read_range(path, size - wanted, wanted), size

    def exists(self, path: str) -> bool:
        try:
            self._library.head(self._store, _checked(path))
        except FileNotFoundError:
            return False
        except (OSError, self._errors.BaseError) as error:
            raise self._read_error(error, path) from error
        return True

    def list(self, directory: str) -> Iterator[ObjectInfo]:
        try:
            page = self._library.list_with_delimiter(self._store, directory or None)
        except FileNotFoundError:
            return
        except (OSError, self._errors.BaseError) as error:
            raise self._read_error(error, directory) from error
        for item in page["objects"]:
            modified_ms = round(item["last_modified"].timestamp() * 1_000)
            yield ObjectInfo(name=item["path"].rpartition("/")[2], size=item["size"], modified_ms=modified_ms)

    def create_if_absent(self, path: str, data: Sequence[Bytes], *, durable: bool = True) -> None:
        """See `Storage.create_if_absent`; always durable once the service has answered."""
        del durable
        _checked(path)
        content = join(data)
        deadline = self._clock.elapsed_ns() + int(self._deadline_s * 1_000_000_000)
        pause = _FIRST_PAUSE_S
        maybe_sent = False
        while True:
            failure = self._try_create(path, content)
            if failure is None:
                return
            maybe_sent = maybe_sent or _NOT_SENT_SIGN not in str(failure)
            left = (deadline - self._clock.elapsed_ns()) / 1_000_000_000
            if left <= 0:
                raise self._give_up(path, failure, maybe_sent) from failure
            # Full jitter: writers that collided once must not collide again in step.
            share = int(self._clock.token()[-8:], 16) / 0xFFFF_FFFF
            self._clock.sleep(min(pause * share, left))
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def sync(self, paths: Sequence[str]) -> None:
        """Do nothing: an answered PUT is durable."""

    def delete(self, path: str) -> None:
        # The library does not repeat a request whose answer is late, unless it only reads. This one may be repeated.
        for tries_left in reversed(range(_DELETE_TRIES)):
            try:
                self._library.delete(self._store, _checked(path))
            except FileNotFoundError:
                return
            except (OSError, self._errors.BaseError) as error:
                failure = self._write_error(error, path)
                if not tries_left or not failure.retriable:
                    raise failure from error
            else:
                return

    def close(self) -> None:
        """Nothing to do: connections are pooled by the library and end with the object."""

    def _try_create(self, path: str, content: bytes) -> Exception | None:
        """One conditional PUT: None if our bytes are there, the failure if that is still open.

        Raises:
            ExistsError: somebody else's bytes are there.
            RmqError: the service refused for a reason that trying again will not change.
        """
        store = self._create_store if len(content) <= SMALL_BYTES else self._create_large_store
        try:
            self._library.put(store, path, content, mode="create", use_multipart=False)
        except (self._errors.NotSupportedError, NotImplementedError) as error:
            raise UnsafeStorageError(
                "this object store has no conditional PUT, so a name cannot be created exclusively",
                path=path,
                reason=_line(error),
            ) from error
        except (
            self._errors.PermissionDeniedError,
            self._errors.UnauthenticatedError,
            FileNotFoundError,
        ) as error:
            raise self._write_error(error, path) from error
        except (OSError, self._errors.BaseError) as error:
            return self._read_back(error, path, content)
        return None

    def _read_back(self, failure: Exception, path: str, content: bytes) -> Exception | None:
        try:
            occupant = look(self.read, path, content)
        except RmqError:
            return failure
        if occupant is Occupant.OWN:
            return None
        if occupant is Occupant.OTHER:
            raise exists_error(path) from failure
        if any(sign in str(failure) for sign in _FULL_SIGNS):
            raise StorageFullError("the object store has no room; nothing was written", path=path) from failure
        return failure

    def _give_up(self, path: str, failure: Exception, maybe_sent: bool) -> RmqError:
        if maybe_sent:
            return OutcomeUnknownError(
                "the object store did not say in time whether the object was created; retry with the same handle",
                path=path,
                reason=_line(failure),
            )
        return UnavailableError(
            "the object store could not be reached; nothing was written", path=path, reason=_line(failure)
        )

    def _size(self, path: str) -> int:
        try:
            return int(self._library.head(self._store, _checked(path))["size"])
        except (OSError, self._errors.BaseError) as error:
            raise self._read_error(error, path) from error

    def _read_error(self, error: Exception, path: str) -> RmqError:
        if isinstance(error, FileNotFoundError):
            return NotFoundError("there is no such file", path=path, store=self._uri)
        return UnavailableError(
            "the object store could not be read; check endpoint, keys and network",
            path=path,
            reason=_line(error),
        )

    def _write_error(self, error: Exception, path: str) -> RmqError:
        if isinstance(error, FileNotFoundError):
            return UnavailableError("the bucket does not exist; create it first", path=path, store=self._uri)
        if isinstance(error, self._errors.PermissionDeniedError | self._errors.UnauthenticatedError):
            return ReadOnlyError("the object store does not permit writing with these keys", path=path)
        return UnavailableError("the object store refused the call", path=path, reason=_line(error))


def _checked(path: str) -> str:
    if not path or path[0] == "/" or (".." in path and ".." in path.split("/")):
        raise InvalidRequestError("paths are relative to the store, name a file and stay inside", path=path)
    return path


def _is_secret(key: str) -> bool:
    name = _ALIASES.get(key, key)
    return any(word in name for word in ("key", "secret", "token", "password", "sas", "credential"))


def _line(error: Exception | None) -> str:
    """The first line of a message: the rest is the library's debug form."""
    return str(error).partition("\n")[0]
