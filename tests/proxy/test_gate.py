"""Who is let in: calls under way are bounded for each client, for each host and in total."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from rmq_spark.clock import SystemClock
from rmq_spark.proxy import wire
from rmq_spark.proxy.calls import Call, Gate, Right
from rmq_spark.proxy.metrics import Metrics
from rmq_spark.proxy.settings import ProxySettings
from rmq_spark.proxy.status import OK, Code


@dataclass
class Context:
    """As much of gRPC's as the gate looks at."""

    host: str
    client_id: str
    port: int = 1

    def peer(self) -> str:
        return f"ipv4:{self.host}:{self.port}"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("x-mq-client-id", self.client_id)]


class Everybody:
    """Access control that is off."""

    def authenticate(self, call: Call) -> None:
        pass

    def allow(self, call: Call, right: Right, kind: str, name: str) -> None:
        pass


def test_a_host_cannot_take_all_calls_by_taking_many_client_ids() -> None:
    async def work() -> None:
        settings = ProxySettings(calls_max=4, calls_per_host_max=3, calls_per_client_max=2)
        gate = Gate(settings, SystemClock(), Metrics("c", "n"), None, Everybody())
        go_on = asyncio.Event()

        async def handle(call: Call, request: Any, context: Any) -> Any:
            await go_on.wait()
            return wire.HeartbeatResponse(status=OK)

        answer = gate.unary("Heartbeat", handle, wire.HeartbeatResponse)

        async def code(host: str, client_id: str, port: int = 1) -> int:
            return int((await answer(object(), Context(host, client_id, port))).status.code)

        under_way = [asyncio.create_task(code("10.0.0.1", f"client-{at}", at)) for at in range(3)]
        await asyncio.sleep(0)
        assert await code("10.0.0.1", "client-4") == Code.TOO_MANY_REQUESTS
        under_way.append(asyncio.create_task(code("10.0.0.2", "other")))
        await asyncio.sleep(0)
        assert gate.calls == 4
        assert await code("10.0.0.3", "third") == Code.TOO_MANY_REQUESTS
        go_on.set()
        assert await asyncio.gather(*under_way) == [Code.OK] * 4
        assert await code("10.0.0.1", "client-4") == Code.OK

    asyncio.run(work())
