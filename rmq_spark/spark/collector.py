"""Python's garbage collector in the processes that Spark starts for a source: what imports make is not garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def importing() -> Iterator[None]:
    """Imports within make many objects; nobody looks for garbage among them, several times over and in vain.

    The start of a stream waits for its imports.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def spare_imports() -> None:
    """Take what the imports made out of the collector's sight, once a process.

    Spark's worker looks for garbage after every task, before it takes the next one; with all modules in sight that
    takes longer than a small task.
    """
    gc.freeze()
