"""`rmq acl`: who may do what through a proxy."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rmq_spark.cli.consent import require_consent
from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, YesOption, common
from rmq_spark.cli.output import Table
from rmq_spark.errors import InvalidRequestError, NotFoundError

app = typer.Typer(help="Users, policies and the switch of access control.", rich_markup_mode=None)
user_app = typer.Typer(help="Add, list, update and delete users.", rich_markup_mode=None)
policy_app = typer.Typer(help="Add, list and delete policies.", rich_markup_mode=None)
app.add_typer(user_app, name="user")
app.add_typer(policy_app, name="policy")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user.")]
ResourceArgument = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="Topic:NAME or Group:NAME; NAME may end with *, or be only that.")
]
SecretFileOption = Annotated[
    str | None,
    typer.Option("--secret-file", metavar="FILE", help="Take the secret from this file; - is standard input."),
]


@app.callback()
def acl(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Users, policies and the switch of access control."""
    common(ctx, store, json, conf)


@user_app.callback()
def user(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Add, list, update and delete users."""
    common(ctx, store, json, conf)


@policy_app.callback()
def policy(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Add, list and delete policies."""
    common(ctx, store, json, conf)


@app.command("on")
def on(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Let proxies check every request; what no policy allows is denied."""
    from rmq_spark.client.acl import Acl

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        Acl(opened).turn_on()
    options.out.result({"enabled": True}, "access control is on: what no policy allows is denied")


@app.command("off")
def off(ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None) -> None:
    """Let proxies take every request; users and policies stay."""
    from rmq_spark.client.acl import Acl

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        Acl(opened).turn_off()
    options.out.result({"enabled": False}, "access control is off: proxies take every request")


@user_app.command("add")
def user_add(
    ctx: typer.Context,
    *,
    name: NameArgument,
    secret_file: SecretFileOption = None,
    super_: Annotated[bool, typer.Option("--super", help="May do everything.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Add a user; without --secret-file a random secret is made and shown once."""
    from rmq_spark.client.acl import Acl

    options = common(ctx, store, json, conf)
    made = secrets.token_urlsafe(24) if secret_file is None else None
    with options.open(read_only=False) as opened:
        Acl(opened).add_user(name, made or _read_secret(secret_file), is_super=super_)
    document: dict[str, Any] = {"user": name, "super": super_}
    text = f"added user {name}"
    if made is not None:
        document["secret"] = made
        text += f"; the secret is shown only now: {made}"
    options.out.result(document, text)


@user_app.command("list")
def user_list(
    ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None
) -> None:
    """List the users, without their secrets, and whether access control is on."""
    from rmq_spark.client.acl import Acl

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        known = Acl(opened).access_list()
    users = [user for _, user in sorted(known.users.items())]
    document = {
        "enabled": known.enabled,
        "users": [{"user": user.name, "super": user.is_super, "enabled": user.enabled} for user in users],
    }
    rows = [
        (user.name, _yes(user.is_super), _yes(user.enabled), len(known.policies.get(user.name, ()))) for user in users
    ]
    state = f"access control is {'on' if known.enabled else 'off'}"
    options.out.result(document, state, Table(("USER", "SUPER", "ENABLED", "POLICIES"), rows))


@user_app.command("update")
def user_update(
    ctx: typer.Context,
    *,
    name: NameArgument,
    secret_file: SecretFileOption = None,
    super_: Annotated[bool | None, typer.Option("--super/--no-super", help="May do everything, or not.")] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Take the user's signatures, or refuse them.")
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Change a user's secret, whether it is a super user, or whether it is enabled."""
    from rmq_spark.client.acl import Acl

    options = common(ctx, store, json, conf)
    secret = None if secret_file is None else _read_secret(secret_file)
    with options.open(read_only=False) as opened:
        Acl(opened).update_user(name, secret=secret, is_super=super_, enabled=enabled)
    options.out.result({"user": name, "updated": True}, f"updated user {name}")


@user_app.command("delete")
def user_delete(
    ctx: typer.Context,
    *,
    name: NameArgument,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Delete a user and its policies."""
    from rmq_spark.client.acl import Acl

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        acl = Acl(opened)
        held = len(acl.policies(name))
        require_consent(
            yes,
            f"delete user {name} and {held} policies?",
            "this cannot be undone; pass --yes to do it without a question",
        )
        acl.delete_user(name)
    options.out.result({"user": name, "deleted": True}, f"deleted user {name} and {held} policies")


@policy_app.command("add")
def policy_add(
    ctx: typer.Context,
    *,
    name: NameArgument,
    resource: ResourceArgument,
    actions: Annotated[
        list[str],
        typer.Argument(metavar="ACTION...", help="Pub, Sub, Create, Update, Delete, Get, List, Admin or All."),
    ],
    deny: Annotated[bool, typer.Option("--deny", help="Deny these actions instead of allowing them.")] = False,
    source_ip: Annotated[
        list[str] | None,
        typer.Option("--source-ip", metavar="NETWORK", help="Only from this address or network; may be repeated."),
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Allow a user actions on a resource; replaces the user's policy for the same resource."""
    from rmq_spark.client.acl import Acl

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        added = Acl(opened).add_policy(
            name, resource, actions, effect="Deny" if deny else "Allow", source_ips=source_ip or ()
        )
    verb = "may not" if deny else "may"
    options.out.result(_document(added), f"{name} {verb} {', '.join(sorted(added.actions))} on {added.resource}")


@policy_app.command("list")
def policy_list(
    ctx: typer.Context,
    *,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only of this user.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """List the policies of all users, or of one."""
    from rmq_spark.client.acl import Acl

    options = common(ctx, store, json, conf)
    with options.open(read_only=True) as opened:
        document = [_document(policy) for policy in Acl(opened).policies(name)]
    rows = [
        (entry["user"], entry["resource"], entry["effect"], ", ".join(entry["actions"]), ", ".join(entry["sourceIps"]))
        for entry in document
    ]
    options.out.result(document, Table(("USER", "RESOURCE", "EFFECT", "ACTIONS", "SOURCE IPS"), rows))


@policy_app.command("delete")
def policy_delete(
    ctx: typer.Context,
    *,
    name: NameArgument,
    resource: ResourceArgument,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Delete a user's policy for a resource."""
    from rmq_spark.client.acl import Acl

    options = common(ctx, store, json, conf)
    with options.open(read_only=False) as opened:
        Acl(opened).delete_policy(name, resource)
    options.out.result({"user": name, "resource": resource, "deleted": True}, f"deleted {name}'s policy for {resource}")


def _document(policy: Any) -> dict[str, Any]:
    return {
        "user": policy.user,
        "resource": str(policy.resource),
        "effect": str(policy.effect),
        "actions": sorted(policy.actions),
        "sourceIps": list(policy.source_ips),
    }


def _read_secret(file: str | None) -> str:
    """The content of a file, or a line of standard input.

    Not an option: everybody on the machine sees command lines.
    """
    if file == "-":
        if sys.stdin is None:
            raise InvalidRequestError("standard input is closed; name a file with the secret")
        return sys.stdin.readline().rstrip("\r\n")
    try:
        return Path(str(file)).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise NotFoundError("the file with the secret cannot be read", file=file, reason=error.strerror) from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the file with the secret is not UTF-8 text", file=file) from error


def _yes(value: bool) -> str:
    return "yes" if value else "no"
