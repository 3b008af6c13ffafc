"""Mains in processes of their own, as `spark-submit` and plain `python` start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 600


def environment() -> dict[str, str]:
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def submit(name: str, *arguments: str, spark: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a main by spark-submit; `spark` are arguments of spark-submit itself."""
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", *spark]
    command += [f"jobs/{name}.py", *arguments]
    return _run(command)


def python(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a main by plain Python."""
    return _run([sys.executable, f"jobs/{name}.py", *arguments])


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


@contextmanager
def running(name: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A main that runs until it is stopped; whatever is left of it, the JVM included, is killed in the end."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, f"jobs/{name}.py", *arguments],
            cwd=REPOSITORY,
            env=environment(),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End it at once, and the JVM with it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(TIMEOUT_S)
