"""Following a log: the newest mark, the folded state, and the walk along the chain that keeps both fresh.

Steps of `refresh`, which the tests and docs/architecture.md name by number:
1. read the commit at the next name; absent means the end, for now;
2. check that it is the next link (offset, predecessor's digest, broker) and fold it; back to 1;
3. look for a mark newer than the known one. None: everything read in 1 was genuine (see `marks`).
   One whose floor is not above where the walk began: also genuine, the old part just moved into segments.
   Else what was read may have been put there by a writer that slept: throw the state away and load it anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError
from rmq_spark.log import scan
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import FileReader
from rmq_spark.log.files import LogFiles
from rmq_spark.log.fold import UNREADABLE, Fold, Records, unreadable
from rmq_spark.log.marks import Mark, find_mark, newest_mark
from rmq_spark.log.queues import Queues
from rmq_spark.log.snapshot import floor_state, newest_state, stored_fold
from rmq_spark.log.state import LogState
from rmq_spark.log.tail_index import fingerprint
from rmq_spark.storage.base import Storage


class Landing(NamedTuple):
    """Whose commit stands where."""

    handle: str
    seq: int
    first: int
    store_ms: int
    helped: Sequence[Sequence[Any]]
    """Offers of other writers that it has landed: token, time, rows."""
    fingerprint: int
    """Which file it is."""


class LogView:
    """What one handle knows of a log. Not safe for use by two threads at once.

    Args:
        files: the log's files.
        broker: the log's name.
        folds: what is folded beside the log's own state.
    """

    def __init__(self, files: LogFiles, broker: str, folds: Iterable[type[Fold]] = ()) -> None:
        self.files = files
        self.storage: Storage = files.storage
        self.root = files.root
        self.broker = broker
        self.declared: list[type[Fold]] = list(dict.fromkeys(folds))
        """What is folded beside the log's own state."""
        self.mark = Mark()
        self.state = LogState(self.declared)
        self.confirmed = 0
        """Everything folded below this offset was confirmed by step 3; what is above may yet prove an orphan."""
        self._loaded = False
        """False while mark and state may not belong together: a load failed, or a change of them was interrupted."""
        self.folded = 0
        """Commits folded since the state was loaded from a snapshot."""
        self.on_commit: Callable[[Landing], None] | None = None
        """Called with each commit that a walk folded, once it is confirmed: an orphan may be the caller's own."""
        self._unconfirmed: deque[Landing] = deque()
        self.on_load: Callable[[], None] | None = None
        """Called when the state was loaded from a snapshot, before the walk."""

    def load(self) -> None:
        """Learn the log from nothing: newest mark, newest good snapshot, then the walk.

        Raises:
            CorruptDataError: the chain is damaged; the error names the file.
            UnavailableError: the storage failed; the next call loads again.
        """
        self._loaded = False
        while True:
            self.mark = find_mark(self.storage, self.root)
            try:
                found = newest_state(self.storage, self.root, self.mark, self.declared)
                self.state, unknown = found or floor_state(self.storage, self.root, self.mark, self.declared)
            except NotFoundError as error:
                # The mark was overtaken between reading it and reading what it names.
                if newest_mark(self.storage, self.root, self.mark) is self.mark:
                    raise missing(error) from error
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
            if not self._walk_and_confirm():
                continue
            try:
                for kind in unknown:
                    self._learn(kind)
            except NotFoundError as error:
                if newest_mark(self.storage, self.root, self.mark) is self.mark:
                    raise missing(error) from error
                continue
            self._loaded = True
            return

    def load_floor(self) -> None:
        """Learn the state at the newest mark's floor, and nothing behind it.

        Raises:
            NotFoundError: the mark was overtaken.
            CorruptDataError: what the mark names is damaged, or the state of a fold cannot be learned.
        """
        self._loaded = False
        self.mark = find_mark(self.storage, self.root)
        self.state, unknown = floor_state(self.storage, self.root, self.mark, self.declared)
        self._trim()
        self.confirmed = self.state.offset
        for kind in unknown:
            self._learn(kind)

    def use(self, folds: Sequence[type[Fold]]) -> None:
        """Fold these, too, from here on; the view must be fresh.

        Raises:
            CorruptDataError: the state of one cannot be learned any more; the error names it.
        """
        for kind in folds:
            if kind in self.declared:
                continue
            while True:
                try:
                    if self.state.has_records(kind):
                        self._learn(kind)
                    else:
                        self.state.add_fold(kind)
                    break
                except NotFoundError as error:
                    mark = self.mark
                    self.refresh()
                    if self.mark is mark:
                        raise missing(error) from error
            self.declared.append(kind)

    def refresh(self) -> None:
        """Fold whatever has been appended since.

        Raises:
            CorruptDataError: the chain is damaged; the error names the file.
            UnavailableError: the storage failed; what was folded so far is confirmed by the next refresh.
        """
        if not self._loaded or self.state.journal.is_open or not self._walk_and_confirm():
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
        return self._loaded and not self.state.journal.is_open and self.confirmed == self.state.offset

    def walk(self) -> None:
        """Steps 1 and 2: fold commits up to the first absent name, unconfirmed."""
        while True:
            try:
                meta = self.files.next_commit(self.state.offset)
            except NotFoundError:
                return
            self.take(meta)
            if self.on_commit is not None:
                doc = meta.doc
                landing = Landing(
                    doc["handle"], doc["seq"], doc["first"], doc["ts"], doc.get("helped", ()), fingerprint(meta.digest)
                )
                self._unconfirmed.append(landing)

    def take(self, meta: FileMeta) -> None:
        """Fold the next commit after checking that it is the next link of the chain."""
        check_link(meta, self.state, self.broker)
        records = list(read_records(self.storage, meta, self.state))
        loaded, self._loaded = self._loaded, False  # an interrupt in the middle makes the next call load anew
        self.state.apply(meta, records)
        self._loaded = loaded
        self.folded += 1

    def apply_own_commit(self, meta: FileMeta) -> None:
        """Take in a commit that this handle has just created and whose records are on trial."""
        self._loaded = False
        self.state.keep_trial(meta)
        self.confirmed = self.state.offset
        self._loaded = True
        self.folded += 1

    def _trim(self) -> None:
        self.state.commits.drop_below(self.mark.floor)
        self.state.queues.raise_starts(Queues.load(self.mark.starts))

    def _learn(self, kind: type[Fold]) -> None:
        """Add a fold to the state: from the newest snapshot that holds it, and the records behind that."""
        self.state.drop_fold(kind)
        stored = stored_fold(self.storage, self.root, self.mark, kind, self.state.offset)
        if stored is None and self._have_expired(kind.topics):
            raise CorruptDataError(
                "no snapshot holds this state, and the messages that made it have expired; restore the snapshots",
                fold=kind.name,
                log_start=self.mark.log_start,
            )
        fold = self.state.add_fold(kind)
        begin = 0
        try:
            if stored is not None:
                begin = stored[0]
                fold.load(*stored[1])
            for records in self._records_of(kind, begin):
                fold.apply(records)
        except UNREADABLE as error:
            self.state.drop_fold(kind)
            raise unreadable(kind.topics[0], begin, error) from error
        except BaseException:
            self.state.drop_fold(kind)
            raise

    def _have_expired(self, topics: Sequence[str]) -> bool:
        """Whether any message of these topics was below the log's start."""
        expired = Queues.load(self.mark.starts)
        return any(next(iter(expired.of_topic(topic)), None) is not None for topic in topics)

    def _records_of(self, kind: type[Fold], begin: int) -> Iterator[Records]:
        columns = ("topic", "storeTimestamp", *kind.columns)
        query = scan.Query(topics=frozenset(kind.topics), start=begin, end=self.state.offset, columns=columns)
        planned = scan.plan(self, query, scan.ScanStats())
        planned.starts = {}  # records are never truncated
        for batch in scan.read_plan(self.files, self.broker, planned):
            for topic in kind.topics:
                rows = batch.filter(pa.compute.equal(batch.column("topic"), topic)) if len(kind.topics) > 1 else batch
                if rows.num_rows:
                    yield _to_records(
                        topic, rows, kind.columns, rows.column("storeTimestamp").cast(pa.int64()).to_pylist()
                    )


def missing(error: NotFoundError) -> CorruptDataError:
    """The error of a log that lacks a file which its newest mark, or the chain, needs."""
    return CorruptDataError("a file that the log needs is missing; restore it", **error.context)


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


def read_records(storage: Storage, meta: FileMeta, state: LogState) -> Iterator[Records]:
    """The state messages of a commit: rows of those topics that a fold of `state` reads."""
    wanted = state.fold_topics(meta.doc["topics"])
    if not wanted:
        return
    if meta.doc.get("files"):
        raise meta.corrupt("state messages must be inline", topics=wanted)
    runs, firsts, bases = meta.runs, meta.runs.first_rows(), meta.bases
    for topic in wanted:
        fold = state.fold_of(topic)
        mine = np.flatnonzero(runs.topic == runs.topics.index(topic))
        low, high = int(firsts[mine[0]]), int(firsts[mine[-1]] + runs.rows[mine[-1]])
        rows = _read_rows(storage, meta, low, high, [name for name in fold.columns if name != "queueOffset"])
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        if "queueOffset" in fold.columns:
            steps = [np.arange(count) + base for base, count in zip(bases[mine], runs.rows[mine], strict=True)]
            columns["queueOffset"] = pa.array(np.concatenate(steps))
        yield _to_records(topic, columns, fold.columns, [meta.doc["ts"]] * (high - low))


def _read_rows(storage: Storage, meta: FileMeta, low: int, high: int, names: list[str]) -> pa.RecordBatch:
    starts = meta.block_rows
    begin = int(np.searchsorted(starts, low, "right")) - 1
    end = int(np.searchsorted(starts, high, "left"))
    batches = [batch for _, batch in FileReader(storage, meta).read_blocks(range(begin, end), names or ["queueId"])]
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return whole.slice(low - int(starts[begin]), high - low)


def _to_records(
    topic: str, rows: Mapping[str, pa.Array] | pa.RecordBatch, names: Sequence[str], store_ms: list[int]
) -> Records:
    def values(name: str) -> list[object]:
        column = rows[name] if isinstance(rows, Mapping) else rows.column(name)
        if name == "bornTimestamp":
            column = column.cast(pa.int64())
        listed = column.to_pylist() if name in names else []
        return [dict(entry) for entry in listed] if name == "properties" else listed

    given = {field: values(name) for name, field in _FIELD_OF.items() if name in names}
    return Records(topic, store_ms, **given)  # type: ignore[arg-type]


_FIELD_OF = {
    "body": "bodies",
    "queueId": "queue_ids",
    "queueOffset": "queue_offsets",
    "msgId": "msg_ids",
    "properties": "properties",
    "bornTimestamp": "born_ms",
}
"""Column -> field of `Records`."""
