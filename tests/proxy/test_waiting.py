"""Calls that come together share a batch, and receives that wait are woken by messages that concern them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.model.message import Message
from rmq_spark.proxy.log_watch import LogWatch, Queues
from rmq_spark.proxy.workers import Batches, Workers

SOON = 60.0
"""A wait that ends sooner, unless something is broken."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(str(tmp_path / "store"), services="off") as opened:
        for topic in ("orders", "other"):
            opened.create_topic(topic, queues=1)
        yield opened


def ends(log: CommitLog, queues: Queues) -> int:
    return log.look(lambda view: sum(view.state.queues.bounds(*each)[1] for each in queues))


def watch_of(store: Store, work: Callable[[LogWatch, Any], Awaitable[None]]) -> None:
    async def run() -> None:
        watch = LogWatch(store.log())
        try:
            await work(watch, lambda topic: asyncio.to_thread(Producer(store).send, Message(topic, b"x")))
        finally:
            watch.stop()
            await asyncio.to_thread(watch.join)

    asyncio.run(run())


def test_as_many_receives_are_woken_as_messages_came_the_longest_waiting_first(store: Store) -> None:
    queues = (("orders", 0),)

    async def work(watch: LogWatch, send: Any) -> None:
        seen = ends(store.log(), queues)
        first, second = (asyncio.create_task(watch.wait(queues, seen, SOON)) for _ in range(2))
        await asyncio.sleep(0)
        await send("other")
        await send("orders")
        assert await first
        assert not second.done()
        await send("orders")
        assert await second

    watch_of(store, work)


def test_a_message_that_came_between_the_look_and_the_wait_is_not_missed(store: Store) -> None:
    queues = (("orders", 0),)

    async def work(watch: LogWatch, send: Any) -> None:
        for _ in range(20):
            seen = ends(store.log(), queues)
            await send("orders")
            assert await watch.wait(queues, seen, SOON)

    watch_of(store, work)


def test_a_wait_ends_with_its_time_and_with_the_watch(store: Store) -> None:
    async def work(watch: LogWatch, send: Any) -> None:
        seen = ends(store.log(), (("orders", 0),))
        assert not await watch.wait((("orders", 0),), seen, 0.01)
        waiting = asyncio.create_task(watch.wait((("orders", 0),), seen, SOON))
        await asyncio.sleep(0.01)
        watch.stop()
        assert not await waiting
        assert not await watch.wait((), -1, SOON)

    watch_of(store, work)


def test_a_cancelled_receive_passes_its_turn_on(store: Store) -> None:
    queues = (("orders", 0),)

    async def work(watch: LogWatch, send: Any) -> None:
        seen = ends(store.log(), queues)
        first, second = (asyncio.create_task(watch.wait(queues, seen, SOON)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await send("orders")
        assert await second

    watch_of(store, work)


def test_what_comes_while_a_batch_is_under_way_makes_the_next_one() -> None:
    batches: list[Sequence[int]] = []
    go_on = threading.Event()

    def run(items: Sequence[int]) -> list[int | BaseException]:
        batches.append(items)
        go_on.wait()
        return [ValueError(item) if item == 3 else item * 10 for item in items]

    async def work() -> None:
        workers = Workers(2)
        try:
            batcher: Batches[int, int] = Batches(workers, run)
            first = [batcher.put(item) for item in (1, 2)]
            while not batches:
                await asyncio.sleep(0.001)
            later = [batcher.put(item) for item in (3, 4, 5)]
            go_on.set()
            assert await asyncio.gather(*first) == [10, 20]
            assert [str(each) for each in await asyncio.gather(*later, return_exceptions=True)] == ["3", "40", "50"]
        finally:
            go_on.set()
            workers.close()

    asyncio.run(work())
    assert [list(each) for each in batches] == [[1, 2], [3, 4, 5]]
