"""Fixtures of the service tests."""

from collections.abc import Iterator

import pytest
from service_world import ServiceWorld


@pytest.fixture
def world() -> Iterator[ServiceWorld]:
    made = ServiceWorld.create(delete_grace_ms=0, segment_bytes=1)
    yield made
    made.store.close()
