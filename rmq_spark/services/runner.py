"""Running services in threads: until they are stopped, whatever fails, with a status of each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final

from rmq_spark.clock import Clock
from rmq_spark.errors import ClosedError
from rmq_spark.services.service import Service

BACK_OFF_SECONDS_MIN: Final = 0.1
BACK_OFF_SECONDS_MAX: Final = 30.0
"""Pause after a failure; it doubles with each further one."""
WAIT_SECONDS_MAX: Final = 0.5
"""A stop is noticed within so long."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How a service is doing."""

    name: str
    runs: int = 0
    last_run_ms: int | None = None
    """When it last ended a round without an error; None if it never did."""
    behind_ms: int = 0
    """How long the oldest work has waited that it left undone."""
    failures: int = 0
    """Rounds that failed since the last one that did not."""
    last_error: str | None = None


class ServiceRunner:
    """Runs each service in a thread of its own. A failure is logged and tried again after a pause.

    Args:
        services: what to run.
        clock: for the status.
    """

    def __init__(self, services: Sequence[Service], clock: Clock) -> None:
        self._services = list(services)
        self._clock = clock
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._status = {service.name: ServiceStatus(service.name) for service in self._services}

    def start(self) -> None:
        """Start the threads."""
        for service in self._services:
            thread = threading.Thread(target=self._run, args=(service,), name=f"rmq-{service.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Let each service end its round, and wait for it. Stopping twice is no error."""
        self._stop.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def status(self) -> list[ServiceStatus]:
        """How the services are doing now."""
        return list(self._status.values())

    def __enter__(self) -> ServiceRunner:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, service: Service) -> None:
        while not self._stop.is_set():
            try:
                seconds = service.run_once()
                self._note_success(service)
                self._wait(service, seconds)
            except ClosedError:
                _log.info("service %s ends: its store was closed", service.name)
                return
            except Exception as error:  # noqa: BLE001 - a bug included: the others go on, and this one tries again
                status = self._note_failure(service, error)
                _log.exception("service %s failed for the %d. time in a row", service.name, status.failures)
                self._stop.wait(min(BACK_OFF_SECONDS_MIN * 2 ** (status.failures - 1), BACK_OFF_SECONDS_MAX))

    def _wait(self, service: Service, seconds: float) -> None:
        if not self._stop.is_set():
            service.wait(min(seconds, WAIT_SECONDS_MAX))

    def _note_success(self, service: Service) -> None:
        before = self._status[service.name]
        self._status[service.name] = ServiceStatus(
            service.name, before.runs + 1, self._clock.now_ms(), service.behind_ms(), 0, None
        )

    def _note_failure(self, service: Service, error: Exception) -> ServiceStatus:
        before = self._status[service.name]
        status = replace(before, failures=before.failures + 1, last_error=f"{type(error).__name__}: {error}")
        self._status[service.name] = status
        return status
