"""Push consumers with their threads: starting, closing, joining, forks and the end of the interpreter."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from push_steps import committed

from rmq_spark import (
    Admin,
    ClosedError,
    ConsumerSettings,
    InvalidRequestError,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RmqError,
    Store,
    UnavailableError,
)

WAIT = 120
"""Longer than any machine takes; nothing is expected to take so long."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.create(str(tmp_path / "store")) as made:
        made.create_topic("t", queues=4)
        yield made


def test_a_started_consumer_is_woken_by_new_messages(store: Store) -> None:
    seen: list[str] = []
    left = threading.Semaphore(0)

    def listen(message: ReceivedMessage) -> None:
        seen.append(message.body.decode())
        left.release()

    with PushConsumer(store, "g").subscribe("t").start(listen):
        for number in range(50):
            Producer(store).send(Message("t", str(number).encode()))
        for _ in range(50):
            assert left.acquire(timeout=WAIT)
    assert sorted(seen, key=int) == [str(number) for number in range(50)]
    assert sum(committed(store).values()) == 50


def test_listeners_run_at_the_same_time(store: Store) -> None:
    together = threading.Barrier(4, timeout=WAIT)
    done = threading.Semaphore(0)

    def listen(_: object) -> None:
        together.wait()  # nobody passes before four are here
        done.release()

    with PushConsumer(store, "g", threads=4).subscribe("t").start(listen):
        for queue in range(4):
            Producer(store).send(Message("t", b"x", queue_id=queue))
        for _ in range(4):
            assert done.acquire(timeout=WAIT)


def test_close_waits_for_listeners_and_commits(store: Store) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def listen(_: object) -> None:
        inside.set()
        go_on.wait(WAIT)

    consumer = PushConsumer(store, "g").subscribe("t").start(listen)
    Producer(store).send(Message("t", b"x", queue_id=0))
    assert inside.wait(WAIT)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    go_on.set()
    closing.join(WAIT)
    assert not closing.is_alive()
    assert committed(store)[0] == 1
    consumer.close()
    with pytest.raises(ClosedError, match="closed"):
        consumer.subscribe("t")


def test_a_listener_may_close_its_consumer(store: Store) -> None:
    consumer = PushConsumer(store, "g").subscribe("t")
    consumer.start(lambda _: consumer.close())
    Producer(store).send(Message("t", b"x"))
    assert consumer.join(WAIT)


def test_queues_move_between_two_consumers_at_once(store: Store) -> None:
    with Store.open(store.storage.uri) as other_store:
        settings = ConsumerSettings(rebalance_ms=3_600_000)  # only a change of members makes them share anew
        first, second = threading.Event(), threading.Event()
        with PushConsumer(store, "g", settings=settings).subscribe("t").start(lambda _: first.set()):
            other = PushConsumer(other_store, "g", settings=settings).subscribe("t").start(lambda _: second.set())
            while not (first.is_set() and second.is_set()):
                for queue in range(4):
                    Producer(store).send(Message("t", b"x", queue_id=queue))
                second.wait(0.2)
            other.close()


def test_a_consumer_whose_store_is_closed_ends_and_says_why(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path / "closed"))
    store.create_topic("t")
    consumer = PushConsumer(store, "g").subscribe("t").start(lambda _: None)
    store.close()
    with pytest.raises(ClosedError):
        consumer.join(WAIT)
    assert isinstance(consumer.error, ClosedError)


def test_a_nameserver_log_that_cannot_be_read_for_a_moment_does_not_end_the_consumer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ConsumerSettings(rebalance_ms=3_600_000)  # only the one who watches members looks
    failed, seen = threading.Semaphore(0), threading.Event()
    wait = store.nameserver.wait

    def fail(*_: object) -> bool:
        failed.release()
        raise UnavailableError("the storage does not answer")

    with PushConsumer(store, "g", settings=settings).subscribe("t").start(lambda _: seen.set()) as consumer:
        monkeypatch.setattr(store.nameserver, "wait", fail)
        for _ in range(2):
            assert failed.acquire(timeout=WAIT)
        monkeypatch.setattr(store.nameserver, "wait", wait)
        Admin(store).update_topic("t", read_queues=5, write_queues=5)
        while not seen.is_set():
            assert consumer.error is None
            Producer(store).send(Message("t", b"x", queue_id=4))
            seen.wait(0.2)


def test_a_coroutine_that_does_not_end_is_cancelled_when_the_wait_for_it_is_over(store: Store) -> None:
    inside, cancelled = threading.Event(), threading.Event()

    async def listen(_: object) -> None:
        inside.set()
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    consumer = PushConsumer(store, "g").subscribe("t").start(listen)
    Producer(store).send(Message("t", b"x", queue_id=0))
    assert inside.wait(WAIT)
    consumer.close(timeout=0.1)
    assert cancelled.wait(WAIT)
    assert committed(store)[0] == 0, "its message comes again"


def test_a_directory_for_offsets_that_cannot_be_written_is_an_error_that_names_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    consumer = PushConsumer(store, "g", broadcasting=True, offsets_home=tmp_path / "file").subscribe("t")
    with pytest.raises(UnavailableError, match=r"offsets cannot be (read|written)"):
        consumer.start(lambda _: None)


def test_durations_may_be_timedeltas(store: Store) -> None:
    consumer = PushConsumer(store, "g").subscribe("t").start(lambda _: None)
    assert consumer.join(timedelta(milliseconds=1)) is False
    with pytest.raises(InvalidRequestError, match="timeout takes a timedelta"):
        consumer.close("soon")  # type: ignore[arg-type]
    consumer.close(timedelta(seconds=WAIT))
    assert consumer.join(WAIT)


def test_a_strategy_that_fails_ends_the_consumer_which_says_why(store: Store) -> None:
    calls = itertools.count()

    def share(me: str, queues: object, members: object) -> list[MessageQueue]:
        if next(calls) < 2:  # the topic's queues and those of the retry topic, once
            return []
        raise LookupError("no such room")

    consumer = PushConsumer(store, "g", strategy=share, settings=ConsumerSettings(rebalance_ms=1))
    consumer.subscribe("t").start(lambda _: None)
    with pytest.raises(RmqError, match=r"the consumer failed.*no such room"):
        consumer.join(WAIT)


def test_a_second_start_is_refused(store: Store) -> None:
    with PushConsumer(store, "g").subscribe("t").start(lambda _: None) as consumer:
        with pytest.raises(InvalidRequestError, match="started before"):
            consumer.start(lambda _: None)
        with pytest.raises(InvalidRequestError, match="subscribe before start"):
            consumer.subscribe("t")


SCRIPT = """
import sys, threading
from rmq_spark import LitePullConsumer, Message, Producer, PushConsumer, Store
store = Store.open(sys.argv[1])
seen = threading.Event()
consumer = PushConsumer(store, "g").subscribe("t").start(lambda message: seen.set())
pull = LitePullConsumer(store, "pull").subscribe("t")
producer = Producer(store)
producer.send_oneway(Message("t", b"x", queue_id=0))
assert seen.wait(120)
assert pull.poll(120)
producer.send_oneway(Message("t", b"last", queue_id=1))
"""


def test_an_interpreter_that_ends_commits_and_sends_what_waits(store: Store) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, store.storage.uri], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert committed(store)[0] == 1
    assert committed(store, "pull")[0] == 1
    assert store.read("t", queue=1).num_rows == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork_the_child_is_told_what_to_do(store: Store) -> None:
    code = """
import os, sys
from rmq_spark import ClosedError, LitePullConsumer, Message, Producer, PushConsumer, Store
store = Store.open(sys.argv[1])
producer = Producer(store)
producer.send_async(Message("t", b"x")).result()
push = PushConsumer(store, "g").subscribe("t").start(lambda message: None)
pull = LitePullConsumer(store, "p").subscribe("t")
child = os.fork()
if child == 0:
    told = []
    for call in (lambda: push.subscribe("t"), lambda: pull.poll(0), lambda: producer.send_async(Message("t", b"y"))):
        try:
            call()
        except ClosedError as error:
            told.append("before a fork" in str(error))
    sys.exit(0 if told == [True, True, True] else 1)
_, status = os.waitpid(child, 0)
push.close()
pull.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, store.storage.uri], capture_output=True, text=True, check=False, timeout=WAIT
    )
    assert (done.returncode, done.stderr) == (0, "")
