"""Leases: who may do something alone, and until when, in the log's own time.

A lease is not a lock, for a process can sleep through it. What its holder writes into the log is fenced by a decision
at the position where it lands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.undo import Journal, UndoDict


@dataclass(frozen=True, slots=True)
class Lease:
    """Who may write a table, and until when."""

    holder: str
    epoch: int
    """Rises with every change of hands."""
    until_ms: int
    """0: it was given back."""


class TableLeases(Fold):
    """Leases on derived tables: one engine writes a table at a time. Lives in the nameserver log."""

    name: ClassVar[str] = "table_leases"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_table_lease",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.leases: UndoDict[str, Lease] = self.table()
        """By table."""

    def apply(self, records: Records) -> None:
        for value in records.values():
            self.leases[need(value["table"], str, "table")] = Lease(
                need(value["holder"], str, "holder"),
                need(value["epoch"], int, "epoch"),
                need(value["until"], int, "until"),
            )

    def dump(self) -> Any:
        return {table: [lease.holder, lease.epoch, lease.until_ms] for table, lease in sorted(self.leases.items())}

    def load(self, value: Any, version: int) -> None:
        self.leases = self.table({table: Lease(*lease) for table, lease in value.items()})
