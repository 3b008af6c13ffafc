"""Whoever waits for a log can be let go before the time: a process that ends does not wait for its threads."""

from __future__ import annotations

import threading

import pytest
from faulty import Wrapped, open_log

from rmq_spark.client.store import Store
from rmq_spark.clock import SystemClock
from rmq_spark.errors import ClosedError
from rmq_spark.log.follower import Follower
from rmq_spark.storage.memory import MemoryStorage


def test_wake_ends_a_wait_for_commits():
    with Store.create("memory://follower-wake", services="off") as store:
        log = store.log()
        log.wake()  # nobody waits yet
        answers: list[bool] = []
        waiting = threading.Thread(target=lambda: answers.append(log.wait(10**9, 3600)))
        waiting.start()
        while waiting.is_alive():
            log.wake()
            waiting.join(0.01)
        assert answers == [False]


def test_a_close_while_the_watch_begins_leaves_no_watch_behind():
    class LateWatch:
        closed = False

        def wait(self, timeout_seconds: float) -> bool:
            raise AssertionError("nobody waits with a follower that was closed")

        def close(self) -> None:
            self.closed = True

    storage, watch, begun, closed = Wrapped(MemoryStorage()), LateWatch(), threading.Event(), threading.Event()

    def begin(directory: str) -> LateWatch:
        begun.set()
        assert closed.wait(60)
        return watch

    storage.watch = begin

    def wait() -> None:
        with pytest.raises(ClosedError):
            log.wait(10**9, 3600)

    with open_log(storage) as log:
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert begun.wait(60)
        closing = threading.Thread(target=log.close)
        closing.start()
        waiting.join()  # it was told
        closed.set()
        closing.join()
    assert watch.closed


def test_a_bug_in_a_fold_is_told_to_those_who_wait_and_does_not_let_them_wait_for_nothing():
    def look() -> int:
        raise RuntimeError("a bug")

    follower = Follower(MemoryStorage(), "commitlog", look, SystemClock())
    with pytest.raises(RuntimeError, match="a bug"):
        follower.wait(0, 60)
    follower.close()
