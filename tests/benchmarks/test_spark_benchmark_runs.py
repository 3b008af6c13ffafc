"""The benchmark of the Spark source and its peers, with few messages: that it runs and checks itself, not how fast."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "spark.py"

SCENARIOS = [
    "batch read, all columns, 100 B",
    "batch read, two columns, 100 B",
    "stream, all columns, 100 B",
    "stream, Kafka's columns, 100 B",
    "batch write, 100 B",
    "count of a tag, 1 %, 100 B",
    "count of a time slice, 1 %, 100 B",
    "batch read, all columns, 1 KB",
    "batch read, two columns, 1 KB",
    "stream, all columns, 1 KB",
    "stream, Kafka's columns, 1 KB",
    "batch write, 1 KB",
    "micro-batch at 100 messages/s",
]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.java
@pytest.mark.server
def test_every_scenario_runs_against_every_peer(tmp_path: Path) -> None:
    sizes = ["--rows", "4000", "--big-rows", "1000", "--rounds", "1", "--batches", "2"]
    environment = {**os.environ, "RMQ_BENCH_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *sizes], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.partition("times as quick")[2]
    for scenario in SCENARIOS:
        compared = re.findall(rf"^{re.escape(scenario)} +(\S.*?) / (\S.*?) {{2,}}", summary, re.MULTILINE)
        assert "kafka" in {peer for _, peer in compared}, scenario
    assert list(tmp_path.iterdir()) == []
