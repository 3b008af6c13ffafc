"""Stores and storages that stay open between calls: Spark keeps its Python workers, and opening folds the log.

One worker process plans the batches of a query, another one commits them; each meets the same store every time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rmq_spark.client.store import Store
from rmq_spark.clock import SystemClock
from rmq_spark.storage.base import Storage
from rmq_spark.storage.open import open_storage

_Key = tuple[int, str, tuple[tuple[str, str], ...], bool]

_stores: dict[_Key, Store] = {}
_storages: dict[_Key, Storage] = {}


def kept_store(uri: str, options: Mapping[str, str], *, read_only: bool) -> Store:
    """The store at `uri`, opened now or kept from an earlier call; do not close it.

    Raises:
        as `Store.open`.
    """
    key = _key(uri, options, read_only)
    store = _stores.get(key)
    if store is not None and not store.is_still_there():
        forget_store(uri, options)  # deleted and recreated: what was folded is another log's state
        store = None
    if store is None:
        store = _stores[key] = Store.open(uri, options=dict(options), read_only=read_only, services="off")
    return store


def readable_store(uri: str, options: Mapping[str, str]) -> Store:
    """As `kept_store` for reading; one that is kept for writing serves as well.

    Raises:
        as `Store.open`.
    """
    return kept_store(uri, options, read_only=_key(uri, options, False) not in _stores)


def forget_store(uri: str, options: Mapping[str, str]) -> None:
    """Close the store, so that the next call opens it again.

    After an error, nothing that was folded or remembered is to be trusted.
    """
    for read_only in (False, True):
        if (store := _stores.pop(_key(uri, options, read_only), None)) is not None:
            store.close()


def kept_storage(uri: str, options: Mapping[str, str]) -> Storage:
    """The storage at `uri`, for tasks that only write row files.

    Raises:
        as `open_storage`.
    """
    key = _key(uri, options, False)
    storage = _storages.get(key)
    if storage is None:
        storage = _storages[key] = open_storage(uri, options=dict(options), clock=SystemClock())
    return storage


def _key(uri: str, options: Mapping[str, str], read_only: bool) -> _Key:
    # Handles do not survive a fork, and a child has its parent's variables.
    return os.getpid(), uri, tuple(sorted(options.items())), read_only
