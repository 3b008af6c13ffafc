"""Where clients go: routes of topics, and the queues that a push consumer is assigned."""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from rmq_spark.proxy import wire
from rmq_spark.proxy.calls import Call, Right
from rmq_spark.proxy.incoming import group_name, topic_name
from rmq_spark.proxy.outgoing import accepted_types
from rmq_spark.proxy.settings import ProxySettings, host_and_port
from rmq_spark.proxy.status import OK, Code, RefusedError
from rmq_spark.proxy.topics import Directory
from rmq_spark.proxy.wire import AddressScheme, Permission

ANY_QUEUE: Final = -1
"""A push consumer of an ordinary group receives from all queues of a broker at once."""

_PERMISSIONS: Final = {
    (True, True): Permission.READ_WRITE,
    (True, False): Permission.READ,
    (False, True): Permission.WRITE,
    (False, False): Permission.NONE,
}
"""By whether a queue may be read and written."""


class Routes:
    """Answers where to send to and where to receive from."""

    def __init__(self, settings: ProxySettings, directory: Directory) -> None:
        self._settings = settings
        self._directory = directory

    async def query_route(self, call: Call, request: Any, context: Any) -> Any:
        """The queues of a topic, and at which address they are."""
        name = topic_name(request.topic)
        call.allow_topic(Right.ANY, name)
        topic = await self._directory.topic(name, create=True)
        endpoints = self._endpoints(request.endpoints)
        response = wire.QueryRouteResponse(status=OK)
        types = accepted_types(name, topic.message_type)
        writable = set(topic.writable_queues())
        for broker, queue in topic.message_queues():
            permission = _PERMISSIONS[topic.is_readable, (broker, queue) in writable]
            one = response.message_queues.add(
                topic=request.topic, id=queue, permission=permission, accept_message_types=types
            )
            one.broker.name = broker
            one.broker.id = 0
            one.broker.endpoints.CopyFrom(endpoints)
        return response

    async def query_assignment(self, call: Call, request: Any, context: Any) -> Any:
        """The queues that a push consumer receives from: all of each broker; one by one for a FIFO group."""
        name, group = topic_name(request.topic), group_name(request.group)
        call.allow_topic(Right.SUB, name)
        call.allow_group(group)
        topic = await self._directory.topic(name)
        settings = await self._directory.group(group)
        endpoints = self._endpoints(request.endpoints)
        if settings.orderly:
            places = topic.message_queues()
        else:
            places = [(broker, ANY_QUEUE) for broker in sorted(topic.queues)]
        response = wire.QueryAssignmentResponse(status=OK)
        for broker, queue in places:
            one = response.assignments.add().message_queue
            one.topic.CopyFrom(request.topic)
            one.id = queue
            one.permission = Permission.READ_WRITE
            one.broker.name = broker
            one.broker.endpoints.CopyFrom(endpoints)
            one.accept_message_types.extend(accepted_types(name, topic.message_type))
        return response

    def _endpoints(self, asked: Any) -> Any:
        """The address to name: the proxy's own if it has one to tell, else the one that the client used."""
        if not self._settings.advertise:
            if not asked.addresses:
                raise RefusedError(
                    Code.ILLEGAL_ACCESS_POINT, "the request names no endpoints, and the proxy advertises none"
                )
            return asked
        endpoints = type(asked)()
        for place in self._settings.advertise:
            host, port = host_and_port(place)
            endpoints.addresses.add(host=host, port=port)
        endpoints.scheme = address_scheme(endpoints.addresses[0].host)
        return endpoints


def address_scheme(host: str) -> AddressScheme:
    """What kind of host it is."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return AddressScheme.DOMAIN_NAME
    return AddressScheme.IPV4 if version == 4 else AddressScheme.IPV6
