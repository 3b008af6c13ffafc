"""Every `rmq` command that a page or a notebook names exists, with the options that it gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_blocks import REPOSITORY

typer = pytest.importorskip("typer")
from rmq_spark.cli.app import app  # noqa: E402
from rmq_spark.cli.mqadmin import ALIASES  # noqa: E402

COMMAND = re.compile(r"(?:`|^\$ |^)rmq((?: +(?:\"[^\"]*\"|[^`\s|>;&]+))+)", re.MULTILINE)
"""`rmq` with its words: between backticks, or at the start of a line."""
WITH_VALUE = {"--store", "--conf", "--install-completion", "--show-completion"}
EVERYWHERE = {"--store", "--json", "--conf", "--help", "-h", "--version", "--install-completion", "--show-completion"}


def pages() -> list[Path]:
    found = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]
    for top in ("datasource", "jobs", "notebooks", "conf"):
        found += [*(REPOSITORY / top).glob("*.md"), *(REPOSITORY / top).glob("*.ipynb")]
    return sorted(found)


def text_of(page: Path) -> str:
    if page.suffix != ".ipynb":
        return page.read_text("utf-8")
    cells = json.loads(page.read_text("utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def problems(words: list[str], root: Any) -> Iterator[str]:
    command, rest = root, list(words)
    while rest and hasattr(command, "commands"):
        word = rest.pop(0)
        if word.startswith("-"):
            if word.partition("=")[0] in WITH_VALUE and rest:
                rest.pop(0)
            continue
        if word in ALIASES and command is root:
            return  # tests/cli checks what these stand for
        if re.fullmatch("[A-Z]+", word):
            return  # a placeholder, as in `rmq NAME`
        if word not in command.commands:
            yield f"no command {word!r}"
            return
        command = command.commands[word]
    known = {text for parameter in command.params for text in (*parameter.opts, *parameter.secondary_opts)} | EVERYWHERE
    for word in rest:
        option = word.partition("=")[0].rstrip(",.:")
        if re.fullmatch(r"--[a-z][a-z-]*", option) and option not in known:
            yield f"no option {option!r}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_named_commands_and_options_exist(page: Path) -> None:
    root = typer.main.get_command(app)
    for match in COMMAND.finditer(text_of(page)):
        wrong = list(problems(match[1].split(), root))
        assert not wrong, f"{page.name} names `rmq{match[1]}`: {wrong}"


def test_a_wrong_command_and_a_wrong_option_are_noticed() -> None:
    root = typer.main.get_command(app)
    assert list(problems(["group", "reset", "g", "--to", "now"], root)) == ["no option '--to'"]
    assert list(problems(["grup", "list"], root)) == ["no command 'grup'"]
    assert not list(problems(["--store", "shop", "read", "orders", "--since", "5m"], root))
