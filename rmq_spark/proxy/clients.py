"""The clients of a proxy: who has a telemetry stream, who was heard of when, and who has gone."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rmq_spark.clock import Clock
from rmq_spark.proxy.metrics import Metrics
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.status import Code, RefusedError
from rmq_spark.proxy.wire import ClientType

COMMANDS_WAITING_MAX: Final = 256
"""Commands that wait for a slow client; more are dropped, for each is sent again later."""
LOOK_SECONDS: Final = 0.5

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Client:
    """A client that was heard of."""

    id: str
    type: ClientType = ClientType.UNSPECIFIED
    user: str | None = None
    """Whose it is; None: nobody has signed for it."""
    group: str = ""
    """The group that it consumes for."""
    topics: frozenset[str] = frozenset()
    """Where it publishes."""
    heard_ns: int = 0
    """When it last said anything."""
    left_ns: int | None = None
    """When its last telemetry stream ended; None while it has one."""
    streams: list[asyncio.Queue[Any]] = field(default_factory=list)
    """Commands for each of its telemetry streams."""

    def send(self, command: Any) -> bool:
        """Send a command over the newest telemetry stream; False when there is none, or it is too slow."""
        if not self.streams:
            return False
        try:
            self.streams[-1].put_nowait(command)
        except asyncio.QueueFull:
            return False
        return True


Gone = Callable[[Client], Awaitable[None]]


class Clients:
    """All clients of a proxy. Used from one event loop.

    Args:
        settings: limits and times.
        clock: for time that has passed.
        metrics: counts them.
        gone: called once for each client that has gone.
    """

    def __init__(self, settings: ProxySettings, clock: Clock, metrics: Metrics, gone: Gone) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._gone = gone
        self._clients: dict[str, Client] = {}

    def heard(self, client_id: str, user: str | None) -> Client | None:
        """Note that a client called, signed by `user`; the client, if it is known.

        Raises:
            RefusedError: the client is another user's: what that holds and is asked is not for this one.
        """
        client = self._clients.get(client_id)
        if client is not None:
            if user is not None and client.user not in (None, user):
                raise RefusedError(Code.FORBIDDEN, "another user has a client of this id; take an id of your own")
            client.user = client.user or user
            client.heard_ns = self._clock.elapsed_ns()
        return client

    def join(self, client_id: str, user: str | None) -> Client:
        """The client, known from now on.

        Raises:
            RefusedError: there are too many, or as `heard`.
        """
        client = self.heard(client_id, user)
        if client is None:
            if len(self._clients) >= self._settings.clients_max:
                raise RefusedError(Code.TOO_MANY_REQUESTS, "the proxy has too many clients; use another one")
            now = self._clock.elapsed_ns()
            # Heard of after it left: it has not gone, it has no stream yet.
            client = self._clients[client_id] = Client(client_id, user=user, heard_ns=now, left_ns=now - 1)
        return client

    def open_stream(self, client: Client) -> asyncio.Queue[Any]:
        """The commands for a new telemetry stream of a client."""
        commands: asyncio.Queue[Any] = asyncio.Queue(COMMANDS_WAITING_MAX)
        client.streams.append(commands)
        client.left_ns = None
        self.count()
        return commands

    def close_stream(self, client: Client, commands: asyncio.Queue[Any]) -> None:
        """A telemetry stream has ended."""
        client.streams.remove(commands)
        if not client.streams:
            client.left_ns = self._clock.elapsed_ns()
        self.count()

    async def leave(self, client_id: str) -> None:
        """A client says that it ends."""
        client = self._clients.pop(client_id, None)
        if client is not None:
            self.count()
            await self._gone(client)

    def publishers(self, topic: str) -> list[Client]:
        """Producers with a telemetry stream that publish to a topic, the newest first."""
        return [client for client in reversed(self._clients.values()) if topic in client.topics and client.streams]

    def published_topics(self) -> set[str]:
        """The topics that any producer with a telemetry stream publishes to."""
        return {topic for client in self._clients.values() if client.streams for topic in client.topics}

    def all(self) -> Iterable[Client]:
        """Every client."""
        return list(self._clients.values())

    async def watch(self) -> None:
        """Take clients for gone that are, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock.elapsed_ns()
            for client in self.all():
                if self._is_gone(client, now):
                    _log.info("client has gone: %s", client.id)
                    await self.leave(client.id)

    def _is_gone(self, client: Client, now_ns: int) -> bool:
        if client.left_ns is not None and client.heard_ns <= client.left_ns:
            return now_ns - client.left_ns > self._settings.client_grace_seconds * 1e9
        return now_ns - client.heard_ns > self._settings.client_expiry_seconds * 1e9

    def count(self) -> None:
        """Count connections for the metrics."""
        kinds = [client.type for client in self._clients.values() if client.streams]
        self._metrics.producers.set(kinds.count(ClientType.PRODUCER))

    def consumers(self) -> Mapping[str, int]:
        """Consumers with a telemetry stream by group; from any thread."""
        return Counter(client.group for client in self.all() if client.group and client.streams)
