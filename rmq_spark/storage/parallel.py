"""Calls to a storage behind a network, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from rmq_spark.errors import RmqError
from rmq_spark.storage.base import PlainStorage, tail_or_none

CALLS_MAX: Final = 16
"""How many calls are under way at once."""

T = TypeVar("T")


class ParallelStorage(PlainStorage):
    """The calls of `Storage` about several files, for a backend whose calls wait for a network."""

    def read_tails(self, paths: Sequence[str], length: int) -> Sequence[tuple[bytes, int] | None]:
        return in_parallel([partial(tail_or_none, self.read_tail, path, length) for path in paths])

    def delete_many(self, paths: Sequence[str]) -> None:
        in_parallel([partial(self.delete, path) for path in paths])


def in_parallel(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run all calls, at most `CALLS_MAX` at once, and return their results in order.

    All are run even if one fails; then the first failure is raised. The threads live as long as this call: starting
    them takes less than one request, and a process that forks between two calls does not miss them.
    """
    if len(calls) < 2:
        return [call() for call in calls]
    with ThreadPoolExecutor(min(CALLS_MAX, len(calls)), thread_name_prefix="rmq-storage") as pool:
        pending = [pool.submit(call) for call in calls]
        failed: RmqError | None = None
        results: list[T] = []
        for future in pending:
            try:
                results.append(future.result())
            except RmqError as error:
                failed = failed or error
    if failed is not None:
        raise failed
    return results
