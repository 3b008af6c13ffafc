"""The sample of the tables' tests is what these tests ask questions about."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tables"))
