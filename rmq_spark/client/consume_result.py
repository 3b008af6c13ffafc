"""What a listener says about the messages that it was given."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class ConsumeResult(Enum):
    """Returned by listeners; RocketMQ 5's names."""

    SUCCESS = "success"
    """They are consumed. Returning None means the same."""
    FAILURE = "failure"
    """They are to come again. Raising an exception means the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOutcome:
    """Returned by listeners that have more to say: how far they came in a batch, and when the rest is to come again."""

    result: ConsumeResult = ConsumeResult.SUCCESS
    """`FAILURE`: all of them failed, whatever `ack_index` says."""
    ack_index: int | None = None
    """Index of the last message of the batch that is consumed; those behind it failed. None: all are consumed."""
    delay_level: int = 0
    """When those that failed come again: 0 as the group's settings say, 1 to 18 at this delay level, negative: never,
    they go to the dead-letter topic now. Orderly listeners retry in place, so of these only the last counts."""

    def consumed(self, count: int) -> int:
        """How many messages of a batch of `count` are consumed, from its first one on."""
        if self.result is ConsumeResult.FAILURE:
            return 0
        return count if self.ack_index is None else min(count, max(0, self.ack_index + 1))


SUCCESS: Final = ConsumeOutcome()
FAILURE: Final = ConsumeOutcome(result=ConsumeResult.FAILURE)
