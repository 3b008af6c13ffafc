"""The recorded transcripts are what RocketMQ 5.5.0 really answers. `RMQ_RECORD=1` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import story_world
from story_world import GROUPS, HERE, RIGHTS, TOPICS, USERS, Addresses

from rmq_spark.testing.rocketmq_server import rocketmq_server

pytestmark = [pytest.mark.peer, pytest.mark.java]


@pytest.mark.parametrize("client", ["java", "python"])
def test_rocketmq_answers_as_recorded(client: str, tmp_path: Path) -> None:
    certificate, key = story_world.make_certificate(tmp_path)
    with rocketmq_server(certificate, key) as server:
        for topic, kind in TOPICS.items():
            server.create_topic(topic, kind, queues=4)
        for group, (orderly, retries) in GROUPS.items():
            server.create_group(group, orderly=orderly, retries=retries)
        for user, secret in USERS.items():
            server.create_user(user, secret)
        for user, resource, actions in RIGHTS:
            server.allow(user, resource, actions)
        at = Addresses(open=server.proxy, tls=server.proxy, guarded=server.guarded, certificate=certificate)
        transcript = story_world.tell(client, at, tmp_path)
    if os.environ.get("RMQ_RECORD"):
        (HERE / "recorded" / f"rocketmq-5.5.0-{client}.txt").write_text(transcript)
    assert transcript == story_world.recorded(client)
