"""Every Python block of docs/spark.md runs, in order, and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from page_blocks import REPOSITORY, run_python

PAGE = REPOSITORY / "docs" / "spark.md"


@pytest.mark.spark
def test_blocks_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    monkeypatch.chdir(tmp_path)

    def absolute(code: str) -> str:
        # Relative paths are the page's: Spark's own working directory is that of the process that started it.
        code = re.sub(r'"(shop|checkpoints/billing)"', lambda match: f'"{tmp_path}/{match[1]}"', code)
        return code.replace("store 'shop'", f"store '{tmp_path}/shop'")

    assert run_python(PAGE, absolute) >= 8
