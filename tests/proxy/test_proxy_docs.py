"""What the page, the container and the unit name exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from rmq_spark.cli.app import app

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/proxy.md").read_text()


def options() -> set[str]:
    group: Any = typer.main.get_command(app)
    return {text for param in group.commands["proxy"].params for text in param.opts if text.startswith("--")}


@pytest.mark.parametrize("name", ["Dockerfile", "deploy/rmq-proxy.service"])
def test_the_container_and_the_unit_use_options_that_exist(name: str) -> None:
    lines = [line for line in (REPOSITORY / name).read_text().splitlines() if re.match(r"(CMD|ExecStart)", line)]
    used = set(re.findall(r"--[a-z-]+", " ".join(lines)))
    assert used
    assert used <= options()


def test_the_page_describes_every_option() -> None:
    rows = " ".join(re.findall(r"^\| `(--.*?)\|", PAGE, flags=re.MULTILINE))
    assert set(re.findall(r"--[a-z-]+", rows)) == options() - {"--store", "--json", "--conf", "--help"}


def test_every_link_of_the_page_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (REPOSITORY / "docs" / target).resolve().exists(), target
