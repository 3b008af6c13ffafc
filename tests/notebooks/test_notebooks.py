"""Every notebook runs in a fresh kernel and finds what its data were made with; what is committed is what it prints."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

REPOSITORY = Path(__file__).parents[2]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
LARGEST_BYTES = 300_000
CELL_TIMEOUT_S = 240

FACTS = {
    "01-query-by-key": """
        assert tags_of_1042 == ["shipped", "paid", "created"]
        assert before_noon.num_rows == 5
        assert all(customer in row.split() for row in before_noon["keys"].to_pylist())
        assert max(before_noon["storeTimestamp"].to_pylist()) < MORNING.replace(hour=12)
        assert key_hash("orders", "coupon-Aa") == key_hash("orders", "coupon-BB")
        assert only_aa["keys"].to_pylist() == ["coupon-Aa"]
        assert np.median(with_index[1]) < np.median(without[1]) / 2
        assert fresh["tags"].to_pylist() == ["returned", *tags_of_1042]
        assert behind["index"] == 1
        assert [line.split("\\t")[2] for line in done.stdout.split("\\n") if line] == fresh["tags"].to_pylist()
    """,
    "02-time-range-backtracking": """
        assert bad_release == "2.4.1"
        assert first <= first_invoice
        assert abs(first - ms(DEPLOY)) < 60_000
        assert committed == scanned
        assert [(change.queue, change.after) for change in done] == sorted(committed.items())
        assert sum(change.redelivered for change in done) > 0 == sum(change.skipped for change in done)
        assert totals["orders"] == number
        assert totals["not_handled"] == 0
        assert 0 < totals["errors_after"] < totals["errors_before"] / 5
        assert totals["eur_before"] < totals["eur_after"] <= totals["eur_due"]
        for row in spans:
            if row.at < began - (spans[1].at - spans[0].at):
                assert row.before == row.after  # nothing before the moment was touched
    """,
    "03-lag-and-throughput": """
        assert lag_agrees
        assert hot_queue == abs(java_hash(SALE_SHOP)) % QUEUES
        assert hot_key == SALE_SHOP
        assert abs((began - START).total_seconds() / 60 - SALE[0]) < 3
        assert abs((silent["updatedAt"] - START).total_seconds() / 60 - RESTART[1]) < 1
        assert silent["gap"] >= timedelta(minutes=RESTART[1] - RESTART[0])
        assert peak["lag"] > 20 * history.filter(pl.col("queueId") != hot_queue, pl.col("at") > began)["lag"].max()
        assert abs((forecast - drained).total_seconds()) < 0.15 * (drained - peak["at"]).total_seconds()
        assert sum(row.per_minute * 2 for row in rates) <= sum(sent)
        usual = [row.per_minute for row in rates if row.tags == "created" and f"{row['at']:%H:%M}" < "14:28"]
        rush = [row.per_minute for row in rates if row.tags == "created" and "14:30" <= f"{row['at']:%H:%M}" < "14:50"]
        assert len(usual) == 14 and len(rush) == 10 and min(rush) > 1.3 * max(usual)
        assert max(by_queue, key=by_queue.get) == hot_queue
        assert real
        assert min(hottest["shop"]) > CAPACITY > hottest["order"][1]
    """,
    "04-lakehouse": """
        assert by_spark == by_polars == by_polars_from_log == by_duckdb
        assert [category for category, _, _ in by_spark] == list(categories)
        assert sum(count for _, _, count in by_spark) == in_revenue == sales > before
        assert sum(row.cents for row in by_hour) == sum(cents for _, cents, _ in by_spark)
        assert [f"{hour:%H}" for hour in hours] == [f"{hour:02}" for hour in range(9, 19)]
        assert queues_by_spark == queues_by_polars
        assert sum(count for _, count in queues_by_polars) == sales
        assert queues["messages"].to_list() == queues["end"].to_list()
        assert (missing, doubled) == (0, 0)
        assert same_place and len(found) == 1
    """,
    "05-consumers": """
        assert sorted(billed) == sorted(f"order-{n}" for n in range(ORDERS) if n % 4)
        assert len(attempts) == ORDERS and attempts["order-7"] == 2
        assert sorted(arrived) == sorted(due) and min(late) >= 0
        assert by_spark == {"orders": ORDERS + 1, "reminders": len(delays), "invoices": 1}
        assert not_billed == ["order-vip"]
    """,
}
"""What must hold in a notebook's kernel after its last cell. Names are the notebook's own."""

WATCH_PLOTS = """
import sys as _sys
import matplotlib.pyplot as _plt

_plots, _show = [], _plt.show


def _watched(*arguments, **options):
    for number in _plt.get_fignums():
        figure = _plt.figure(number)
        figure.canvas.draw()
        assert figure.dpi >= 120, f"a plot has {figure.dpi} dots an inch"
        for axes in figure.axes:
            _plots.append((axes.get_title(), axes.get_xlabel(), axes.get_ylabel()))
            for legend in filter(None, (axes.get_legend(), *figure.legends)):
                bars = [bar for bar in axes.patches if bar.get_height()]
                boxes = [bar.get_window_extent() for bar in bars]
                assert not any(legend.get_window_extent().overlaps(box) for box in boxes), "a legend hides bars"
    _show(*arguments, **options)


_plt.show = _watched
"""
CHECK_PLOTS = f"""
assert _sys.executable == {sys.executable!r}
assert _plots
for _plot in _plots:
    assert all(_plot), f"a plot lacks its title or the name of an axis: {{_plot}}"
    assert any(_letter.isdigit() for _letter in _plot[0]), f"a title does not say what was found: {{_plot[0]}}"
    assert any(_unit in _plot[2] for _unit in ("%", "EUR", "KiB", "messages", "milliseconds", "minutes")), _plot
import os as _os
assert not _os.path.exists(scratch.name)
"""

EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
ELSEWHERE = re.compile(r"(?<![\w.:/*])/(?:tmp|home|work|root|usr|var|opt|mnt|private|Users)\b|[A-Z]:\\\\Users")
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
DIFFERS = re.compile(r"bytes|KiB|^id \.\.\.")
"""Lines that depend on the machine: sizes, as each message names its sender, and ids."""


def outputs(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            yield from cell.outputs


def printed(cell: Any) -> list[str]:
    """What a cell printed, without the lines that depend on the machine."""
    text = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
    return [line for line in text.splitlines() if not DIFFERS.search(line)]


def code(source: str) -> Any:
    lines = [line.removeprefix("        ") for line in source.strip("\n").splitlines()]
    return nbformat.v4.new_code_cell("\n".join(lines))


def test_every_notebook_is_checked() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(FACTS)


@EACH
def test_what_is_committed_is_small_executed_and_says_nothing_of_a_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST_BYTES
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert notebook.cells[0].source.startswith("# ")
    assert {output.output_type for output in outputs(notebook)} == {"stream", "display_data"}
    assert {output.name for output in outputs(notebook) if output.output_type == "stream"} == {"stdout"}
    for output in outputs(notebook):
        output.get("data", {}).pop("image/png", None)
    text = json.dumps(notebook, ensure_ascii=False)
    assert "Traceback" not in text
    assert not ELSEWHERE.findall(text)
    assert not ADDRESS.findall(text)


@pytest.mark.notebook
@pytest.mark.spark
@pytest.mark.java
@EACH
def test_it_runs_finds_what_the_data_were_made_with_and_prints_what_is_committed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TZ", "Asia/Kolkata")  # notebooks tell times in UTC wherever they run
    monkeypatch.delenv("MPLBACKEND", raising=False)
    directory = tmp_path / "here"
    directory.mkdir()
    committed = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(WATCH_PLOTS))
    notebook.cells += [nbformat.v4.new_code_cell(CHECK_PLOTS), code(FACTS[path.stem])]
    began = time.perf_counter()
    NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(directory)}}
    ).execute()
    print(f"{path.stem}: {time.perf_counter() - began:.0f} s")
    assert not list(directory.iterdir())  # it cleaned up
    for before, now in zip(committed.cells, notebook.cells[1:-2], strict=True):
        if before.cell_type == "code":
            assert printed(now) == printed(before), f"{before.id} prints something else than what is committed"
            kinds = [{o.output_type for o in cell.outputs if o.get("name") != "stderr"} for cell in (before, now)]
            assert kinds[0] == kinds[1]
