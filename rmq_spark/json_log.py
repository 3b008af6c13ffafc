"""Structured logs: one JSON object a line, for machines that read the logs of a program.

Everything in this package logs through `logging` under the name `rmq_spark`. `log_json()` writes those lines as JSON;
`JsonLines` is the formatter, for programs that set up `logging` themselves.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import IO, Any, Final

from rmq_spark.errors import RmqError

_FACT: Final = re.compile(r"(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\[[^\]]*\]|\([^)]*\)|[^,()\s]+)")
"""A fact at the end of a message: `group='billing'`."""


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: `ts`, `level`, `logger`, `thread`, `message`, facts, and an error."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        message = record.getMessage()
        line: dict[str, Any] = {
            "ts": round(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": message,
        }
        facts = {name: _plain(value) for name, value in _FACT.findall(message)}
        if facts:
            line["facts"] = facts
        if record.exc_info is not None and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = {"type": type(error).__name__, "message": str(error)}
            if isinstance(error, RmqError):
                line["error"]["retriable"] = error.retriable
            line["error"]["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_json(level: int = logging.INFO, stream: IO[str] | None = None) -> logging.Handler:
    """Write this package's log lines from `level` on as JSON to `stream` (stderr); returns the handler."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("rmq_spark")
    logger.addHandler(handler)
    logger.setLevel(level)
    return handler


def _plain(value: str) -> str | int:
    if value[:1] in "'\"":
        return value[1:-1]
    return int(value) if value.lstrip("-").isdigit() else value
