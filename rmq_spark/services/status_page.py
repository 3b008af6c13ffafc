"""What a process that runs services tells over HTTP: `/health` for supervisors, `/metrics` for Prometheus."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

from rmq_spark.errors import MissingExtraError, UnavailableError
from rmq_spark.services.runner import ServiceStatus

UNHEALTHY_FAILURES: Final = 5
"""A service that has failed so often in a row is not healthy: with its pauses that takes some seconds."""

Statuses = Callable[[], Sequence[ServiceStatus]]


def health(statuses: Sequence[ServiceStatus]) -> dict[str, Any]:
    """What `/health` tells: whether all services work, and how each is doing."""
    failing = [status.name for status in statuses if status.failures >= UNHEALTHY_FAILURES]
    return {
        "status": "failing" if failing else "ok",
        "failing": failing,
        "services": {
            status.name: {
                "runs": status.runs,
                "lastRun": status.last_run_ms,
                "behindMs": status.behind_ms,
                "failures": status.failures,
                "lastError": status.last_error,
            }
            for status in statuses
        },
    }


class StatusPage:
    """Answers on a port of all interfaces until it is closed.

    Args:
        port: of TCP; 0 takes a free one.
        statuses: asked with each request.
        metrics: answer `/metrics`, too.
        collectors: more of `prometheus_client` to ask for `/metrics`.

    Raises:
        MissingExtraError: `metrics` without prometheus-client.
        UnavailableError: the port is taken.
    """

    def __init__(self, port: int, statuses: Statuses, *, metrics: bool, collectors: Sequence[Any] = ()) -> None:
        expose = _exposition(statuses, collectors) if metrics else None

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/health":
                    told = health(statuses())
                    code = HTTPStatus.OK if told["status"] == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
                    self._answer(code, json.dumps(told).encode(), "application/json")
                elif self.path == "/metrics" and expose is not None:
                    body, kind = expose()
                    self._answer(HTTPStatus.OK, body, kind)
                else:
                    self._answer(HTTPStatus.NOT_FOUND, b"see /health\n", "text/plain")

            def _answer(self, code: HTTPStatus, body: bytes, kind: str) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: requests come every few seconds."""

        try:
            self._server = ThreadingHTTPServer(("", port), Handler)
        except OSError as error:
            raise UnavailableError("the port cannot be opened", port=port, reason=error.strerror) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        """Where it answers."""
        self._thread = threading.Thread(target=self._server.serve_forever, name="rmq-status-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> StatusPage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _exposition(statuses: Statuses, collectors: Sequence[Any]) -> Callable[[], tuple[bytes, str]]:
    """Makes the text that Prometheus reads, and its content type."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            'prometheus-client is not installed; run: pip install "rmq-spark[metrics]"', missing=error.name
        ) from error

    class Collector:
        def collect(self) -> Iterator[Any]:
            lag = GaugeMetricFamily(
                "rmq_service_lag_seconds", "How long the oldest work has been due", labels=["service"]
            )
            last = GaugeMetricFamily(
                "rmq_service_last_run_timestamp_seconds", "When a round last ended without an error", labels=["service"]
            )
            runs = CounterMetricFamily("rmq_service_runs", "Rounds that ended without an error", labels=["service"])
            failures = CounterMetricFamily("rmq_service_failures", "Rounds that failed", labels=["service"])
            for status in statuses():
                lag.add_metric([status.name], status.behind_ms / 1000)
                last.add_metric([status.name], (status.last_run_ms or 0) / 1000)
                runs.add_metric([status.name], status.runs)
                failures.add_metric([status.name], status.failures_total)
            yield from (lag, last, runs, failures)

    registry = CollectorRegistry()
    for each in (Collector(), *collectors):
        registry.register(each)
    return lambda: (generate_latest(registry), CONTENT_TYPE_LATEST)
