"""The same work for each broker or group of a store: one that fails is left alone for a while, the others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, runtime_checkable

from rmq_spark.clock import Clock
from rmq_spark.errors import ClosedError, RmqError
from rmq_spark.services.service import Service

BACK_OFF_SECONDS_MIN: Final = 0.1
BACK_OFF_SECONDS_MAX: Final = 30.0
"""Pause after a failure; it doubles with each further one."""
BROKERS: Final = "broker"
"""The kind of parts that each service has."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """A part that fails."""

    count: int
    """How often in a row."""
    error: Exception
    again_ns: int
    """Not before this time it is tried again."""


class Parts:
    """The parts of one service's work. Not for several threads.

    Args:
        service: its name, for the log.
        clock: for the pauses.
    """

    def __init__(self, service: str, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._failures: dict[tuple[str, str], Failure] = {}
        self._failed = 0

    def each(self, kind: str, work: Mapping[str, Callable[[], T]], *, or_raise: bool = False) -> dict[str, T]:
        """Do the work of every part that does not pause, and return the answers of those that did not fail.

        A failure is logged with the part's name. Parts of this kind that are not in `work` any more are forgotten.

        Args:
            kind: what the parts are.
            work: by the part's name.
            or_raise: if all parts fail at once, raise what the first one did, and let whoever calls pause.

        Raises:
            ClosedError: the store was closed.
        """
        answers: dict[str, T] = {}
        errors: dict[str, Exception] = {}
        for name, act in work.items():
            if self._pauses(kind, name):
                continue
            try:
                answers[name] = act()
            except ClosedError:
                raise
            except Exception as error:  # noqa: BLE001 - a bug included: the others go on, and this one is tried again
                errors[name] = error
        for name in answers:
            if (before := self._failures.pop((kind, name), None)) is not None:
                told = "service %s works again for %s %s, after %d failures"
                _log.warning(told, self._service, kind, name, before.count)
        for part in [part for part in self._failures if part[0] == kind and part[1] not in work]:
            del self._failures[part]
        if or_raise and errors and len(errors) == len(work):
            for part in [part for part in self._failures if part[0] == kind]:
                del self._failures[part]
            raise next(iter(errors.values()))
        for name, failed in errors.items():
            self._note(kind, name, failed)
        return answers

    def works(self, kind: str, name: str) -> bool:
        """Whether a part did not fail when it was last tried."""
        return (kind, name) not in self._failures

    def failures(self) -> dict[str, Failure]:
        """The parts that fail, by kind and name."""
        return {f"{kind} {name}": failure for (kind, name), failure in self._failures.items()}

    def take_failed(self) -> int:
        """How often a part has failed since this was last asked."""
        failed, self._failed = self._failed, 0
        return failed

    def _pauses(self, kind: str, name: str) -> bool:
        failure = self._failures.get((kind, name))
        return failure is not None and self._clock.elapsed_ns() < failure.again_ns

    def _note(self, kind: str, name: str, error: Exception) -> None:
        before = self._failures.get((kind, name))
        count = 1 if before is None else before.count + 1
        seconds = back_off_seconds(count)
        self._failures[kind, name] = Failure(count, error, self._clock.elapsed_ns() + int(seconds * 1e9))
        self._failed += 1
        tell_failure(_log, f"service {self._service} failed for {kind} {name}", count, seconds, error)


@runtime_checkable
class PartedService(Service, Protocol):
    """A service that goes on for the other parts of a store when one fails."""

    parts: Parts


def back_off_seconds(failures: int) -> float:
    """The pause after so many failures in a row."""
    return float(min(BACK_OFF_SECONDS_MIN * 2 ** min(failures - 1, 20), BACK_OFF_SECONDS_MAX))


def tell_failure(log: logging.Logger, what: str, failures: int, seconds: float, error: Exception) -> None:
    """Log a failure: one line for what may pass, with a traceback for the rest."""
    told = "%s, %d in a row; it tries again in %.1f s: %s: %s"
    args = (what, failures, seconds, type(error).__name__, error)
    if isinstance(error, RmqError) and error.retriable:
        log.warning(told, *args)
    else:
        log.error(told, *args, exc_info=error)
