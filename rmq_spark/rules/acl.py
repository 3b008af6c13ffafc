"""Who may do what: users, policies and the switch, a fold of the nameserver log, and the decision on one request.

The model is RocketMQ 5's. A request is somebody's wish to do an action on a topic or a group. Of the policies that
match it the most specific decides: one that names the resource before a prefix, a longer prefix before a shorter one,
any prefix before `*`; among equals `Deny` before `Allow`. What no policy matches is denied. Super users may do
everything. While access control is off, which it is in a new store, nobody is asked.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.undo import Journal, UndoDict
from rmq_spark.model import names

TOPIC: Final = "rmq_sys_acl"

_USER: Final = re.compile(r"[a-zA-Z0-9_.@-]{1,64}")
SECRET_CHARS_MIN: Final = 8
SECRET_CHARS_MAX: Final = 256


class Action(StrEnum):
    """What can be done, by RocketMQ 5's names."""

    PUB = "Pub"
    """Send to a topic, recall from it, end transactions on it."""
    SUB = "Sub"
    """Receive from a topic, or as a member of a group."""
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


ADMIN: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET, Action.LIST})
"""What `Admin` stands for in a policy."""
_GROUPS: Final[Mapping[str, frozenset[Action]]] = {"admin": ADMIN, "all": frozenset(Action)}


class ResourceType(StrEnum):
    """What a policy is about."""

    TOPIC = "Topic"
    GROUP = "Group"


class Effect(StrEnum):
    """What a policy does."""

    ALLOW = "Allow"
    DENY = "Deny"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who signs requests."""

    name: str
    secret: str
    is_super: bool = False
    """May do everything; policies are not looked at."""
    enabled: bool = True
    """A disabled user's signatures are refused."""

    def __repr__(self) -> str:
        """Without the secret, for it must not stand in a log or a traceback."""
        return f"User(name={self.name!r}, is_super={self.is_super}, enabled={self.enabled})"


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """One topic or group, those that begin alike, or all: `Topic:orders`, `Group:billing*`, `Topic:*`."""

    type: ResourceType
    name: str

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Read `Topic:NAME`, `Topic:PREFIX*`, `Topic:*`, or the same with `Group`.

        Raises:
            InvalidRequestError: it is something else.
        """
        kind, mark, name = text.partition(":")
        known = {each.lower(): each for each in ResourceType}
        if not mark or kind.lower() not in known:
            raise InvalidRequestError("a resource is Topic:NAME or Group:NAME; NAME may end with *", resource=text)
        literal = name.removesuffix("*")
        if literal:
            # A prefix may be any legal name; the limits of whole names hold for it as well.
            (names.check_topic if known[kind.lower()] is ResourceType.TOPIC else names.check_group)(literal)
        elif not name:
            raise InvalidRequestError("a resource needs a name, or * for all", resource=text)
        return cls(known[kind.lower()], name)

    def matches(self, type_: ResourceType, name: str) -> bool:
        """Whether a topic or group is meant."""
        if self.type is not type_:
            return False
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name

    @property
    def specificity(self) -> tuple[bool, int]:
        """Larger for what says more: a whole name, then longer prefixes."""
        return not self.name.endswith("*"), len(self.name)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


@dataclass(frozen=True, slots=True)
class Policy:
    """What one user may or may not do with one resource."""

    user: str
    resource: Resource
    actions: frozenset[Action]
    effect: Effect = Effect.ALLOW
    source_ips: tuple[str, ...] = ()
    """Addresses or networks (`10.0.0.0/8`) that it holds for; from anywhere if empty."""

    def matches(self, wanted: Wanted, source_ip: str | None) -> bool:
        """Whether it says anything about a request."""
        return (
            not self.actions.isdisjoint(wanted.actions)
            and self.resource.matches(wanted.type, wanted.name)
            and (not self.source_ips or _is_in(source_ip, self.source_ips))
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """One right that a request needs."""

    type: ResourceType
    name: str
    actions: frozenset[Action]
    """Any of these is enough."""

    def __str__(self) -> str:
        return f"{'/'.join(sorted(self.actions))} on {self.type}:{self.name}"


@dataclass(frozen=True, slots=True)
class AccessList:
    """All users and policies at one moment, to decide with."""

    enabled: bool
    users: Mapping[str, User]
    policies: Mapping[str, Sequence[Policy]]
    """By user."""

    def denied(self, user: User, wanted: Iterable[Wanted], source_ip: str | None = None) -> Wanted | None:
        """The first right that `user` does not have; None if all are there."""
        if user.is_super:
            return None
        policies = self.policies.get(user.name, ())
        return next((each for each in wanted if not _allows(policies, each, source_ip)), None)


def _allows(policies: Sequence[Policy], wanted: Wanted, source_ip: str | None) -> bool:
    matching = [policy for policy in policies if policy.matches(wanted, source_ip)]
    if not matching:
        return False
    decides = max(matching, key=lambda policy: (policy.resource.specificity, policy.effect is Effect.DENY))
    return decides.effect is Effect.ALLOW


def _is_in(source_ip: str | None, networks: Sequence[str]) -> bool:
    if source_ip is None:
        return False
    address = ipaddress.ip_address(source_ip)
    return any(address in ipaddress.ip_network(network, strict=False) for network in networks)


# ------------------------------------------------------------ the fold


class AccessControl(Fold):
    """Users, policies and the switch. Lives in the nameserver log."""

    name: ClassVar[str] = "acl"
    topics: ClassVar[tuple[str, ...]] = (TOPIC,)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.switch: UndoDict[str, bool] = self.table()
        """`enabled` -> whether requests are checked."""
        self.users: UndoDict[str, User] = self.table()
        self.policies: UndoDict[tuple[str, Resource], Policy] = self.table()

    def apply(self, records: Records) -> None:
        for value in records.values():
            kind = need(value["kind"], str, "kind")
            if kind == "switch":
                self.switch["enabled"] = bool(value["enabled"])
            elif kind == "user":
                self._apply_user(value)
            elif kind == "policy":
                key = need(value["user"], str, "user"), Resource.parse(need(value["resource"], str, "resource"))
                if value.get("deleted"):
                    self.policies.discard(key)
                else:
                    self.policies[key] = read_policy(value)
            else:
                raise ValueError(f"unknown kind of record: {kind}")

    def _apply_user(self, value: Mapping[str, Any]) -> None:
        name = need(value["user"], str, "user")
        if not value.get("deleted"):
            self.users[name] = read_user(value)
            return
        self.users.discard(name)
        for key in [key for key in self.policies if key[0] == name]:
            self.policies.discard(key)

    def dump(self) -> Any:
        return {
            "enabled": self.switch.get("enabled", False),
            "users": [user_record(user) for _, user in sorted(self.users.items())],
            "policies": [policy_record(policy) for _, policy in sorted(self.policies.items())],
        }

    def load(self, value: Any, version: int) -> None:
        users = map(read_user, value["users"])
        policies = map(read_policy, value["policies"])
        self.switch = self.table({"enabled": bool(value["enabled"])})
        self.users = self.table({user.name: user for user in users})
        self.policies = self.table({(policy.user, policy.resource): policy for policy in policies})

    def access_list(self) -> AccessList:
        """A copy to decide with."""
        policies: dict[str, list[Policy]] = {}
        for policy in self.policies.values():
            policies.setdefault(policy.user, []).append(policy)
        return AccessList(self.switch.get("enabled", False), dict(self.users), policies)


# ------------------------------------------------------------ records


def user_record(user: User) -> dict[str, Any]:
    """The record that creates or replaces a user.

    The secret is written in base64. That hides nothing from anybody who looks: it keeps it from being read by accident,
    over a shoulder or by a search for it. HMAC needs the secret itself, so no hash of it would do.
    """
    hidden = base64.b64encode(user.secret.encode()).decode()
    return {"kind": "user", "user": user.name, "secret": hidden, "super": user.is_super, "enabled": user.enabled}


def read_user(value: Mapping[str, Any]) -> User:
    """The user of a record."""
    try:
        secret = base64.b64decode(need(value["secret"], str, "secret"), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("secret is not in base64") from None
    return User(need(value["user"], str, "user"), secret, bool(value["super"]), bool(value["enabled"]))


def policy_record(policy: Policy) -> dict[str, Any]:
    """The record that creates or replaces a policy; a user has one for each resource."""
    return {
        "kind": "policy",
        "user": policy.user,
        "resource": str(policy.resource),
        "actions": sorted(policy.actions),
        "effect": str(policy.effect),
        "sourceIps": list(policy.source_ips),
    }


def read_policy(value: Mapping[str, Any]) -> Policy:
    """The policy of a record."""
    return Policy(
        need(value["user"], str, "user"),
        Resource.parse(need(value["resource"], str, "resource")),
        frozenset(map(Action, need(value["actions"], list, "actions"))),
        Effect(value["effect"]),
        check_networks(value["sourceIps"]),
    )


# ------------------------------------------------------------ checks of what people give


def parse_actions(texts: Iterable[str]) -> frozenset[Action]:
    """Read actions by name, in any case; `Admin` and `All` stand for several.

    Raises:
        InvalidRequestError: an unknown one, or none.
    """
    known = {each.lower(): frozenset({each}) for each in Action} | dict(_GROUPS)
    parsed: frozenset[Action] = frozenset()
    for text in texts:
        if text.lower() not in known:
            raise InvalidRequestError("no such action", action=text, known=[*map(str, Action), "Admin", "All"])
        parsed |= known[text.lower()]
    if not parsed:
        raise InvalidRequestError("a policy needs at least one action", known=[*map(str, Action), "Admin", "All"])
    return parsed


def check_user(name: str) -> str:
    """Return `name` if it can be a user's: it stands in a header between commas and slashes.

    Raises:
        InvalidRequestError: it cannot.
    """
    if not _USER.fullmatch(name):
        raise InvalidRequestError("a user name is 1 to 64 of a-z A-Z 0-9 _ . @ -", user=name)
    return name


def check_secret(secret: str) -> str:
    """Return `secret` if it is long enough; it is never repeated in an error.

    Raises:
        InvalidRequestError: it is not.
    """
    if not SECRET_CHARS_MIN <= len(secret) <= SECRET_CHARS_MAX or not secret.isprintable():
        raise InvalidRequestError(f"a secret has {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} printable characters")
    return secret


def check_networks(texts: Iterable[str]) -> tuple[str, ...]:
    """Return addresses and networks if they can be read.

    Raises:
        InvalidRequestError: one cannot.
    """
    networks = tuple(texts)
    for text in networks:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError as error:
            raise InvalidRequestError("not an IP address or network", source_ip=text) from error
    return networks
