"""`rmq proxy`: serve a store to RocketMQ 5's own clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_spark.cli import output
from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, common
from rmq_spark.errors import MissingExtraError

if TYPE_CHECKING:
    from rmq_spark.proxy import Proxy

_OPTIONAL = ("grpc", "grpc_health", "grpc_reflection", "google", "prometheus_client")


def proxy(
    ctx: typer.Context,
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:8081",
    advertise: Annotated[
        list[str] | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="Address that routes name; may be repeated."),
    ] = None,
    metrics: Annotated[
        int | None, typer.Option("--metrics", metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics here.")
    ] = None,
    access_log: Annotated[
        Path | None, typer.Option("--access-log", metavar="FILE", help="A JSON line for each call; - is stdout.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option("--tls-client-ca", metavar="FILE", help="Clients need a certificate signed by this one."),
    ] = None,
    auto_create: Annotated[
        bool, typer.Option("--auto-create-topics", help="Create unknown topics when a client asks for their route.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Serve the store to RocketMQ 5 clients (gRPC) until it is told to stop; any number may run at once."""
    options = common(ctx, store, json, conf)
    try:
        from rmq_spark.proxy import ProxySettings, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OPTIONAL:
            raise
        raise MissingExtraError(f'{error.name} is not installed; run: pip install "rmq-spark[proxy]"') from error
    settings = ProxySettings(
        listen=listen,
        advertise=tuple(advertise or ()),
        metrics_port=metrics,
        access_log=access_log,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        auto_create_topics=auto_create,
    )

    def ready(running: Proxy) -> None:
        host = listen.rpartition(":")[0]
        document = {"listen": f"{host}:{running.port}", "metrics": running.metrics_port, "store": options.uri}
        options.out.result(document, f"proxy listens on {document['listen']}")
        output.finish()

    with options.open(read_only=False) as opened:
        serve(opened, settings, ready=ready)
