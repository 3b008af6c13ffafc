"""Removing what dead writers left behind: temporary files, row files nobody committed, offers, old files."""

from __future__ import annotations

from typing import Final

from rmq_spark.client.store import Store
from rmq_spark.log.collect import collect
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.roll import collect_garbage
from rmq_spark.rules.all_folds import ALL_FOLDS
from rmq_spark.services.parts import Parts
from rmq_spark.services.rolling import on_each_log
from rmq_spark.storage.upkeep import sweep_leftovers

SWEEP_SECONDS: Final = 600.0
"""So often directories are listed. Nothing depends on it but room on the disk."""


class SweepService:
    """Removes leftovers of a store; see `Service`. Deleting is safe in any number of copies, so no lease is needed.

    Args:
        store: an open store.
        every_seconds: how often.
        at_once: begin with a sweep, not with a pause.
    """

    name = "sweep"

    def __init__(self, store: Store, *, every_seconds: float = SWEEP_SECONDS, at_once: bool = True) -> None:
        self._store = store
        self.parts = Parts(self.name, store.clock)
        self._every_seconds = every_seconds
        self._pauses = not at_once
        self.removed = 0
        """Files that this copy has removed."""

    def run_once(self) -> float:
        if self._pauses:
            self._pauses = False
            return self._every_seconds
        self.removed += sweep_leftovers(self._store.storage, self._store.clock)
        on_each_log(self._store, self.parts, self._sweep)
        return self._every_seconds

    def _sweep(self, log: CommitLog) -> None:
        self.removed += collect_garbage(log, log.look(lambda view: view.mark))
        log.use(*ALL_FOLDS)
        self.removed += collect(log)

    def behind_ms(self) -> int:
        return 0
