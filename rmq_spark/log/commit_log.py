"""A handle on one log: append and scan. Everything else in this package is a part of it.

One handle may be used by any number of threads. Two handles, in one process or in many, race by the storage's
put-if-absent and need to know nothing of each other.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_spark.clock import Clock, SystemClock
from rmq_spark.errors import (
    ClosedError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    RmqError,
)
from rmq_spark.log import scan
from rmq_spark.log.append import Appender
from rmq_spark.log.core_folds import SinkMark
from rmq_spark.log.files import LogFiles
from rmq_spark.log.flusher import Periodic
from rmq_spark.log.fold import Fold
from rmq_spark.log.follower import Follower
from rmq_spark.log.group_commit import GroupCommit
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.recover import refuse_holes
from rmq_spark.log.request import Offsets, Outcome, Request, Rule
from rmq_spark.log.rows import RowFile
from rmq_spark.log.snapshot import write_snapshot
from rmq_spark.log.view import LogView
from rmq_spark.model import names
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage

I64 = npt.NDArray[np.int64]
Answer = TypeVar("Answer")

UNCLEAR_REMEMBERED = 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append was given."""

    store_ms: int | None
    """storeTimestamp of all messages; None with `buffered`, where the commit is still to come."""
    repeated: bool = False
    """True when the same append had landed before and nothing was written now."""
    offsets: Offsets | None = None
    """Those of the whole commit, which other callers may share; None when they are not known."""
    first_row: int = 0
    rows: int = 0

    @property
    def queue_offsets(self) -> I64 | None:
        """Queue offset of each message, in the order they were given; None when they are not known."""
        return None if self.offsets is None else self.offsets.queue[self.first_row : self.first_row + self.rows]

    @property
    def commit_offsets(self) -> I64 | None:
        """Log offset of each message, in the order they were given; None when they are not known."""
        return None if self.offsets is None else self.offsets.commit[self.first_row : self.first_row + self.rows]


@dataclass(frozen=True, slots=True)
class Decided(Generic[Answer]):
    """How a decision ended."""

    answer: Answer
    """What the rule told its caller."""
    result: AppendResult
    """What its rows were given, in the order of `Decision.rows`, then `Decision.records`."""


class CommitLog:
    """Append to and read one log (a broker's, or the nameserver's).

    It folds the state of the log itself, and of the folds that it is opened with or that `use` declares later; a handle
    pays for no other.

    Raises (on opening):
        CorruptDataError: the chain is damaged; the error names the file.
    """

    def __init__(
        self,
        storage: Storage,
        root: str,
        broker: str,
        *,
        settings: LogSettings | None = None,
        clock: Clock | None = None,
        read_only: bool = False,
        folds: Iterable[type[Fold]] = (),
    ) -> None:
        self.storage = storage
        self.root = root
        self.files = LogFiles(storage, root)
        self.broker = broker
        self.settings = settings or LogSettings()
        self.clock = clock or SystemClock()
        self._read_only = read_only
        self._closed = False
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._view = LogView(self.files, broker, folds)
        self._view.load()
        if not read_only:
            refuse_holes(self._view)
        self._appender = Appender(self._view, self.settings, self.clock)
        self._group = GroupCommit(self._commit_group, self.settings, self.clock)
        self._unclear: OrderedDict[object, Request] = OrderedDict()
        """Appends that ended unclear, or whose caller was interrupted."""
        self._flusher = Periodic("rmq-flush", self._flush_files, self.settings.flush_interval_ms / 1000)
        self._unflushed: list[int] = []
        """First offsets of commits that are not known to be durable."""
        self._buffer: list[MessageBatch] = []
        self._buffer_bytes = 0
        self._drain = threading.Lock()
        self._flushing = threading.Lock()
        self._drained: list[MessageBatch] = []
        """What was taken out of the buffer and is not known to have landed: tried again before anything newer."""
        self._committer = Periodic("rmq-commit", self._commit_buffer, self.settings.linger_ms / 1000)
        self._follower: Follower | None = None

    # ------------------------------------------------------------ appending

    def append(self, batch: MessageBatch, *, app: SinkMark | None = None) -> AppendResult:
        """Append `batch` as part of one commit; visible as a whole or not at all when this returns.

        With `sync` it is durable when this returns, with `async` visible, with `buffered` only in memory.
        `app` names a sink's batch and makes a repeated one a no-op. After `OutcomeUnknownError`, or an interrupt,
        appending the same `batch` object again lands it once.

        Raises:
            InvalidRequestError: it holds no row, or a state message that cannot be read back; nothing was written.
            LostRaceError, StorageFullError, UnavailableError, ClockSkewError: nothing was written.
            OutcomeUnknownError: the storage never said whether it landed.
            ReadOnlyError, ClosedError: this handle cannot append.
        """
        self.check_writable()
        request = Request(batch, app=app)
        if self.settings.flush is Flush.BUFFERED:
            if app is None and not names.STATE_TOPICS.intersection(batch.topics()):
                return self._append_buffered(batch)
            self._commit_buffer()  # what was buffered before comes first
        return self._submit(request)

    def decide(self, rule: Rule[Answer]) -> Decided[Answer]:
        """Ask `rule` at the log's end, append what it decides, and return its answer.

        The rule is asked on the state at the very position where its rows land: nothing comes in between. It shares the
        commit with whatever else is appended at the same time. If another commit takes the place, it is asked again.
        After `OutcomeUnknownError`, or an interrupt, the same `rule` object again lands once and gives the same answer.

        Raises:
            What `rule` raises: it refused; nothing was written.
            Otherwise as `append`.
        """
        self.check_writable()
        if self.settings.flush is Flush.BUFFERED:
            self._commit_buffer()  # what was buffered before comes first
        request = Request(rule=rule)
        result = self._submit(request)
        return Decided(request.answer, result)

    def append_files(self, files: Sequence[RowFile], *, app: SinkMark | None = None) -> AppendResult:
        """Append one commit that refers to row files in `data/`, in their order.

        Raises:
            PreconditionFailedError: a file was collected as an orphan.
            NotFoundError, CorruptDataError: a file is gone or is not what was named.
        """
        self.check_writable()
        if not files:
            raise InvalidRequestError("name at least one row file")
        self._commit_buffer()  # what was buffered before comes first
        return self._submit(Request(app=app, files=files))

    def use(self, *folds: type[Fold]) -> None:
        """Fold these, too, from here on; what is folded already costs nothing.

        Raises:
            CorruptDataError: the state of one cannot be learned any more.
        """
        if all(fold in self._view.declared for fold in folds):
            return
        with self._lock:
            self.refresh().use(folds)

    def flush(self) -> None:
        """Make everything appended through this handle durable; raises what failed in the background."""
        self._commit_buffer()
        self._committer.check()
        self._flush_files()
        self._flusher.check()

    def close(self) -> None:
        """Flush and end this handle."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._follower is not None:
            self._follower.close()
        try:
            self._committer.close()
        finally:
            self._flusher.close()  # only now: the committer's last commit may need it
            with self._lock:
                self._appender.close()

    def __enter__(self) -> CommitLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ reading

    def refresh(self) -> LogView:
        """Fold what others have appended since, and return the view (do not keep it across threads)."""
        with self._lock:
            self._check_open()
            self._view.refresh()
            return self._view

    def wait(self, offset: int, timeout: float) -> bool:
        """Block until the log's end is behind `offset`; False if it is not after `timeout` seconds, or at a `wake`.

        All who wait share one follower, which the file system wakes where it can.

        Raises:
            ClosedError: the log was closed meanwhile.
            CorruptDataError: the log is damaged.
        """
        if self._follower is None:
            with self._lock:
                self._check_open()
                if self._follower is None:
                    place = paths.commitlog(self.root)
                    self._follower = Follower(self.storage, place, lambda: self.refresh().state.offset, self.clock)
        return self._follower.wait(offset, timeout)

    def wake(self) -> None:
        """Let everybody of this process who waits return, as after their time."""
        if self._follower is not None:
            self._follower.wake()

    def look(self, ask: Callable[[LogView], Answer]) -> Answer:
        """Refresh, and return what `ask` takes from the view; no other thread changes it meanwhile."""
        with self._lock:
            return ask(self.refresh())

    def peek(self, ask: Callable[[LogView], Answer]) -> Answer | None:
        """As `look` without a refresh: what the log was when it was last looked at; None if that was not confirmed."""
        with self._lock:
            self._check_open()
            return ask(self._view) if self._view.trusted else None

    @property
    def view(self) -> LogView:
        """The view as it was when last refreshed."""
        return self._view

    def scan(self, query: scan.Query | None = None, stats: scan.ScanStats | None = None) -> Iterator[pa.RecordBatch]:
        """Yield messages in order per queue; see `scan.Query` for what can be asked and pruned.

        The end is fixed when the scan starts: a scan never sees part of a commit, nor one that came later.
        """
        view = self.refresh()
        with self._lock:
            plan = scan.plan(view, query or scan.Query(), stats)
        return scan.run(self, plan)

    # ------------------------------------------------------------ inner works

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the log handle is closed", root=self.root)
        if os.getpid() != self._pid:
            # Both sides of a fork would append under one name and number, and take each other's commits for their own.
            raise ClosedError("the log was opened before a fork; open a new handle in this process", root=self.root)

    def check_writable(self) -> None:
        """Raise unless this handle may change the log.

        Raises:
            ClosedError, ReadOnlyError: it may not.
        """
        self._check_open()
        if self._read_only:
            raise ReadOnlyError("the log was opened for reading only", root=self.root)

    def _submit(self, request: Request) -> AppendResult:
        request.earlier = self._unclear.get(request.key) if self._unclear else None
        try:
            self._group.submit(request)
            self._note_outcome(request)
            result = _result(request)
        except BaseException:
            self._note(request)  # an interrupt; its commit may still be under way, by another caller
            raise
        # No call from here on: Python looks for signals after calls, and this one could not be told any more.
        if request.error is not None:
            raise request.error
        assert result is not None  # noqa: S101 - a request is done with an outcome or an error
        return result

    def _commit_group(self, group: list[Request]) -> None:
        """Called by the leader of a group, one at a time."""
        with self._lock:
            try:
                self._appender.land(group)
            except RmqError as error:
                for request in group:
                    if not request.done:
                        request.error = error
            except BaseException as error:
                self._give_up(group, error)
                if not isinstance(error, Exception):
                    raise
            self._after(group)

    def _give_up(self, group: list[Request], error: BaseException) -> None:
        """An interrupt, or a bug: tell each caller what is known of its append."""
        open_ = [request for request in group if not request.done]
        tried = [request.attempt or request.offer for request in open_]
        unclear = [each for each in tried if each is not None and each.outcome in (Outcome.UNCLEAR, Outcome.LANDED)]
        if unclear:
            for request in open_:
                request.error = OutcomeUnknownError(
                    "it is not known whether the append landed; append the same batch again",
                    cause=f"{type(error).__name__}: {error}",
                )
        elif isinstance(error, Exception) and len(group) > 1:
            for request in open_:  # one of them is at fault: the others shall not suffer for it
                self._commit_group([request])
            if not [request for request in group if request.error is not None]:
                raise error  # none of them is: somebody's signal handler raised it, in the leader's thread
        elif isinstance(error, Exception):
            group[0].error = error

    def _note_outcome(self, request: Request) -> None:
        """Remember the request if it ended unclear; else forget that the same thing was unclear before.

        Each caller does this for itself: whoever commits for it may be interrupted in between.
        """
        offer, failure = request.offer, request.error
        if isinstance(failure, RmqError) and offer is not None and offer.outcome is not Outcome.LOST:
            request.error = OutcomeUnknownError(
                "others may have landed it; append the same batch again", cause=str(failure)
            )
        if isinstance(request.error, OutcomeUnknownError):
            self._note(request)
        elif request.earlier is not None and (request.settled or isinstance(failure, RmqError)):
            self._unclear.pop(request.key, None)

    def _note(self, request: Request) -> None:
        """Remember an append whose caller does not know how it ended, for when the same thing is appended again."""
        self._unclear.pop(request.key, None)  # the last one asked for is forgotten last
        self._unclear[request.key] = request
        while len(self._unclear) > UNCLEAR_REMEMBERED:
            self._unclear.popitem(last=False)

    def _after(self, group: Sequence[Request]) -> None:
        # Not of one commit only: some may have landed before.
        slots = {request.landed.slot for request in group if request.settled and request.landed is not None}
        if slots and self.settings.flush is not Flush.SYNC:
            self._unflushed += sorted(slots)
            self._flusher.poke()
        if self._follower is not None:
            self._follower.note_end(self._view.state.offset)
        if self._view.folded >= self.settings.snapshot_every_commits:
            self.snapshot()

    def snapshot(self) -> str | None:
        """Write a snapshot of the state as folded so far; a failure is logged, for nothing depends on it."""
        self.check_writable()
        with self._lock:
            view = self._view
            view.folded = 0
            try:
                if not view.trusted:  # an append was interrupted: what it tried is not the log's state
                    view.refresh()
                return write_snapshot(self.storage, self.root, view.state, self.clock.token())
            except RmqError as error:
                _log.warning("snapshot was not written: %s", error)
                return None

    def _flush_files(self) -> None:
        with self._flushing:  # `flush` returns only when a flush that is under way has ended, too
            slots: list[int] = []
            try:
                with self._lock:
                    slots, self._unflushed = self._unflushed, []
                try:
                    self._sync(slots)
                except NotFoundError:
                    with self._lock:
                        self._view.refresh()
                        floor = self._view.mark.floor
                    # What was rolled is durable in its segment.
                    self._sync([slot for slot in slots if slot >= floor])
            except BaseException:
                with self._lock:
                    self._unflushed[:0] = slots  # not durable yet, whoever asks
                raise

    def _sync(self, slots: Sequence[int]) -> None:
        if slots:
            self.storage.sync([paths.commit(self.root, slot) for slot in slots])

    def _append_buffered(self, batch: MessageBatch) -> AppendResult:
        with self._lock:
            self._check_open()  # again, under the lock: a close in between would have flushed for the last time
            self._committer.check()
            self._committer.start()
            self._buffer.append(batch)
            self._buffer_bytes += batch.body_bytes
            full = self._buffer_bytes > self.settings.group_bytes_max
            self._committer.poke()
        if full:
            # It is buffered and will be tried again. If that fails, the next caller is told, whose batch is not.
            with suppress(RmqError):
                self._commit_buffer()
        return AppendResult(None)

    def _commit_buffer(self) -> None:
        with self._drain:  # one at a time, or a later buffer could land before an earlier one
            while True:
                if not self._drained:
                    with self._lock:
                        # In one step: who is interrupted here has all of it in one of the two places.
                        self._drained, self._buffer, self._buffer_bytes = self._buffer, [], 0
                if not self._drained:
                    return
                if len(self._drained) > 1:  # one that fails is tried again as it is
                    self._drained = [MessageBatch.merge(self._drained)]
                self._submit(Request(self._drained[0]))
                self._drained = []


def _result(request: Request) -> AppendResult | None:
    """What the caller of a request that ended well is told; None if it did not."""
    if not request.settled:
        return None
    landed = request.landed
    if landed is None:
        return AppendResult(None, request.repeated)
    return AppendResult(landed.store_ms, request.repeated, landed.offsets, request.first_row, request.rows)
