"""`rmq proxy` as an operator starts it, and the example that talks to it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

from proxy_process import PATIENCE, REPOSITORY, environment

RMQ = (sys.executable, "-m", "rmq_spark.cli.main")


def rmq(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RMQ, "--store", "store", *words], cwd=folder, capture_output=True, text=True, env=environment(folder)
    )


def test_the_example_runs_against_the_command(tmp_path: Path) -> None:
    assert rmq(tmp_path, "init").returncode == 0
    assert rmq(tmp_path, "topic", "create", "orders").returncode == 0
    proxy = subprocess.Popen(
        [*RMQ, "--store", "store", "proxy", "--listen", "127.0.0.1:0", "--metrics", "0", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    assert proxy.stdout is not None
    told = json.loads(proxy.stdout.readline())
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples/proxy/orders.py"), told["listen"]],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(tmp_path),
        check=False,
    )
    proxy.send_signal(signal.SIGTERM)
    _, errors = proxy.communicate(timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "billed: order 0, order 1, order 2\n"), done.stderr
    assert (proxy.returncode, errors) == (0, "")


def test_an_address_in_use_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    assert rmq(tmp_path, "init").returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for listen, code in ((f"127.0.0.1:{taken.getsockname()[1]}", 5), ("nowhere", 2)):
            done = rmq(tmp_path, "proxy", "--listen", listen)
            assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
            assert done.stderr.startswith("rmq: ")
