"""A store to run `rmq` on."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import Run, call


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """`rmq` without anything of this machine's environment."""
    monkeypatch.delenv("RMQ_STORE", raising=False)
    monkeypatch.delenv("RMQ_DEBUG", raising=False)
    return call


@pytest.fixture
def store(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store that RMQ_STORE names."""
    path = tmp_path / "store"
    assert run("init", "--store", path).code == 0
    monkeypatch.setenv("RMQ_STORE", str(path))
    return path
