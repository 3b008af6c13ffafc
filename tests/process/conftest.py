from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_pool import Workers


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    place = tmp_path / "reports"
    place.mkdir()
    started = Workers(place)
    yield started
    started.close()


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A directory where fsync costs nothing, if there is one: what counts is the order of events."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    place = Path(tempfile.mkdtemp(prefix="rmq-test-", dir=memory))
    yield place
    shutil.rmtree(place)
