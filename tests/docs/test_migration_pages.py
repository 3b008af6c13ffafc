"""The pages for those who come from RocketMQ or Kafka name what exists, and map every setting and command."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from rmq_spark.cli.app import app
from rmq_spark.cli.mqadmin import ALIASES
from rmq_spark.client.consumer_settings import ConsumerSettings
from rmq_spark.model.settings import LogSettings

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / f"from-{name}.md").read_text() for name in ("rocketmq", "kafka")}
INNER = {"append_timeout_ms", "block_bytes", "snapshot_every_commits", "delete_grace_ms", "clock_ahead_max_ms"}
"""Settings of the log that have no counterpart elsewhere."""


def section(page: str, title: str) -> str:
    return PAGES[page].split(f"## {title}\n")[1].split("\n## ")[0]


def commands() -> dict[str, set[str]]:
    """Names of commands, each with those below it."""
    root: Any = get_command(app)
    return {
        name: set(command.list_commands(None)) if hasattr(command, "list_commands") else set()
        for name in root.list_commands(None)
        if (command := root.get_command(None, name)) is not None
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_right_column_exists(page: str) -> None:
    known = commands()
    checked = 0
    for line in section(page, "Commands").splitlines():
        if not line.startswith("| ") or line.startswith("| ---"):
            continue
        below: set[str] = set()
        for text in re.findall(r"`([^`]+)`", line.split("|")[2]):
            words = [word for word in text.split() if re.fullmatch("[a-z]+", word) and word != "rmq"]
            if not words or text.startswith("-") or "." in text:
                continue
            checked += 1
            if words[0] in known:
                below = known[words[0]]
                assert not below or words[1] in below, text
            else:  # `topic create`, `list`: of the one that was named before
                assert words[0] in below, text
    assert checked > 10


def test_every_name_of_mqadmin_that_works_is_on_the_page() -> None:
    missing = [name for name in ALIASES if f"`{name}`" not in section("rocketmq", "Commands")]
    assert missing == []


def test_every_setting_of_consumers_is_on_the_page() -> None:
    text = section("rocketmq", "Settings")
    missing = [field.name for field in fields(ConsumerSettings) if field.name not in text]
    assert missing == []


def test_every_setting_of_the_log_is_on_one_of_the_pages() -> None:
    text = PAGES["rocketmq"] + PAGES["kafka"]
    missing = [field.name for field in fields(LogSettings) if field.name not in text and field.name not in INNER]
    assert missing == []
