"""Options that every command takes, before or after its name, and what follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmq_spark.cli.conf import STORE_VARIABLE, load_conf, store_uri
from rmq_spark.cli.output import Output
from rmq_spark.errors import InvalidRequestError
from rmq_spark.model.times import FORMS

if TYPE_CHECKING:
    from rmq_spark.client.store import Store

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
FromOption = Annotated[
    str | None, typer.Option("--from", "--since", metavar="TIME", help=f"Stored at this time or later ({FORMS}).")
]
ToOption = Annotated[str | None, typer.Option("--to", "--until", metavar="TIME", help="Stored before this time.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what it would do.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The common options as read so far: those behind the command's name win over those before it."""

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
            InvalidRequestError: as `store_uri`.
        """
        return store_uri(self.store)

    def open(self, *, read_only: bool, services: str = "off", **changed: Any) -> Store:
        """Open the store; `changed` are settings that go before those of the conf file.

        A command that ends soon runs no services; one that stays is a client like any other, and does.

        Raises:
            as `Store.open`, and as `load_conf`.
        """
        from rmq_spark.client.store import Store

        settings, options = load_conf(self.conf)
        changed = {name: value for name, value in changed.items() if value is not None}
        return Store.open(
            self.uri, settings=replace(settings, **changed), options=options, read_only=read_only, services=services
        )

    def create(self) -> Store:
        """Create the store and open it.

        Raises:
            as `Store.create`, and as `load_conf`.
        """
        from rmq_spark.client.store import Store

        settings, options = load_conf(self.conf)
        return Store.create(self.uri, settings=settings, options=options, services="off")


def common(ctx: typer.Context, store: str | None, json: bool, conf: Path | None) -> Common:
    """Merge a command's own common options with those before its name, and keep them for its subcommands."""
    before: Common = ctx.obj if isinstance(ctx.obj, Common) else Common()
    merged = Common(store=store or before.store, json=json or before.json, conf=conf or before.conf)
    ctx.obj = merged
    return merged


def yes_or_no(value: bool) -> str:
    """As tables show it."""
    return "yes" if value else "no"


def a_number(value: float | None) -> float | None:
    """Callback of options with bounds: NaN is within any.

    Raises:
        typer.BadParameter: it is NaN.
    """
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value


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
    name, separator, value = checked_text(text, "--property").partition("=")
    if not separator:
        raise InvalidRequestError("--property takes NAME=VALUE", value=text)
    return name, value
