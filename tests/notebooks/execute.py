"""Execute notebooks and keep their outputs as they are committed: `python tests/notebooks/execute.py [01 03 ...]`.

What Spark writes to stderr at its start names the machine, so it is left out.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def execute(path: Path) -> None:
    """Run one in a fresh kernel and write it back."""
    notebook = nbformat.read(path, as_version=4)
    kept = dict(notebook.metadata)
    with tempfile.TemporaryDirectory() as directory:
        place = {"metadata": {"path": directory}}
        NotebookClient(notebook, kernel_name="python3", record_timing=False, resources=place).execute()
    notebook.metadata = {"kernelspec": kept["kernelspec"], "language_info": {"name": "python"}}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = tidy(cell.outputs)
    nbformat.write(notebook, path)


def tidy(outputs: list[Any]) -> list[Any]:
    """Outputs without stderr; what was printed in several pieces is one, so that a second run gives the same."""
    found: list[Any] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if output.output_type == "stream" and found and found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


if __name__ == "__main__":
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not sys.argv[1:] or path.name[:2] in sys.argv[1:]:
            execute(path)
            print(path.name)
