"""Every block of the README runs, and prints what the README says it prints; every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_blocks import REPOSITORY, assert_printed, blocks, console_commands, run_python, run_shell
from pyspark.sql import SparkSession

README = REPOSITORY / "README.md"
LINK = re.compile(r"\[[^\]]+\]\(([^)#]+)(?:#[^)]*)?\)")
LANGUAGES = {"python", "console", "text", "sh"}


def test_every_block_has_a_language_that_is_tested_or_plain() -> None:
    assert {language for language, _ in blocks(README)} == LANGUAGES


@pytest.mark.spark
def test_python_blocks_print_what_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.chdir(tmp_path)
    # Spark's workers have another working directory than this test.
    assert run_python(README, lambda code: code.replace('"shop"', f'"{tmp_path}/shop"')) == 2


def test_the_quick_start_is_ten_lines_with_a_consumer() -> None:
    start = next(code for language, code in blocks(README) if language == "python")
    assert len([line for line in start.splitlines() if line.strip()]) <= 10
    assert "Consumer(" in start


def test_console_blocks_print_what_the_readme_says(tmp_path: Path) -> None:
    pytest.importorskip("typer")
    ran = 0
    for language, block in blocks(README):
        if language == "console":
            for command, expected in console_commands(block):
                assert command.startswith("rmq "), "console blocks show the rmq command only"
                assert_printed(expected, run_shell(command, tmp_path))
                ran += 1
    assert ran


def test_the_make_targets_that_the_readme_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {
        name
        for language, block in blocks(README)
        if language == "sh"
        for name in re.findall(r"^make (\S+)", block, re.M)
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
        form = re.fullmatch(r"(tests/[\w/]+\.py)((?:::\w+)*)", test)
        assert form, f"docs/semantics.md names {test}, which is neither a file nor a test in one"
        file, names = form.groups()
        path = REPOSITORY / file
        assert path.exists(), f"docs/semantics.md names {file}, which does not exist"
        for name in names.split("::")[1:]:
            assert re.search(rf"\b(def|class) {name}\b", path.read_text("utf-8")), f"{file} has no {name}"
