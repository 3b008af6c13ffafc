"""Two `rmq serve` on one store, killed again and again while clients need every service that delivers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from rmq_spark import Message, Producer, SimpleConsumer, Store
from rmq_spark.client.stored_rows import stored_messages
from rmq_spark.errors import PreconditionFailedError
from rmq_spark.log.scan import Query
from rmq_spark.model.stored_message import StoredMessage
from rmq_spark.rules.transaction import Transactions, TransactionState

GIVE_UP_SECONDS = 300


def start(uri: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rmq_spark.cli.main", "serve", "--store", uri, "--log-format", "json"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def checker(message: StoredMessage) -> TransactionState:
    """The body says what is to become of it."""
    return TransactionState.COMMIT if message.body.startswith(b"yes") else TransactionState.ROLLBACK


class Forgetful:
    """Consumes by POP in a thread, and leaves every third message until it comes again."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self.acked: set[bytes] = set()
        self.late = 0
        self._store, self._rng = store, rng
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with SimpleConsumer(self._store, "jobs", consume_from="earliest").subscribe("work") as consumer:
            while not self._stop.is_set():
                for message in consumer.receive(16, 0.5, 0.2):
                    self.late += message.reconsume_times > 0
                    if self._rng.random() < 0.3:
                        continue
                    try:
                        consumer.ack(message)
                        self.acked.add(message.body)
                    except PreconditionFailedError:
                        continue  # this thread was too slow; it comes again

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def serve_and_kill(uri: str, kills: int, rng: random.Random) -> None:
    due: dict[bytes, int] = {}
    deals: list[list[bytes]] = []
    work: set[bytes] = set()
    with Store.create(uri, services="off") as store:
        store.create_topic("work", queues=2)
        workers = [start(uri), start(uri)]
        forgetful = Forgetful(store, random.Random(rng.random()))
        try:
            with Producer(store, group="shop", check_immunity=0.1, checker=checker) as producer:
                for number in range(kills):
                    for _ in range(30):
                        body, ms = b"d%d" % len(due), store.clock.now_ms() + rng.randrange(1, 2_000)
                        producer.send(Message("delayed", body, deliver_at=ms))
                        due[body] = ms
                        work.add(body)
                        producer.send(Message("work", body))
                    with producer.begin_transaction() as tx:  # left open: the producer is asked
                        answer = rng.choice([b"yes", b"no"])
                        deals.append([b"%s-%d-%d" % (answer, number, part) for part in range(3)])
                        for body in deals[-1]:
                            producer.send(Message("dealt", body), transaction=tx)
                    time.sleep(2 * rng.random())
                    at = rng.randrange(2)
                    workers[at].send_signal(signal.SIGKILL)
                    workers[at].wait()
                    workers[at] = start(uri)
                wait_for_all(store, due, work, forgetful)
        finally:
            forgetful.stop()
            for worker in workers:
                worker.kill()
                worker.wait()
        check(store, due, deals)
    assert forgetful.acked == work
    assert forgetful.late, "nothing came again, so nothing was tested"
    verified = subprocess.run([sys.executable, "-m", "rmq_spark.cli.main", "verify", "--store", uri])
    assert verified.returncode == 0


def wait_for_all(store: Store, due: dict[bytes, int], work: set[bytes], forgetful: Forgetful) -> None:
    log = store.log("broker-0", Transactions)
    until = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < until:
        state = log.refresh().state
        delivered = sum(end for _, _, end in state.queues.of_topic("delayed"))
        if delivered >= len(due) and not state.fold(Transactions).open and forgetful.acked >= work:
            return
        log.wait(state.offset, 0.2)
    raise AssertionError(f"not all was delivered: {delivered} of {len(due)}, {work - forgetful.acked} not acknowledged")


def check(store: Store, due: dict[bytes, int], deals: list[list[bytes]]) -> None:
    messages = [
        message
        for batch in store.log().scan(Query(topics=frozenset({"delayed", "dealt"})))
        for message in stored_messages(batch)
    ]
    assert set(Counter((message.topic, message.body) for message in messages).values()) == {1}, "delivered twice"
    assert {message.body for message in messages if message.topic == "delayed"} == due.keys()
    assert all(message.store_ms >= due[message.body] for message in messages if message.topic == "delayed")
    committed = {body for bodies in deals for body in bodies if body.startswith(b"yes")}
    assert {message.body for message in messages if message.topic == "dealt"} == committed


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_two_rmq_serve_that_are_killed_deliver_everything_once(tmp_path: Path, kills: int):
    seed = int(os.environ.get("RMQ_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    serve_and_kill(str(tmp_path / "store"), kills, random.Random(seed))
