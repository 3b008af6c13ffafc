"""Names of a package that are imported when somebody asks for them, not before.

A command, a Spark task and a planner each need a few modules; without this, naming any of them would import all that
the package's front names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A `__getattr__` for the front of a package (PEP 562).

    Args:
        package: whose front it is, for the message about a wrong name.
        homes: the module of each name.
    """

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find


def listed_names(package: str, promised: Iterable[str]) -> Callable[[], list[str]]:
    """A `__dir__` for the front of a package: what it promises, imported or not, and what it holds already.

    Args:
        package: whose front it is.
        promised: its `__all__`.
    """

    def names() -> list[str]:
        return sorted({*promised, *vars(sys.modules[package])})

    return names
