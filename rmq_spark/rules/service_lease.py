"""Who carries out a service: a preference that keeps copies from doing the same work, never a lock.

Each act of a service is a decision that holds only while its ground holds, so two copies that work at once are right,
just wasteful. The lease is renewed by records that go along with the service's own decisions: idle services write
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.state import LogState
from rmq_spark.log.undo import Journal, UndoDict
from rmq_spark.rules.lease import Lease

LEASE_MS: Final = 10_000
"""How long a copy is preferred after it worked."""
TAKEOVER_MS: Final = 1_000
"""Work that has waited for so long is done by whoever sees it: the holder of the lease is slow or dead."""


class ServiceLeases(Fold):
    """Which copy of each service worked last, and until when the others leave it the work."""

    name: ClassVar[str] = "service_leases"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_service_lease",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.leases: UndoDict[str, Lease] = self.table()
        """By service."""

    def apply(self, records: Records) -> None:
        for value in records.values():
            self.leases[need(value["service"], str, "service")] = Lease(
                need(value["holder"], str, "holder"),
                need(value["epoch"], int, "epoch"),
                need(value["until"], int, "until"),
            )

    def dump(self) -> Any:
        return {name: [lease.holder, lease.epoch, lease.until_ms] for name, lease in sorted(self.leases.items())}

    def load(self, value: Any, version: int) -> None:
        self.leases = self.table({name: Lease(*lease) for name, lease in value.items()})


def is_mine(state: LogState, service: str, holder: str, now_ms: int, waited_ms: int) -> bool:
    """Whether a copy should do work that has waited for so long."""
    lease = state.fold(ServiceLeases).leases.get(service)
    return lease is None or lease.holder == holder or lease.until_ms <= now_ms or waited_ms >= TAKEOVER_MS


def renewal(state: LogState, service: str, holder: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The record that a decision of `holder` takes along, if the lease is another's or half of it is over."""
    lease = state.fold(ServiceLeases).leases.get(service)
    if lease is not None and lease.holder == holder and lease.until_ms - state.now_ms > LEASE_MS // 2:
        return []
    epoch = 1 if lease is None else lease.epoch + (lease.holder != holder)
    value = {"service": service, "holder": holder, "epoch": epoch, "until": state.now_ms + LEASE_MS}
    return [(ServiceLeases.topics[0], value)]
