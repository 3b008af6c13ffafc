"""Running the blocks of a page as its reader would, and comparing what they print with what the page says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RMQ = f'rmq() {{ "{sys.executable}" -m rmq_spark.cli.main "$@"; }}\n'
"""What a shell puts before a command of a page: `rmq` as it is in the checkout."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, content) of each fenced block, in order."""
    return [(match[1], match[2]) for match in FENCE.finditer(page.read_text("utf-8"))]


def assert_printed(expected: str, actual: str, page: str = "README") -> None:
    """Compare output; `...` in a page stands for what differs from run to run."""
    pattern = "(?:.*)".join(re.escape(part) for part in expected.rstrip().split("..."))
    normal = re.sub(r"[ ]+", " ", actual.rstrip())
    assert re.fullmatch(re.sub(r"(\\ )+", r"\\ ", pattern), normal), f"{page} says:\n{expected}\nbut it is:\n{actual}"


def run_python(page: Path, change: Callable[[str], str] = lambda code: code) -> int:
    """Run the Python blocks of a page, one after the other in one namespace; return how many there were.

    Args:
        page: a `text` block behind a Python block is what it prints.
        change: what to do to the code first.
    """
    namespace: dict[str, Any] = {}
    found = blocks(page)
    ran = 0
    for (language, code), (after, expected) in zip(found, [*found[1:], ("", "")], strict=True):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(change(code), str(page), "exec"), namespace)
        if after == "text":
            assert_printed(expected, printed.getvalue(), page.name)
        ran += 1
    return ran


def console_commands(block: str) -> Iterator[tuple[str, str]]:
    """(command, expected output) of a console block."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def run_shell(script: str, directory: Path) -> str:
    """What a script prints; `rmq` is the checkout's."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", RMQ + script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout
