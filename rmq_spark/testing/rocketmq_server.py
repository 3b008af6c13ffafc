"""RocketMQ 5.5.0 itself (nameserver, broker, two proxies) on free loopback ports: the peer of `make test-peer`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rmq_spark.testing.jars import ensure_jars, java_command
from rmq_spark.testing.servers import START_LIMIT_S, ServerProcess

_OPENED: Final = ("java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.util.concurrent", "java.base/java.lang")
_AUTH: Final = "org.apache.rocketmq.auth"
_EXPORTED: Final = ("java.base/sun.nio.ch", "java.base/jdk.internal.ref")

BROKER: Final[Mapping[str, object]] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": 0,
    "brokerIP1": "127.0.0.1",
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    # Not below 3 s: the broker notes the ends of transactions every 3 s, and asks about those that it has not noted.
    "transactionTimeOut": 6000,
    "transactionCheckInterval": 4000,
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeTimerLog": 8 << 20,
    # Without these the broker keeps no users; the broker itself checks nothing here, the second proxy does.
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
"""What differs from a broker's defaults: addresses, and what the stories need switched on or soon."""

ROOT: Final = ("root", "root-secret")
"""The super user that the proxy with access control uses itself."""


@dataclass(frozen=True, slots=True)
class RocketmqServer:
    """A running nameserver and broker, an open proxy, and one that checks signatures and rights."""

    broker: ServerProcess
    proxy: str
    """`host:port` of the open proxy. The same port takes TLS."""
    guarded: str
    """`host:port` of the proxy with access control."""

    def create_topic(self, name: str, kind: str, *, queues: int = 8) -> None:
        """Create a topic for messages of a kind (`NORMAL`, `FIFO`, `DELAY`, `TRANSACTION`)."""
        self.broker.ask(f"topic {name} {queues} {kind}")

    def create_group(self, name: str, *, orderly: bool = False, retries: int = 16) -> None:
        """Create a consumer group."""
        self.broker.ask(f"group {name} {str(orderly).lower()} {retries}")

    def create_user(self, name: str, secret: str, kind: str = "Normal") -> None:
        """Create a user; `kind` is `Normal` or `Super`."""
        self.broker.ask(f"user {name} {secret} {kind}")

    def allow(self, user: str, resource: str, actions: Sequence[str]) -> None:
        """Give a user rights on a resource such as `Topic:orders` or `Group:*`."""
        self.broker.ask(f"acl User:{user} {resource} {','.join(actions)} Allow")


@contextlib.contextmanager
def rocketmq_server(certificate: Path, key: Path) -> Iterator[RocketmqServer]:
    """Run RocketMQ in three JVMs; about 20 s to start, 2 GB of memory.

    Args:
        certificate: for TLS, in PEM.
        key: its key, in PEM.

    Raises:
        ServerStartError: a part did not start; the message holds its log.
        UnavailableError: there is no Java, or the jar set `rocketmq` could not be fetched.
    """
    class_path = os.pathsep.join(map(str, ensure_jars("rocketmq")))
    with (
        tempfile.TemporaryDirectory(prefix="rmq-rocketmq-", ignore_cleanup_errors=True) as scratch,
        contextlib.ExitStack() as held,
    ):
        home = Path(scratch)
        nameserver, broker_port = _free_port(), _free_port(2, 1)
        settings = {**BROKER, "listenPort": broker_port, "storePathRootDir": home / "store"}
        (home / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        broker = held.enter_context(_run("broker", home, class_path, nameserver, broker_port))
        broker.wait_for_ready_line()
        broker.ask(f"user {ROOT[0]} {ROOT[1]} Super")
        tls = {"tlsTestModeEnable": False, "tlsCertPath": str(certificate), "tlsKeyPath": str(key)}
        proxies = [
            held.enter_context(_proxy(home / name, class_path, nameserver, {**tls, **extra}))
            for name, extra in (("open", {}), ("guarded", _guard()))
        ]
        addresses = [proxy.wait_for_ready_line() for proxy in proxies]
        for address in addresses:
            _wait_until_open(address)
        yield RocketmqServer(broker, *addresses)


def _proxy(
    home: Path, class_path: str, nameserver: int, extra: Mapping[str, Any]
) -> contextlib.AbstractContextManager[ServerProcess]:
    port = _free_port()
    settings = {
        "rocketMQClusterName": "DefaultCluster",
        "grpcServerPort": port,
        "remotingListenPort": _free_port(),
        "useEndpointPortFromRequest": True,
        **extra,
    }
    home.mkdir()
    (home / "rmq-proxy.json").write_text(json.dumps(settings))
    return _run("proxy", home, class_path, nameserver, port)


def _guard() -> dict[str, Any]:
    """Settings of a proxy that checks signatures and rights."""
    return {
        "authenticationEnabled": True,
        "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider",
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": ROOT[0], "secretKey": ROOT[1]}),
        "authorizationEnabled": True,
        "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthorizationMetadataProvider",
    }


@contextlib.contextmanager
def _run(role: str, home: Path, class_path: str, nameserver: int, port: int) -> Iterator[ServerProcess]:
    source = Path(__file__).parent / "java" / "MiniRocketmq.java"
    flags = ["-Xmx768m", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=512m", f"-Duser.home={home}"]
    flags += [f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED]
    flags += [f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTED]
    command = [java_command(), *flags, "-cp", class_path, str(source), role, str(home), str(nameserver), str(port)]
    process = ServerProcess(f"RocketMQ {role}", command, {"ROCKETMQ_HOME": str(home)})
    try:
        yield process
    finally:
        process.stop()


def _wait_until_open(address: str) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _free_port(below: int = 0, above: int = 0) -> int:
    """A port that is free, as are the ones beside it that the broker takes without asking."""
    while True:
        with contextlib.ExitStack() as held:
            first = held.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                for beside in (*range(port - below, port), *range(port + 1, port + above + 1)):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", beside))
            except OSError:
                continue
            return port
