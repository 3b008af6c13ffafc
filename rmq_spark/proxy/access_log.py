"""The access log: one JSON line for each call, without payloads and secrets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rmq_spark.clock import Clock
from rmq_spark.model.times import format_ms
from rmq_spark.proxy.status import Code

if TYPE_CHECKING:
    from rmq_spark.proxy.calls import Call


class AccessLog:
    """Writes lines to a file, or to standard output for `-`. Lines are whole: each is one write."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._file: TextIO = sys.stdout if str(path) == "-" else path.open("a", buffering=1)

    def write(self, call: Call, code: Code, seconds: float, error: str | None) -> None:
        """Note how a call ended."""
        line: dict[str, object] = {
            "time": format_ms(self._clock.now_ms()),
            "rpc": call.rpc,
            "client": call.client_id,
            "peer": call.peer,
            "code": int(code),
            "ms": round(seconds * 1000, 3),
        }
        if call.topic:
            line["topic"] = call.topic
        if call.group:
            line["group"] = call.group
        line.update(call.facts)
        if error is not None:
            line["error"] = error
        self._file.write(json.dumps(line, ensure_ascii=True) + "\n")

    def close(self) -> None:
        """End; standard output stays open."""
        if self._file is not sys.stdout:
            self._file.close()
