"""Rolling: many small commits become one segment, with the same messages, order and offsets.

Any process may do it at any time. Steps; a crash after any of them is safe:
1. read the commits from the floor on, and write segment files under names of our own;
2. write a snapshot of the state at the new floor, from which the log can be opened when what is before it has expired;
3. make the next mark, which names them and raises the floor (put-if-absent: one roller wins, the other throws its
   files away);
4. delete what is below the floor. Only now, and only files that were there when the mark was made.

Within a segment rows are sorted by (topic, queue, log offset), so that one queue's rows are contiguous; offsets
and store times are columns. The snapshot holds the folds that the roller knows. A fold that it does not know stays in
the snapshot that the mark before has named, together with its records in the segments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, DataExpiredError, ExistsError, InvalidRequestError, NotFoundError
from rmq_spark.log import file_encoder, scan, schema
from rmq_spark.log.arrow_columns import integers_of
from rmq_spark.log.file_format import pack
from rmq_spark.log.marks import Mark, SegmentRef, SnapshotRef, is_overtaken, write_mark
from rmq_spark.log.offers import past_announcements
from rmq_spark.log.rows import cut, describe
from rmq_spark.log.run_index import sort_into_runs
from rmq_spark.log.snapshot import legacy_payloads, write_floor
from rmq_spark.log.view import LogView
from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.log.commit_log import CommitLog

SEGMENT_RUN_BLOCKS: Final = 2
"""How many times larger than the aim a block within one run of a segment may be."""

_log = logging.getLogger(__name__)


Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is."""


def no_progress(done: int, total: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollResult:
    """What a roll did."""

    segments: tuple[SegmentRef, ...]
    """Segments that were written."""
    commits: int
    """Commits that went into them."""
    deleted: int
    """Files that were deleted because they are not needed any more."""


class Piece(NamedTuple):
    """What goes into a segment, and expires, as a whole: a segment, or a commit that is not rolled yet."""

    first: int
    end: int
    bytes: int
    min_ms: int
    max_ms: int


def pieces_of(view: LogView) -> list[Piece]:
    """All that a log consists of, the oldest first."""
    commits = view.state.commits
    ends = [*commits.firsts[1:], view.state.offset]
    segments = [Piece(each.first, each.end, each.bytes, each.min_ms, each.max_ms) for each in view.mark.segments]
    return [*segments, *map(Piece, commits.firsts, ends, commits.sizes, commits.times, commits.times)]


def roll(
    log: CommitLog,
    *,
    min_commits: int = 2,
    progress: Progress = no_progress,
    tiered: bool = False,
    tidy: bool = True,
) -> RollResult:
    """Roll the commits above the floor into segments, if there are at least `min_commits`.

    Small segments before them are taken in, so that segments reach their aim. `tiered` takes in only segments that
    have no more messages than what they are merged with: for whoever rolls often, because a message is then rewritten
    a few times (log2 of its segment's messages) and not by every roll.

    Args:
        log: the log.
        min_commits: do nothing for fewer commits.
        progress: called with (segments done, segments in all).
        tiered: as above.
        tidy: delete what nothing needs any more. It lists directories; whoever rolls often does that now and then.

    Raises:
        CorruptDataError, NotFoundError: the log is damaged, or a file of it is gone; nothing was changed.
        UnavailableError, OutcomeUnknownError: the storage failed; nothing is lost, roll again.
        ReadOnlyError, ClosedError: this handle may not change the log.
    """
    log.check_writable()
    view = LogView(log.files, log.broker, log.view.declared)
    view.load()
    mark = view.mark
    commits = len(view.state.commits.firsts)
    if commits < max(1, min_commits):
        return RollResult(segments=(), commits=0, deleted=collect_garbage(log, mark) if tidy else 0)
    kept, ranges = _ranges(log, view, tiered=tiered)
    written: list[SegmentRef] = []
    ours: list[str] = []
    try:
        for done, (first, end) in enumerate(ranges):
            progress(done, len(ranges))
            written.append(_write_segment(log, view, first, end))
            ours.append(f"{paths.segments(log.root)}/{written[-1].name}")
        progress(len(ranges), len(ranges))
        nonce, legacy_nonce, older = log.clock.token(), log.clock.token(), mark.snapshots
        if (legacy := legacy_payloads(log.storage, log.root, mark)) is not None:
            # The roller may not know all of its folds, and the next floor's segment carries none.
            older = (write_floor(log.storage, log.root, legacy, legacy_nonce),)
        snapshots = floor_snapshots(log, view, older, nonce)
        ours.append(f"{paths.floors(log.root)}/{snapshots[0].name}")
        new = replace(
            mark,
            floor=view.state.offset,
            floor_digest=view.state.digest,
            segments=mark.segments[:kept] + tuple(written),
            snapshots=snapshots,
            reason="roll",
        )
        new = write_mark(log.storage, log.root, new, mark, log.clock.token())
    except (ExistsError, NotFoundError, DataExpiredError, CorruptDataError) as error:
        if not is_overtaken(log.storage, log.root, mark):
            raise
        # Our files have names of our own: nobody refers to them.
        _log.info("another process maintained the log at the same time; this roll gives way: %s", error)
        log.storage.delete_many(ours)
        return RollResult(segments=(), commits=0, deleted=0)
    deleted = collect_garbage(log, new) if tidy else 0
    return RollResult(segments=tuple(written), commits=commits, deleted=deleted)


def floor_snapshots(log: CommitLog, view: LogView, older: Iterable[SnapshotRef], nonce: str) -> tuple[SnapshotRef, ...]:
    """What the next mark names: a new snapshot at the end of `view`, where the floor will be, and what it lacks.

    It is durable, and without commits behind the floor. Of the `older` ones those stay that hold folds it does not.
    """
    state = view.state
    state.commits.drop_below(state.offset)
    state.durable = state.offset
    kept = [write_floor(log.storage, log.root, state.dump(), nonce)]
    told = set(kept[0].folds)
    for each in older:
        if set(each.folds) - told:
            kept.append(each)
            told |= set(each.folds)
    return tuple(kept)


def _ranges(log: CommitLog, view: LogView, *, tiered: bool) -> tuple[int, list[tuple[int, int]]]:
    """How many segments stay, and the ranges of new ones: small last segments are merged with what follows."""
    settings, pieces, kept = log.settings, pieces_of(view), len(view.mark.segments)
    size, rows, begin_ms = 0, view.state.offset - view.mark.floor, pieces[kept].min_ms
    while kept and size + pieces[kept - 1].bytes < settings.segment_bytes // 2:
        last = pieces[kept - 1]
        if begin_ms - last.min_ms > settings.segment_span_ms or (tiered and last.end - last.first > rows):
            break
        kept, size, rows = kept - 1, size + last.bytes, rows + last.end - last.first
    size, begin_ms = 0, pieces[kept].min_ms
    edges = [pieces[kept].first]
    for piece in pieces[kept:]:
        if size >= settings.segment_bytes or piece.min_ms - begin_ms > settings.segment_span_ms:
            edges.append(piece.first)
            size, begin_ms = 0, piece.min_ms
        size += piece.bytes
    return kept, [*pairwise([*edges, view.state.offset])]


def _digest_at(log: CommitLog, view: LogView, offset: int) -> str:
    """Digest of the last commit below `offset`, where a commit or a segment begins or the log ends."""
    commits = view.state.commits
    if offset == view.state.offset:
        return view.state.digest
    if offset >= view.mark.floor:
        [meta] = log.files.commits([(offset, commits.fingerprints[commits.number_of(offset)])])
    else:
        [meta] = [log.files.segment(segment) for segment in view.mark.segments if segment.first == offset]
    return str(meta.doc["prev"])


def _write_segment(log: CommitLog, view: LogView, first: int, end: int) -> SegmentRef:
    batch, runs, _ = sort_into_runs(_read_rows(log, view, first, end))
    # A run of a segment is long: blocks within it are kept small, so that times and offsets prune well.
    batches = cut(batch, runs.rows, log.settings.block_bytes, SEGMENT_RUN_BLOCKS * log.settings.block_bytes)
    bounds = np.array([block_bounds(block) for block in batches], np.int64)
    nonce = log.clock.token()[-12:]
    doc = {
        **describe(batch, runs),
        "broker": log.broker,
        "first": first,
        "end": end,
        "ts": int(bounds[:, 3].max()),
        "prev": _digest_at(log, view, first),
        "last": _digest_at(log, view, end),
        "base": pack(integers_of(batch.column("queueOffset"))[runs.first_rows()]),
        "bounds": pack(bounds),
        "nonce": nonce,
    }
    encoded = file_encoder.Encoded(file_encoder.make_blocks("segment", batches), doc)
    path = paths.segment(log.root, first, end, nonce)
    log.storage.create_if_absent(path, encoded, durable=True)
    return SegmentRef(
        name=path.rsplit("/", 1)[1],
        first=first,
        end=end,
        bytes=encoded.tail.file_size,
        min_ms=int(bounds[:, 2].min()),
        max_ms=int(bounds[:, 3].max()),
        digest=encoded.tail.digest,
    )


def _read_rows(log: CommitLog, view: LogView, first: int, end: int) -> pa.RecordBatch:
    """All rows of a range, in log order as far as each queue is concerned."""
    query = scan.Query(start=first, end=end, columns=tuple(schema.SEGMENT.names))
    planned = scan.plan(view, query)
    planned.bounds = {}  # messages of deleted topics keep their offsets, so they are kept
    table = pa.Table.from_batches(scan.run(log, planned), schema=schema.SEGMENT).combine_chunks()
    if table.num_rows != end - first:
        raise NotFoundError("rows vanished while they were rolled", first=first, end=end)
    merged = table.to_batches()
    if len(merged) > 1:
        raise InvalidRequestError("a segment would have over 2 GB in one column; lower segment_bytes")
    return merged[0]


def block_bounds(block: pa.RecordBatch) -> list[int]:
    """Of one block of a segment: least and greatest commitOffset, least and greatest storeTimestamp."""
    columns = integers_of(block.column("commitOffset")), integers_of(block.column("storeTimestamp"))
    return [int(bound) for column in columns for bound in (column.min(), column.max())]


def collect_garbage(log: CommitLog, mark: Mark) -> int:
    """Delete files that `mark` has made useless: rolled commits, replaced segments, old snapshots; and dead offers.

    Files younger than the grace period stay, for readers that still hold them. Row files are the business of
    `collect`: a commit file below the floor may be an orphan, so what it refers to is no reason to delete.
    """
    storage, root = log.storage, log.root
    if is_overtaken(storage, root, mark):
        return 0  # overtaken: the newer mark's maker cleans up
    useless = _useless(log, mark)
    if useless and mark.epoch:
        # Its maker may have died between creating it and making it durable. Names must not become free before that.
        storage.sync([paths.mark(root, mark.epoch)])
    storage.delete_many(useless)
    return len(useless)


def _useless(log: CommitLog, mark: Mark) -> list[str]:
    """Paths of the files that `mark` has made useless; foreign files are not ours to take.

    What lies below the floor and is not named by the mark: rolled commits, segments that were replaced or have expired,
    or whose roller died or lost, and snapshots. A roller that is about to name such a segment in a mark of its own
    cannot: that mark's number would be this mark's, which is taken. Younger files may belong to somebody who began
    after this mark, and a snapshot at the floor itself may be about to be named by an expiry.
    """
    storage, root = log.storage, log.root
    latest = log.clock.now_ms() - log.settings.delete_grace_ms
    live = {segment.name for segment in mark.segments} | {snapshot.name for snapshot in mark.snapshots}
    places: list[tuple[str, Callable[[str], int | None]]] = [
        (paths.commitlog(root), paths.file_number),
        (paths.segments(root), _last_offset),
        (paths.snapshots(root), paths.snapshot_offset),
        (paths.floors(root), paths.snapshot_offset),
    ]
    useless = [
        f"{place}/{info.name}"
        for place, offset_of in places
        for info in storage.list(place)
        if info.modified_ms <= latest
        and info.name not in live
        and (offset := offset_of(info.name)) is not None
        and offset < mark.floor
    ]
    return useless + past_announcements(storage, root, log.clock.now_ms())


def _last_offset(segment: str) -> int | None:
    place = paths.segment_range(segment)
    return None if place is None else place[1] - 1
