"""How a writer keeps time and makes room for others: the stamp of its commits, and pauses for rivals."""

from __future__ import annotations

from typing import Final

from rmq_spark.clock import Clock
from rmq_spark.errors import ClockSkewError

CONSECUTIVE_WINS: Final = 16
BUSY_GAP_NS: Final = 2_000_000_000
RIVALS_REMEMBERED: Final = 64
STUCK_NS: Final = 2_000_000_000
"""When the one who has the turn did not move, nobody is waited for so long."""


class Pace:
    """Belongs to one handle. Not safe for use by two threads at once.

    Args:
        clock: the handle's.
        ahead_max_ms: how far the clock may jump ahead of its own pace.
    """

    def __init__(self, clock: Clock, ahead_max_ms: int) -> None:
        self._clock = clock
        self._ahead_max_ms = ahead_max_ms
        self._start = (clock.now_ms(), clock.elapsed_ns())
        self._wins = 0
        self._last_win = 0
        self._rivals = RIVALS_REMEMBERED
        self._end = -1
        self._end_since = 0
        self._stuck_until = 0

    @property
    def has_rivals(self) -> bool:
        """Whether others were seen to append lately: only then is it worth a look before a write."""
        return self._rivals > 0

    @property
    def rivals_help(self) -> bool:
        """Whether others may land what is offered to them: there are some, and they move."""
        return self._rivals > 0 and self._clock.elapsed_ns() >= self._stuck_until

    def note_rival(self) -> None:
        """Somebody else has appended."""
        self._rivals = RIVALS_REMEMBERED

    def is_stuck(self, end: int, patience: float) -> bool:
        """Whether the log's end has not moved for `patience` seconds, to be asked while it is waited for.

        Then whoever has the turn is stopped, and for a while nobody shall be waited for.
        """
        now = self._clock.elapsed_ns()
        if end != self._end:
            self._end, self._end_since = end, now
        elif now - self._end_since > patience * 1e9:
            self._end, self._stuck_until = -1, now + STUCK_NS
            return True
        return False

    def stamp(self, last_ms: int) -> int:
        """StoreTimestamp = max(previous, now), unless the clock has run away.

        A clock that was set back and is corrected later is no error. It is where its pace says; or where the log is, if
        the handle was opened in between.

        Raises:
            ClockSkewError: it has jumped ahead.
        """
        now, elapsed = self._clock.now_ms(), self._clock.elapsed_ns()
        expected = self._start[0] + (elapsed - self._start[1]) // 1_000_000
        if last_ms - expected > self._ahead_max_ms:  # not by this handle: others say that it is later
            self._start, expected = (last_ms, elapsed), last_ms
        if now - expected > self._ahead_max_ms:
            raise ClockSkewError(
                "the clock jumped ahead; correct it, or open a new handle if it is right now",
                clock_ms=now,
                expected_ms=expected,
                limit_ms=self._ahead_max_ms,
            )
        return max(last_ms, now)

    def yield_to_rivals(self, held: bool, losses: int) -> None:
        """A writer that keeps winning pauses so that losers don't starve: they must re-read before each try.

        A pause of one and a half commits every sixteen, only without a turn to wait for, and only while nobody else got
        a slot in between.
        """
        self._rivals = max(0, self._rivals - 1)
        now = self._clock.elapsed_ns()
        gap, self._last_win = now - self._last_win, now
        # A handle that idles between appends leaves room by itself.
        self._wins = 1 if losses or held or gap > BUSY_GAP_NS else self._wins + 1
        if self._wins >= CONSECUTIVE_WINS:
            self._wins = 0
            self._clock.sleep(1.5 * gap / 1e9)
