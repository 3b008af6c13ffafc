"""What `rmq serve` writes to stderr: lines of text or JSON, and on a terminal a status line below them."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any

from rmq_spark.cli.output import Warnings, printable


class LogFormat(StrEnum):
    """How lines look."""

    TEXT = "text"
    JSON = "json"


class _Lines(logging.Handler):
    def __init__(self, form: LogFormat, console: Any) -> None:
        super().__init__(logging.INFO)
        self._form = form
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        line = _json_line(record) if self._form is LogFormat.JSON else _text_line(record)
        if self._console is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            return
        with suppress(OSError, ValueError):  # stderr cannot be written; the services go on
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


class ServeLog:
    """Shows what the package logs, from INFO on, while it is entered.

    Args:
        form: of the lines. JSON is never mixed with a status line.
    """

    def __init__(self, form: LogFormat) -> None:
        self.draws = form is LogFormat.TEXT and sys.stderr is not None and sys.stderr.isatty()
        """Whether there is a status line."""
        self._live: Any = None
        console: Any = None
        if self.draws:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._live = Live("", console=console, refresh_per_second=2, transient=True)
        self._handler = _Lines(form, console)
        self._replaced: list[logging.Handler] = []
        self._level = logging.NOTSET

    def draw(self, line: str) -> None:
        """Show the status line."""
        from rich.text import Text

        self._live.update(Text(line, overflow="ellipsis", no_wrap=True))

    def __enter__(self) -> ServeLog:
        logger = logging.getLogger("rmq_spark")
        self._replaced = [each for each in logger.handlers if isinstance(each, Warnings)]
        for each in self._replaced:
            logger.removeHandler(each)
        self._level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self._handler)
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        logger = logging.getLogger("rmq_spark")
        logger.removeHandler(self._handler)
        logger.setLevel(self._level)
        for each in self._replaced:
            logger.addHandler(each)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text_line(record: logging.LogRecord) -> str:
    line = f"{_time(record)} {record.levelname} {printable(record.getMessage())}"
    return line if record.exc_info is None else f"{line}\n{logging.Formatter().formatException(record.exc_info)}"


def _json_line(record: logging.LogRecord) -> str:
    document: dict[str, Any] = {
        "time": _time(record),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
        "thread": record.threadName,
    }
    if record.exc_info is not None:
        document["error"] = logging.Formatter().formatException(record.exc_info)
    return json.dumps(document, ensure_ascii=False)
