from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from rmq_spark.clock import ManualClock
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.storage.open import probe
from rmq_spark.testing.storage_conformance import StorageConformance


@pytest.fixture
def name() -> Iterator[str]:
    name = uuid4().hex
    yield name
    MemoryStorage.forget(name)


class TestMemory(StorageConformance):
    @pytest.fixture
    def storage(self, name: str) -> MemoryStorage:
        return MemoryStorage(name)

    @pytest.fixture
    def second_handle(self, name: str) -> MemoryStorage:
        return MemoryStorage(name)


def test_unnamed_stores_are_apart() -> None:
    one, two = MemoryStorage(), MemoryStorage()
    one.create_if_absent("d/x", [b"1"])
    assert not two.exists("d/x")


def test_forget_starts_the_name_anew(name: str) -> None:
    old = MemoryStorage(name)
    old.create_if_absent("d/x", [b"1"])
    MemoryStorage.forget(name)
    assert not MemoryStorage(name).exists("d/x")
    assert old.exists("d/x")


def test_the_clock_is_injected() -> None:
    clock = ManualClock(now_ms=12_345)
    storage = MemoryStorage(clock=clock)
    storage.create_if_absent("d/x", [b"1"])
    clock.advance(1.0)
    storage.create_if_absent("d/y", [b"1"])
    assert {info.name: info.modified_ms for info in storage.list("d")} == {"x": 12_345, "y": 13_345}
    assert probe(storage, clock).clock_skew_ms == 0


def test_later_changes_of_a_buffer_do_not_show() -> None:
    storage = MemoryStorage()
    buffer = bytearray(b"abc")
    storage.create_if_absent("d/x", [buffer])
    buffer[0] = 0
    assert storage.read("d/x") == b"abc"
