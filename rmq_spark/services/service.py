"""What a service is: work that anybody may do and nobody must, found and done again and again."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Service(Protocol):
    """One kind of work on a store. Any number of copies, in any processes, may run at once.

    Every act is a decision that holds only while its ground holds. A copy may die at any point.
    """

    name: str

    def run_once(self) -> float:
        """Do what is due now; return after how many seconds to look again.

        Raises:
            RmqError: it could not be done now; call again later.
        """

    def behind_ms(self) -> int:
        """How long the oldest work has waited that was due when `run_once` ended; 0 when none is left."""


@runtime_checkable
class WakefulService(Service, Protocol):
    """A service that notices new work by itself, instead of looking again after a while."""

    def wait(self, seconds: float) -> None:
        """Block until there may be work, at most so long."""

    def wake(self) -> None:
        """Let `wait` return, if some thread is in it."""
