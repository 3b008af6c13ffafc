"""What every call goes through: who calls, whether it is allowed and not too much, how it ended."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError

from rmq_spark.clock import Clock
from rmq_spark.errors import RmqError
from rmq_spark.proxy.access_log import AccessLog
from rmq_spark.proxy.metrics import Metrics
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.status import Code, RefusedError, code_of, status_of

CLIENT_ID: Final = "x-mq-client-id"
CLIENT_ID_CHARS_MAX: Final = 256

_log = logging.getLogger(__name__)


class Right(StrEnum):
    """What a call does with a topic or a group, as RocketMQ's policies name it."""

    PUB = "Pub"
    SUB = "Sub"
    ANY = "Any"
    """One of them is enough: a route is for both."""


@dataclass(slots=True)
class Call:
    """One call: who makes it, and what is known of it so far."""

    rpc: str
    client_id: str
    peer: str
    metadata: Mapping[str, str]
    began_ns: int
    authorizer: Authorizer
    admitted: bool = False
    """Whether it counts as under way."""
    topic: str = ""
    group: str = ""
    """For the access log."""
    facts: dict[str, object] = field(default_factory=dict)
    user: str | None = None
    """Who signed it; None: nobody, or access control is off."""

    @property
    def host(self) -> str:
        """Where it comes from: the peer without its port."""
        return self.peer.rpartition(":")[0]

    def allow_topic(self, right: Right, topic: str) -> None:
        """Go on if the caller has this right on a topic.

        Raises:
            RefusedError: it has not.
        """
        self.topic = topic
        self.authorizer.allow(self, right, "Topic", topic)

    def allow_group(self, group: str) -> None:
        """Go on if the caller may consume as a group.

        Raises:
            RefusedError: it may not.
        """
        self.group = group
        self.authorizer.allow(self, Right.SUB, "Group", group)


class Authorizer(Protocol):
    """Decides who may do what. It must not block: it is asked in the event loop."""

    def authenticate(self, call: Call) -> None:
        """Go on if the caller is who it says it is.

        Raises:
            RefusedError: it is not (UNAUTHORIZED).
        """

    def allow(self, call: Call, right: Right, kind: str, name: str) -> None:
        """Go on if the caller has `right` on the `Topic` or `Group` of this name.

        Raises:
            RefusedError: it has not (FORBIDDEN).
        """


Unary = Callable[[Call, Any, Any], Awaitable[Any]]
Stream = Callable[[Call, Any, Any], AsyncIterator[Any]]


class Gate:
    """Lets calls in, up to the limits, and records how they ended. Used from one event loop."""

    def __init__(
        self,
        settings: ProxySettings,
        clock: Clock,
        metrics: Metrics,
        access_log: AccessLog | None,
        authorizer: Authorizer,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._access_log = access_log
        self._authorizer = authorizer
        self._calls = 0
        self._by_client: Counter[str] = Counter()
        self._by_host: Counter[str] = Counter()
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def calls(self) -> int:
        """Calls under way."""
        return self._calls

    def stop(self) -> None:
        """Let nobody in any more."""
        self._stopping = True

    async def drained(self) -> None:
        """Wait until no call is under way."""
        await self._idle.wait()

    def unary(self, rpc: str, handle: Unary, response: Any) -> Any:
        """A handler for a call with one answer: `response` is its class."""

        async def answer(request: Any, context: Any) -> Any:
            call = self._open(rpc, context)
            try:
                self._admit(call, request)
                reply = await handle(call, request, context)
            except (RmqError, RefusedError) as refused:
                self._leave(call, refused)
                return response(status=status_of(refused))
            except asyncio.CancelledError:
                self._leave(call, RefusedError(Code.REQUEST_TIMEOUT, "the client has gone"))
                raise
            except Exception as bug:  # noqa: BLE001 - the client gets an answer, whatever happened
                _log.exception("%s failed", rpc)
                self._leave(call, bug)
                return response(status=status_of(bug))
            self._leave(call, None)
            return reply

        return answer

    def stream(self, rpc: str, handle: Stream, response: Any) -> Any:
        """A handler for a call with several answers; an error becomes one more."""

        async def answer(request: Any, context: Any) -> AsyncIterator[Any]:
            call = self._open(rpc, context)
            ended: BaseException | None = RefusedError(Code.REQUEST_TIMEOUT, "the client has gone")
            try:
                self._admit(call, request)
                async for reply in handle(call, request, context):
                    yield reply
                ended = None
            except (RmqError, RefusedError) as refused:
                ended = refused
                yield response(status=status_of(refused))
            except Exception as bug:  # noqa: BLE001 - the client gets an answer, whatever happened
                _log.exception("%s failed", rpc)
                ended = bug
                yield response(status=status_of(bug))
            finally:
                self._leave(call, ended)

        return answer

    def _open(self, rpc: str, context: Any) -> Call:
        metadata = dict(context.invocation_metadata() or ())
        client_id = metadata.get(CLIENT_ID, "")
        return Call(rpc, client_id, context.peer(), metadata, self._clock.elapsed_ns(), self._authorizer)

    def _admit(self, call: Call, request: Any) -> None:
        self._check(call)
        if request is None:
            raise RefusedError(Code.BAD_REQUEST, "the request cannot be decoded")
        self._authorizer.authenticate(call)
        call.admitted = True
        self._calls += 1
        self._idle.clear()
        self._by_client[call.client_id] += 1
        self._by_host[call.host] += 1

    def _check(self, call: Call) -> None:
        if self._stopping:
            raise RefusedError(Code.HA_NOT_AVAILABLE, "the proxy is stopping; use another one")
        if not call.client_id or len(call.client_id) > CLIENT_ID_CHARS_MAX:
            raise RefusedError(Code.CLIENT_ID_REQUIRED, "a call needs the header x-mq-client-id, up to 256 characters")
        if self._calls >= self._settings.calls_max:
            raise RefusedError(Code.TOO_MANY_REQUESTS, "too many calls are under way; try again later")
        if self._by_client[call.client_id] >= self._settings.calls_per_client_max:
            raise RefusedError(Code.TOO_MANY_REQUESTS, "too many calls of this client are under way; wait for some")
        if self._by_host[call.host] >= self._settings.calls_per_host_max:
            raise RefusedError(Code.TOO_MANY_REQUESTS, "too many calls of this host are under way; wait for some")

    def _leave(self, call: Call, error: BaseException | None) -> None:
        if call.admitted:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
            for counts, who in ((self._by_client, call.client_id), (self._by_host, call.host)):
                counts[who] -= 1
                if not counts[who]:
                    del counts[who]
        code = Code.OK if error is None else code_of(error)
        seconds = (self._clock.elapsed_ns() - call.began_ns) / 1e9
        self._metrics.note_call(call.rpc, code, seconds)
        if self._access_log is not None:
            self._access_log.write(call, code, seconds, None if error is None else str(error))


async def unimplemented(call: Call, request: Any, context: Any) -> Any:
    """A handler for a call that is not implemented.

    Raises:
        RefusedError: always.
    """
    raise RefusedError(Code.NOT_IMPLEMENTED, f"{call.rpc} is not implemented by this proxy")


def method_handlers(handlers: Mapping[str, Any], descriptor: Any, message_class: Callable[[str], Any]) -> Any:
    """What gRPC needs to serve `descriptor`'s methods by `handlers`, by name."""
    made = {}
    for method in descriptor.methods:
        kinds = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }
        kind = kinds[method.client_streaming, method.server_streaming]
        made[method.name] = kind(
            handlers[method.name],
            request_deserializer=partial(_decoded, message_class(method.input_type.name)),
            response_serializer=message_class(method.output_type.name).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(descriptor.full_name, made)


def _decoded(kind: Any, data: bytes) -> Any:
    """The request; None if it is none. gRPC would log a traceback for each of those that hostile clients send."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None
