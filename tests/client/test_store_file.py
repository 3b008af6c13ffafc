from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_spark.client.store import Store
from rmq_spark.client.store_file import new_store_file, read_store_file
from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.errors import CorruptDataError, RmqError
from rmq_spark.storage import paths
from rmq_spark.storage.memory import MemoryStorage


def read(content: bytes) -> dict[str, object]:
    storage = MemoryStorage()
    storage.create_if_absent(paths.STORE_FILE, [content])
    return read_store_file(storage)


def test_every_flipped_bit_is_found() -> None:
    content = new_store_file(SystemClock())
    for at in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            with pytest.raises(RmqError):
                read(bytes(flipped))


def test_a_changed_nonce_or_date_is_named_with_its_cure() -> None:
    info = json.loads(new_store_file(ManualClock()))
    for key, value in (("nonce", "f" * 32), ("createdAt", 5)):
        with pytest.raises(CorruptDataError, match="backup"):
            read(json.dumps({**info, key: value}).encode())


def test_stores_of_earlier_versions_stay_readable() -> None:
    info = {"format": 1, "createdAt": 1, "nonce": "n"}
    assert read(json.dumps(info).encode()) == info


def test_fields_of_later_versions_are_kept_if_the_check_sum_covers_them() -> None:
    from rmq_spark.client.store_file import check_sum

    info = {"format": 1, "createdAt": 1, "nonce": "n", "more": [1]}
    assert read(json.dumps({**info, "check": check_sum(info)}).encode()) == info
    with pytest.raises(CorruptDataError):
        read(json.dumps(info).encode())


def test_a_store_on_a_local_disk_keeps_a_reserve(tmp_path: Path) -> None:
    uri = str(tmp_path / "store")
    with Store.create(uri) as store:
        assert (tmp_path / "store/.reserve").exists()
        assert store.storage.release_reserve()
    with Store.open(uri, read_only=True):
        assert not (tmp_path / "store/.reserve").exists()
    with Store.open(uri):
        assert (tmp_path / "store/.reserve").exists()
