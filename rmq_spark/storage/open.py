"""From a URI to a storage, and the question whether that storage keeps the one promise the log needs."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from rmq_spark.clock import Clock, SystemClock
from rmq_spark.errors import ExistsError, InvalidRequestError, UnsafeStorageError
from rmq_spark.storage.base import Storage

SCHEMES: Final = ("file", "memory", "hdfs", "s3", "gs", "az")
"""The schemes with a backend here; a plain path is the same as `file`."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_storage(
    uri: str | os.PathLike[str], *, options: Mapping[str, str] | None = None, clock: Clock | None = None
) -> Storage:
    """Open the storage at `uri`; nothing is contacted or created yet on most of them.

    Args:
        uri: a path, or `file://`, `memory://`, `hdfs://`, `s3://`, `gs://`, `az://`.
        options: settings of the backend, see its class.
        clock: time and tokens for it; the machine's by default.

    Raises:
        InvalidRequestError: nobody knows the scheme, or the backend takes no such options.
        UnsafeStorageError: the scheme is known to fsspec, but no exclusive create is known for it here.
        MissingExtraError: the backend needs a package that is not installed.
    """
    text = os.fspath(uri)
    clock = clock if clock is not None else SystemClock()
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else "file"
    if scheme in ("file", "memory") and options:
        raise InvalidRequestError(f"{scheme} storages take no options", options=sorted(options))
    if scheme == "file":
        from rmq_spark.storage.local import LocalStorage

        return LocalStorage(_local_path(text) if match else text, clock=clock)
    if scheme == "memory":
        from rmq_spark.storage.memory import MemoryStorage

        # `memory://` alone is a store of its own, as an unnamed temporary file would be.
        return MemoryStorage(text[len("memory://") :].strip("/") or None, clock=clock)
    if scheme == "hdfs":
        from rmq_spark.storage.hdfs import HdfsStorage

        return HdfsStorage(text, options=options, clock=clock)
    if scheme in ("s3", "gs", "az"):
        from rmq_spark.storage.object_store import ObjectStorage

        return ObjectStorage(text, options=options, clock=clock)
    raise _unsupported(scheme, text)


def _local_path(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise InvalidRequestError("a file:// URI names no host; write file:///path", uri=uri)
    if parts.query or parts.fragment:
        raise InvalidRequestError("escape ? and # in a file:// URI, or give a plain path", uri=uri)
    path = unquote(parts.path)
    if not path:
        raise InvalidRequestError("a file:// URI needs a path", uri=uri)
    return path


def _unsupported(scheme: str, uri: str) -> InvalidRequestError | UnsafeStorageError:
    from fsspec.registry import known_implementations

    supported = "a plain path, " + ", ".join(f"{name}://" for name in SCHEMES)
    if scheme in known_implementations:
        return UnsafeStorageError(
            f"{scheme}:// has no exclusive create that rmq-spark knows, so appending to it would lose "
            f"messages; supported: {supported}",
            uri=uri,
        )
    near = difflib.get_close_matches(scheme, SCHEMES, n=1, cutoff=0.0)
    return InvalidRequestError(
        f"unknown scheme {scheme}://; did you mean {near[0]}://? Supported: {supported}", uri=uri
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What a probe of a storage found out."""

    clock_skew_ms: int
    """By how much the storage's clock is ahead of the local one (negative: behind).

    0 if the file's time lies within the probe's own duration, so a storage with the same clock has 0."""


def probe(storage: Storage, clock: Clock) -> ProbeResult:
    """Create a file twice with different bytes and see that the second attempt is refused.

    Some servers and mounts accept a conditional create and ignore the condition; on such a storage two
    writers would overwrite each other without any error. The probe's file is deleted again.

    Raises:
        UnsafeStorageError: the second create succeeded, or the first one's bytes are not there.
    """
    token = clock.token()
    name = f"{token}.probe"
    path = f"probe/{name}"
    first = f"first {token}".encode()
    start_ms = clock.now_ms()
    storage.create_if_absent(path, [first], durable=False)
    end_ms = clock.now_ms()
    try:
        refused = False
        try:
            storage.create_if_absent(path, [f"second {token}".encode()], durable=False)
        except ExistsError:
            refused = True
        content = storage.read(path)
        if not refused or content != first:
            raise UnsafeStorageError(
                "this storage does not honour exclusive creation, so appending to it would lose messages; "
                "use another storage",
                uri=storage.uri,
                second_create="refused" if refused else "accepted",
                content="first" if content == first else "replaced",
            )
        times = [info.modified_ms for info in storage.list("probe") if info.name == name]
    finally:
        storage.delete(path)
    # A listing may lag behind; without an entry nothing is known about the clock.
    return ProbeResult(clock_skew_ms=_skew_ms(times[0], start_ms, end_ms) if times else 0)


def _skew_ms(modified_ms: int, start_ms: int, end_ms: int) -> int:
    # Object stores cut times to seconds; kernels stamp files with the time of their last tick.
    coarse_ms = 999 if modified_ms % 1_000 == 0 else 10
    if modified_ms > end_ms:
        return modified_ms - end_ms
    if modified_ms + coarse_ms < start_ms:
        return modified_ms + coarse_ms - start_ms
    return 0
