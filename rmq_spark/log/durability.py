"""What a writer makes durable beside its own commit: a chain is as durable as its weakest link."""

from __future__ import annotations

from contextlib import suppress

from rmq_spark.errors import NotFoundError
from rmq_spark.log.state import LogState
from rmq_spark.log.view import LogView
from rmq_spark.model.settings import Flush
from rmq_spark.storage import paths


class Durability:
    """For a handle whose appends are `sync`; for any other one it does nothing."""

    def __init__(self, view: LogView, flush: Flush) -> None:
        self._view = view
        self._is_needed = flush is Flush.SYNC

    def before(self, state: LogState) -> bool:
        """Make the `async` commits before the end durable; False: they were rolled meanwhile, the view is fresh again.

        Undoes the trial of `state` in that case.
        """
        if not self._is_needed or state.durable >= state.offset:
            return True
        view = self._view
        try:
            view.storage.sync([paths.commit(view.root, first) for first in state.commits.from_offset(state.durable)])
        except NotFoundError:
            mark = view.mark
            state.undo_trial()
            view.refresh()
            if view.mark is mark:
                raise
            return False
        return True

    def of(self, slot: int) -> None:
        """Make one commit durable that was found by reading: its create did not return."""
        if self._is_needed:
            with suppress(NotFoundError):  # rolled since, into a durable segment
                self._view.storage.sync([paths.commit(self._view.root, slot)])

    def up_to(self, slot: int) -> None:
        """Make a commit durable that another handle has landed for us, and those before it."""
        state = self._view.state
        if self._is_needed and state.durable <= slot:
            for first in state.commits.from_offset(state.durable):
                if first <= slot:
                    self.of(first)
