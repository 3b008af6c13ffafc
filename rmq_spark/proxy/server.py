"""A proxy as a whole: builds its parts, listens, and stops without losing a call."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError, UnavailableError
from rmq_spark.proxy import wire
from rmq_spark.proxy.access_log import AccessLog
from rmq_spark.proxy.auth import StoreAuthorizer
from rmq_spark.proxy.auto_renew import AutoRenew
from rmq_spark.proxy.calls import Authorizer, Gate, method_handlers, unimplemented
from rmq_spark.proxy.clients import Client, Clients
from rmq_spark.proxy.metrics import Metrics
from rmq_spark.proxy.pop import Pop
from rmq_spark.proxy.queue_offsets import QueueOffsets
from rmq_spark.proxy.receiving import Receiving, Watches
from rmq_spark.proxy.routes import Routes
from rmq_spark.proxy.sending import Sending
from rmq_spark.proxy.settings import ProxySettings, host_and_port
from rmq_spark.proxy.settling import Settling
from rmq_spark.proxy.telemetry import Telemetry
from rmq_spark.proxy.topics import Directory
from rmq_spark.proxy.transactions import CheckBack, TransactionEnds
from rmq_spark.proxy.workers import Workers
from rmq_spark.services.catalog import embedded_runner
from rmq_spark.services.runner import ServiceRunner

CLUSTER: Final = "DefaultCluster"
MESSAGE_BYTES_SPARE: Final = 4
"""A request may be so many times as large as a body: a body that is too large is then refused by its own code."""
SWITCH_SECONDS: Final = 0.0005
"""How long a thread keeps Python to itself while others wait: the store's threads must not wait for the event loop."""

GARBAGE_OBJECTS: Final = 20_000
"""New objects after which Python looks for cycles among them; calls make few, and the default of 700 costs 6 %."""

_log = logging.getLogger(__name__)


class Proxy:
    """Serves one store. Made, started and stopped in one event loop.

    Args:
        store: an open store; whoever opened it closes it, after `stop`.
        settings: where to listen, what to allow.
        authorizer: who may do what; by default the store's users and policies say it.
        services: what runs beside it; by default what every store needs (timers, revive, transaction check, rolling),
            unless the store was opened to run it by itself.
    """

    def __init__(
        self,
        store: Store,
        settings: ProxySettings | None = None,
        *,
        authorizer: Authorizer | None = None,
        services: ServiceRunner | None = None,
    ) -> None:
        self._store = store
        self._settings = settings = settings or ProxySettings()
        clock = store.clock
        name = f"proxy@{clock.token()[-8:]}"
        self._access_log = None if settings.access_log is None else AccessLog(settings.access_log, clock)
        self._metrics = metrics = Metrics(CLUSTER, name)
        self._policies = None
        if authorizer is None:
            authorizer = self._policies = StoreAuthorizer(store)
        self._gate = Gate(settings, clock, metrics, self._access_log, authorizer)
        self._workers = workers = Workers(settings.threads)
        self._directory = directory = Directory(store, settings, workers)
        self._clients = clients = Clients(settings, clock, metrics, self._client_gone)
        metrics.add_store(store, clients.consumers)
        self._pop = pop = Pop(store, name)
        self._watches = watches = Watches(store)
        self._renew = renew = AutoRenew(pop, settings, clock, workers, metrics)
        self._check_back = CheckBack(store, workers, clients)
        receiving = Receiving(
            store,
            settings,
            workers=workers,
            directory=directory,
            clients=clients,
            pop=pop,
            watches=watches,
            renew=renew,
            metrics=metrics,
        )
        offsets = QueueOffsets(
            store,
            settings,
            workers=workers,
            directory=directory,
            receiving=receiving,
            watches=watches,
            metrics=metrics,
        )
        self._handlers = self._bind(
            routes=Routes(settings, directory),
            telemetry=Telemetry(settings, clients, directory),
            sending=Sending(store, settings, workers, directory, metrics),
            ends=TransactionEnds(store, workers, directory, metrics),
            settling=Settling(workers, directory, pop, renew),
            receiving=receiving,
            offsets=offsets,
        )
        self._services = services or (
            ServiceRunner([], clock) if store.embeds_services else embedded_runner(store, everything=False)
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics_server: Any = None
        self._health: Any = None
        self._server: Any = None
        self.port = 0
        """Where it listens, once started."""
        self.metrics_port: int | None = None
        """Where the metrics are, once started."""

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Listen, and run the services.

        Raises:
            InvalidRequestError: a certificate or key cannot be read.
            UnavailableError: the address cannot be listened on.
        """
        settings = self._settings
        server = grpc.aio.server(options=_options(settings), maximum_concurrent_rpcs=2 * settings.calls_max)
        handlers = method_handlers(self._handlers, wire.SERVICE_DESCRIPTOR, wire.message_class)
        server.add_generic_rpc_handlers((handlers,))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (wire.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server, pool=_reflected())
        self.port = self._listen(server)
        self._server = server
        host, _ = host_and_port(settings.listen)
        if settings.metrics_port is not None:
            self._metrics_server, self.metrics_port = self._metrics.serve(host, settings.metrics_port)
        self._services.start()
        watches = [self._clients.watch, self._renew.watch, self._check_back.watch, self._count]
        if self._policies is not None:
            watches.append(self._policies.watch)
        for watch in watches:
            self._tasks.append(asyncio.create_task(_forever(watch)))
        await server.start()
        for service in ("", wire.SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._metrics.up.set(1)

    async def stop(self) -> None:
        """Tell clients to go elsewhere, answer the calls that are under way, and end. Stopping twice is no error."""
        server, self._server = self._server, None
        if server is None:
            return
        self._metrics.up.set(0)
        await self._health.enter_graceful_shutdown()
        command = wire.TelemetryCommand()
        command.reconnect_endpoints_command.nonce = self._store.clock.token()
        for client in self._clients.all():
            client.send(command)
        self._gate.stop()
        self._watches.stop()
        for client in self._clients.all():
            for commands in client.streams:
                with suppress(asyncio.QueueFull):
                    commands.put_nowait(None)  # the stream ends behind the command
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gate.drained(), self._settings.drain_seconds)
        await server.stop(1.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._renew.give_back_all()
        await asyncio.to_thread(self._end_threads)

    async def wait(self) -> None:
        """Wait until it is stopped."""
        if self._server is not None:
            await self._server.wait_for_termination()

    def _end_threads(self) -> None:
        self._services.stop()
        self._watches.join()
        self._workers.close()
        if self._metrics_server is not None:
            self._metrics_server.shutdown()
            self._metrics_server.server_close()
        if self._access_log is not None:
            self._access_log.close()

    # ------------------------------------------------------------ parts

    def _bind(
        self,
        *,
        routes: Routes,
        telemetry: Telemetry,
        sending: Sending,
        ends: TransactionEnds,
        settling: Settling,
        receiving: Receiving,
        offsets: QueueOffsets,
    ) -> dict[str, Any]:
        unary = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": telemetry.heartbeat,
            "NotifyClientTermination": telemetry.terminate,
            "SendMessage": sending.send_message,
            "RecallMessage": sending.recall_message,
            "EndTransaction": ends.end_transaction,
            "AckMessage": settling.ack_message,
            "ChangeInvisibleDuration": settling.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": settling.forward_to_dead_letter,
            "UpdateOffset": offsets.update_offset,
            "GetOffset": offsets.get_offset,
            "QueryOffset": offsets.query_offset,
            "SyncLiteSubscription": unimplemented,
        }
        stream = {
            "Telemetry": telemetry.telemetry,
            "ReceiveMessage": receiving.receive_message,
            "PullMessage": offsets.pull_message,
        }
        made: dict[str, Any] = {}
        for method in wire.SERVICE_DESCRIPTOR.methods:
            response = wire.message_class(method.output_type.name)
            if method.name in stream:
                made[method.name] = self._gate.stream(method.name, stream[method.name], response)
            else:
                made[method.name] = self._gate.unary(method.name, unary[method.name], response)
        return made

    def _listen(self, server: Any) -> int:
        address = self._settings.listen
        try:
            if self._settings.tls_cert is None:
                return int(server.add_insecure_port(address))
            return int(server.add_secure_port(address, _credentials(self._settings)))
        except RuntimeError as error:
            raise UnavailableError("the address cannot be listened on; is it in use?", address=address) from error

    async def _client_gone(self, client: Client) -> None:
        for commands in client.streams:
            with suppress(asyncio.QueueFull):
                commands.put_nowait(None)
        await self._renew.give_back(client.id)

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._metrics.calls.set(self._gate.calls)


def serve(
    store: Store,
    settings: ProxySettings | None = None,
    *,
    authorizer: Authorizer | None = None,
    ready: Callable[[Proxy], None] = lambda _: None,
) -> None:
    """Serve a store until SIGTERM or SIGINT, then stop without losing a call.

    Args:
        store: an open store; it is not closed.
        settings: where to listen, what to allow.
        authorizer: as of `Proxy`.
        ready: called when it listens.

    Raises:
        as `Proxy.start`.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # modules and the like stay for good
    gc.set_threshold(GARBAGE_OBJECTS)
    asyncio.run(_serve(store, settings, authorizer, ready))


async def _serve(
    store: Store,
    settings: ProxySettings | None,
    authorizer: Authorizer | None,
    ready: Callable[[Proxy], None],
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    proxy = Proxy(store, settings, authorizer=authorizer)
    await proxy.start()
    try:
        ready(proxy)
        await stop.wait()
    finally:
        await proxy.stop()


async def _forever(watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a loop that must not end: whatever it raises is logged, and it begins again."""
    while True:
        try:
            await watch()
        except Exception:  # noqa: BLE001 - a bug: the others go on
            _log.exception("a task of the proxy failed, and begins again")
            await asyncio.sleep(1)
        else:
            return


def _options(settings: ProxySettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_SPARE * settings.body_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", 16 * 1024),
        # More than one client may have at once: whoever calls too often is told so, instead of being kept waiting.
        ("grpc.max_concurrent_streams", 2 * settings.calls_per_client_max),
        ("grpc.max_connection_idle_ms", settings.connection_idle_seconds * 1000),
        ("grpc.server_handshake_timeout_ms", settings.handshake_seconds * 1000),
        # A client that vanished without closing its connection is noticed by its silence.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.so_reuseport", 0),
    ]


def _credentials(settings: ProxySettings) -> Any:
    try:
        assert settings.tls_cert is not None  # noqa: S101 - the settings were checked
        assert settings.tls_key is not None  # noqa: S101
        pair = (settings.tls_key.read_bytes(), settings.tls_cert.read_bytes())
        roots = None if settings.tls_client_ca is None else settings.tls_client_ca.read_bytes()
    except OSError as error:
        raise InvalidRequestError("a certificate or key cannot be read", file=error.filename) from error
    return grpc.ssl_server_credentials([pair], root_certificates=roots, require_client_auth=roots is not None)


def _reflected() -> Any:
    """What reflection shows: the protocol, and gRPC's own services beside it."""
    from google.protobuf import descriptor_pb2
    from grpc_reflection.v1alpha import reflection_pb2

    for module in (health_pb2, reflection_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        wire.POOL.AddSerializedFile(file.SerializeToString())
    return wire.POOL
