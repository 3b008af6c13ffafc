"""Following a log: the newest mark, the folded state, and the walk along the chain that keeps both fresh.

Steps of `refresh`, which the tests and docs/architecture.md name by number:
1. read the commit at the next name; absent means the end, for now;
2. check that it is the next link (offset, predecessor's digest, broker) and fold it; back to 1;
3. look for a mark newer than the known one. None: everything read in 1 was genuine (see `marks`).
   One whose floor is not above where the walk began: also genuine, the old part just moved into segments.
   Else what was read may have been put there by a writer that slept: throw the state away and load it anew.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError
from rmq_spark.log import folds
from rmq_spark.log.file_encoder import Encoded
from rmq_spark.log.file_format import FileMeta, parse
from rmq_spark.log.file_reader import FileReader, read_meta
from rmq_spark.log.marks import Mark, find_mark, newest_mark
from rmq_spark.log.queues import Queues
from rmq_spark.log.snapshot import newest_state, unpack_state
from rmq_spark.log.state import LogState, fingerprint, state_topics
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

WALKED_BYTES: Final = 8 * 1024 * 1024
"""A view keeps the metadata of the commits that it walked along last, up to so many bytes of their files' tails."""


class Landing(NamedTuple):
    """Whose commit stands where."""

    handle: str
    seq: int
    first: int


class LogView:
    """What one handle knows of a log. Not safe for use by two threads at once."""

    def __init__(self, storage: Storage, root: str, broker: str) -> None:
        self.storage = storage
        self.root = root
        self.broker = broker
        self.mark = Mark()
        self.state = LogState()
        self.confirmed = 0
        """Everything folded below this offset was confirmed by step 3; what is above may yet prove an orphan."""
        self._loaded = False
        """False while mark and state may not belong together: a load failed, or a change of them was interrupted."""
        self.folded = 0
        """Commits folded since the state was loaded from a segment or snapshot."""
        self.on_commit: Callable[[Landing], None] | None = None
        """Called with each commit that a walk folded, once it is confirmed: an orphan may be the caller's own."""
        self._unconfirmed: deque[Landing] = deque()
        self.on_load: Callable[[], None] | None = None
        """Called when the state was loaded from a segment or snapshot, before the walk."""
        self._walked: OrderedDict[str, FileMeta] = OrderedDict()
        self._walked_bytes = 0

    def load(self) -> None:
        """Learn the log from nothing: newest mark, newest good snapshot (or segment), then the walk.

        Raises:
            CorruptDataError: the chain is damaged; the error names the file.
            UnavailableError: the storage failed; the next call loads again.
        """
        self._loaded = False
        while True:
            self.mark = find_mark(self.storage, self.root)
            try:
                self.state = newest_state(
                    self.storage, self.root, self.mark.floor, self.mark.floor_digest
                ) or self.floor_state(self.mark)
            except NotFoundError:
                # The mark was overtaken between reading it and reading its last segment.
                if newest_mark(self.storage, self.root, self.mark) is self.mark:
                    raise
                continue
            self._trim()
            firsts = self.state.commits.firsts
            if (firsts[0] if firsts else self.state.offset) != self.mark.floor:
                # The snapshot was made under a higher floor. Marks are never deleted, so there must be a newer one.
                if newest_mark(self.storage, self.root, self.mark) is not self.mark:
                    continue
                raise CorruptDataError(
                    "a mark is missing: a snapshot knows of a higher floor; restore the marks, or delete the snapshots",
                    root=self.root,
                    floor=self.mark.floor,
                    known=firsts[0] if firsts else self.state.offset,
                )
            self.confirmed = self.state.offset
            self._unconfirmed.clear()
            self.folded = 0
            if self.on_load is not None:
                self.on_load()
            if self._walk_and_confirm():
                self._loaded = True
                return

    def refresh(self) -> None:
        """Fold whatever has been appended since.

        Raises:
            CorruptDataError: the chain is damaged; the error names the file.
            UnavailableError: the storage failed; what was folded so far is confirmed by the next refresh.
        """
        if not self._loaded or not self._walk_and_confirm():
            self.load()

    def confirm(self, slot: int) -> bool:
        """Whether a file just created at `slot`, the state's end, is genuine (step 3); takes in a newer mark.

        False means: the state was loaded anew, because the slot, or what the state stands on, may be void. If the file
        is part of the log after all, the load has folded it (and `on_load` or `on_commit` have told).
        """
        if not self._loaded or not self._follow(min(slot, self.confirmed)):
            self.load()
            return False
        return True

    def _walk_and_confirm(self) -> bool:
        try:
            self.walk()
        except CorruptDataError:
            mark = newest_mark(self.storage, self.root, self.mark)
            if mark is self.mark or mark.floor <= self.confirmed:
                raise
            return False  # damage below a floor we had not heard of: an orphan, not the log
        if not self._follow(self.confirmed):
            return False
        self.confirmed = self.state.offset
        while self._unconfirmed and self.on_commit is not None:
            self.on_commit(self._unconfirmed[0])
            self._unconfirmed.popleft()  # after the call: an interrupt between them only tells it twice
        return True

    def _follow(self, trusted: int) -> bool:
        """Step 3: take in the newest mark; False if its floor is above `trusted`."""
        mark = newest_mark(self.storage, self.root, self.mark)
        if mark is self.mark:
            return True
        if mark.floor > trusted:
            return False
        loaded, self._loaded = self._loaded, False
        self.mark = mark
        self._trim()
        self._loaded = loaded
        return True

    @property
    def trusted(self) -> bool:
        """Whether everything the state stands on is confirmed; only then may an append build on it."""
        return self._loaded and self.confirmed == self.state.offset

    def walked(self, path: str, digest_print: int) -> FileMeta | None:
        """The metadata of a commit that a walk has read lately, so that a plan need not read and parse it again.

        It is what the state was folded from, whatever stands under that name by now.
        """
        meta = self._walked.get(path)
        return meta if meta is not None and fingerprint(meta.digest) == digest_print else None

    def _keep(self, meta: FileMeta) -> None:
        before = self._walked.pop(meta.path, None)
        self._walked[meta.path] = meta
        self._walked_bytes += meta.tail_bytes - (before.tail_bytes if before is not None else 0)
        while self._walked_bytes > WALKED_BYTES:
            self._walked_bytes -= self._walked.popitem(last=False)[1].tail_bytes

    def walk(self) -> None:
        """Steps 1 and 2: fold commits up to the first absent name, unconfirmed."""
        while True:
            try:
                meta = read_meta(self.storage, paths.commit(self.root, self.state.offset), "commit")
            except NotFoundError:
                return
            self.take(meta)
            self._keep(meta)
            if self.on_commit is not None:
                self._unconfirmed.append(Landing(meta.doc["handle"], meta.doc["seq"], meta.doc["first"]))

    def take(self, meta: FileMeta) -> None:
        """Fold the next commit after checking that it is the next link of the chain."""
        check_link(meta, self.state, self.broker)
        records = read_records(self.storage, self.root, meta)
        loaded, self._loaded = self._loaded, False  # an interrupt in the middle makes the next call load anew
        self.state.apply(meta, records)
        self._loaded = loaded
        self.folded += 1

    def take_own(self, meta: FileMeta, encoded: Encoded) -> None:
        """Fold a commit that this handle has just created, without reading it back."""
        records = []
        if state_topics(meta.doc["topics"]):
            meta = parse(meta.path, b"".join(encoded), encoded.tail.file_size)
            records = read_records(self.storage, self.root, meta)
        self._loaded = False
        self.state.apply(meta, records)
        self.confirmed = self.state.offset
        self._loaded = True
        self.folded += 1

    def floor_state(self, mark: Mark) -> LogState:
        """The state at the mark's floor: the last segment carries it."""
        if not mark.segments:
            return LogState()
        last = mark.segments[-1]
        meta = read_meta(self.storage, f"{paths.segments(self.root)}/{last.name}", "segment")
        if meta.digest != last.digest:
            raise meta.corrupt("not the segment that the mark names", expected=last.digest)
        return unpack_state(meta.doc["state"])

    def _trim(self) -> None:
        self.state.commits.drop_below(self.mark.floor)
        self.state.queues.raise_starts(Queues.load(self.mark.starts))


def check_link(meta: FileMeta, state: LogState, broker: str) -> None:
    """Check that a commit file is the next link after `state`.

    Raises:
        CorruptDataError: a file of another place, log or history stands here.
    """
    doc = meta.doc
    if doc["first"] != state.offset:
        raise meta.corrupt("commit is in another's place", first=doc["first"], expected=state.offset)
    if doc["broker"] != broker:
        raise meta.corrupt("commit is of another log", broker=doc["broker"], expected=broker)
    if doc["prev"] != state.digest:
        raise meta.corrupt("chain is broken: another predecessor is named", named=doc["prev"], is_=state.digest)
    if doc["ts"] < state.store_ms:
        raise meta.corrupt("storeTimestamp goes backwards", ts=doc["ts"], before=state.store_ms)


def read_records(storage: Storage, root: str, meta: FileMeta) -> list[folds.Record]:
    """The state messages of a commit: rows of those system topics that have a fold."""
    wanted = state_topics(meta.doc["topics"])
    if not wanted:
        return []
    if meta.doc.get("files"):
        raise meta.corrupt("state messages must be inline", topics=wanted)
    runs = meta.runs
    firsts = runs.first_rows()
    starts = meta.block_rows
    ids = [index for index, topic in enumerate(runs.topics) if topic in wanted]
    mine = np.flatnonzero(np.isin(runs.topic, ids)).tolist()
    spans = [(runs.topics[runs.topic[run]], int(firsts[run]), int(firsts[run] + runs.rows[run])) for run in mine]
    low_block = int(np.searchsorted(starts, spans[0][1], "right")) - 1
    high_block = int(np.searchsorted(starts, spans[-1][2], "left"))
    records = []
    for block, batch in FileReader(storage, meta).read_blocks(range(low_block, high_block), ["topic", "body"]):
        for topic, first, end in spans:
            low, high = max(first, int(starts[block])), min(end, int(starts[block + 1]))
            if low < high:
                bodies = batch.column(1).slice(low - int(starts[block]), high - low)
                records += _decode(topic, bodies, meta.doc["first"] + low, meta.doc["ts"])
    return records


def _decode(topic: str, bodies: pa.BinaryArray, first: int, store_ms: int) -> list[folds.Record]:
    return [folds.decode(topic, body, first + index, store_ms) for index, body in enumerate(bodies.to_pylist())]
