"""What a listener says about the messages that it was given."""

from __future__ import annotations

from enum import Enum


class ConsumeResult(Enum):
    """Returned by listeners; RocketMQ 5's names."""

    SUCCESS = "success"
    """They are consumed. Returning None means the same."""
    FAILURE = "failure"
    """They are to come again. Raising an exception means the same."""
