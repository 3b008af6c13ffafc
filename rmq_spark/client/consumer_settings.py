"""How consumers keep time and how much they hold in memory: RocketMQ's defaults, each a setting."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import times
from rmq_spark.rules import members, queue_lease
from rmq_spark.rules.pop_decisions import INVISIBLE_MS_MAX
from rmq_spark.rules.start_offset import ConsumeFrom

ConsumeFromArgument = str | int | datetime
"""`latest`, `earliest`, or a time: a `datetime`, ISO text or milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of a push or lite pull consumer. All members of a group should have the same.

    Raises:
        InvalidRequestError: a number is not positive, or a time does not fit the one that it depends on.
    """

    heartbeat_ms: int = members.HEARTBEAT_MS
    """How often the consumer says that it is there."""
    expiry_ms: int = members.EXPIRY_MS
    """After how long without a heartbeat the others take its queues."""
    rebalance_ms: int = 20_000
    """How often queues are shared again without a change of members or topics."""
    lease_ms: int = queue_lease.LEASE_MS
    """How long nobody else may consume a queue after the lease was renewed."""
    renew_ms: int = queue_lease.RENEW_MS
    """How often leases are renewed."""
    commit_ms: int = 5_000
    """How often offsets are committed."""
    consume_timeout_ms: int = 15 * 60_000
    """A message that a listener holds for longer is sent back and comes again; not in order."""
    invisible_ms: int = 60_000
    """POP: how long nobody else gets a message that was received; renewed while its listener works."""
    suspend_ms: int = 1_000
    """How long an orderly queue waits after its listener failed."""
    cached_messages_max: int = 1_000
    """With more messages of a queue in memory, no more are read."""
    cached_bytes_max: int = 100 * 1024 * 1024
    """With more bytes of a queue in memory, no more are read."""
    span_max: int = 2_000
    """With a larger distance between the first and the last unfinished message of a queue, no more are read; not in
    order."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise InvalidRequestError("a consumer setting is a positive whole number", **{field.name: value})
        if self.expiry_ms <= self.heartbeat_ms:
            raise InvalidRequestError(
                "a member would expire between two heartbeats", heartbeat_ms=self.heartbeat_ms, expiry_ms=self.expiry_ms
            )
        if self.lease_ms < 2 * self.renew_ms:
            raise InvalidRequestError(
                "a lease lasts at least twice as long as the time between renewals",
                renew_ms=self.renew_ms,
                lease_ms=self.lease_ms,
            )

        if self.invisible_ms > INVISIBLE_MS_MAX:
            raise InvalidRequestError("an invisible time is up to 12 hours", invisible_ms=self.invisible_ms)

    @property
    def trusted_lease_ms(self) -> int:
        """How long a holder trusts its lease after it asked for it: half of it, for clocks differ."""
        return self.lease_ms // 2


DEFAULT: Final = ConsumerSettings()


def check_settings(settings: ConsumerSettings) -> None:
    """Refuse what are no settings, before a thread of the consumer stumbles over it.

    Raises:
        InvalidRequestError: of another type.
    """
    if not isinstance(settings, ConsumerSettings):
        raise InvalidRequestError("settings takes ConsumerSettings", type=type(settings).__name__)


def start_of(value: ConsumeFromArgument, now_ms: int) -> ConsumeFrom | int:
    """What `consume_from` means.

    Raises:
        InvalidRequestError: neither `latest`, `earliest` nor a time.
    """
    if isinstance(value, str) and value in ("latest", "earliest"):
        return ConsumeFrom(value)
    return times.time_ms(value, "consume_from", now_ms)
