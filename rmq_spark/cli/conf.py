"""Which store is meant, and the conf file with its settings, for `rmq` and for the jobs. Knows no typer."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmq_spark.errors import InvalidRequestError

if TYPE_CHECKING:
    from rmq_spark.model.settings import LogSettings

STORE_VARIABLE: Final = "RMQ_STORE"
"""Environment variable that names the store when `--store` does not."""


def store_uri(named: str | None) -> str:
    """The URI of the store: what `--store` names, or the environment.

    Raises:
        InvalidRequestError: neither names one, or it is in the memory of a process that is about to end.
    """
    uri = named or os.environ.get(STORE_VARIABLE)
    if not uri:
        raise InvalidRequestError(f"no store is named; give --store URI or set {STORE_VARIABLE}")
    if uri.lower().startswith("memory://"):
        raise InvalidRequestError("a memory:// store ends with the command that made it; give a path", uri=uri)
    return uri


def load_conf(path: Path | None) -> tuple[LogSettings, dict[str, str] | None]:
    """Settings and storage options of a conf file: `LogSettings` names at the top, `[storage]` for the backend.

    Raises:
        InvalidRequestError: it cannot be read or parsed, or has an unknown name or a bad value.
    """
    from rmq_spark.model.settings import LogSettings

    if path is None:
        return LogSettings(), None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequestError("conf file cannot be read", file=str(path), reason=reason) from error
    storage = values.pop("storage", {})
    if not isinstance(storage, dict):
        raise InvalidRequestError("[storage] in a conf file is a table of names and values", file=str(path))
    for name, value in (*values.items(), *storage.items()):
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InvalidRequestError("setting must be a number or a text", file=str(path), setting=name)
    options = {name: str(value) for name, value in storage.items()}
    return LogSettings.from_mapping(values), options or None
