"""docs/cli.md and the application say the same."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from rmq_spark.cli import exits
from rmq_spark.cli.app import app
from rmq_spark.cli.message_lines import FIELDS

TEXT = (Path(__file__).parents[2] / "docs/cli.md").read_text()
COMMON = {"--store", "--json", "--conf", "--help", "-h"}


def commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def sections() -> dict[str, str]:
    parts = re.split(r"^### `(rmq [a-z ]+)`\n", TEXT, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert set(sections()) == {name for name, _ in commands(typer.main.get_command(app), "rmq")}


def test_every_option_is_described_and_none_is_invented() -> None:
    documented = sections()
    for name, command in commands(typer.main.get_command(app), "rmq"):
        options = {text for param in command.params for text in param.opts if text.startswith("-")} - COMMON
        described = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", documented[name].split("\n## ")[0])) - COMMON
        assert described == options, name


def test_every_exit_code_is_listed() -> None:
    listed = dict(re.findall(r"^\| (\d+) \| (.+?) \|", TEXT, flags=re.MULTILINE))
    assert {int(code): text for code, text in listed.items()} == exits.MEANINGS


def test_every_field_of_a_json_line_is_listed() -> None:
    assert all(f"`{field}`" in TEXT for field in FIELDS)


def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == TEXT.count("\n```") // 2, "a block without `sh` would not be run"
    run = f'rmq() {{ "{sys.executable}" -m rmq_spark.cli.main "$@"; }}\n'
    script = run + "".join(blocks).replace("/var/lib/rmq", str(tmp_path / "store"))
    command = ["bash", "-euo", "pipefail", "-x", "-c", script]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "would delete topic copy with 1 messages" in done.stdout
    assert "complete -o default -F _rmq_completion rmq" in (tmp_path / "store/completion.bash").read_text()
