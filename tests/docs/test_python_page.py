"""Every Python block of docs/python.md runs, in order, and prints what the page says."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from page_blocks import REPOSITORY, blocks, run_python

PAGE = REPOSITORY / "docs" / "python.md"
SUBJECTS = ("Send", "Read", "Consume", "Groups", "Delay", "Transactions", "Errors", "Close")


def test_blocks_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        # Python warns of every fork in a process with threads; the page shows what the child has to do.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
        assert run_python(PAGE) == len([language for language, _ in blocks(PAGE) if language == "python"])


def test_every_block_is_run_or_is_output() -> None:
    assert {language for language, _ in blocks(PAGE)} == {"python", "text"}


def test_every_subject_has_a_section() -> None:
    sections = set(re.findall(r"^## (.*)$", PAGE.read_text("utf-8"), re.MULTILINE))
    assert {*SUBJECTS, "Threads, processes, asyncio"} <= sections
