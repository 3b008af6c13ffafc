"""Every block of the README runs, and prints what the README says it prints; every link leads somewhere."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#[^)]*)?\)")
LANGUAGES = {"python", "console", "text", "sh"}


def blocks() -> list[tuple[str, str]]:
    """(language, content) of each fenced block, in order."""
    return [(match[1], match[2]) for match in FENCE.finditer(README.read_text("utf-8"))]


def assert_printed(expected: str, actual: str) -> None:
    """Compare output; `...` in the README stands for what differs from run to run."""
    pattern = "(?:.*)".join(re.escape(part) for part in expected.rstrip().split("..."))
    normal = re.sub(r"[ ]+", " ", actual.rstrip())
    assert re.fullmatch(re.sub(r"(\\ )+", r"\\ ", pattern), normal), f"README says:\n{expected}\nbut it is:\n{actual}"


def commands(block: str) -> Iterator[tuple[str, str]]:
    """(command, expected output) of a console block."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def run(command: str, directory: Path) -> str:
    program, *arguments = shlex.split(command)
    assert program == "rmq", "console blocks show the rmq command only"
    done = subprocess.run(
        [sys.executable, "-m", "rmq_spark.cli.main", *arguments],
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_every_block_has_a_language_that_is_tested_or_plain() -> None:
    assert {language for language, _ in blocks()} == LANGUAGES


@pytest.mark.spark
def test_python_blocks_print_what_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    ran = 0
    found = blocks()
    for (language, code), (after, expected) in zip(found, [*found[1:], ("", "")], strict=True):
        if language != "python":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Spark's workers have another working directory than this test.
            exec(compile(code.replace('"shop"', f'"{tmp_path}/shop"'), str(README), "exec"), namespace)
        if after == "text":
            assert_printed(expected, printed.getvalue())
        ran += 1
    assert ran


def test_console_blocks_print_what_the_readme_says(tmp_path: Path) -> None:
    pytest.importorskip("typer")
    ran = 0
    for language, block in blocks():
        if language == "console":
            for command, expected in commands(block):
                assert_printed(expected, run(command, tmp_path))
                ran += 1
    assert ran


def test_the_make_targets_that_the_readme_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {
        name for language, block in blocks() if language == "sh" for name in re.findall(r"^make (\S+)", block, re.M)
    }
    assert named == {"demo", "test"}
    assert named <= targets


def pages() -> list[Path]:
    found = list(REPOSITORY.glob("*.md"))
    for top in ("docs", "datasource", "jobs", "notebooks", "conf"):
        found += (REPOSITORY / top).rglob("*.md")
    return sorted(found)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which does not exist"


def test_the_tests_that_semantics_names_exist() -> None:
    text = (REPOSITORY / "docs" / "semantics.md").read_text("utf-8")
    named = set(re.findall(r"`(tests/[^`]*)`", text))
    assert named
    for test in named:
        form = re.fullmatch(r"(tests/[\w/]+\.py)(?:::(\w+))?", test)
        assert form, f"docs/semantics.md names {test}, which is neither a file nor a test in one"
        file, name = form.groups()
        path = REPOSITORY / file
        assert path.exists(), f"docs/semantics.md names {file}, which does not exist"
        assert not name or re.search(rf"\b(def|class) {name}\b", path.read_text("utf-8")), f"{file} has no {name}"
