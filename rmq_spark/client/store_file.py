"""`store.json`, which says what a store is: its format, when it was created, and a nonce that no other store has."""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

from rmq_spark.clock import Clock
from rmq_spark.errors import CorruptDataError, NotFoundError, UnsupportedVersionError
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

FORMAT: Final = 1

_CHECK: Final = "check"
_WITHOUT_CHECK: Final = {"format", "createdAt", "nonce"}
"""The fields of files that were written before there was a check-sum; one with others has lost its own."""


def new_store_file(clock: Clock) -> bytes:
    """The content of a new store's file."""
    # Bound: the chain of each log begins with a digest of the nonce, see `log.marks.genesis`.
    info = {"format": FORMAT, "createdAt": clock.now_ms(), "nonce": clock.token(), "bound": True}
    return json.dumps({**info, _CHECK: check_sum(info)}).encode()


def read_store_file(storage: Storage) -> dict[str, Any]:
    """The checked content of a store's file, without its check-sum.

    Raises:
        NotFoundError: there is no store.
        CorruptDataError: the file is damaged.
        UnsupportedVersionError: the store has another format.
    """
    try:
        data = storage.read(paths.STORE_FILE)
    except NotFoundError as error:
        raise NotFoundError("no store here; create one with `rmq init`", uri=storage.uri) from error
    try:
        info: dict[str, Any] = json.loads(data)
        version = info["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("store.json is damaged", uri=storage.uri) from error
    if version != FORMAT:
        raise UnsupportedVersionError("store has another format; upgrade rmq-spark", format=version, known=FORMAT)
    stored_sum = info.pop(_CHECK, None)
    if info.keys() != _WITHOUT_CHECK if stored_sum is None else stored_sum != check_sum(info):
        raise CorruptDataError(
            "store.json is damaged: it does not fit its check-sum. Restore it from a backup",
            uri=storage.uri,
            found=stored_sum,
        )
    return info


def check_sum(info: dict[str, Any]) -> str:
    """CRC-32 of the fields in a fixed form, as 8 hexadecimal digits."""
    text = json.dumps(info, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"
