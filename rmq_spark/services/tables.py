"""Advancing the tables of a store in process, as `rmq tables build` does, and keeping them in shape."""

from __future__ import annotations

from typing import Final

from rmq_spark.client.store import Store
from rmq_spark.errors import FencedError, PreconditionFailedError
from rmq_spark.tables import engine

LOOK_SECONDS: Final = 10.0
"""So often the tables go forward: each step makes files, which are merged later."""


class TablesService:
    """Brings the tables that exist to the end of the logs, trims and merges them; see `Service`.

    It makes no tables: `rmq tables build` does, once. Another engine (a Spark job) that writes them is left alone.
    """

    name = "tables"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ends: dict[str, tuple[int, int]] = {}
        """By broker: start and end of its log when the tables were last brought there."""
        self._waits_since_ms: int | None = None
        self.messages = 0
        """Messages that this copy has entered."""

    def run_once(self) -> float:
        ends = {
            broker: self._store.log(broker).look(lambda view: (view.mark.log_start, view.state.offset))
            for broker in self._store.brokers()
        }
        if ends == self._ends:
            return LOOK_SECONDS
        names = existing_tables(self._store)
        try:
            if names:
                self.messages += engine.reput(self._store, tables=names).messages
        except (PreconditionFailedError, FencedError):
            # Another engine is at it.
            self._waits_since_ms = self._waits_since_ms or self._store.clock.now_ms()
            return LOOK_SECONDS
        self._ends, self._waits_since_ms = ends, None
        return LOOK_SECONDS

    def behind_ms(self) -> int:
        return 0 if self._waits_since_ms is None else self._store.clock.now_ms() - self._waits_since_ms


def existing_tables(store: Store) -> list[str]:
    """Names of the tables that were made."""
    return sorted({one.table for one in engine.status(store) if one.version is not None})
