"""Options that every command takes, before or after its name, and what follows from them."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmq_spark.cli.output import Output
from rmq_spark.errors import InvalidRequestError

if TYPE_CHECKING:
    from rmq_spark.client.store import Store
    from rmq_spark.model.settings import LogSettings

STORE_VARIABLE: Final = "RMQ_STORE"
"""Environment variable that names the store when `--store` does not."""
INT64_MAX: Final = 2**63 - 1

StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="URI", help=f"Where the store is; otherwise {STORE_VARIABLE}.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON to stdout and nothing else.")]
ConfOption = Annotated[
    Path | None, typer.Option("--conf", metavar="FILE", help="TOML file with settings; see conf/store.toml.")
]
BrokersOption = Annotated[
    list[str] | None, typer.Option("--broker", metavar="NAME", help="Only this broker's log; may be repeated.")
]
NameserverOption = Annotated[bool, typer.Option("--nameserver", help="Only the cluster-wide log.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The common options as given so far: those behind the command's name win over those before it."""

    store: str | None = None
    json: bool = False
    conf: Path | None = None

    @property
    def out(self) -> Output:
        """Where results go."""
        return Output(json=self.json)

    @property
    def uri(self) -> str:
        """The store's URI.

        Raises:
            InvalidRequestError: nobody named one.
        """
        uri = self.store or os.environ.get(STORE_VARIABLE)
        if not uri:
            raise InvalidRequestError(f"no store is named; give --store URI or set {STORE_VARIABLE}")
        return uri

    def open(self, *, read_only: bool, **changed: Any) -> Store:
        """Open the store; `changed` are settings that go before those of the conf file.

        Raises:
            as `Store.open`, and as `load_conf`.
        """
        from rmq_spark.client.store import Store

        settings, options = load_conf(self.conf)
        changed = {name: value for name, value in changed.items() if value is not None}
        return Store.open(self.uri, settings=replace(settings, **changed), options=options, read_only=read_only)

    def create(self) -> Store:
        """Create the store and open it.

        Raises:
            as `Store.create`, and as `load_conf`.
        """
        from rmq_spark.client.store import Store

        settings, options = load_conf(self.conf)
        return Store.create(self.uri, settings=settings, options=options)


def common(ctx: typer.Context, store: str | None, json: bool, conf: Path | None) -> Common:
    """Merge a command's own common options with those before its name, and keep them for its subcommands."""
    before: Common = ctx.obj if isinstance(ctx.obj, Common) else Common()
    merged = Common(store=store or before.store, json=json or before.json, conf=conf or before.conf)
    ctx.obj = merged
    return merged


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


def checked_text(value: str, what: str) -> str:
    """Return `value` if it can be stored: JSON and arguments can hold characters that UTF-8 cannot.

    Raises:
        InvalidRequestError: it holds half a surrogate pair.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{what} is not valid UTF-8") from error
    return value


def split_property(text: str) -> tuple[str, str]:
    """The two sides of `NAME=VALUE`.

    Raises:
        InvalidRequestError: there is no `=`, or it is not UTF-8.
    """
    name, found, value = checked_text(text, "--property").partition("=")
    if not found:
        raise InvalidRequestError("--property takes NAME=VALUE", value=text)
    return name, value
