"""The lease on tables: one engine writes a table at a time, whichever engine that is.

It is a message in the nameserver log, taken by compare-and-append, and only while it is free, given back or expired. A
lease is not a lock, for a process can sleep through it. What the in-process engine writes is fenced besides: a commit
of a table is exclusive, and carries the mark that it stands on. delta-spark on a local disk or S3 has no such fence
against others; there the lease is what keeps two engines apart, so its time should be long against a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final

from rmq_spark.client.store import Store
from rmq_spark.errors import FencedError, InvalidRequestError, PreconditionFailedError
from rmq_spark.log.request import Decision
from rmq_spark.log.state import LogState
from rmq_spark.rules.lease import Lease, TableLeases
from rmq_spark.tables.schemas import TABLES, spec_of

LEASE_MS: Final = 60_000
"""How long a lease lasts unless it is renewed."""
WAIT_MAX_S: Final = 365 * 86_400
"""Nobody waits longer than a year for a lease."""
_PAUSE_S: Final = 0.2


class TableLease:
    """Leases on some tables, held by one engine. Get one by `acquire`; use it as a context manager to give it back."""

    def __init__(self, store: Store, tables: Sequence[str], holder: str, duration_ms: int) -> None:
        self._store = store
        self._tables = tuple(tables)
        self._duration_ms = duration_ms
        self.holder = holder
        """Who holds it: a name, and a token that nobody else has."""
        self.epochs: dict[str, int] = {}
        """By table: the number of this change of hands."""
        self._until_ms = 0

    @classmethod
    def acquire(
        cls,
        store: Store,
        tables: Sequence[str] = tuple(TABLES),
        *,
        name: str = "rmq",
        duration_ms: int = LEASE_MS,
        wait_s: float = 0.0,
    ) -> TableLease:
        """Take the lease on all of `tables`, waiting up to `wait_s` seconds for whoever holds it.

        Raises:
            PreconditionFailedError: somebody else holds one of them.
            InvalidRequestError: there is no such table, or the wait is no time from 0 to `WAIT_MAX_S`.
            ReadOnlyError, UnavailableError: the nameserver log cannot be written.
        """
        for table in tables:
            spec_of(table)
        if duration_ms < 1:
            raise InvalidRequestError("a lease lasts a millisecond at least", duration_ms=duration_ms)
        if not 0 <= wait_s <= WAIT_MAX_S:  # also when it is no number at all
            raise InvalidRequestError("a wait is from 0 seconds to a year", wait_s=wait_s)
        self = cls(store, tables, f"{name}-{store.clock.token()}", duration_ms)
        deadline = store.clock.elapsed_ns() + int(wait_s * 1_000_000_000)
        while True:
            try:
                self._take()
            except PreconditionFailedError as error:
                if store.clock.elapsed_ns() >= deadline:
                    raise PreconditionFailedError(
                        "another engine writes the tables; try again when it has finished, or its lease has ended",
                        reason=str(error.args[0]),
                    ) from error
                store.clock.sleep(_PAUSE_S)
            else:
                return self

    def hold(self) -> None:
        """Renew the lease if half of its time has passed.

        Raises:
            FencedError: somebody else has it now; what was not committed yet must not be.
        """
        if self._store.clock.now_ms() < self._until_ms - self._duration_ms // 2:
            return
        until = self._store.clock.now_ms() + self._duration_ms
        try:
            self._append({table: Lease(self.holder, epoch, until) for table, epoch in self.epochs.items()})
        except PreconditionFailedError as error:
            raise FencedError("another engine has taken over the tables", holder=self.holder) from error
        self._until_ms = until

    def release(self) -> None:
        """Give it back, if it is still ours."""
        try:
            self._append({table: Lease(self.holder, epoch, 0) for table, epoch in self.epochs.items()})
        except PreconditionFailedError:
            return  # somebody else has it already

    def __enter__(self) -> TableLease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _take(self) -> None:
        def take(state: LogState) -> Decision[dict[str, Lease]]:
            now, leases = self._store.clock.now_ms(), state.fold(TableLeases).leases
            for table in self._tables:
                lease = leases.get(table)
                if lease is not None and lease.until_ms > now:
                    raise PreconditionFailedError(f"{lease.holder} holds {table} until {lease.until_ms}")
            epochs = {table: leases[table].epoch + 1 if table in leases else 1 for table in self._tables}
            taken = {table: Lease(self.holder, epochs[table], now + self._duration_ms) for table in self._tables}
            return Decision(taken, records=_records(taken))

        taken = self._store.nameserver.decide(take).answer
        self.epochs = {table: lease.epoch for table, lease in taken.items()}
        self._until_ms = min(lease.until_ms for lease in taken.values())

    def _append(self, leases: dict[str, Lease]) -> None:
        def change(state: LogState) -> Decision[None]:
            held = state.fold(TableLeases).leases
            for table in leases:
                lease = held.get(table)
                if lease is None or lease.holder != self.holder or lease.epoch != self.epochs[table]:
                    raise PreconditionFailedError(f"{lease.holder if lease else 'nobody'} holds {table}")
            return Decision(None, records=_records(leases))

        self._store.nameserver.decide(change)


def _records(leases: dict[str, Lease]) -> list[tuple[str, dict[str, object]]]:
    return [
        (
            TableLeases.topics[0],
            {"table": table, "holder": lease.holder, "epoch": lease.epoch, "until": lease.until_ms},
        )
        for table, lease in leases.items()
    ]
