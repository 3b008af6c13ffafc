"""Telemetry, heartbeats and good-byes: settings both ways, and commands to clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from rmq_spark.model.limits import BODY_BYTES_MAX
from rmq_spark.proxy import wire
from rmq_spark.proxy.calls import Call, Right
from rmq_spark.proxy.clients import Client, Clients
from rmq_spark.proxy.incoming import group_name, resource_name, topic_name
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.status import OK, Code, RefusedError
from rmq_spark.proxy.topics import Directory
from rmq_spark.proxy.wire import ClientType
from rmq_spark.rules.delay import LEVELS_MS
from rmq_spark.rules.pop_decisions import RECEIVE_MAX

SEND_ATTEMPTS: Final = 3
SEND_BACKOFF_MS: Final = (10, 1_000)
"""First and longest pause of a producer between attempts; it doubles."""
REQUEST_TIMEOUT_SECONDS: Final = 3
_CONSUMERS: Final = frozenset({ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER})
_LITE: Final = frozenset({ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER})


class Telemetry:
    """Talks with clients about settings."""

    def __init__(self, settings: ProxySettings, clients: Clients, directory: Directory) -> None:
        self._settings = settings
        self._clients = clients
        self._directory = directory

    async def telemetry(self, call: Call, requests: Any, context: Any) -> AsyncIterator[Any]:
        """The telemetry stream: each of the client's settings is answered by the proxy's; commands come between."""
        client = self._clients.join(call.client_id, call.user)
        commands = self._clients.open_stream(client)
        reader = asyncio.ensure_future(self._read(call, client, requests, commands))
        try:
            while True:
                next_command = asyncio.ensure_future(commands.get())
                try:
                    await asyncio.wait((next_command, reader), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not next_command.done():
                        next_command.cancel()
                if not next_command.done():
                    await reader  # raises what was wrong with a request
                    return
                command = next_command.result()
                if command is None:
                    return
                if command.HasField("recover_orphaned_transaction_command"):
                    # It holds a message: the right to publish may have been withdrawn since the stream began.
                    topic = command.recover_orphaned_transaction_command.message.topic
                    call.allow_topic(Right.PUB, topic_name(topic))
                yield command
        finally:
            reader.cancel()
            self._clients.close_stream(client, commands)

    async def _read(self, call: Call, client: Client, requests: Any, commands: asyncio.Queue[Any]) -> None:
        async for command in requests:
            if command is None:
                raise RefusedError(Code.BAD_REQUEST, "the command cannot be decoded")
            self._clients.heard(client.id, call.user)
            if command.HasField("settings"):
                await commands.put(await self._settle(call, client, command.settings))
        # The client has said all it had to say, and may still listen: the stream ends when it leaves.
        await asyncio.Event().wait()

    async def _settle(self, call: Call, client: Client, told: Any) -> Any:
        kind = int(told.client_type)
        if kind in _LITE:
            raise RefusedError(Code.NOT_IMPLEMENTED, "lite consumers are not implemented; use an ordinary one")
        if kind not in (ClientType.PRODUCER, *_CONSUMERS):
            raise RefusedError(Code.UNRECOGNIZED_CLIENT_TYPE, "unknown client type", client_type=kind)
        client.type = ClientType(kind)
        settings = wire.Settings()
        settings.CopyFrom(told)
        if client.type is ClientType.PRODUCER:
            topics = [topic_name(each) for each in told.publishing.topics]
            for topic in topics:
                call.allow_topic(Right.PUB, topic)
            client.topics = frozenset(topics)
            self._publishing(settings)
        else:
            client.group = group_name(told.subscription.group)
            call.allow_group(client.group)
            await self._subscription(client.group, settings)
        if not settings.HasField("request_timeout"):
            settings.request_timeout.seconds = REQUEST_TIMEOUT_SECONDS
        settings.metric.on = False
        self._clients.count()
        return wire.TelemetryCommand(status=OK, settings=settings)

    def _publishing(self, settings: Any) -> None:
        settings.publishing.max_body_size = min(self._settings.body_bytes_max, BODY_BYTES_MAX)
        settings.publishing.validate_message_type = True
        policy = settings.backoff_policy
        policy.max_attempts = SEND_ATTEMPTS
        first, longest = SEND_BACKOFF_MS
        policy.exponential_backoff.initial.nanos = first * 1_000_000
        policy.exponential_backoff.max.seconds = longest // 1000
        policy.exponential_backoff.multiplier = 2

    async def _subscription(self, group: str, settings: Any) -> None:
        known = await self._directory.group(group)
        subscription = settings.subscription
        subscription.fifo = known.orderly
        subscription.receive_batch_size = RECEIVE_MAX
        if not 0 < subscription.long_polling_timeout.seconds <= self._settings.poll_seconds_max:
            subscription.long_polling_timeout.seconds = int(self._settings.poll_seconds_max)
            subscription.long_polling_timeout.nanos = 0
        policy = settings.backoff_policy
        policy.max_attempts = known.retry_max_times + 1
        del policy.customized_backoff.next[:]
        policy.customized_backoff.SetInParent()
        for ms in LEVELS_MS:
            policy.customized_backoff.next.add(seconds=ms // 1000)

    # ------------------------------------------------------------ heartbeat, good-bye

    async def heartbeat(self, call: Call, request: Any, context: Any) -> Any:
        """A client is there."""
        kind = int(request.client_type)
        if kind not in (ClientType.PRODUCER, *_CONSUMERS):
            raise RefusedError(Code.UNRECOGNIZED_CLIENT_TYPE, "unknown client type", client_type=kind)
        if kind in _CONSUMERS:
            call.allow_group(group_name(request.group))
        self._clients.heard(call.client_id, call.user)
        return wire.HeartbeatResponse(status=OK)

    async def terminate(self, call: Call, request: Any, context: Any) -> Any:
        """A client says that it ends."""
        if request.HasField("group"):
            call.group = resource_name(request.group)
        if self._clients.heard(call.client_id, call.user) is not None:
            await self._clients.leave(call.client_id)
        return wire.NotifyClientTerminationResponse(status=OK)
