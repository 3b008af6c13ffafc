"""The commands of `rmq` as one application, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from rmq_spark.cli import exits, output
from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, common
from rmq_spark.errors import RmqError

# Typer carries a copy of click or uses the real one, depending on its version; this finds the base class in either.
_CommandLineError = typer.BadParameter.__mro__[2]


_HOMES: Final = {
    "init": ("topic", "init"),
    "info": ("info", "info"),
    "conf": ("info", "conf"),
    "topic": ("topic", "app"),
    "group": ("group", "app"),
    "broker": ("broker", "app"),
    "acl": ("acl", "app"),
    "send": ("send", "send"),
    "consume": ("consume", "consume"),
    "read": ("read", "read"),
    "query": ("query", "query"),
    "trace": ("trace", "trace"),
    "dlq": ("dlq", "app"),
    "stats": ("stats", "stats"),
    "tables": ("tables", "app"),
    "log": ("log", "log"),
    "roll": ("maintenance", "roll"),
    "expire": ("maintenance", "expire"),
    "serve": ("serve", "serve"),
    "verify": ("verify", "verify"),
    "recover": ("recovery", "recover"),
    "proxy": ("proxy", "proxy"),
    "mqadmin": ("mqadmin", "mqadmin"),
}
"""Module and name of each command, in the order of `rmq --help`."""


@cache
def _command(name: str) -> Any:
    module, attribute = _HOMES[name]
    command = getattr(import_module(f"rmq_spark.cli.{module}"), attribute)
    if isinstance(command, typer.Typer):
        group: Any = typer.main.get_group(command)
        group.name = name
        return group
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    single.command(name)(command)
    return typer.main.get_command(single)


class _Commands(Mapping[str, Any]):
    """The commands by name, each made when it is asked for: making all of them takes longer than most of them run."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


class RmqGroup(TyperGroup):
    """The root command: whatever happens ends in `sys.exit` with a documented code, never in a traceback."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands()

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command of the first word; a name of RocketMQ's `mqadmin` stands for one of ours."""
        if args and args[0] not in _HOMES:
            from rmq_spark.cli.mqadmin import ALIASES, rewritten

            if args[0] in ALIASES:
                args = rewritten(args[0], args[1:])
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **extra: Any) -> NoReturn:
        """Run with `args` (the process's own by default) and exit."""
        extra.pop("standalone_mode", None)
        code = exits.OK
        warnings = output.Warnings()
        logging.getLogger("rmq_spark").addHandler(warnings)
        try:
            arguments = sys.argv[1:] if args is None else list(args)
            # Where a shell asks what could come next, this answers it and exits.
            self._main_shell_completion(extra, prog_name or "rmq")
            with self.make_context(prog_name or "rmq", arguments, **extra) as ctx:
                self.invoke(ctx)
            output.finish()
        except SystemExit:  # typer's completion has written its answer
            raise
        except BaseException as error:  # noqa: BLE001 - the end of the line: every error gets its code here
            code = _report(error)
        finally:
            logging.getLogger("rmq_spark").removeHandler(warnings)
        sys.exit(code)


def _report(error: BaseException) -> int:
    """Say what went wrong, in one line on stderr, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        output.abandon_stdout()
        return exits.BROKEN_PIPE
    code, line = _explain(error)
    # What was shown before the error is true and stays.
    try:
        output.finish()
    except (OSError, RmqError):
        output.abandon_stdout()  # that this fails too must not hide why the command failed
    if line is not None:
        if os.environ.get("RMQ_DEBUG", "0") not in ("", "0"):
            output.show_traceback(error)
        output.complain(line)
    return code


def _explain(error: BaseException) -> tuple[int, str | None]:
    """The exit code, and what to say; None when the command has said it already."""
    if isinstance(error, typer.Exit):
        return int(error.exit_code), None
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return exits.INTERRUPTED, "; ".join(["interrupted", *map(str, error.args)])
    if isinstance(error, _CommandLineError):
        return exits.USAGE, _usage(error)
    if isinstance(error, RmqError):
        return exits.code_of(error), str(error)
    told = f"internal error: {type(error).__name__}: {error}; run with RMQ_DEBUG=1 for the traceback"
    return exits.INTERNAL, told


def _usage(error: BaseException) -> str:
    message = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "rmq"
    return f"{message[:1].lower()}{message[1:]}; see `{command} --help`"


app = typer.Typer(
    name="rmq",
    cls=RmqGroup,
    help="A message queue that is just files.",
    epilog=f"\b\nExit codes:\n{exits.table()}",
    pretty_exceptions_enable=False,
    # Plain help: rich would be imported for every usage error, and `\b` keeps the table of exit codes.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from rmq_spark import __version__

        output.Output(json=False).lines([f"rmq {__version__}"])
        raise typer.Exit


@app.callback()
def rmq(
    ctx: typer.Context,
    *,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Show it.")] = False,
) -> None:
    """A message queue that is just files."""
    common(ctx, store, json, conf)


def run(args: Sequence[str]) -> NoReturn:
    """Run `rmq` with `args` and exit the process."""
    command: Any = typer.main.get_command(app)
    command.main(args=args, prog_name="rmq")
    raise AssertionError("unreachable: main exits")
