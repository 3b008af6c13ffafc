"""Collecting row files in `data/` that no live commit needs: rolled ones, and orphans of jobs that died.

A Spark job may write its row files hours before its commit, so age alone proves nothing. The collector first
appends which files it claims; from that position on no commit may refer to them (`append` checks), so a slow job
fails with a clear error instead of landing a commit whose rows are gone. Then it deletes, then it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rmq_spark.log.core_folds import RowFiles
from rmq_spark.log.request import Decision
from rmq_spark.log.state import LogState
from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog

ORPHAN_AGE_MS: Final = 24 * 3_600_000
"""A file that no commit refers to is taken for an orphan after a day."""


def collect(log: CommitLog, *, orphan_age_ms: int = ORPHAN_AGE_MS) -> int:
    """Claim, delete and sign off row files that are not needed; return how many were deleted.

    Raises:
        ReadOnlyError, ClosedError: this handle may not change the log.
    """
    log.check_writable()
    listed = {info.name: info.modified_ms for info in log.storage.list(paths.data(log.root))}
    if not listed:
        return 0
    view = log.refresh()
    floor = view.mark.floor
    known = view.state.fold(RowFiles)
    oldest = log.clock.now_ms() - orphan_age_ms
    grace = log.clock.now_ms() - log.settings.delete_grace_ms
    claim = []
    for name, modified_ms in sorted(listed.items()):
        offset = known.referenced.get(name)
        rolled = offset is not None and offset < floor and modified_ms <= grace
        orphan = offset is None and modified_ms <= oldest
        if rolled or orphan:
            claim.append(name)
    if claim and not _claim(log, claim, floor):
        return 0  # a job was faster; the next collection sees the new state
    doomed = _delete_claimed(log)
    return sum(name in listed for name in doomed)


def discard(log: CommitLog, names: Sequence[str]) -> bool:
    """Delete row files of a job that will not commit them (again); False if the log refers to them, which keeps them.

    Safe when nobody knows whether their commit has landed: a claim and a commit exclude each other, whichever comes
    first in the log.

    Raises:
        ReadOnlyError, ClosedError: this handle may not change the log.
    """
    log.check_writable()
    if not names:
        return True
    if not _claim(log, list(names), 0):
        return False
    _delete_claimed(log)
    return True


def _claim(log: CommitLog, names: list[str], floor: int) -> bool:
    """Append that nobody may refer to these files any more; False if a commit at or above `floor` does."""

    def claim(state: LogState) -> Decision[bool]:
        referenced = state.fold(RowFiles).referenced
        if any(referenced.get(name, -1) >= floor for name in names):
            return Decision(False)
        return Decision(True, records=[(RowFiles.topics[0], {"claim": names})])

    return log.decide(claim).answer


def _delete_claimed(log: CommitLog) -> list[str]:
    """Delete every claimed file, also those of a collector that died, and sign them off."""
    # No other thread's claim may be on trial meanwhile: it can still be refused, and then its files are needed.
    doomed, epoch = log.look(lambda view: (sorted(view.state.fold(RowFiles).claimed), view.mark.epoch))
    if doomed and epoch:
        # Were the mark lost with the power, the commits below its floor would need their row files again.
        log.storage.sync([paths.mark(log.root, epoch)])
    for name in doomed:
        log.storage.delete(paths.data_file(log.root, name))
    if doomed:
        log.decide(lambda _: Decision(None, records=[(RowFiles.topics[0], {"gone": doomed})]))
    return doomed
