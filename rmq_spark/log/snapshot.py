"""Copies of the folded state, for a quick start.

A snapshot names the folds that it holds. Absent means unknown, never empty: whoever needs another fold takes it from an
older snapshot and folds the records behind that. It also names the digest of the commit it stands on; if the chain does
not hold that commit, or the file is damaged, it is passed over.

Those that a mark names are part of the log, in `floors/`: they hold what the expired messages said.
"""

from __future__ import annotations

import binascii
import json
import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError, UnsupportedVersionError
from rmq_spark.log import file_encoder, file_layout
from rmq_spark.log.arrow_columns import column_of
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader, read_meta
from rmq_spark.log.fold import UNREADABLE, Fold
from rmq_spark.log.marks import Mark, SnapshotRef
from rmq_spark.log.queues import Queues
from rmq_spark.log.state import LogState
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

KEEP: Final = 2
"""Snapshots that stay when a newer one is written."""

Loaded = tuple[LogState, list[type[Fold]]]
"""A state, and the declared folds that it does not tell."""

_DAMAGED: Final = (CorruptDataError, UnsupportedVersionError, *UNREADABLE)

_NOT_FOLDS: Final = ("core", "queues", "commits")
_EMPTY_IF_ABSENT: Final = ("table_leases",)

_log = logging.getLogger(__name__)


def write_snapshot(storage: Storage, root: str, state: LogState, nonce: str) -> str:
    """Write a snapshot of `state`, drop older ones that tell nothing more, and return its path."""
    path = paths.snapshot(root, state.offset, nonce)
    firsts = state.commits.firsts
    _create(storage, path, state.dump(), nonce, last=firsts[-1] if firsts else -1)
    _drop_older(storage, root, path.rsplit("/", 1)[1], set(state.folds))
    return path


def write_floor(storage: Storage, root: str, payloads: Mapping[str, bytes], nonce: str) -> SnapshotRef:
    """Write a state durably for a mark to name. Only marks decide how long it stays, so it has a place of its own."""
    offset = json.loads(payloads["core"])["offset"]
    path = paths.floor(root, offset, nonce)
    digest = _create(storage, path, payloads, nonce, last=-1, durable=True)
    return SnapshotRef(path.rsplit("/", 1)[1], offset, digest, tuple(_folds_in(payloads)))


def _folds_in(payloads: Mapping[str, bytes]) -> list[str]:
    return sorted(name.removeprefix("fold/") for name in payloads if name.startswith("fold/"))


def _create(
    storage: Storage, path: str, payloads: Mapping[str, bytes], nonce: str, *, last: int, durable: bool = False
) -> str:
    """Write a snapshot file; `last` is the first offset of the commit that it stands on, -1 for the floor."""
    core = json.loads(payloads["core"])
    batch = pa.RecordBatch.from_arrays(
        [column_of(list(payloads), pa.string()), column_of(list(payloads.values()), pa.binary())],
        schema=file_layout.SNAPSHOT_SCHEMA,
    )
    doc = {
        "offset": core["offset"],
        "digest": core["digest"],
        "last": last,
        "ts": core["ts"],
        "nonce": nonce,
        "folds": _folds_in(payloads),
    }
    encoded = file_encoder.Encoded(file_encoder.make_blocks("snapshot", [batch]), doc)
    storage.create_if_absent(path, encoded, durable=durable)
    return encoded.tail.digest


def _drop_older(storage: Storage, root: str, kept: str, told: set[str]) -> None:
    """Delete all but the newest few; an older one that alone holds some fold stays."""
    older = sorted(snapshot_names(storage, root), reverse=True)[KEEP:]
    for name in older:
        if name == kept:
            continue
        try:
            folds = set(read_meta(storage, f"{paths.snapshots(root)}/{name}", "snapshot").doc.get("folds", ()))
        except (NotFoundError, CorruptDataError):
            folds = set()
        except UnsupportedVersionError:
            continue
        if folds <= told:
            storage.delete(f"{paths.snapshots(root)}/{name}")
        told |= folds


def newest_state(storage: Storage, root: str, mark: Mark, folds: Sequence[type[Fold]], names: Sequence[str]) -> Loaded:
    """The state of the newest snapshot among `names`, above the mark's floor, that the chain vouches for.

    One that tells all of `folds` is preferred to a newer one that does not. If there is none: as `floor_state`.
    """
    newest: Loaded | None = None
    for _, payloads in _trusted_copies(storage, root, mark, names):
        try:
            loaded = LogState.load(payloads, folds)
        except _DAMAGED as error:
            _log.warning("snapshot is damaged, skipped: %s", error)
            continue
        if not loaded[0].commits.lists_runs:
            continue  # an older version made it; the commits themselves tell their runs
        if not loaded[1]:
            return loaded
        newest = newest or loaded
    return newest or floor_state(storage, root, mark, folds)


def floor_state(storage: Storage, root: str, mark: Mark, folds: Sequence[type[Fold]]) -> Loaded:
    """The state at the mark's floor, as the snapshot tells that the mark names.

    Raises:
        NotFoundError: the snapshot is gone.
        CorruptDataError: it is damaged, or not the one that the mark names.
    """
    for _, payloads in _named_copies(storage, root, mark):
        return LogState.load(payloads, folds)
    state = LogState(folds)
    state.digest = mark.floor_digest
    return state, []


def stored_fold(
    storage: Storage, root: str, mark: Mark, kind: type[Fold], end: int
) -> tuple[int, dict[str, bytes]] | None:
    """The newest stored copy that holds a fold, at or below `end`: its offset and its payloads; None: none.

    Raises:
        NotFoundError, CorruptDataError: a snapshot that the mark names is gone or damaged.
    """
    trusted = _trusted_copies(storage, root, mark, snapshot_names(storage, root))
    for offset, payloads in chain(trusted, _named_copies(storage, root, mark)):
        if mark.log_start <= offset <= end and f"fold/{kind.name}" in payloads:
            return offset, payloads
    return None


def _named_copies(storage: Storage, root: str, mark: Mark) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Offset and payloads of the state at the mark's floor, then of older snapshots that the mark names."""
    if (legacy := legacy_payloads(storage, root, mark)) is not None:
        yield mark.floor, legacy
    for named in mark.snapshots:
        meta = read_meta(storage, f"{paths.floors(root)}/{named.name}", "snapshot")
        if meta.digest != named.digest:
            raise meta.corrupt("not the snapshot that the mark names", expected=named.digest)
        yield named.offset, read_payloads(storage, meta)


def legacy_payloads(storage: Storage, root: str, mark: Mark) -> dict[str, bytes] | None:
    """Format version 1: the state at the floor, which the last segment carries; None where the mark names a snapshot.

    Raises:
        NotFoundError, CorruptDataError: the segment is gone or damaged.
    """
    if mark.snapshots or not mark.floor:
        return None
    last = mark.segments[-1]
    meta = read_meta(storage, f"{paths.segments(root)}/{last.name}", "segment")
    if meta.digest != last.digest:
        raise meta.corrupt("not the segment that the mark names", expected=last.digest)
    payloads = json.loads(zlib.decompress(binascii.a2b_base64(meta.doc["state"])))
    return _upgrade({name: payload.encode() for name, payload in payloads.items()})


def _upgrade(payloads: Mapping[str, bytes]) -> dict[str, bytes]:
    """Payloads of format version 1, named as their folds and without versions, as today's: folds with the version 0.

    A fold that came late was left out while it was empty.
    """
    folds = dict.fromkeys(_EMPTY_IF_ABSENT, b"{}")
    folds.update({name: payload for name, payload in payloads.items() if name not in _NOT_FOLDS})
    upgraded = {name: payloads[name] for name in _NOT_FOLDS}
    upgraded.update({f"fold/{name}": b'{"version":0,"state":%b}' % payload for name, payload in folds.items()})
    return upgraded


def _trusted_copies(
    storage: Storage, root: str, mark: Mark, names: Sequence[str]
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Offset and payloads of the snapshots above the mark's floor that the chain vouches for, newest first."""
    for name in sorted(names, reverse=True):
        if (paths.snapshot_offset(name) or 0) < mark.floor:
            break
        try:
            meta = read_meta(storage, f"{paths.snapshots(root)}/{name}", "snapshot")
            if is_vouched(storage, root, meta, mark):
                yield meta.doc["offset"], read_payloads(storage, meta)
            else:
                _log.warning("snapshot is of another history, skipped: %s", meta.path)
        except NotFoundError:
            pass  # deleted between the listing and the read, or its commit was rolled: a newer start exists
        except _DAMAGED as error:
            _log.warning("snapshot is damaged, skipped: %s", error)


def is_vouched(storage: Storage, root: str, snapshot: FileMeta, mark: Mark) -> bool:
    """Whether a snapshot stands on a commit of this log's chain, or on the mark's floor.

    Raises:
        NotFoundError: there is no such commit.
        CorruptDataError: the commit is damaged.
    """
    doc = snapshot.doc
    if doc["offset"] == mark.floor:
        return mark.floor_digest == str(doc["digest"])
    if doc["last"] < mark.floor:
        return False
    commit = read_meta(storage, paths.commit(root, doc["last"]), "commit")
    return (commit.doc["first"] + commit.rows, commit.digest) == (doc["offset"], doc["digest"])


def comparable(state: LogState, floor: int, starts: Queues) -> dict[str, Any]:
    """The part of a state on which every fold of the same commits agrees, seen from a mark's floor and starts.

    Left out is what depends on the reader: which marks it knew when, and what it knows to be durable.
    """
    copy, _ = LogState.load(state.dump(), [type(fold) for fold in state.folds.values()])
    copy.commits.drop_below(floor)
    copy.queues.raise_starts(starts)
    copy.durable = 0
    plain = {name: json.loads(payload) for name, payload in copy.dump().items()}
    # Whether commits' runs and queue offsets of offers are listed depends on the version that made the copy.
    plain["commits"] = {name: plain["commits"][name] for name in ("firsts", "times", "sizes", "prints")}
    plain["core"]["helped"] = {token: entry[:4] for token, entry in plain["core"]["helped"].items()}
    return plain


def read_payloads(storage: Storage, meta: FileMeta) -> dict[str, bytes]:
    """The payloads in a snapshot file by name, check-sums verified."""
    payloads: dict[str, bytes] = {}
    blocks = range(len(meta.places.rows))
    for _, _, batch in FileReader(storage, meta).read(blocks, ["name", "payload"]):
        payloads.update(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
    return payloads if "folds" in meta.doc else _upgrade(payloads)


def snapshot_names(storage: Storage, root: str) -> list[str]:
    """Names of the snapshots there are. Somebody else's file is neither read nor counted nor deleted."""
    listed = (info.name for info in storage.list(paths.snapshots(root)))
    return [name for name in listed if paths.snapshot_offset(name) is not None]
