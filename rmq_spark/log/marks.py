"""The chain of marks: which commits are rolled into which segments, and where the log starts.

Why it exists: deleting a commit file frees its name, and a writer that slept since before the name was taken
could create it again and fork the log. So a mark comes first: mark number e+1 is created (put-if-absent,
durable, never deleted) *before* any commit below its `floor` is deleted. From that follows the rule that every
reader and writer keeps:

    A file read at, or created at, a slot >= the floor of mark e is genuine
    if mark e+1 did not exist *after* the read or the create.

Because: the slot can only have been deleted before if some mark had a floor above it; marks are numbered without
gaps and stay for ever, so "e+1 is absent" means no such mark had been made. It takes one look at one name, no
listing, no clock and no lease; docs/decisions/0003 has the argument in full.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError
from rmq_spark.log import file_encoder, file_layout
from rmq_spark.log.arrow_columns import column_of
from rmq_spark.log.file_reader import FileReader, read_meta
from rmq_spark.log.queues import Queues
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

GENESIS: Final = "0" * 32
"""What the first mark names as its predecessor's digest, and the first commit of a log that is bound to no store."""


class SnapshotRef(NamedTuple):
    """A snapshot that a mark names."""

    name: str
    """File name in `floors/`."""
    offset: int
    """It holds the state before this offset."""
    digest: str
    """Digest of the snapshot file's own metadata."""
    folds: tuple[str, ...]
    """Names of the folds that it holds."""


class SegmentRef(NamedTuple):
    """One live segment: a row of a mark's file, by the columns of `file_layout.MARK_SCHEMA`."""

    name: str
    """File name in `segments/`."""
    first: int
    """First log offset."""
    end: int
    """Exclusive end."""
    bytes: int
    """File size."""
    min_ms: int
    """storeTimestamp of its first message."""
    max_ms: int
    """storeTimestamp of its last message."""
    digest: str
    """Digest of the segment file's own metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What is true of the log's old part since this mark was made."""

    epoch: int = 0
    """Number of the mark; 0 is the beginning, which has no file."""
    floor: int = 0
    """Commits below this offset are in segments; their names are void."""
    floor_digest: str = GENESIS
    """Digest of the last commit below the floor."""
    log_start: int = 0
    """First offset that retention has left."""
    segments: tuple[SegmentRef, ...] = ()
    """Live segments, ascending, without gaps from `log_start` to `floor`."""
    starts: dict[str, Any] = field(default_factory=lambda: Queues().dump())
    """Dump of the queues' state at `log_start`: where each queue now begins."""
    snapshots: tuple[SnapshotRef, ...] = ()
    """The state at the floor, and older snapshots that hold folds which that one lacks. Part of the log: kept for as
    long as a mark names them. Empty in format version 1, where the last segment carries the state."""
    reason: str = ""
    """What made it: roll, expire, collect, recover."""
    digest: str = GENESIS
    """Digest of the mark's file; the next mark names it."""


_PLAIN: Final = ("epoch", "floor", "floor_digest", "log_start")
"""What of a mark stands in its metadata document as it is."""


def read_mark(storage: Storage, root: str, epoch: int) -> Mark:
    """Return mark number `epoch`.

    Raises:
        NotFoundError: there is none yet.
        CorruptDataError: it is damaged.
    """
    meta = read_meta(storage, paths.mark(root, epoch), "mark")
    doc = meta.doc
    if doc["epoch"] != epoch:
        raise meta.corrupt("not the mark that its name says", epoch=doc["epoch"])
    segments: list[SegmentRef] = []
    for _, _, batch in FileReader(storage, meta).read(range(len(meta.places.rows)), meta.schema.names):
        plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
        segments += map(SegmentRef, *(column.to_pylist() for column in plain))
    return Mark(
        **{name: doc[name] for name in _PLAIN},
        reason=doc["reason"],
        segments=tuple(segments),
        starts=json.loads(doc["starts"]),
        snapshots=tuple(
            SnapshotRef(name, offset, digest, tuple(folds)) for name, offset, digest, folds in doc.get("snapshots", ())
        ),
        digest=meta.digest,
    )


def write_mark(storage: Storage, root: str, mark: Mark, previous: Mark, nonce: str) -> Mark:
    """Create the mark behind `previous` durably, with what `mark` says, and return it.

    Raises:
        ExistsError: somebody else made a mark of this number; nothing was changed.
    """
    mark = replace(mark, epoch=previous.epoch + 1)
    schema = file_layout.MARK_SCHEMA
    columns = zip(*mark.segments, strict=True) if mark.segments else [()] * len(schema)
    arrays = [column_of(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    doc = {
        **{name: getattr(mark, name) for name in _PLAIN},
        "starts": json.dumps(mark.starts, separators=(",", ":")),
        "snapshots": [list(named) for named in mark.snapshots],
        "reason": mark.reason,
        "prev": previous.digest,
        "nonce": nonce,
    }
    encoded = file_encoder.Encoded(file_encoder.make_blocks("mark", [batch]), doc)
    storage.create_if_absent(paths.mark(root, mark.epoch), encoded, durable=True)
    return replace(mark, digest=encoded.tail.digest)


def newest_mark(storage: Storage, root: str, known: Mark) -> Mark:
    """Return the newest mark, which is `known` if there is no later one. Walks by name; lists nothing."""
    epoch = _last_epoch(storage, root, known.epoch)
    return known if epoch == known.epoch else read_mark(storage, root, epoch)


def is_overtaken(storage: Storage, root: str, mark: Mark) -> bool:
    """Whether somebody has made a newer mark: files that `mark` names, or that were read by it, may be gone."""
    return storage.exists(paths.mark(root, mark.epoch + 1))


def find_mark(storage: Storage, root: str) -> Mark:
    """Return the newest mark of a log that this process has not seen before."""
    epoch = newest_epoch(storage, root)
    return read_mark(storage, root, epoch) if epoch else Mark(floor_digest=genesis(storage, root))


def newest_epoch(storage: Storage, root: str) -> int:
    """Return the number of the newest mark; 0 if there is none.

    The listing only saves steps: if it is stale, the walk by name finds the rest.
    """
    listed = [paths.file_number(info.name) or 0 for info in storage.list(paths.marks(root))]
    return _last_epoch(storage, root, max(listed, default=0))


def genesis(storage: Storage, root: str) -> str:
    """What the first commit of a log names as its predecessor's digest.

    It is made of the store's nonce, so that no commit of another store can begin the chain. Stores of format version 1,
    and logs outside of a store, do not have that.

    Raises:
        CorruptDataError: the store's file is damaged.
    """
    try:
        info = json.loads(storage.read(paths.STORE_FILE))
        if not info.get("bound"):
            return GENESIS
        return hashlib.blake2b(f"{info['nonce']}/{root}".encode(), digest_size=16).hexdigest()
    except NotFoundError:
        return GENESIS
    except (AttributeError, KeyError, ValueError) as error:
        raise CorruptDataError("store.json is damaged", uri=storage.uri) from error


def _last_epoch(storage: Storage, root: str, epoch: int) -> int:
    """Walk by name from a mark that is there (or from the beginning) to the last one."""
    while storage.exists(paths.mark(root, epoch + 1)):
        epoch += 1
    return epoch
