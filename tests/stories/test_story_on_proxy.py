"""Apache's clients tell the same story on this project's proxy as on RocketMQ 5.5.0, but for the listed differences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import story_world
from story_world import Addresses

CLIENTS = ("java", "python")


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Addresses]:
    with story_world.our_proxies(tmp_path) as addresses:
        yield addresses


@pytest.mark.java
@pytest.mark.parametrize("client", CLIENTS)
def test_the_story_is_the_one_of_rocketmq_but_for_the_listed_differences(
    client: str, ours: Addresses, tmp_path: Path
) -> None:
    assert story_world.tell(client, ours, tmp_path) == story_world.expected(client)


@pytest.mark.parametrize("client", CLIENTS)
def test_every_listed_difference_is_one(client: str) -> None:
    listed = story_world.differences(client)
    assert listed
    assert all(theirs != ours for theirs, ours in listed.values())
    assert story_world.expected(client) != story_world.recorded(client)
