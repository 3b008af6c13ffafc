"""Waiting for messages without a thread each: one thread follows a log and wakes the receives that it concerns.

A receive that found nothing waits for its queues: those of the topic and of the group's retry topic. When they have
grown by n messages, n of the receives that wait for the same queues are woken, the longest waiting first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from rmq_spark.errors import ClosedError, RmqError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.view import LogView

WAIT_SECONDS: Final = 0.5
"""So often the thread looks whether it should end."""
RETRY_SECONDS: Final = 1.0
KEEP_SECONDS: Final = 60.0
"""So long a place is remembered that nobody waits at."""

Queues = tuple[tuple[str, int], ...]
"""Topics and queue ids; none: any change of the log counts."""

_log = logging.getLogger(__name__)


class _Place:
    """Receives that wait for the same queues."""

    __slots__ = ("ends", "used", "waiting")

    def __init__(self, ends: int) -> None:
        self.ends = ends
        """Sum of the queues' ends as of the last look."""
        self.used = 0.0
        """When somebody last began to wait here. The place is kept for a while, so that whoever looked before a message
        came and waits after it was noted is told."""
        self.waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()


class LogWatch:
    """Wakes whoever waits for messages of one log. Used from one event loop."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._places: dict[Queues, _Place] = {}
        self._waits = threading.Event()
        self._stop = False
        self._thread: threading.Thread | None = None

    async def wait(self, queues: Queues, ends: int, seconds: float) -> bool:
        """Wait until the queues have grown; False when they have not after `seconds`.

        Args:
            queues: which; empty: any commit counts.
            ends: the sum of their ends as the caller has seen it; for no queues, the log's end.
            seconds: how long at most.
        """
        if self._stop:
            return False
        place = self._places.get(queues)
        if place is None:
            place = self._places[queues] = _Place(ends)
        place.used = self._loop.time()
        if ends < place.ends:
            return True  # they have grown since the caller looked
        future: asyncio.Future[None] = self._loop.create_future()
        place.waiting[future] = None
        self._start()
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._wake(place, 1)  # this one was woken for a message and does not come for it
            raise
        finally:
            place.waiting.pop(future, None)
        return not self._stop

    @property
    def stopped(self) -> bool:
        """Whether nobody can wait any more."""
        return self._stop

    def stop(self) -> None:
        """Wake everybody; nobody can wait any more."""
        self._stop = True
        self._waits.set()
        for place in self._places.values():
            self._wake(place, len(place.waiting))

    def join(self) -> None:
        """Wait until the thread has ended, after `stop`."""
        if self._thread is not None:
            self._thread.join()

    def _wake(self, place: _Place, count: int) -> None:
        while place.waiting and count > 0:
            future, _ = place.waiting.popitem(last=False)
            if not future.done():
                future.set_result(None)
                count -= 1

    def _start(self) -> None:
        self._waits.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rmq-proxy-watch", daemon=True)
            self._thread.start()

    def _note(self, end: int, ends: dict[Queues, int]) -> None:
        """In the event loop: what the thread has seen."""
        unused = self._loop.time() - KEEP_SECONDS
        for queues, place in list(self._places.items()):
            now = ends.get(queues) if queues else end
            if now is not None and now > place.ends:
                grown, place.ends = now - place.ends, now
                self._wake(place, grown if queues else len(place.waiting))
            if not place.waiting and place.used < unused:
                del self._places[queues]
        if not any(place.waiting for place in self._places.values()):
            self._waits.clear()

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        end = -1
        known: Sequence[Queues] = ()
        while not self._stop:
            self._waits.wait()
            try:
                wanted = tuple(self._places)
                # Queues that somebody has begun to wait for may have grown before the last look.
                grown = not set(wanted) <= set(known) or self._log.wait(end, WAIT_SECONDS)
                if self._stop or not grown:
                    continue
                end, ends = self._log.look(lambda view, wanted=wanted: _ends(view, wanted))  # type: ignore[misc]
                known = wanted
            except ClosedError:
                return
            except RmqError as error:
                _log.warning("the log could not be followed, trying again: %s", error)
                threading.Event().wait(RETRY_SECONDS)
                continue
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._note, end, ends)


def _ends(view: LogView, wanted: Sequence[Queues]) -> tuple[int, dict[Queues, int]]:
    state = view.state
    bounds = state.queues.bounds
    return state.offset, {queues: sum(bounds(*queue)[1] for queue in queues) for queues in wanted if queues}
