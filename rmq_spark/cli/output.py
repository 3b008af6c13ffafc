"""Everything `rmq` shows. Results go to stdout, and with `--json` nothing else does; all the rest goes to stderr.

Tables are drawn by rich on a terminal only. Into a pipe or a file they are plain aligned columns, because rich would
wrap them at 80 characters there, and importing it costs as much as a small command.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TextIO

from rmq_spark.errors import UnavailableError
from rmq_spark.model.times import format_ms

Cell = str | int | float | None
Advance = Callable[[int, int | None], None]
"""Called with how much is done, and how much there is (None: unknown)."""

# Control characters of a message must not reach the terminal, nor break a line in two.
_ESCAPES: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))},
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
# JSON allows these as they are, but some readers take them for ends of lines, and terminals obey the C1 ones.
_JSON_ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(0x80, 0xA0), 0x2028, 0x2029)}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headers; columns of numbers are aligned to the right."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def texts(self) -> list[list[str]]:
        """The cells as they are shown: numbers grouped by thousands, nothing as a dash."""
        return [[_shown(cell) for cell in row] for row in self.rows]

    def numeric(self) -> list[bool]:
        """Per column: whether it holds numbers."""
        return [any(isinstance(row[at], int | float) for row in self.rows) for at in range(len(self.headers))]


def table_of(documents: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    """A table of documents: header -> field. Times and yes or no are shown as such."""
    rows = [[_cell(document[field], field) for field in columns.values()] for document in documents]
    return Table(tuple(columns), rows)


def _cell(value: Any, field: str) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and field.endswith(("Timestamp", "At", "Until")):
        return format_ms(value)
    if isinstance(value, list | tuple | dict):
        return ", ".join(map(str, value)) or None
    return value if value is None or isinstance(value, int | float) else str(value)


class Output:
    """Where a command shows its results, as text or as JSON."""

    def __init__(self, *, json: bool, drawn: bool = True) -> None:
        """Choose the form.

        Args:
            json: documents instead of text.
            drawn: draw tables on a terminal, which needs rich; else they are plain columns there, too.
        """
        self.json = json
        self._drawn = drawn

    def result(self, document: object, *text: str | Table) -> None:
        """Show the one result of a command: `document` with `--json`, else the lines and tables of `text`."""
        if self.json:
            self.record(document)
            return
        for part in text:
            if isinstance(part, Table):
                self._table(part)
            else:
                self.lines([part])

    def record(self, value: object) -> None:
        """Show one JSON value on a line of its own."""
        self.lines([to_json(value)])

    def lines(self, lines: Iterable[str]) -> None:
        """Write lines to stdout.

        Raises:
            BrokenPipeError: whoever read them has gone.
            UnavailableError: stdout cannot be written (a full disk, say).
        """
        _write("".join(f"{line}\n" for line in lines))

    def clear(self) -> None:
        """Empty the screen, if stdout is one."""
        if _is_terminal(sys.stdout):
            _write("\x1b[H\x1b[2J")

    def note(self, text: str) -> None:
        """Write a line to stderr if that is a terminal; a script never sees it."""
        if _is_terminal(sys.stderr):
            print(text, file=sys.stderr)

    @contextmanager
    def progress(self, label: str, unit: str = "") -> Iterator[Advance]:
        """A progress bar on stderr if that is a terminal, else nothing."""
        if not _is_terminal(sys.stderr):
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=None, count="")

            def advance(done: int, total: int | None) -> None:
                count = f"{done:,}" if total is None else f"{done:,} of {total:,}"
                bar.update(task, completed=done, total=total, count=f"{count} {unit}".strip())

            yield advance

    def _table(self, table: Table) -> None:
        if not self._drawn or not _is_terminal(sys.stdout):
            self.lines(_aligned(table))
            return
        from rich.console import Console
        from rich.table import Table as RichTable

        drawn = RichTable(box=None, pad_edge=False, header_style="bold")
        for header, numeric in zip(table.headers, table.numeric(), strict=True):
            drawn.add_column(header, justify="right" if numeric else "left", overflow="fold")
        for row in table.texts():
            drawn.add_row(*row)
        Console(markup=False, highlight=False, emoji=False).print(drawn)


def printable(text: str) -> str:
    """`text` on one line, with control characters escaped."""
    return text.translate(_ESCAPES)


def moment(ms: int | None) -> str | None:
    """A time as tables show it; None for none."""
    return None if ms is None else format_ms(ms)


def duration(ms: int) -> str | None:
    """A duration in its two largest units; None for none."""
    if not ms:
        return None
    seconds, rest = divmod(ms, 1000)
    if seconds < 60:
        return f"{seconds}.{rest:03d} s"
    for size, name, below, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size} {name} {seconds % size // below} {smaller}"
    raise AssertionError("unreachable: a minute or more")


def to_json(value: object) -> str:
    """Compact JSON on one line; text stays readable."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else text.translate(_JSON_ESCAPES)


def complain(text: str) -> None:
    """Say on stderr, in one line, why the command failed."""
    _to_stderr(f"rmq: {printable(text)}\n")


class Warnings(logging.Handler):
    """Shows what the library logs (a damaged snapshot that it passed over, say) as lines of `rmq`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        complain(f"warning: {record.getMessage()}")


def show_traceback(error: BaseException) -> None:
    """Print the traceback of `error` to stderr, for somebody who asked for it."""
    import traceback

    _to_stderr("".join(traceback.format_exception(error)))


def finish() -> None:
    """Write out what is buffered; raises as `Output.lines`."""
    _write("")
    if sys.stdout is not None:
        with _stdout_errors():
            sys.stdout.flush()


def abandon_stdout() -> None:
    """Nobody reads stdout any more: let the interpreter's last flush go nowhere instead of failing loudly."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return  # no real file behind it: then there is no last flush to fail either


def use_utf8() -> None:
    """Make stdout and stderr UTF-8 whatever the locale says: messages are."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Callable[..., Any] | None = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")


def _write(text: str) -> None:
    with _stdout_errors():
        print(text, end="")


@contextmanager
def _stdout_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnavailableError("the output cannot be written", reason=error.strerror) from error


def _to_stderr(text: str) -> None:
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except OSError:
        return  # stderr cannot be written; the exit code still reports the failure


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int | float) else printable(cell)


def _aligned(table: Table) -> Iterator[str]:
    rows = [list(table.headers), *table.texts()]
    widths = [max(len(row[at]) for row in rows) for at in range(len(table.headers))]
    numeric = table.numeric()
    for row in rows:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        yield "  ".join(cells).rstrip()
