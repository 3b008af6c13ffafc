"""Copies of the folded state: in snapshot files for a quick start, in segments as part of the log.

A snapshot is never the truth. It names the digest of the commit it stands on; if the chain does not hold that
commit, or the file is damaged, it is passed over and the fold starts from an older one or from the segment.
"""

from __future__ import annotations

import binascii
import json
import logging
import zlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError, UnsupportedVersionError
from rmq_spark.log import file_encoder, file_format
from rmq_spark.log.file_reader import FileReader, read_meta
from rmq_spark.log.folds import ConsumerOffsets, SinkBatches
from rmq_spark.log.queues import Queues
from rmq_spark.log.state import LogState
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

KEEP: Final = 2
"""Snapshots that stay when a newer one is written."""

_log = logging.getLogger(__name__)


def pack_state(state: LogState) -> str:
    """The state as text for a segment's metadata."""
    payloads = {name: payload.decode() for name, payload in state.dump().items()}
    text = json.dumps(payloads, separators=(",", ":")).encode()
    return binascii.b2a_base64(zlib.compress(text, 6), newline=False).decode()


def unpack_state(text: str) -> LogState:
    """The inverse of `pack_state`."""
    payloads = json.loads(zlib.decompress(binascii.a2b_base64(text)))
    return LogState.load({name: payload.encode() for name, payload in payloads.items()})


def write_snapshot(storage: Storage, root: str, state: LogState, nonce: str) -> str:
    """Write a snapshot of `state`, drop all but the newest few, and return its path."""
    payloads = state.dump()
    batch = pa.RecordBatch.from_arrays(
        [pa.array(list(payloads), pa.string()), pa.array(list(payloads.values()), pa.binary())],
        schema=file_format.SNAPSHOT_SCHEMA,
    )
    firsts = state.commits.firsts
    doc = {
        "offset": state.offset,
        "digest": state.digest,
        "last": firsts[-1] if firsts else -1,
        "ts": state.store_ms,
        "nonce": nonce,
    }
    encoded = file_encoder.encode(file_encoder.make_blocks("snapshot", [batch]), doc)
    path = paths.snapshot(root, state.offset, nonce)
    storage.create_if_absent(path, encoded, durable=False)
    for name in sorted(_names(storage, root))[:-KEEP]:
        storage.delete(f"{paths.snapshots(root)}/{name}")
    return path


def newest_state(storage: Storage, root: str, floor: int, floor_digest: str) -> LogState | None:
    """Return the state of the newest snapshot at or above `floor` that the chain vouches for, if any."""
    for name in sorted(_names(storage, root), reverse=True):
        offset = paths.snapshot_offset(name)
        if offset is None or offset < floor:
            return None
        state = load_snapshot(storage, root, f"{paths.snapshots(root)}/{name}", floor, floor_digest)
        if state is not None:
            return state
    return None


def load_snapshot(storage: Storage, root: str, path: str, floor: int, floor_digest: str) -> LogState | None:
    """Return the state in the snapshot at `path`, or None (with a log line) if it cannot be trusted."""
    try:
        meta = read_meta(storage, path, "snapshot")
        doc = meta.doc
        if doc["offset"] == floor:
            known = floor_digest
        elif doc["last"] < floor:
            return None
        else:
            commit = read_meta(storage, paths.commit(root, doc["last"]), "commit")
            known = commit.digest if commit.doc["first"] + commit.rows == doc["offset"] else ""
        if known != doc["digest"]:
            _log.warning("snapshot is of another history, skipped: %s", path)
            return None
        return read_state(storage, meta)
    except NotFoundError:
        # Deleted between the listing and the read, or its commit was rolled: a newer start exists.
        return None
    except (CorruptDataError, UnsupportedVersionError, AttributeError, KeyError, TypeError, ValueError) as error:
        _log.warning("snapshot is damaged, skipped: %s", error)
        return None


def comparable(state: LogState, floor: int, starts: Queues) -> dict[str, bytes]:
    """The part of a state on which every fold of the same commits agrees, seen from a mark's floor and starts.

    Left out is what depends on the reader: which marks it knew when, and what it knows to be durable; and who committed
    offsets last and what sink batches held, which snapshots of older versions do not hold.
    """
    copy = LogState.load(state.dump())
    copy.fold(ConsumerOffsets).last.clear()
    copy.fold(SinkBatches).fingerprints.clear()
    copy.commits.drop_below(floor)
    copy.queues.raise_starts(starts)
    copy.durable = 0
    return {name: _sorted(payload) for name, payload in copy.dump().items()}


def _sorted(payload: bytes) -> bytes:
    # The order of keys is the order in which they came, and a loaded state has forgotten some that went.
    return json.dumps(json.loads(payload), sort_keys=True).encode()


def read_state(storage: Storage, meta: file_format.FileMeta) -> LogState:
    """The state in a snapshot file, check-sums verified."""
    payloads: dict[str, bytes] = {}
    blocks = range(len(meta.places.rows))
    for _, batch in FileReader(storage, meta).read_blocks(blocks, ["name", "payload"]):
        payloads.update(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
    return LogState.load(payloads)


def _names(storage: Storage, root: str) -> Iterator[str]:
    # Somebody else's file is neither read nor counted nor deleted.
    listed = (info.name for info in storage.list(paths.snapshots(root)))
    return (name for name in listed if paths.snapshot_offset(name) is not None)
