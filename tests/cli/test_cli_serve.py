"""`rmq serve`: a process that tells how it is doing, survives errors of the storage, and stops when told to."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Run

from rmq_spark import Message, Producer, Store
from rmq_spark.errors import UnavailableError
from rmq_spark.services import parts
from rmq_spark.services.catalog import all_services
from rmq_spark.services.runner import ServiceRunner, ServiceStatus
from rmq_spark.services.status_page import UNHEALTHY_FAILURES, StatusPage, health

GIVE_UP_SECONDS = 120


@contextmanager
def serving(store: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process of `rmq serve` that answers, and its port."""
    command = [sys.executable, "-m", "rmq_spark.cli.main", "serve", "--store", str(store), "--log-format", "json"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        first = json.loads(process.stderr.readline())
        match = re.search(r"localhost:(\d+)/", first["message"])
        assert match is not None, first
        yield process, int(match[1])
    finally:
        process.kill()
        process.communicate()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def wait_for(port: int, wanted: Any) -> dict[str, Any]:
    until = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < until:
        told = json.loads(get(port, "/health")[1])
        if wanted(told):
            return told  # type: ignore[no-any-return]
        time.sleep(0.05)
    raise AssertionError(told)


def test_it_serves_tells_its_health_and_stops_on_sigterm(store: Path):
    with serving(store, "--metrics", "0") as (process, port):
        told = wait_for(port, lambda told: all(each["runs"] for each in told["services"].values()))
        assert told["status"] == "ok"
        assert set(told["services"]) == {
            "timer", "transaction-check", "revive", "roll", "snapshot", "sweep", "retention", "tables",
        }  # fmt: skip
        code, text = get(port, "/metrics")
        assert code == 200
        assert 'rmq_service_lag_seconds{service="timer"} 0.0' in text
        assert re.search(r'rmq_service_runs_total\{service="roll"\} [1-9]', text)
        assert "rocketmq_consumer_group_number{" in text  # gauges of the store: lags and the like
        assert get(port, "/other")[0] == 404
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=GIVE_UP_SECONDS)
        assert process.returncode == 0
        lines = [json.loads(line) for line in errors.splitlines()]
        assert {line["level"] for line in lines} == {"info"}
        assert lines[-1]["message"].startswith("stopping")


def test_it_survives_a_storage_that_fails_for_a_while_and_its_health_says_so(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(parts, "BACK_OFF_SECONDS_MIN", 0.001)
    with Store.create(str(tmp_path / "store"), services="off") as store:
        runner = ServiceRunner(all_services(store), store.clock)
        with runner, StatusPage(0, runner.status, metrics=False) as page:
            wait_for(page.port, lambda told: all(each["runs"] for each in told["services"].values()))

            def unavailable(*_: object) -> None:
                raise UnavailableError("the network is gone")

            with monkeypatch.context() as patched:
                for name in ("read", "read_range", "read_ranges", "read_tail", "read_tails", "exists", "list"):
                    patched.setattr(type(store.storage), name, unavailable)
                told = wait_for(page.port, lambda told: "timer" in told["failing"])
                assert told["services"]["timer"]["lastError"] == "UnavailableError: the network is gone"
                assert get(page.port, "/health")[0] == 503
            wait_for(page.port, lambda told: told["status"] == "ok")
            Producer(store).send(Message("orders", b"later", delay=0.1))
            until = time.monotonic() + GIVE_UP_SECONDS
            while not store.read("orders").num_rows:
                assert time.monotonic() < until
                time.sleep(0.05)


def test_check_tells_what_waits_and_fails_if_it_waits_too_long(run: Run, store: Path):
    assert run("serve", "--check").code == 0
    with Store.open(str(store), services="off") as opened:
        due = opened.clock.now_ms() + 3_000  # later than the send takes, or it would be delivered at once
        Producer(opened).send(Message("orders", b"x", deliver_at=due))
        while opened.clock.now_ms() <= due:
            time.sleep(0.05)
    assert run("serve", "--check").code == 0
    result = run("serve", "--check", "--max-behind", 0, "--json")
    assert result.code == 1
    assert "over 0 s behind: timer" in result.err
    [timer] = [lag for lag in json.loads(result.out) if lag["service"] == "timer"]
    assert timer["pending"] == 1
    assert timer["behindMs"] > 0


def test_retention_and_tables_can_be_left_out(store: Path):
    with serving(store, "--health", "0", "--no-retention", "--no-tables") as (_, port):
        told = json.loads(get(port, "/health")[1])
        assert set(told["services"]) == {"timer", "transaction-check", "revive", "roll", "snapshot", "sweep"}
        assert get(port, "/metrics")[0] == 404


def test_only_one_port_is_asked_for(run: Run, store: Path):
    result = run("serve", "--metrics", "0", "--health", "0")
    assert result.code == 2
    assert "--metrics answers /health, too" in result.err


def test_metrics_without_prometheus_client_say_what_to_install(run: Run, store: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    result = run("serve", "--metrics", "0")
    assert result.code == 1
    assert 'pip install "rmq-spark[metrics]"' in result.err


def test_a_port_that_is_taken_is_named(run: Run, store: Path):
    with StatusPage(0, list, metrics=False) as page:
        result = run("serve", "--health", page.port)
    assert result.code == 5
    assert f"port={page.port}" in result.err


@pytest.mark.parametrize(
    ("failures", "status"), [(0, "ok"), (UNHEALTHY_FAILURES - 1, "ok"), (UNHEALTHY_FAILURES, "failing")]
)
def test_a_service_that_fails_again_and_again_is_not_healthy(failures: int, status: str):
    assert health([ServiceStatus("timer", failures=failures), ServiceStatus("roll")])["status"] == status
