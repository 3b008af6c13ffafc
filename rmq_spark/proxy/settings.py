"""Settings of a proxy: where it listens, what it allows, how long it waits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """How a proxy serves. The defaults are RocketMQ's where it has them."""

    listen: str = "127.0.0.1:8081"
    """Host and port; port 0 takes a free one."""
    advertise: tuple[str, ...] = ()
    """Hosts and ports that routes name; empty: the one that the client used."""
    metrics_port: int | None = None
    """Port of the Prometheus metrics, on the same host; None: none are served."""
    access_log: Path | None = None
    """File that gets a JSON line for each call; `-` is standard output."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    """Certificate chain and key in PEM: with them the proxy speaks TLS."""
    tls_client_ca: Path | None = None
    """Certificate that client certificates must be signed by (mutual TLS)."""

    auto_create_topics: bool = False
    """Whether a route for an unknown topic creates it."""
    body_bytes_max: int = limits.BODY_BYTES_MAX
    """Largest message body, unpacked."""
    user_properties_max: int = 128
    user_properties_bytes_max: int = 16 * 1024
    """User properties of one message: how many, and how long together."""
    delay_seconds_max: int = 86_400
    """How far ahead a delivery time may be; 0: as far as the store allows."""
    invisible_seconds_min: float = 10.0
    """Shortest invisible time of a receive without auto-renew."""
    renew_invisible_seconds: float = 60.0
    """Invisible time of messages that the proxy keeps for a push consumer; it renews it before it ends."""
    renew_seconds_max: float = 3 * 3600.0
    """So long messages are kept for a push consumer; then they are given back."""
    poll_seconds_max: float = 20.0
    """Longest time that a receive waits for messages."""

    calls_max: int = 20_000
    """Calls under way at once, receives that wait included."""
    calls_per_host_max: int = 10_000
    """Of these, calls from one address, whatever ids its clients take: the others keep the rest. Behind a load balancer
    that hides addresses, set it to `calls_max`."""
    calls_per_client_max: int = 1_024
    clients_max: int = 10_000
    """Clients with a telemetry stream at once."""
    waiting_bytes_max: int = 128 * 1024 * 1024
    """Bodies that wait for their commit; more are refused as too many requests."""
    threads: int = 32
    """Threads for calls to the store."""
    connection_idle_seconds: int = 300
    """A connection without calls is closed after so long."""
    handshake_seconds: int = 20
    """A connection that does not begin to speak is closed after so long."""
    client_grace_seconds: float = 5.0
    """A client whose telemetry stream ended is taken for gone after so long, unless it calls again."""
    client_expiry_seconds: float = 45.0
    """A client that was not heard of for so long is taken for gone; they say something each 10 s."""
    drain_seconds: float = 20.0
    """How long a stop waits for calls under way."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
                raise InvalidRequestError("setting must be at least 0", setting=field.name, value=value)
        for place in (self.listen, *self.advertise):
            host_and_port(place)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequestError("TLS needs both a certificate and a key")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidRequestError("client certificates need TLS; give a certificate and a key, too")


def host_and_port(text: str) -> tuple[str, int]:
    """The two sides of `HOST:PORT`; an IPv6 host may stand in brackets.

    Raises:
        InvalidRequestError: it is none.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidRequestError("an address is HOST:PORT", address=text)
    return host.removeprefix("[").removesuffix("]"), int(port)
