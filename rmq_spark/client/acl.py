"""Access control of a store: its users, their policies, and the switch. Proxies check; see docs/proxy.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from rmq_spark.client.store import Store
from rmq_spark.errors import ExistsError, InvalidRequestError, NotFoundError
from rmq_spark.log.request import Decision
from rmq_spark.log.state import LogState
from rmq_spark.rules import acl as rules
from rmq_spark.rules.acl import TOPIC, AccessControl, AccessList, Effect, Policy, Resource, User


class Acl:
    """Users and policies of a store. Changes take effect in all proxies within about a second.

    It guards what comes through proxies. Whoever can read the store's files can read every message and every secret in
    it, whoever can write them can do everything: that is the storage's to guard.

    Example:
        >>> from rmq_spark import Store
        >>> with Store.create("memory://acl-example") as store:
        ...     acl = Acl(store)
        ...     acl.add_user("alice", "a long secret")
        ...     acl.add_policy("alice", "Topic:orders*", ["Pub", "Sub"])
        ...     [str(policy.resource) for policy in acl.policies("alice")]
        ['Topic:orders*']
    """

    def __init__(self, store: Store) -> None:
        self._log = store.nameserver

    def access_list(self) -> AccessList:
        """Everything as it is now, to decide with."""
        return self._log.look(lambda view: view.state.fold(AccessControl).access_list())

    @property
    def enabled(self) -> bool:
        """Whether proxies check requests."""
        return self.access_list().enabled

    def turn_on(self) -> None:
        """Let proxies check every request: what no policy allows is denied.

        Raises:
            InvalidRequestError: there is no enabled user, so nobody could do anything.
        """

        def decide(fold: AccessControl) -> list[dict[str, Any]]:
            if not any(user.enabled for user in fold.users.values()):
                raise InvalidRequestError("add a user first: with access control on, nobody could do anything")
            return [] if fold.switch.get("enabled") else [{"kind": "switch", "enabled": True}]

        self._decide(decide)

    def turn_off(self) -> None:
        """Let proxies take every request; users and policies stay."""
        self._decide(lambda fold: [{"kind": "switch", "enabled": False}] if fold.switch.get("enabled") else [])

    # ------------------------------------------------------------ users

    def users(self) -> list[User]:
        """All users, by name. Their `repr` shows no secret."""
        return [user for _, user in sorted(self.access_list().users.items())]

    def add_user(self, name: str, secret: str, *, is_super: bool = False) -> None:
        """Create a user who signs with `secret`; a super user may do everything.

        Raises:
            ExistsError: there is one of that name.
            InvalidRequestError: an illegal name, or a secret that is too short.
        """
        user = User(rules.check_user(name), rules.check_secret(secret), is_super)

        def decide(fold: AccessControl) -> list[dict[str, Any]]:
            if name in fold.users:
                raise ExistsError("there is a user of that name already; update it instead", user=name)
            return [rules.user_record(user)]

        self._decide(decide)

    def update_user(
        self, name: str, *, secret: str | None = None, is_super: bool | None = None, enabled: bool | None = None
    ) -> None:
        """Change those fields of a user that are not None.

        Raises:
            NotFoundError: there is no such user.
            InvalidRequestError: a secret that is too short.
        """
        wanted = {"secret": secret, "is_super": is_super, "enabled": enabled}
        changes: dict[str, Any] = {field: value for field, value in wanted.items() if value is not None}
        if secret is not None:
            rules.check_secret(secret)

        def decide(fold: AccessControl) -> list[dict[str, Any]]:
            return [rules.user_record(replace(_known(fold, name), **changes))]

        self._decide(decide)

    def delete_user(self, name: str) -> None:
        """Delete a user and its policies.

        Raises:
            NotFoundError: there is no such user.
        """
        self._decide(lambda fold: [{"kind": "user", "user": _known(fold, name).name, "deleted": True}])

    # ------------------------------------------------------------ policies

    def policies(self, user: str | None = None) -> list[Policy]:
        """All policies, or those of one user, by user and resource.

        Raises:
            NotFoundError: there is no such user.
        """
        known = self.access_list()
        if user is not None and user not in known.users:
            raise NotFoundError("no such user", user=user)
        chosen = (policy for name, held in known.policies.items() if user in (None, name) for policy in held)
        return sorted(chosen, key=lambda policy: (policy.user, policy.resource))

    def add_policy(
        self,
        user: str,
        resource: str,
        actions: Iterable[str],
        *,
        effect: str = Effect.ALLOW,
        source_ips: Iterable[str] = (),
    ) -> Policy:
        """Say what a user may or may not do with a resource; replaces the user's policy for the same resource.

        Args:
            user: whose.
            resource: `Topic:NAME` or `Group:NAME`; NAME may be a prefix with `*` behind it, or only `*`.
            actions: of `Pub`, `Sub`, `Create`, `Update`, `Delete`, `Get`, `List`; `Admin` stands for the last five,
                `All` for all.
            effect: `Allow` or `Deny`.
            source_ips: addresses or networks that it holds for; from anywhere if none.

        Raises:
            NotFoundError: there is no such user.
            InvalidRequestError: something cannot be read.
        """
        known = {each.lower(): each for each in Effect}
        if effect.lower() not in known:
            raise InvalidRequestError("a policy's effect is Allow or Deny", effect=effect)
        policy = Policy(
            user,
            Resource.parse(resource),
            rules.parse_actions(actions),
            known[effect.lower()],
            rules.check_networks(source_ips),
        )

        def decide(fold: AccessControl) -> list[dict[str, Any]]:
            _known(fold, user)
            return [rules.policy_record(policy)]

        self._decide(decide)
        return policy

    def delete_policy(self, user: str, resource: str) -> None:
        """Delete a user's policy for a resource.

        Raises:
            NotFoundError: there is none.
            InvalidRequestError: the resource cannot be read.
        """
        parsed = Resource.parse(resource)

        def decide(fold: AccessControl) -> list[dict[str, Any]]:
            if (user, parsed) not in fold.policies:
                raise NotFoundError("the user has no policy for that resource", user=user, resource=resource)
            return [{"kind": "policy", "user": user, "resource": str(parsed), "deleted": True}]

        self._decide(decide)

    def _decide(self, change: Callable[[AccessControl], list[dict[str, Any]]]) -> None:
        def rule(state: LogState) -> Decision[None]:
            return Decision(None, records=[(TOPIC, record) for record in change(state.fold(AccessControl))])

        self._log.decide(rule)


def _known(fold: AccessControl, name: str) -> User:
    user = fold.users.get(name)
    if user is None:
        raise NotFoundError("no such user", user=name)
    return user
