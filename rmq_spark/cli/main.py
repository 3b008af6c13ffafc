"""Entry point of `rmq`. It imports nothing at first, so that a missing extra is one line and no traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and end the process with the exit code that docs/cli.md gives."""
    from rmq_spark.cli import output

    output.use_utf8()
    try:
        from rmq_spark.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        output.complain(f'{error.name} is not installed; run: pip install "rmq-spark[cli]"')
        sys.exit(1)
    run(sys.argv[1:])


if __name__ == "__main__":
    main()
