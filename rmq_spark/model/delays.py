"""Delayed messages as RocketMQ stores them: parked in a topic of the engine until they are due."""

from __future__ import annotations

from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Messages with a delay level wait here, in queue level - 1."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Messages with a delivery time wait here."""
TIMER_QUEUE: Final = 0
LEVELS_MAX: Final = 18
"""Delay levels are 1 to 18: 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h."""
TIMER_AHEAD_MAX_MS: Final = 3 * 86_400_000
"""A delivery time may be three days ahead, not more."""
TIMER_PRECISION_MS: Final = 1_000
"""Timers are kept under the last full second before they are due, and fire when the clock reaches the next one."""
