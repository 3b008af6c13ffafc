"""Services inside a client: a script needs no second process, pays little, and ends cleanly."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark import LitePullConsumer, Message, Producer, SimpleConsumer, Store
from rmq_spark.client import embedding
from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.errors import InvalidRequestError
from rmq_spark.services import catalog
from rmq_spark.services.behind import services_behind

GIVE_UP_SECONDS = 120


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("rmq-")}


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + GIVE_UP_SECONDS
    while not condition():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.01)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "START_SECONDS", 0.0)


def test_a_delayed_message_arrives_without_a_second_process(tmp_path: Path):
    with Store.open(str(tmp_path / "store"), create=True) as store:
        began = store.clock.now_ms()
        sent = Producer(store).send(Message("orders", b"x", delay=0.3))
        with SimpleConsumer(store, "jobs", consume_from="earliest").subscribe("orders") as consumer:
            [message] = consumer.receive(await_duration=GIVE_UP_SECONDS)
            consumer.ack(message)
        assert message.msg_id == sent.msg_id
        assert message.store_ms >= began + 300


def test_a_message_that_was_not_acknowledged_comes_again_without_a_second_process(tmp_path: Path):
    with Store.create(str(tmp_path / "store")) as store:
        Producer(store).send(Message("orders", b"x"))
        with SimpleConsumer(store, "jobs", consume_from="earliest").subscribe("orders") as consumer:
            assert len(consumer.receive(invisible_duration=0.2, await_duration=GIVE_UP_SECONDS)) == 1
            [again] = consumer.receive(await_duration=GIVE_UP_SECONDS)
            assert again.reconsume_times == 1


def test_small_commits_are_rolled_without_a_second_process(tmp_path: Path, at_once, monkeypatch):
    made = catalog.RollService

    monkeypatch.setattr(catalog, "RollService", lambda store, rest: made(store, rest=rest, roll_commits=20))
    with Store.create(str(tmp_path / "store")) as store:
        producer = Producer(store)
        for number in range(30):
            producer.send(Message("orders", b"%d" % number))
        wait_until(lambda: store.log().refresh().mark.segments)
        assert store.read("orders").num_rows == 30


class TestWhenTheyRun:
    def test_threads_start_with_the_first_client_and_end_with_the_store(self, tmp_path: Path, at_once):
        others = set(threading.enumerate())

        def mine() -> list[str]:
            started = set(threading.enumerate()) - others
            return [thread.name for thread in started if thread.name.startswith("rmq-")]

        with Store.create(str(tmp_path / "store")) as store:
            assert mine() == []
            Producer(store)
            wait_until(lambda: {"rmq-timer", "rmq-roll"} <= set(mine()))
            Producer(store)
            assert len(mine()) <= 4
        assert mine() == []
        store.close()

    @pytest.mark.parametrize("client", ["simple", "pull"])
    def test_consumers_start_them_too(self, tmp_path: Path, at_once, client: str):
        with Store.create(str(tmp_path / "store")) as store:
            store.create_topic("orders")
            with SimpleConsumer(store, "g") if client == "simple" else LitePullConsumer(store, "g"):
                wait_until(lambda: "rmq-timer" in threads())

    @pytest.mark.parametrize(
        "options", [{"services": "off"}, {"read_only": True}, {"clock": ManualClock(SystemClock().now_ms())}]
    )
    def test_no_thread_runs_if_they_are_off_or_the_store_is_read_or_has_a_clock_of_a_test(
        self, tmp_path: Path, at_once, options
    ):
        uri = str(tmp_path / "store")
        Store.create(uri, services="off").close()
        before = threads()
        with Store.open(uri, **options) as store:
            Producer(store)
            time.sleep(0.05)
            assert threads() == before

    def test_a_wrong_value_is_refused_before_anything_is_made(self, tmp_path: Path):
        with pytest.raises(InvalidRequestError, match="no such mode of services"):
            Store.open(str(tmp_path / "store"), create=True, services="some")
        assert not (tmp_path / "store").exists()

    def test_a_client_deletes_no_messages_unless_it_is_told_to(self, tmp_path: Path):
        with Store.create(str(tmp_path / "store"), services="off") as store:
            auto, all_ = (catalog.embedded_runner(store, everything=each) for each in (False, True))
            assert {each.name for each in all_.status()} - {each.name for each in auto.status()} == {
                "retention",
                "tables",
            }
            served = {service.name for service in catalog.all_services(store)}
            assert {each.name for each in all_.status()} == served
            assert {lag.service for lag in services_behind(store)} <= served


def test_closing_does_not_wait_for_a_service_that_waits(tmp_path: Path, at_once):
    store = Store.create(str(tmp_path / "store"))
    Producer(store).send(Message("orders", b"x", delay=3600))
    wait_until(lambda: "rmq-follow" in threads())
    runner = store._services._runner
    store.close()
    assert not any(thread.is_alive() for thread in runner._threads)
    assert all(status.last_error is None for status in runner.status())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_child_of_a_fork_runs_none_and_may_close_the_store(tmp_path: Path):
    script = """
import os, sys, threading, time
from rmq_spark import Producer, Store
from rmq_spark.client import embedding
embedding.START_SECONDS = 0.0
store = Store.create(sys.argv[1])
Producer(store)
while not any(thread.name == "rmq-timer" for thread in threading.enumerate()):
    time.sleep(0.01)
child = os.fork()
if not child:
    store.start_services()
    alive = [thread.name for thread in threading.enumerate() if thread.name.startswith("rmq-")]
    store._services.close()
    os._exit(len(alive))
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert any(thread.name == "rmq-timer" for thread in threading.enumerate())
"""
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path / "store")], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


@pytest.mark.parametrize("seconds", [0.0, 1.5])
def test_a_script_that_forgets_to_close_ends_without_a_word(tmp_path: Path, seconds: float):
    script = """
import sys, time
from rmq_spark import Message, Producer, Store
Producer(Store.create(sys.argv[1])).send(Message("orders", b"x", delay=0.2))
time.sleep(float(sys.argv[2]))
"""
    command = [sys.executable, "-c", script, str(tmp_path / "store"), str(seconds)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
