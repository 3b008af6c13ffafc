"""What every service offers to whoever runs it."""

from __future__ import annotations

from typing import Protocol


class Service(Protocol):
    """A loop that carries out rules. Any number of copies may run at once: each act is a decision in the log."""

    name: str
    """For status lines and logs."""

    def run_once(self) -> float:
        """Do what is due, and return in how many seconds to look again.

        Raises:
            RmqError: something could not be done; what is due stays due.
        """
