"""An interrupt (Ctrl-C) at every point of an append: the others are served, and the same batch again lands it once.

Python delivers a signal when a function begins and when a call of C code ends, and it ends a wait. `Interrupter` raises
at the n-th such moment of one thread, for every n until an append is done without reaching it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from faulty import Wrapped, message, open_log

from rmq_spark.client import producer as producer_module
from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.errors import OutcomeUnknownError
from rmq_spark.log import append, commit_log, group_commit, view
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Attempt, Landed, Request
from rmq_spark.model.message import Message
from rmq_spark.storage.local import LocalStorage
from rmq_spark.storage.memory import MemoryStorage
from rmq_spark.testing.history import check_log, read_messages

WATCHED: set[str | None] = {module.__file__ for module in (append, commit_log, group_commit, view)}
WAIT_SECONDS = 20
"""Far longer than anything here takes: who has not come back by then never will."""


class Interrupter:
    """Interrupts the thread that uses it at its n-th moment within the watched files."""

    def __init__(self, at: int, watched: set[str | None] = WATCHED) -> None:
        self._left = at
        self._watched = watched
        self.where: str | None = None

    def __enter__(self) -> Interrupter:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename not in self._watched or event not in ("call", "c_call", "c_return"):
            return
        # Only waiting is interrupted before a call: all other code of C runs to its end first.
        if event == "c_call" and getattr(arg, "__name__", "") != "acquire":
            return
        self._left -= 1
        if self._left == 0:
            sys.setprofile(None)
            self.where = f"{event} {getattr(arg, '__name__', '')} at {frame.f_code.co_name}:{frame.f_lineno}"
            raise KeyboardInterrupt


def append_surely(log: CommitLog, batch: MessageBatch) -> None:
    """Append it, again and again while the outcome is not known."""
    while True:
        try:
            log.append(batch)
        except OutcomeUnknownError:
            continue
        return


def interrupted(log: CommitLog, batch: MessageBatch, at: int) -> str | None:
    """Append with an interrupt at the given moment, then as often as it takes. Where it was, None if nowhere."""
    with Interrupter(at) as interrupter:
        try:
            log.append(batch)
        except KeyboardInterrupt:
            assert interrupter.where is not None
        except OutcomeUnknownError:
            assert interrupter.where is None  # another one was interrupted while it committed for this one
    if interrupter.where is not None:
        append_surely(log, batch)
    return interrupter.where


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)


def run(*calls: Any) -> None:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), "a caller waits for ever"


def test_an_interrupt_behind_the_call_of_a_class_lets_nobody_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python looks for signals behind it, too, but does not tell `Interrupter`."""
    log = open_log()
    log.append(message("first"))
    calls: list[int] = []

    def interrupt(count: int) -> range:
        if not calls and count > 1:  # not the one that takes a group of one out of the queue
            calls.append(count)
            raise KeyboardInterrupt
        return range(count)

    monkeypatch.setattr(group_commit, "range", interrupt, raising=False)
    with suppress(KeyboardInterrupt):
        log.append(message("mine"))
    run(lambda: append_surely(log, message("other")))
    assert calls == [], "a caller that leaves its group makes no such call"


def test_a_caller_alone() -> None:
    points = set()
    for at in range(1, 10_000):
        base = MemoryStorage()
        log = open_log(base)
        where = interrupted(log, message("victim"), at)
        if where is None:
            break
        points.add(where)
        run(lambda log=log: log.append(message("later")))
        assert [m.msg_id for m in read_messages(open_log(base))] == ["victim", "later"], where
    assert len(points) >= 15


@pytest.mark.parametrize("role", ["leads", "waits"])
def test_a_caller_among_others(role: str) -> None:
    """Three callers share a commit; one of them is interrupted while it leads, or while it waits and is woken."""
    points = set()
    for at in range(1, 10_000):
        base = MemoryStorage()
        log = open_log(base, linger_ms=50)
        log._group._expected, log._group._commit_seconds = 3, 5.0  # the first to come waits for the others
        found: list[str | None] = []

        def victim(log: CommitLog = log, at: int = at, found: list[str | None] = found) -> None:
            found.append(interrupted(log, message("victim"), at))

        def others(log: CommitLog = log) -> list[Any]:
            return [lambda name=name: append_surely(log, message(name)) for name in ("one", "two")]

        run(*([victim, *others()] if role == "leads" else [*others(), victim]))
        run(lambda log=log: log.append(message("later")))
        names = [m.msg_id for m in read_messages(open_log(base))]
        assert sorted(names[:-1]) == ["one", "two", "victim"] and names[-1] == "later", (found, names)
        if found == [None]:
            break
        points.add(found[0])
    assert len(points) >= 15


def test_a_caller_who_leads_a_commit_that_ends_unclear() -> None:
    """The others are told that it is unclear, and what they append again is known, wherever the leader was then."""
    points = set()
    for at in range(1, 10_000):
        base = MemoryStorage()
        weak = Wrapped(base)
        log = open_log(weak, linger_ms=50, append_timeout_ms=0)
        log._group._expected, log._group._commit_seconds = 3, 5.0  # the first to come waits for the others
        found: list[str | None] = []

        def lose_one_reply(path: str, weak: Wrapped = weak) -> None:
            weak.after_create = None
            raise OutcomeUnknownError("no answer")

        weak.after_create = lose_one_reply

        def victim(log: CommitLog = log, at: int = at, found: list[str | None] = found) -> None:
            batch = message("victim")
            with Interrupter(at) as interrupter, suppress(KeyboardInterrupt, OutcomeUnknownError):
                log.append(batch)
            found.append(interrupter.where)
            append_surely(log, batch)

        run(victim, *[lambda name=name, log=log: append_surely(log, message(name)) for name in ("one", "two")])
        assert sorted(m.msg_id for m in read_messages(open_log(base))) == ["one", "two", "victim"], found
        if found == [None]:
            break
        points.add(found[0])
    assert len(points) >= 15


def test_the_same_batch_again_while_its_commit_is_still_under_way() -> None:
    """The one who was interrupted waited for another one's commit, and does not wait for its end before it tries."""
    base = MemoryStorage()
    log = open_log(base, linger_ms=1_000 * WAIT_SECONDS)
    real = log._group._commit
    entered, go_on = threading.Event(), threading.Event()

    def slow(group: list[Any]) -> None:
        if len(group) == 2:
            entered.set()
            assert go_on.wait(WAIT_SECONDS)
        real(group)

    log._group._commit = slow
    log._group._expected, log._group._commit_seconds = 2, WAIT_SECONDS
    batch = message("victim")
    first = threading.Thread(target=lambda: log.append(message("leader")), daemon=True)
    first.start()
    wait_until(lambda: log._group._gathering is not None)

    def wait_and_be_interrupted() -> None:
        real_enter = log._group._enter

        def enter(request: Any) -> Any:
            log._group._enter = real_enter  # type: ignore[method-assign]
            real_enter(request)
            assert entered.wait(WAIT_SECONDS)
            raise KeyboardInterrupt

        log._group._enter = enter  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            log.append(batch)
        threading.Timer(0.05, go_on.set).start()
        assert log.append(batch).repeated

    run(wait_and_be_interrupted)
    first.join(WAIT_SECONDS)
    assert sorted(m.msg_id for m in read_messages(open_log(base))) == ["leader", "victim"]


def test_a_leader_whose_waker_was_interrupted_wakes_those_it_commits_for() -> None:
    """It was let go and led, but the one who let it go was interrupted before it had said so."""
    log = open_log(MemoryStorage(), linger_ms=5)
    group = log._group
    first, second = message("first"), message("second")
    inside, go_on, second_left = threading.Event(), threading.Event(), threading.Event()
    real_commit, real_leave, leaves = group._commit, group._leave, []

    def commit(requests: list[Any]) -> None:
        if requests[0].batch is first:
            inside.set()
            assert go_on.wait(WAIT_SECONDS)
        real_commit(requests)

    def leave(request: Any) -> None:
        if request.batch is first:
            leaves.append(1)
            if len(leaves) == 2:
                second_left.wait(5)  # as if it got no turn until then
        real_leave(request)
        if request.batch is second:
            second_left.set()

    group._commit, group._leave = commit, leave  # type: ignore[method-assign]

    def see(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_return" and frame.f_code is group_commit.Request.wake.__code__ and arg.__name__ == "release":
            sys.setprofile(None)
            raise KeyboardInterrupt

    def lead() -> None:
        sys.setprofile(see)
        with pytest.raises(KeyboardInterrupt):
            log.append(first)

    threads = [threading.Thread(target=lead, daemon=True)]
    threads[0].start()
    assert inside.wait(WAIT_SECONDS)
    for number, batch in enumerate((second, message("third"), message("fourth"))):
        threads.append(threading.Thread(target=lambda batch=batch: log.append(batch), daemon=True))
        threads[-1].start()
        wait_until(lambda number=number: len(group._queue) > number)
    go_on.set()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), "a caller waits for ever"


def test_two_interrupts_in_a_row_while_a_caller_leaves() -> None:
    for at in range(1, 200):
        log = open_log(MemoryStorage())
        real, moments, victim = log._group._leave, [], message("victim")

        def leave(
            request: Any, real: Any = real, moments: list[int] = moments, at: int = at, victim: Any = victim
        ) -> None:
            moments.append(1)
            if request.batch is victim and len(moments) <= 3:
                with Interrupter(at):
                    real(request)
            else:
                real(request)

        log._group._leave = leave  # type: ignore[method-assign]
        try:
            log.append(victim)
        except KeyboardInterrupt:
            run(lambda log=log: log.append(message("later")))
        else:
            return
    raise AssertionError("there is always another moment")


def test_an_error_of_a_leaders_signal_handler_reaches_it_and_nobody_else() -> None:
    base = MemoryStorage()
    log = open_log(base, linger_ms=500)
    log._group._expected, log._group._commit_seconds = 2, 5.0
    real, calls = log._appender.land, []

    def land(group: list[Any]) -> Any:
        calls.append(len(group))
        if len(calls) == 1:
            raise TimeoutError("raised by a handler of the leader's")
        return real(group)

    log._appender.land = land  # type: ignore[method-assign]
    ended: list[str] = []

    def send(name: str) -> None:
        batch = message(name)
        try:
            log.append(batch)
            ended.append("acknowledged")
        except TimeoutError:
            ended.append("told")
            assert log.append(batch).repeated

    run(lambda: send("one"), lambda: send("two"))
    assert calls[0] == 2 and sorted(ended) == ["acknowledged", "told"]
    assert sorted(m.msg_id for m in read_messages(open_log(base))) == ["one", "two"]


@pytest.mark.parametrize("flush", ["buffered", "async"])
def test_an_interrupted_flush_leaves_nothing_out_of_the_next_one(flush: str) -> None:
    for at in range(1, 1_000):
        weak = Wrapped(MemoryStorage())
        synced: list[str] = []
        weak.sync = synced.extend  # type: ignore[method-assign, assignment]
        log = open_log(weak, flush=flush, linger_ms=60_000, flush_interval_ms=3_600_000)
        log.append(message("one"))
        log.append(message("two"))
        with Interrupter(at) as interrupter:
            try:
                log.flush()
            except KeyboardInterrupt:
                assert interrupter.where is not None
        log.flush()
        assert [m.msg_id for m in read_messages(log)] == ["one", "two"], interrupter.where
        assert synced, interrupter.where
        if interrupter.where is None:
            return
    raise AssertionError("there is always another moment")


def test_messages_of_a_send_that_is_interrupted_anywhere_land_once(tmp_path: Path) -> None:
    for at in range(1, 1_000):
        with Store.create(f"memory://interrupted-sends-{at}") as store:
            producer = Producer(store)
            sent = Message(topic="t", body=b"b")
            producer.send(Message(topic="t", body=b"first"))
            with Interrupter(at, {producer_module.__file__}) as interrupter:
                try:
                    producer.send(sent)
                except KeyboardInterrupt:
                    assert interrupter.where is not None
            if interrupter.where is None:
                return
            producer.send(sent)
            assert [m.body for m in read_messages(store.log())] == [b"first", b"b"], interrupter.where
    raise AssertionError("there is always another moment")


def test_messages_sent_again_after_an_interrupt_land_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(first: int) -> None:
        raise KeyboardInterrupt

    with Store.create(str(tmp_path)) as store:
        producer = Producer(store)
        sent = Message(topic="t", body=b"b")
        producer.send(Message(topic="t", body=b"first"))
        log = store.log()
        with monkeypatch.context() as patched:
            patched.setattr(log, "_after", interrupt)
            with pytest.raises(KeyboardInterrupt):
                producer.send(sent)
        producer.send(sent)
        assert [m.body for m in read_messages(log)] == [b"first", b"b"]


_STORM = """
import faulthandler, random, signal, sys, threading, time
from rmq_spark.errors import OutcomeUnknownError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.storage.local import LocalStorage
from rmq_spark.model.settings import LogSettings

faulthandler.dump_traceback_later(120, exit=True)
place, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
draw = random.Random(seed)
log = CommitLog(LocalStorage(place), "brokers/b", "b", settings=LogSettings(flush="async"))
over = threading.Event()
counts = {}

def message(name):
    return MessageBatch.of(topic="t", queue_id=0, msg_id=name, body=b"x", born_timestamp_ms=0)

def send(who):
    number = 0
    while not over.is_set():
        batch = message(f"{who}-{number}")
        while True:
            try:
                log.append(batch)
                break
            except OutcomeUnknownError:
                continue
        number += 1
    counts[who] = number

def storm():
    main = threading.main_thread().ident
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(draw.random() * 0.004)
        signal.pthread_kill(main, signal.SIGINT)
    over.set()

def interrupt(number, frame):
    global left
    if left:
        left -= 1
        raise KeyboardInterrupt

left = 0  # interrupts that are raised before the main thread is ready for more: two may come one upon the other
signal.signal(signal.SIGINT, interrupt)
others = [threading.Thread(target=send, args=(f"t{n}",)) for n in range(3)]
for thread in others:
    thread.start()
stormer = threading.Thread(target=storm)
stormer.start()
number = interrupts = 0
batch = None
while True:
    try:
        try:
            left = 2
            while not over.is_set():
                if batch is None:
                    batch = message(f"main-{number}")
                log.append(batch)
                number, batch = number + 1, None
            left = 0
            break
        except (KeyboardInterrupt, OutcomeUnknownError) as error:
            interrupts += isinstance(error, KeyboardInterrupt)
            left = 0
    except KeyboardInterrupt:  # the second one came while the first one was caught
        interrupts += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
stormer.join()
if batch is not None:
    log.append(batch)
    number += 1
for thread in others:
    thread.join()
counts["main"] = number
log.close()
print(interrupts, *(f"{who}={count}" for who, count in sorted(counts.items())))
"""


def storm(place: Path, seed: int, seconds: float) -> int:
    """Real signals at random moments, beside three threads that append. The number of interrupts that came through."""
    done = subprocess.run(
        [sys.executable, "-c", _STORM, str(place), str(seed), str(seconds)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stderr}"
    interrupts, *counted = done.stdout.split()
    check_log(LocalStorage(place), "brokers/b", "b", acked=[])
    names = [m.msg_id for m in read_messages(CommitLog(LocalStorage(place), "brokers/b", "b", read_only=True))]
    assert len(names) == len(set(names)), f"seed {seed}: repeated"
    for pair in counted:
        who, count = pair.split("=")
        mine = [int(name.rsplit("-", 1)[1]) for name in names if name.startswith(f"{who}-")]
        # The main thread may leave one landed and unasked: it is interrupted when its answer is on the way.
        assert mine[: int(count)] == list(range(int(count))) and len(mine) <= int(count) + 1, f"seed {seed}: {who}"
    return int(interrupts)


def test_real_signals_at_random_moments(tmp_path: Path) -> None:
    assert storm(tmp_path, random.randrange(1 << 30), 1) > 10


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(8))
def test_many_real_signals_at_random_moments(tmp_path: Path, turn: int) -> None:
    assert storm(tmp_path, random.randrange(1 << 30), 15) > 100


def test_who_is_told_that_its_append_landed_is_told_where_although_the_one_who_committed_it_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_log(MemoryStorage())
    group = [Request(message("first")), Request(message("second"))]
    asked: list[Attempt] = []

    def landed(attempt: Attempt) -> Landed:
        asked.append(attempt)
        if len(asked) == interrupted:
            raise KeyboardInterrupt
        return Landed(attempt.slot, attempt.store_ms, attempt.offsets)

    monkeypatch.setattr(Attempt, "landed", property(landed))
    interrupted = 2  # while the leader tells the second one
    with pytest.raises(KeyboardInterrupt):
        log._commit_group(group)
    assert len(asked) == interrupted
    assert group[0].settled and group[0].landed is not None
    assert not group[1].settled
    assert isinstance(group[1].error, OutcomeUnknownError)
