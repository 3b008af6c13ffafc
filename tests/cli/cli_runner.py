"""Running `rmq` in this process; what the tests of this directory share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import typer.testing

from rmq_spark.cli.app import app

# The runner builds the whole application anew for every call, which takes longer than most commands do.
typer.testing._get_command = cache(typer.testing._get_command)


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def jsons(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


def call(*args: object, stdin: str | bytes = "") -> Ran:
    """Run `rmq` with `args`; no traceback, and what goes to stderr are its own lines."""
    result = typer.testing.CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)
    ran = Ran(result.exit_code, result.stdout, result.stderr)
    assert "Traceback" not in ran.err
    if ran.code not in (0, 141):
        assert ran.err, "a failure says why"
        assert all(line.startswith("rmq: ") for line in ran.err.splitlines()), ran.err
    return ran
