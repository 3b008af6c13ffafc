"""Starts and ends the workers of `worker.py`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worker import read_report


class Workers:
    """Starts workers by forking them off one warm process, and ends them."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._started = 0
        self._jobs: dict[int, Path] = {}
        root = Path(__file__).parents[2]
        self._parent = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root)},
        )

    def start(self, role: str, **job: Any) -> int:
        """Start a worker and return its process id."""
        self._started += 1
        report = self._place / f"report-{self._started:05d}"
        given = {"role": role, "report": str(report), **job}
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(given) + "\n")
        self._parent.stdin.flush()
        pid = int(self._parent.stdout.readline())
        self._jobs[pid] = report
        return pid

    def report(self, pid: int) -> list[list[Any]]:
        return read_report(self._jobs[pid])

    def reports(self) -> Iterator[list[list[Any]]]:
        """All reports, in the order in which their workers were started."""
        return (read_report(path) for path in sorted(self._place.glob("report-*")))

    def alive(self, pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self, pid: int) -> None:
        """`kill -9`, and wait until it is gone."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.wait(pid)

    def wait(self, pid: int, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while self.alive(pid):
            assert time.monotonic() < deadline, f"worker {pid} does not end: {self.report(pid)[-1:]}"
            time.sleep(0.001)

    def close(self) -> None:
        for pid in self._jobs:
            self.kill(pid)
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.stdout.close()
        self._parent.wait(10)
