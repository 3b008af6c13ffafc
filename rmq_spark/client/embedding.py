"""Services that run inside a client's process: when they start, and that they end with the store.

The services stand on an open store, so the store finds them by name: nothing here imports them.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rmq_spark.errors import InvalidRequestError

if TYPE_CHECKING:
    from rmq_spark.client.store import Store

HOME: Final = "rmq_spark.services.catalog"
START_SECONDS: Final = 0.2
"""The first round begins so long after the first client was made: a script that sends and ends runs none."""

_log = logging.getLogger(__name__)


class ServiceMode(StrEnum):
    """Which services a store runs in its process."""

    AUTO = "auto"
    """Those that deliver (timers, transaction check, revive) and keep the log short (rolling, snapshots, sweeping).
    They delete no message."""
    ALL = "all"
    """As `rmq serve`: retention and tables, too."""
    OFF = "off"
    """None."""


def mode_of(services: str) -> ServiceMode:
    """The mode of that name.

    Raises:
        InvalidRequestError: there is none.
    """
    try:
        return ServiceMode(services)
    except ValueError:
        known = [mode.value for mode in ServiceMode]
        raise InvalidRequestError("no such mode of services", services=services, known=known) from None


class EmbeddedServices:
    """The services of one open store: started by its first client, ended with the store or the interpreter.

    Nothing of it ever raises in a caller's thread. In a child of a fork it does nothing.

    Args:
        mode: which run.
    """

    def __init__(self, mode: ServiceMode) -> None:
        self.mode = mode
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._starter: threading.Thread | None = None
        self._runner: Any = None
        self._at_exit: Callable[[], None] | None = None

    def start(self, store: Store) -> None:
        """Start them in a moment, unless they run or are off."""
        if self._starter is not None or self.mode is ServiceMode.OFF or os.getpid() != self._pid:
            return
        with self._lock:
            if self._starter is not None or self._stop.is_set():
                return
            starter = threading.Thread(target=self._start, args=(store,), name="rmq-services", daemon=True)
            try:
                starter.start()
            except RuntimeError as error:  # no more threads, or the interpreter is about to end
                _log.warning("the services do not run, delayed messages wait for another process: %s", error)
                return
            self._starter = starter
            self._at_exit = _closer(weakref.ref(self))
            atexit.register(self._at_exit)

    def _start(self, store: Store) -> None:
        """In a thread of its own: importing the services takes longer than a send."""
        if self._stop.wait(START_SECONDS):
            return
        try:
            runner = import_module(HOME).embedded_runner(store, everything=self.mode is ServiceMode.ALL)
            with self._lock:
                if not self._stop.is_set():
                    runner.start()
                    self._runner = runner
        except Exception:  # noqa: BLE001 - the thread of a helper: the client itself works without it
            _log.exception("the services do not run, delayed messages wait for another process")

    def close(self) -> None:
        """End the threads; a round that is under way ends first."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._stop.set()
            hook, self._at_exit = self._at_exit, None
        if hook is not None:
            atexit.unregister(hook)
        if self._starter is not None:
            self._starter.join()
        if self._runner is not None:
            self._runner.stop()


def _closer(reference: weakref.ref[EmbeddedServices]) -> Callable[[], None]:
    def close() -> None:
        services = reference()
        if services is not None:
            services.close()

    return close
