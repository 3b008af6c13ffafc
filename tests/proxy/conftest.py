"""One proxy for the tests of a module, on a store of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from proxy_process import ProxyProcess, RawClient

from rmq_spark.client.store import Store

FAST = {
    "invisible_seconds_min": 1.0,
    "renew_invisible_seconds": 6.0,
    "client_grace_seconds": 2.0,
    "metrics_port": 0,
}
"""Times that tests can wait for."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    started = ProxyProcess(tmp_path_factory.mktemp("proxy") / "store", **FAST)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def store(proxy: ProxyProcess) -> Iterator[Store]:
    """The proxy's store, opened by the test as by any other process."""
    with Store.open(str(proxy.store)) as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def raw(proxy: ProxyProcess) -> Iterator[RawClient]:
    with RawClient(proxy.address) as client:
        yield client
