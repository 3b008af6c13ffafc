"""An engine that dies between any two calls to the storage leaves tables that the next one completes, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sample_messages import SETTINGS, Sample, as_rows

from rmq_spark.client.store import Store
from rmq_spark.storage.base import Bytes, Storage
from rmq_spark.tables import engine
from rmq_spark.tables.lease import LEASE_MS
from rmq_spark.tables.schemas import TABLES


class Death(BaseException):
    """The process ends here: nothing may catch it and go on."""


class Mortal:
    """A storage that lets its user die at the n-th change below `tables/`, before or after the change is made."""

    def __init__(self, inner: Storage, at: int, after: bool) -> None:
        self.inner = inner
        self.left = at
        self.after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _change(self, path: str, change: Callable[[], None]) -> None:
        if not path.startswith("tables/"):
            change()
            return
        self.left -= 1
        if self.left < 0:
            raise Death  # the dead change nothing more
        if self.left == 0:
            if self.after:
                change()
            raise Death
        change()

    def create_if_absent(self, path: str, data: Sequence[Bytes], *, durable: bool = True) -> None:
        self._change(path, lambda: self.inner.create_if_absent(path, data, durable=durable))

    def delete(self, path: str) -> None:
        self._change(path, lambda: self.inner.delete(path))


def deaths(work: Callable[[Store], object], sample: Sample, after: bool) -> Iterator[int]:
    """Run `work` again and again, dying one change later each time, until it survives; yields after each death."""
    for at in range(1, 10_000):
        mortal = Mortal(sample.store.storage, at, after)
        try:
            work(Store(mortal, SETTINGS, sample.clock, read_only=False))
        except Death:
            sample.clock.advance(LEASE_MS / 1000 + 1)
            yield at
        else:
            return


def stored_rows(store: Store) -> dict[str, list[tuple[object, ...]]]:
    return {name: as_rows(engine.read_table(store, name)) for name in TABLES}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_dying_while_tables_grow(after: bool) -> None:
    sample = Sample.new(1).grow(6)
    count = 0
    for _ in deaths(lambda store: engine.reput(store, range_messages=60), sample, after):
        count += 1
        # What is there so far is right as far as each table's mark says.
        for status in engine.status(sample.store):
            rows = as_rows(engine.read_table(sample.store, status.table))
            assert rows == sample.expected(mark=status.mark or 0)[status.table]
        # The log goes on, and the tables follow: each round begins somewhere else.
        sample.grow(1)
    assert count >= 5
    assert stored_rows(sample.store) == sample.expected()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_dying_while_tables_are_tended(after: bool) -> None:
    """Small ranges, so that files are merged, checkpoints written and old files deleted; and retention trims."""
    sample = Sample.new(2)
    count = 0
    for round_ in range(4):
        sample.grow(16).roll()
        for _ in deaths(lambda store: engine.reput(store, range_messages=25), sample, after):
            count += 1
            sample.clock.advance(600)
        assert stored_rows(sample.store)["index"] == sample.index()
        if round_ % 2:
            sample.expire()
    engine.reput(sample.store)
    assert count >= 20
    rows = stored_rows(sample.store)
    assert (rows["consumequeue"], rows["index"]) == (sample.consumequeue(), sample.index())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_dying_while_tables_are_rebuilt(after: bool) -> None:
    sample = Sample.new(3).grow(12)
    engine.reput(sample.store, range_messages=50)
    for _ in deaths(lambda store: engine.rebuild(store, range_messages=100), sample, after):
        for status in engine.status(sample.store):
            rows = as_rows(engine.read_table(sample.store, status.table))
            assert rows == sample.expected(mark=status.mark or 0)[status.table]
    assert stored_rows(sample.store) == sample.expected()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_dying_while_tables_are_dropped(after: bool) -> None:
    sample = Sample.new(4).grow(12)
    engine.reput(sample.store, range_messages=30)
    count = 0
    for _ in deaths(engine.drop, sample, after):
        count += 1
        for status in engine.status(sample.store):
            rows = as_rows(engine.read_table(sample.store, status.table))
            assert rows == sample.expected(mark=status.mark or 0)[status.table]
    assert count >= 10
    assert {(status.mark, status.files) for status in engine.status(sample.store)} == {(None, 0)}
    engine.reput(sample.store)
    assert stored_rows(sample.store) == sample.expected()
