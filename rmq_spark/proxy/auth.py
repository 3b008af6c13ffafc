"""Who a caller is and what it may do, by the users and policies in the store's nameserver log."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from rmq_spark.client.acl import Acl
from rmq_spark.client.store import Store
from rmq_spark.errors import RmqError
from rmq_spark.proxy.calls import Call, Right
from rmq_spark.proxy.status import Code, RefusedError
from rmq_spark.rules.acl import AccessList, Action, ResourceType, User, Wanted
from rmq_spark.rules.signature import credential, is_signed_by
from rmq_spark.rules.system_topics import group_of

REFRESH_SECONDS: Final = 0.7
"""How often the store is asked: a change takes effect within about a second."""
STALE_SECONDS: Final = 30.0
"""If the store cannot be asked for so long, calls are refused: a user may have been deleted meanwhile."""
COMPLAINT_SECONDS: Final = 60.0
"""The same complaint about the same user from the same address is logged once in so long."""
_COMPLAINTS_MAX: Final = 1_024
DATE_FORMAT: Final = "%Y%m%dT%H%M%SZ"
"""Of the header `x-mq-date-time`, which is what clients sign."""
AGE_MS_MAX: Final = 24 * 3600 * 1000
"""A signature counts for so long before and after its date. Not for less: Apache's clients write the time of their own
time zone and call it UTC."""

_ACTIONS: Final = {
    Right.PUB: frozenset({Action.PUB}),
    Right.SUB: frozenset({Action.SUB}),
    Right.ANY: frozenset({Action.PUB, Action.SUB}),
}
_log = logging.getLogger(__name__)


class StoreAuthorizer:
    """Decides by the store's users and policies. While access control is off there, everybody may do everything.

    It reads the store when it is made, and then while `watch` runs.

    Raises:
        as reading the nameserver log.
    """

    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._acl = Acl(store)
        self._complaints: dict[tuple[str, str, str], int] = {}
        self._known = self._acl.access_list()
        self._known_ns = self._clock.elapsed_ns()

    async def watch(self) -> None:
        """Follow the changes in the store; ends by being cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            asked_ns = self._clock.elapsed_ns()
            try:
                self._known = await asyncio.to_thread(self._acl.access_list)
            except RmqError:
                _log.exception("users and policies cannot be read; the last ones hold for %s s", STALE_SECONDS)
            else:
                self._known_ns = asked_ns

    def authenticate(self, call: Call) -> None:
        """Go on if the call is signed by an enabled user, or access control is off.

        Raises:
            RefusedError: it is not (UNAUTHORIZED).
        """
        known = self._fresh()
        if not known.enabled:
            return
        header = call.metadata.get("authorization", "")
        signed = credential(header)
        if signed is None:
            raise self._unauthorized(call, "", "no signature" if not header else "a signature of another kind")
        name, signature = signed
        user = known.users.get(name)
        if user is None:
            raise self._unauthorized(call, name, "no such user")
        if not user.enabled:
            raise self._unauthorized(call, name, "the user is disabled")
        date_time = call.metadata.get("x-mq-date-time", "")
        if not is_signed_by(user, signature, date_time):
            raise self._unauthorized(call, name, "wrong signature")
        if not is_recent(date_time, self._clock.now_ms()):
            raise self._unauthorized(call, name, "an old signature, or the clocks differ by more than a day")
        call.user = call.facts["user"] = name

    def allow(self, call: Call, right: Right, kind: str, name: str) -> None:
        """Go on if the caller has `right`, or access control is off.

        The retry and dead-letter topics of a group are the group's: whoever may consume as it may read them.

        Raises:
            RefusedError: it has not (FORBIDDEN), or it never signed (UNAUTHORIZED).
        """
        known = self._fresh()
        if not known.enabled:
            return
        user = self._user(call, known)
        wanted = Wanted(ResourceType(kind), name, _ACTIONS[right])
        group = group_of(name) if kind == ResourceType.TOPIC else None
        if group is not None:
            wanted = Wanted(ResourceType.GROUP, group, _ACTIONS[Right.SUB])
        if known.denied(user, [wanted], source_ip(call.peer)) is not None:
            self._complain(call, user.name, f"no right to {wanted}")
            raise RefusedError(Code.FORBIDDEN, f"no policy allows {wanted}", user=user.name)

    def _user(self, call: Call, known: AccessList) -> User:
        name = call.user
        if name is None:  # a stream that began before access control was turned on
            raise self._unauthorized(call, "", "no signature")
        user = known.users.get(name)
        if user is None or not user.enabled:
            raise self._unauthorized(call, name, "the user was deleted or disabled")
        return user

    def _fresh(self) -> AccessList:
        if self._clock.elapsed_ns() - self._known_ns > STALE_SECONDS * 1e9:
            raise RefusedError(Code.HA_NOT_AVAILABLE, "users and policies cannot be read from the store; try again")
        return self._known

    def _unauthorized(self, call: Call, user: str, problem: str) -> RefusedError:
        """The caller is told that it is not known, not why: names of users cannot be found out by trying."""
        self._complain(call, user, problem)
        return RefusedError(Code.UNAUTHORIZED, "the signature is missing or wrong; check access key and secret")

    def _complain(self, call: Call, user: str, problem: str) -> None:
        address, now = source_ip(call.peer) or call.peer, self._clock.elapsed_ns()
        key = user[:64], address, problem
        if now - self._complaints.get(key, -(1 << 62)) < COMPLAINT_SECONDS * 1e9:
            return
        if len(self._complaints) >= _COMPLAINTS_MAX:
            self._complaints.clear()
        self._complaints[key] = now
        _log.warning("refused %s of user %r from %s: %s", call.rpc, user[:64], address, problem)


def is_recent(date_time: str, now_ms: int) -> bool:
    """Whether the header `x-mq-date-time` names a time that is near enough for its signature to count."""
    try:
        told = datetime.strptime(date_time, DATE_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return False
    return abs(told.timestamp() * 1000 - now_ms) <= AGE_MS_MAX


@lru_cache(maxsize=10_000)
def source_ip(peer: str) -> str | None:
    """The address in what gRPC says of a peer: `ipv4:10.0.0.1:1234`, `ipv6:[::1]:1234`; None for other peers."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    try:
        address = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]"))
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
