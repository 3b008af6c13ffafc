"""Whoever waits for a log can be let go before the time: a process that ends does not wait for its threads."""

from __future__ import annotations

import threading

from rmq_spark.client.store import Store


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
