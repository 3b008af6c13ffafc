"""Background threads of a handle: fsync of `async` commits, and the commits of `buffered` ones."""

from __future__ import annotations

import threading
from collections.abc import Callable

RETRY_SECONDS = 0.5
"""Pause after a failure in the background."""


class Periodic:
    """Calls `work` every `seconds` while there is something to do, and once more when closed.

    An error in the background is kept and raised at the next `check` or `close`: it concerns messages that
    were acknowledged already, so somebody has to hear of it.
    """

    def __init__(self, name: str, work: Callable[[], None], seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the background thread, unless it runs. Who must not fail after noting something starts it before."""
        if self._thread.ident is None:
            self._thread.start()

    def poke(self) -> None:
        """There is something to do within the period; tell so after noting what. For one thread at a time."""
        self.start()
        if not self._wake.is_set():  # if it is: the thread clears it before it looks at what there is to do
            self._wake.set()

    def check(self) -> None:
        """Raise what went wrong in the background, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Do what is left, stop, and raise what went wrong."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._attempt()
        self.check()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()  # before the look at `_stop`, or the wake-up by `close` could be wiped out
            if self._stop.is_set():
                return
            self._stop.wait(self._seconds)  # `close` does not wait for the period
            if not self._attempt():
                self._stop.wait(RETRY_SECONDS)
                self._wake.set()  # what failed is still to do

    def _attempt(self) -> bool:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - handed to the caller by `check`
            self._error = error
            return False
        self._error = None  # what had failed is done now
        return True
