"""Two proxies and four clients, killed at random: nothing acknowledged is lost, nothing is held by two at once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from chaos_worker import GROUP, INVISIBLE_SECONDS, TOPIC
from proxy_process import HERE, ProxyProcess, environment

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.store import Store
from rmq_spark.log.view import LogView
from rmq_spark.rules.pop import PopState

FINISH_SECONDS = 150
SETTINGS = {"invisible_seconds_min": 1.0, "client_grace_seconds": 2.0}


class Chaos:
    """The processes of one run."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._rng = random.Random(seed)
        self._started = 0
        self._proxies: list[ProxyProcess] = []
        self._clients: dict[subprocess.Popen[bytes], str] = {}
        self.kills: dict[str, int] = defaultdict(int)

    def start_proxy(self) -> None:
        self._proxies.append(ProxyProcess(self._directory / "store", **SETTINGS))
        self._tell()

    def start_client(self, role: str) -> None:
        self._started += 1
        command = [sys.executable, str(HERE / "chaos_worker.py"), role, f"{role}{self._started}", str(self._directory)]
        self._clients[subprocess.Popen(command, env=environment(self._directory))] = role

    def kill_one(self) -> None:
        victim = self._rng.choice([*self._proxies, *self._clients])
        if isinstance(victim, ProxyProcess):
            self._proxies.remove(victim)
            victim.kill()
            self.kills["proxy"] += 1
            self.start_proxy()
        else:
            role = self._clients.pop(victim)
            victim.kill()
            victim.wait()
            self.kills[role] += 1
            self.start_client(role)

    def finish(self, role: str) -> None:
        """Let the clients of a role end by themselves."""
        (self._directory / f"stop-{role}").touch()
        for client in [client for client, its in self._clients.items() if its == role]:
            assert client.wait(60) == 0
            del self._clients[client]

    def end(self) -> None:
        """Kill what is left."""
        for client in self._clients:
            client.kill()
            client.wait()
        for proxy in self._proxies:
            proxy.kill()

    def stop_proxies(self) -> None:
        for proxy in list(self._proxies):
            self._proxies.remove(proxy)
            proxy.stop()

    def _tell(self) -> None:
        fresh = self._directory / "proxies.new"
        fresh.write_text(json.dumps([proxy.address for proxy in self._proxies]))
        fresh.rename(self._directory / "proxies.json")

    def left(self) -> int:
        """Messages that the group has not acknowledged."""
        with Store.open(str(self._directory / "store"), read_only=True) as store:
            behind = sum(each.lag for each in GroupOffsets(store).lag(GROUP))
            return behind + sum(store.log("broker-0", PopState).look(in_flight).values())

    def journal(self, kind: str) -> list[dict[str, Any]]:
        lines = [
            line for path in self._directory.glob("*.jsonl") for line in path.read_text().splitlines(keepends=True)
        ]
        # A writer that was killed may have left half a line.
        noted = [json.loads(line) for line in lines if line.endswith("}\n")]
        return [each for each in noted if each["kind"] == kind]

    def bodies(self, kind: str) -> set[str]:
        return {each["body"] for each in self.journal(kind)}


@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, 8), pytest.param(2, 100, marks=pytest.mark.slow), pytest.param(3, 100, marks=pytest.mark.slow)],
)
def test_kills_of_proxies_and_clients_lose_nothing(tmp_path: Path, seed: int, kills: int) -> None:
    with Store.create(str(tmp_path / "store")) as store:
        store.create_topic(TOPIC, queues=4)
    chaos = Chaos(tmp_path, seed)
    rng = random.Random(seed)
    try:
        for _ in range(2):
            chaos.start_proxy()
        for role in ("produce", "produce", "consume", "consume"):
            chaos.start_client(role)
        wait_until(lambda: bool(chaos.bodies("acked")), "the first message is acknowledged")
        for _ in range(kills):
            time.sleep(rng.uniform(0.2, 1.5))
            chaos.kill_one()
        chaos.finish("produce")
        sent = chaos.bodies("sent")
        wait_until(lambda: not chaos.left(), "the group has acknowledged everything")
        chaos.finish("consume")
        chaos.stop_proxies()
    finally:
        chaos.end()
    assert sum(chaos.kills.values()) == kills
    assert len(sent) > kills
    # An acknowledgement whose answer was lost may have landed.
    assert sent <= chaos.bodies("acked") | chaos.bodies("acking")
    assert_held_by_one(chaos)
    assert_gone_when_acked(chaos)


def assert_held_by_one(chaos: Chaos) -> None:
    """A claim began after its call did, the next one before its answer came: the invisible time lies between them."""
    deliveries = defaultdict(list)
    for each in chaos.journal("received"):
        deliveries[each["body"]].append((each["began"], each["ended"]))
    for body, times in deliveries.items():
        times.sort(key=lambda pair: pair[1])
        for (began, _), (_, next_ended) in pairwise(times):
            assert next_ended >= began + INVISIBLE_SECONDS, f"{body} was held twice: {times}"


def assert_gone_when_acked(chaos: Chaos) -> None:
    """No call that began after an acknowledgement was answered gets the message again."""
    acked: dict[str, float] = {}
    for each in chaos.journal("acked"):
        acked[each["body"]] = min(each["ended"], acked.get(each["body"], each["ended"]))
    for each in chaos.journal("received"):
        assert each["began"] <= acked.get(each["body"], each["began"]), f"{each['body']} came again after its ack"


def in_flight(view: LogView) -> dict[tuple[str, int], int]:
    return dict(view.state.fold(PopState).in_flight(GROUP))


def wait_until(condition: Any, what: str) -> None:
    end = time.monotonic() + FINISH_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.2)
