"""Running services in threads: until they are stopped, whatever fails, with a status of each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final

from rmq_spark.clock import Clock
from rmq_spark.errors import ClosedError, RmqError
from rmq_spark.services.parts import PartedService, back_off_seconds, tell_failure
from rmq_spark.services.service import Service, WakefulService

STOP_LOOK_SECONDS: Final = 0.02
"""Whoever stops looks so often whether a thread has ended, and wakes it again if not."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How a service is doing."""

    name: str
    runs: int = 0
    """Rounds that ended without an error."""
    last_run_ms: int | None = None
    """When it last ended a round without an error; None if it never did."""
    behind_ms: int = 0
    """How long the oldest work has waited that it left undone."""
    failures: int = 0
    """Rounds that failed since the last one that did not; if it fails for some brokers or groups only, those of the one
    that has failed most."""
    last_error: str | None = None
    """Why it fails now, and for whom, if it works for others."""
    failures_total: int = 0
    """Rounds that failed since the start, for a broker or a group included."""


class ServiceRunner:
    """Runs services in threads. A failure is logged and tried again after a pause; the others go on.

    A service that fails for some brokers or groups only (`PartedService`) goes on for the others without a pause.

    Args:
        services: what to run, each in a thread of its own.
        clock: for the status.
        lanes: what to run, each of these groups in one thread. In a group only the first service may wait for work by
            itself (`WakefulService`).
    """

    def __init__(self, services: Sequence[Service], clock: Clock, *, lanes: Sequence[Sequence[Service]] = ()) -> None:
        self._lanes = [[service] for service in services] + [list(lane) for lane in lanes if lane]
        self._clock = clock
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._down: set[str] = set()
        """Services that pause because their last round failed as a whole."""
        self._status = {service.name: ServiceStatus(service.name) for lane in self._lanes for service in lane}

    def start(self) -> None:
        """Start the threads."""
        for lane in self._lanes:
            thread = threading.Thread(target=self._run, args=(lane,), name=f"rmq-{lane[0].name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Let each service end its round, and wait for it. Stopping twice is no error."""
        self._stop.set()
        for thread, lane in zip(self._threads, self._lanes, strict=False):
            while thread is not threading.current_thread() and thread.is_alive():
                if isinstance(lane[0], WakefulService):
                    lane[0].wake()
                thread.join(STOP_LOOK_SECONDS)

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

    def _run(self, lane: list[Service]) -> None:
        due_ns = dict.fromkeys(range(len(lane)), 0)
        first = lane[0]
        while not self._stop.is_set():
            for number, service in enumerate(lane):
                if self._stop.is_set():
                    return
                if due_ns[number] <= self._clock.elapsed_ns():
                    seconds = self._round(service)
                    if seconds is None:
                        return
                    due_ns[number] = self._clock.elapsed_ns() + int(seconds * 1e9)
            pause = max(0.0, (min(due_ns.values()) - self._clock.elapsed_ns()) / 1e9)
            if isinstance(first, WakefulService) and first.name not in self._down:
                if not self._wait(first, pause):
                    return
                due_ns[0] = 0
            else:
                self._stop.wait(pause)

    def _wait(self, service: WakefulService, seconds: float) -> bool:
        """Whether to go on after it."""
        try:
            if seconds and not self._stop.is_set():
                service.wait(seconds)
        except ClosedError:
            return False
        except RmqError as error:
            self._note_failure(service, error)
        return True

    def _round(self, service: Service) -> float | None:
        """Let a service do its work; after how many seconds again, None: never."""
        try:
            seconds = service.run_once()
            self._note_success(service)
        except ClosedError:
            _log.info("service %s ends: its store was closed", service.name)
            return None
        except Exception as error:  # noqa: BLE001 - a bug included: the others go on, and this one tries again
            return self._note_failure(service, error)
        return seconds

    def _note_success(self, service: Service) -> None:
        before = self._status[service.name]
        if service.name in self._down:
            _log.warning("service %s works again, after %d failures", service.name, before.failures)
            self._down.remove(service.name)
        failing, failed = {}, 0
        if isinstance(service, PartedService):
            failing, failed = service.parts.failures(), service.parts.take_failed()
        told = [f"{part}: {_told(failure.error)}" for part, failure in failing.items()]
        self._status[service.name] = replace(
            before,
            runs=before.runs + 1,
            last_run_ms=self._clock.now_ms(),
            behind_ms=service.behind_ms(),
            failures=max((failure.count for failure in failing.values()), default=0),
            last_error="; ".join(told) or None,
            failures_total=before.failures_total + failed,
        )

    def _note_failure(self, service: Service, error: Exception) -> float:
        """Remember and tell it; returns after how many seconds to try again."""
        before = self._status[service.name]
        again = before.failures if service.name in self._down else 0
        status = replace(before, failures=again + 1, failures_total=before.failures_total + 1, last_error=_told(error))
        self._status[service.name] = status
        self._down.add(service.name)
        seconds = back_off_seconds(status.failures)
        tell_failure(_log, f"service {service.name} failed", status.failures, seconds, error)
        return seconds


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
