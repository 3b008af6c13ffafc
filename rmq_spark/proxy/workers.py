"""Calls to the store from the event loop: a bounded pool of threads, and batches of what comes in at the same time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar

LINGER_SECONDS: Final = 0.003
"""So long a batch waits for callers that are likely to come."""

Arguments = ParamSpec("Arguments")
Item = TypeVar("Item")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class Workers:
    """Threads that block on the store, so that the event loop does not.

    Args:
        threads: how many at most; calls beyond wait for one.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rmq-proxy")

    def run(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> asyncio.Future[Result]:
        """The result of `call`, to be awaited in the event loop; cancelling it does not stop the call."""
        return asyncio.get_running_loop().run_in_executor(self._pool, partial(call, *args, **kwargs))

    def close(self) -> None:
        """End the threads when they have done what they were given."""
        self._pool.shutdown(wait=True)


class Batches(Generic[Item, Result]):
    """Hands items over together: what comes while a batch is under way makes the next one.

    Whoever was answered by the last batch is likely to call again: the next one waits for as many, but not for long. A
    single caller never waits. Used from one event loop. Items keep their order.

    Args:
        workers: where batches run.
        run: does a batch, and returns one result or error for each item.
        batch_max: items of one batch.
    """

    def __init__(
        self,
        workers: Workers,
        run: Callable[[Sequence[Item]], Sequence[Result | BaseException]],
        *,
        batch_max: int = 1_000,
    ) -> None:
        self._workers = workers
        self._run = run
        self._batch_max = batch_max
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._is_running = False
        self._expected = 1
        """Items that the next batch waits for: half of those of the last one."""
        self._timer: asyncio.TimerHandle | None = None

    def put(self, item: Item) -> asyncio.Future[Result]:
        """The result of `item`, to be awaited."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, future))
        if not self._is_running:
            self._is_running = True
            # Whatever else this turn of the loop brings goes along.
            loop.call_soon(self._start_or_wait)
        elif self._timer is not None and len(self._waiting) >= self._expected:
            self._start()
        return future

    def _start_or_wait(self) -> None:
        if len(self._waiting) >= self._expected:
            self._start()
        else:
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting[: self._batch_max], self._waiting[self._batch_max :]
        self._expected = max(1, len(batch) // 2)
        running = self._workers.run(self._run, [item for item, _ in batch])
        running.add_done_callback(partial(self._finish, batch))

    def _finish(self, batch: Sequence[tuple[Item, asyncio.Future[Result]]], running: asyncio.Future[Any]) -> None:
        error = running.exception()
        results: Sequence[Any] = [error] * len(batch) if error is not None else running.result()
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue  # whoever waited was cancelled
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        if self._waiting:
            self._start_or_wait()
        else:
            self._is_running = False
