"""Consent to what cannot be undone: a question on a terminal, `--yes` in a script."""

from __future__ import annotations

import sys
from typing import Final

from rmq_spark.errors import InvalidRequestError

NEEDED: Final = "this cannot be undone; pass --yes to do it without a question, or --dry-run to see what it would do"
"""What a script is told that has not passed `--yes`."""


def require_consent(yes: bool, question: str, needed: str = NEEDED) -> None:
    """Return if the caller may go on: `--yes` was given, or somebody at the terminal answers the question with yes.

    Raises:
        InvalidRequestError: the answer was no, or there is no terminal to ask at; nothing was changed.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise InvalidRequestError(needed)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidRequestError("not confirmed; nothing was changed")
