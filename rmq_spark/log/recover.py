"""After power loss with `async` appends: cut the log behind the last commit that survived.

Commits that were acknowledged before their fsync may be gone or torn, in any order: a later one may have survived an
earlier one. Nothing behind the first loss can be reached, and its names would stand in the way of new commits, so
those files are moved aside into `lost/`, where they can be looked at. That is RocketMQ's recovery after an unclean
stop: re-validate, truncate at the first bad record.

With `sync` appends there is never anything to do: a commit is fsynced before its name exists, and its predecessors
before it. A valid `sync` commit behind the damage therefore means a broken medium, not a power loss, and is refused.
No writer may run meanwhile: freeing names is what the marks exist to make safe, and this frees names above the floor.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from rmq_spark.clock import Clock
from rmq_spark.errors import CorruptDataError
from rmq_spark.log.file_reader import read_meta
from rmq_spark.log.files import LogFiles, commit_numbers
from rmq_spark.log.view import LogView
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

LOOKS: Final = 10
"""So often a log that grows meanwhile is looked at again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverResult:
    """Where the log ends now, and what was moved aside."""

    log_end: int
    moved: tuple[str, ...]
    """File names now in `lost/`."""


def _strays(storage: Storage, root: str, end: int) -> list[str]:
    """Names in `commitlog/` at or behind the log's end: what a power loss left behind a hole."""
    numbers = sorted(commit_numbers(storage, root, end))
    return [paths.commit(root, number).rpartition("/")[2] for number in numbers]


def refuse_holes(view: LogView) -> None:
    """Return if a log may be appended to; a snapshot that knows more than the log is only told.

    Raises:
        CorruptDataError: there are commits behind the log's end, so one before them is missing. Appending would use its
            offsets again.
    """
    for _ in range(LOOKS):
        end = view.state.offset
        known = view.snapshots_end
        if known <= end and not _strays(view.storage, view.root, end):
            return
        view.refresh()  # appended since, most likely
        if view.state.offset != end:
            continue
        if names := _strays(view.storage, view.root, end):
            raise CorruptDataError(
                "a commit is missing: there are files behind the log's end; run `rmq verify`, then restore the "
                "missing file or run `rmq recover`",
                file=paths.commit(view.root, end),
                behind=names[0],
            )
        _log.warning(
            "a snapshot knows messages up to %d, but the log ends at %d: its last commits are gone, and new messages "
            "get their offsets; run `rmq verify` before you send, and restore the missing files (log=%s)",
            known,
            end,
            view.root,
        )
        return


def recover(storage: Storage, root: str, broker: str, clock: Clock, *, force: bool = False) -> RecoverResult:
    """Move everything behind the last good commit into `lost/` and return where the log ends.

    Raises:
        CorruptDataError: a `sync` commit stands behind the damage, and `force` is not set; nothing was changed.
        UnsupportedVersionError: a newer version has written there, so what looks damaged may be sound; nothing was
            changed.
    """
    view = LogView(LogFiles(storage, root), broker)
    view.load_floor()  # not from a newer snapshot: it may have survived a commit below it
    damage = "a commit is missing"
    try:
        view.walk()
    except CorruptDataError as error:
        damage = str(error)
    end = view.state.offset
    names = _strays(storage, root, end)
    if not force:
        _refuse_durable(storage, root, names, damage)
    # A snapshot of what is cut off would outrank each newer one of the log that goes on from here.
    ahead = [info.name for info in storage.list(paths.snapshots(root)) if (paths.snapshot_offset(info.name) or 0) > end]
    storage.delete_many([f"{paths.snapshots(root)}/{name}" for name in ahead])
    # A part of the timer index may name what is cut off, and lack what comes in its place; without it the log is read.
    storage.delete_many([f"{paths.timers(root)}/{info.name}" for info in storage.list(paths.timers(root))])
    for name in names:
        source = f"{paths.commitlog(root)}/{name}"
        data = storage.read(source)
        storage.create_if_absent(f"{root}/lost/{clock.token()[-12:]}-{name}", [data])
        storage.delete(source)
    return RecoverResult(log_end=end, moved=tuple(names))


def _refuse_durable(storage: Storage, root: str, names: list[str], damage: str) -> None:
    for name in names:
        try:
            meta = read_meta(storage, f"{paths.commitlog(root)}/{name}", "commit")
        except CorruptDataError:
            continue
        if meta.doc.get("flush") == "sync":
            raise CorruptDataError(
                "a durable commit stands behind the damage, so this is not the trace of a power loss; "
                "restore the damaged file, or recover with force to give up what is behind it",
                file=name,
                damage=damage,
            )
