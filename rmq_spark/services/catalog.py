"""Which services there are, and which of them run where."""

from __future__ import annotations

from typing import Final

from rmq_spark.client.store import Store
from rmq_spark.services.retention import RetentionService
from rmq_spark.services.revive import ReviveService
from rmq_spark.services.rolling import RollService, SnapshotService
from rmq_spark.services.runner import ServiceRunner
from rmq_spark.services.service import Service
from rmq_spark.services.sweep import SweepService
from rmq_spark.services.tables import TablesService
from rmq_spark.services.timer import TimerService
from rmq_spark.services.transaction_check import TransactionCheckService

EMBEDDED_REST: Final = 9.0
"""An embedded roller works a tenth of the time at most."""


def delivering_services(store: Store) -> list[Service]:
    """Those that make messages visible when it is time."""
    return [TimerService(store), TransactionCheckService(store), ReviveService(store)]


def all_services(store: Store, *, tables: bool = True, retention: bool = True) -> list[Service]:
    """What `rmq serve` runs.

    Args:
        store: an open store.
        tables: advance tables, too, if there are some.
        retention: delete old messages, too.
    """
    services: list[Service] = delivering_services(store)
    services += [RollService(store), SnapshotService(store), SweepService(store)]
    if retention:
        services.append(RetentionService(store))
    if tables:
        services.append(TablesService(store))
    return services


def embedded_runner(store: Store, *, everything: bool) -> ServiceRunner:
    """What runs inside a client: two threads, one for what must be prompt, one for what may take long.

    Args:
        store: an open store.
        everything: retention and tables, too.
    """
    upkeep: list[Service] = [
        RollService(store, rest=EMBEDDED_REST),
        SnapshotService(store),
        SweepService(store, at_once=False),
    ]
    if everything:
        upkeep += [RetentionService(store), TablesService(store)]
    return ServiceRunner([], store.clock, lanes=[delivering_services(store), upkeep])
