"""Entry point of `rmq`. It imports nothing at first, so that a missing extra is one line and no traceback."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn


class _WithoutPandas:
    """Makes pandas look as if it were not installed.

    pyarrow imports it, if it is there, with the first array that becomes numpy's: a quarter of a second that no command
    needs, and longer than most of them take.
    """

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("rmq does without pandas", name=name)


def main() -> None:
    """Run the command line and end the process with the exit code that docs/cli.md gives."""
    sys.meta_path.insert(0, _WithoutPandas())
    gc.set_threshold(100_000)  # importing makes many objects and no garbage: looking for it took an eighth of a command
    try:
        run = _imported()
    except KeyboardInterrupt:  # later ones are the application's
        sys.stderr.write("rmq: interrupted\n")
        sys.exit(130)
    try:
        run(sys.argv[1:])
    except SystemExit as ended:
        _leave(ended.code)


def _leave(code: object) -> NoReturn:
    """End the process here and now: the command has closed what it opened, and all memory goes back anyway.

    An orderly end looks twice for garbage, and takes Arrow's threads down: once, on a busy machine, that was seen to
    end a command that had done its work with an abort (apache/arrow#34314).
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it has gone; the command has dealt with that
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _imported() -> Callable[[Sequence[str]], NoReturn]:
    from rmq_spark.cli import output

    output.use_utf8()
    try:
        from rmq_spark.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        output.complain(f'{error.name} is not installed; run: pip install "rmq-spark[cli]"')
        sys.exit(1)
    return run


if __name__ == "__main__":
    main()
