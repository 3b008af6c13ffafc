"""Every Python block of docs/spark.md runs, in order, and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from test_readme import FENCE, assert_printed

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.mark.spark
def test_blocks_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    blocks = [(match[1], match[2]) for match in FENCE.finditer(PAGE.read_text("utf-8"))]
    ran = 0
    for (language, code), (after, expected) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language != "python":
            continue
        # Relative paths are the page's: Spark's own working directory is that of the process that started it.
        code = re.sub(r'"(shop|checkpoints/billing)"', lambda match: f'"{tmp_path}/{match[1]}"', code)
        code = code.replace("store 'shop'", f"store '{tmp_path}/shop'")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), namespace)
        if after == "text":
            assert_printed(expected, printed.getvalue())
        ran += 1
    assert ran >= 8
