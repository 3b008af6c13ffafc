"""`kill -9` of processes that run the services: delayed messages once and never early, transactions whole or not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from rmq_spark.client.producer import Producer
from rmq_spark.client.store import Store
from rmq_spark.client.stored_rows import stored_messages
from rmq_spark.log.scan import Query
from rmq_spark.model.message import Message
from rmq_spark.rules.transaction import Transactions

WORKER = Path(__file__).parent / "service_worker.py"
KILLS = 8
GIVE_UP_SECONDS = 120


def start(uri: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(WORKER), uri])


def test_two_processes_that_are_killed_again_and_again(tmp_path):
    seed = int(os.environ.get("RMQ_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    rng, uri = random.Random(seed), str(tmp_path / "store")
    due: dict[bytes, int] = {}
    deals: list[list[bytes]] = []
    with Store.create(uri, services="off") as store:
        producer = Producer(store, group="shop", check_immunity=0.1)
        workers = [start(uri), start(uri)]
        try:
            for number in range(KILLS):
                for _ in range(40):
                    body, ms = b"d%d" % len(due), store.clock.now_ms() + rng.randrange(1, 2_000)
                    producer.send(Message("delayed", body, deliver_at=ms))
                    due[body] = ms
                with producer.begin_transaction() as tx:  # left open: a worker is asked
                    answer = rng.choice([b"yes", b"no"])
                    deals.append([b"%s-%d-%d" % (answer, number, part) for part in range(3)])
                    for body in deals[-1]:
                        producer.send(Message("dealt", body), transaction=tx)
                time.sleep(rng.random())
                at = rng.randrange(2)
                workers[at].send_signal(signal.SIGKILL)
                workers[at].wait()
                workers[at] = start(uri)
            wait_for_all(store, due)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        messages = [
            message
            for batch in store.log().scan(Query(topics=frozenset({"delayed", "dealt"})))
            for message in stored_messages(batch)
        ]
    counts = Counter(message.body for message in messages)
    assert set(counts.values()) == {1}, "something was delivered twice"
    assert {message.body for message in messages if message.topic == "delayed"} == due.keys()
    assert all(message.store_ms >= due[message.body] for message in messages if message.topic == "delayed")
    committed = {body for bodies in deals for body in bodies if body.startswith(b"yes")}
    assert {message.body for message in messages if message.topic == "dealt"} == committed


def wait_for_all(store: Store, due: dict[bytes, int]) -> None:
    log = store.log("broker-0", Transactions)
    until = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < until:
        state = log.refresh().state
        delivered = sum(end for _, _, end in state.queues.of_topic("delayed"))
        if delivered >= len(due) and not state.fold(Transactions).open:
            return
        log.wait(state.offset, 0.2)
    raise AssertionError("not all was delivered")
