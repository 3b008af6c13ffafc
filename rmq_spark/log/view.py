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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from rmq_spark.errors import CorruptDataError, NotFoundError
from rmq_spark.log import scan
from rmq_spark.log.core_folds import CORE_FOLDS
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.files import LogFiles
from rmq_spark.log.fold import UNREADABLE, Fold, Records, unreadable
from rmq_spark.log.marks import Mark, find_mark, is_overtaken, newest_mark
from rmq_spark.log.queues import Queues
from rmq_spark.log.records import join_records, read_records, to_records
from rmq_spark.log.small_commits import is_small
from rmq_spark.log.snapshot import floor_state, newest_state, snapshot_names, stored_fold
from rmq_spark.log.state import HelpedRows, LogState, helped_rows, load_fold
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

JOINED_COMMITS: Final = 256
"""So many small commits are folded at once at most."""

CORE_TOPICS: Final = frozenset(topic for fold in CORE_FOLDS for topic in fold.topics)


class Landing(NamedTuple):
    """Whose commit stands where."""

    handle: str
    seq: int
    first: int
    store_ms: int
    helped: dict[str, HelpedRows]
    """By token: the offers of other writers that it has landed."""


class Link(NamedTuple):
    """Where a commit leaves the log."""

    offset: int
    digest: str
    store_ms: int


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
        self.snapshots_end = 0
        """The greatest offset of a snapshot that was there when the state was loaded."""
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
        while not self._try_load():
            pass
        self._loaded = True

    def _try_load(self) -> bool:
        """False: the mark was overtaken between reading it and reading what it names."""
        self.mark = find_mark(self.storage, self.root)
        try:
            names = snapshot_names(self.storage, self.root)
            self.snapshots_end = max((paths.snapshot_offset(name) or 0 for name in names), default=0)
            self.state, unknown = newest_state(self.storage, self.root, self.mark, self.declared, names)
            self._trim()
            begin = next(iter(self.state.commits.firsts), self.state.offset)
            if begin != self.mark.floor:
                # The snapshot was made under a higher floor. Marks are never deleted, so there must be a newer one.
                if is_overtaken(self.storage, self.root, self.mark):
                    return False
                raise CorruptDataError(
                    "a mark is missing: a snapshot knows of a higher floor; restore the marks, or delete the snapshots",
                    root=self.root,
                    floor=self.mark.floor,
                    known=begin,
                )
            self.confirmed = self.state.offset
            self._unconfirmed.clear()
            self.folded = 0
            if self.on_load is not None:
                self.on_load()
            if not self._walk_and_confirm():
                return False
            for kind in unknown:
                self._learn(kind)
        except NotFoundError as error:
            self._raise_unless_overtaken(error)
            return False
        return True

    def _raise_unless_overtaken(self, error: NotFoundError) -> None:
        if not is_overtaken(self.storage, self.root, self.mark):
            raise CorruptDataError("a file that the log needs is missing; restore it", **error.context) from error

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

    def load_until(self, end: int) -> None:
        """Learn the state before the commit at `end`, and nothing behind it. Unconfirmed: a newer mark may void it.

        Raises:
            NotFoundError, CorruptDataError: as `load_floor`; or the commits before `end` are gone or damaged.
        """
        self.load_floor()
        self.walk(end)
        if self.state.offset != end:
            raise NotFoundError("no commit begins here", root=self.root, offset=end, known=self.state.offset)

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
                    self._raise_unless_overtaken(error)
                    self.refresh()
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
        except NotFoundError as error:
            self._raise_unless_overtaken(error)
            return False  # rolled away while it was read
        except CorruptDataError:
            if newest_mark(self.storage, self.root, self.mark).floor <= self.confirmed:
                raise
            return False  # damage below a floor we had not heard of: an orphan
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

    def walk(self, end: int | None = None) -> None:
        """Steps 1 and 2: fold commits up to the first absent name, or to `end`, unconfirmed."""
        before = Link(self.state.offset, self.state.digest, self.state.store_ms)
        group: list[FileMeta] = []
        plain = False
        try:
            for meta in self.files.commits_from(before.offset):
                if end is not None and before.offset >= end:
                    break
                before = check_link(meta, before, self.broker)
                was_plain, plain = plain, _is_plain(meta)
                if group and not (was_plain and plain and len(group) < JOINED_COMMITS):
                    ready, group = group, []
                    self._take(ready)
                group.append(meta)
        finally:  # what was read before some damage is part of the log
            if group:
                self._take(group)

    def _take(self, metas: Sequence[FileMeta]) -> None:
        """Fold commits together; if that fails one by one, so that the error names the commit."""
        try:
            self.fold(metas)
        except (CorruptDataError, *UNREADABLE):
            if len(metas) == 1 or self.state.offset != metas[0].doc["first"]:
                raise
            for meta in metas:
                self.fold([meta])

    def fold(self, metas: Sequence[FileMeta]) -> None:
        """Fold commits that were checked to be the next links of the chain.

        Raises:
            CorruptDataError: a record cannot be read; of several commits none is folded then.
        """
        one = len(metas) == 1
        records = list(read_records(self.storage, metas[0], self.state) if one else join_records(metas, self.state))
        loaded, self._loaded = self._loaded, False  # an interrupt in the middle makes the next call load anew
        if not one:  # one may have very many records, and then this would take a tenth of its time
            self.state.journal.open()
        try:
            self.state.apply(metas, records)
        except CorruptDataError:
            self.state.journal.undo()
            self._loaded = loaded and not one and self.state.offset == metas[0].doc["first"]
            raise
        finally:
            self.state.journal.close()
        self.folded += len(metas)
        for meta in metas if self.on_commit is not None else ():
            doc = meta.doc
            self._unconfirmed.append(Landing(doc["handle"], doc["seq"], doc["first"], doc["ts"], helped_rows(meta)))
        self._loaded = loaded

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
                begin, payloads = stored
                load_fold(fold, payloads)
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
        names = ("topic", "storeTimestamp", *kind.columns)
        query = scan.Query(topics=frozenset(kind.topics), start=begin, end=self.state.offset, columns=names)
        planned = scan.plan(self, query)
        planned.bounds = {}  # records are never truncated
        for batch in scan.read_plan(self.files, self.broker, planned):
            for topic in kind.topics:
                rows = batch.filter(pa.compute.equal(batch.column("topic"), topic)) if len(kind.topics) > 1 else batch
                if rows.num_rows:
                    store_ms = rows.column("storeTimestamp").cast(pa.int64()).to_pylist()
                    yield to_records(topic, rows, kind.columns, store_ms)


def _is_plain(meta: FileMeta) -> bool:
    """Whether a commit may be folded together with others: it is small and says nothing to the log's own folds."""
    doc = meta.doc
    return is_small(meta) and "app" not in doc and "apps" not in doc and CORE_TOPICS.isdisjoint(doc["topics"])


def check_link(meta: FileMeta, before: Link | LogState, broker: str) -> Link:
    """Check that a commit file is the next link of the chain, and return where it leaves the log.

    Raises:
        CorruptDataError: a file of another place, log or history stands here.
    """
    doc = meta.doc
    if doc["first"] != before.offset:
        raise meta.corrupt("commit is in another's place", first=doc["first"], expected=before.offset)
    if doc["broker"] != broker:
        raise meta.corrupt("commit is of another log", broker=doc["broker"], expected=broker)
    if doc["prev"] != before.digest and not before.offset:
        raise meta.corrupt("commit is of another store", named=doc["prev"], expected=before.digest)
    if doc["prev"] != before.digest:
        raise meta.corrupt("chain is broken: another predecessor is named", named=doc["prev"], is_=before.digest)
    if doc["ts"] < before.store_ms:
        raise meta.corrupt("storeTimestamp goes backwards", ts=doc["ts"], before=before.store_ms)
    return Link(doc["first"] + meta.rows, meta.digest, doc["ts"])
