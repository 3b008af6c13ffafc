"""Landing a commit: number it, create the next name, confirm, or learn who was faster and try again.

Steps, as docs/architecture.md numbers them:
1. check what must hold at this position (fence, sink batch, collected files, the caller's condition);
2. stamp and number the rows from the folded state, encode;
3. make the predecessors durable if this append has to be (a chain is as durable as its weakest link);
4. create the next name, put-if-absent;
5. look for a newer mark; none: the slot was never free before, the append is acknowledged.
Lost in 4: fold what won, back to 1. Unclear in 4: the same bytes again at the same name, so that whichever
attempt lands, it lands once. Overtaken in 5: the folded state says whether our sequence number is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_spark.clock import Clock
from rmq_spark.errors import (
    ClockSkewError,
    ExistsError,
    FencedError,
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    RmqError,
    StorageFullError,
    UnavailableError,
)
from rmq_spark.log.file_encoder import Encoded
from rmq_spark.log.file_format import FileMeta, pack
from rmq_spark.log.folds import RowFiles, SinkBatches, SinkMark
from rmq_spark.log.rows import PreparedRows, queue_offsets
from rmq_spark.log.state import WRITER_TTL_MS, LogState
from rmq_spark.log.view import Landing, LogView
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.storage import paths

I64 = npt.NDArray[np.int64]

Expect = Callable[[LogState], str | None]
"""A condition on the folded state: None when it holds, else the reason why not."""

DISK_CHECK_NS = 1_000_000_000
TURN_SECONDS = 0.05
TRIES_A_TURN = 8
CONSECUTIVE_WINS = 16
BUSY_GAP_NS = 2_000_000_000
RIVALS_REMEMBERED = 64

_NOT_NUMBERED: Final = np.empty(0, np.int64)


class Offsets:
    """What each row of a commit was given, worked out when somebody asks: whoever sends batches seldom does."""

    def __init__(self, rows: PreparedRows, first: int, bases: I64) -> None:
        self._runs = rows.runs
        self._order = rows.order
        self._first = first
        self._bases = bases

    @cached_property
    def queue(self) -> I64:
        """Queue offset of each row, in the order the rows were given."""
        return self._as_given(queue_offsets(self._runs, self._bases))

    @cached_property
    def commit(self) -> I64:
        """Log offset of each row, in the order the rows were given."""
        return self._as_given(np.arange(self._first, self._first + int(self._runs.rows.sum()), dtype=np.int64))

    def _as_given(self, values: I64) -> I64:
        if self._order is None:
            return values
        given = np.empty_like(values)
        given[self._order] = values
        return given


class Landed(NamedTuple):
    """Where a commit is in the log."""

    rows: int
    first: int
    """Log offset of its first row."""
    store_ms: int
    """storeTimestamp of all its rows."""
    offsets: Offsets
    """What each row was given."""
    repeated: bool = False
    """True when an earlier attempt had landed already and nothing was written now."""


@dataclass(eq=False)
class Attempt:
    """A commit that may have landed: what is needed to find out, or to try again without repeating it."""

    rows: PreparedRows
    seq: int
    slot: int
    store_ms: int
    bases: I64
    unclear: bool = False
    """True while the storage owes an answer about `slot`."""
    landed: bool = False
    settled: bool = True
    """True once a commit stands at the slot or behind it: then `landed` is final."""
    forgotten: bool = False
    """True when the log has moved on so far that nobody can tell any more."""

    @property
    def lost(self) -> bool:
        """Whether it is certain that it did not land and never will."""
        return self.settled and not self.landed and not self.forgotten

    def result(self, *, repeated: bool) -> Landed:
        """Where it landed."""
        return Landed(self.rows.rows, self.slot, self.store_ms, Offsets(self.rows, self.slot, self.bases), repeated)


class UnclearAppend(OutcomeUnknownError):
    """`OutcomeUnknownError` with the attempt that can be asked about later."""

    def __init__(self, cause: str, attempt: Attempt) -> None:
        super().__init__(
            "it is not known whether the append landed; append the same batch again", slot=attempt.slot, cause=cause
        )
        self.attempt = attempt


class Appender:
    """Appends prepared rows to one log. Not safe for use by two threads at once."""

    def __init__(self, view: LogView, settings: LogSettings, clock: Clock, writer: str | None) -> None:
        self._view = view
        self._settings = settings
        self._clock = clock
        self._handle = clock.token()
        self._writer = writer or self._handle
        last = view.state.last_append(self._writer)
        self._epoch = 0 if writer is None else (last.epoch + 1 if last else 1)
        self._seq = 0
        self._pending: list[Attempt] = []
        """Attempts whose outcome is not known yet: the running one, and any that ended unclear."""
        self.current: Attempt | None = None
        """The attempt that `land` is, or was last, busy with; for whoever has to clean up after an interrupt."""
        self._pace = (clock.now_ms(), clock.elapsed_ns())
        self._disk_checked: int | None = None
        self._wins = 0
        self._last_win = 0
        self._rivals = RIVALS_REMEMBERED
        """Above zero while others were seen to append lately: only then is it worth a look before a write."""
        view.on_commit = self._see
        view.on_load = self._judge

    def land(
        self,
        rows: PreparedRows,
        *,
        expect: Expect | None = None,
        app: SinkMark | None = None,
        files: Sequence[str] = (),
        again: Attempt | None = None,
    ) -> Landed:
        """Append `rows` as one commit and return where it is.

        Raises:
            PreconditionFailedError, FencedError, ClockSkewError, StorageFullError, ReadOnlyError,
            UnavailableError, LostRaceError: nothing was written.
            OutcomeUnknownError: it may have been written; pass the error's `attempt` as `again` to find out.
        """
        attempt = again
        if attempt is None:
            attempt = Attempt(rows, -1, -1, 0, _NOT_NUMBERED)
        if attempt.settled and not attempt.landed:
            self._seq += 1
            attempt.seq = self._seq
        self.current = attempt
        try:
            return self._land(attempt, expect, app, files)
        except RmqError as error:
            if not (attempt.unclear or attempt.landed or attempt.forgotten):
                raise  # nothing was written, or what was written is settled
            raise UnclearAppend(str(error), attempt) from error
        finally:
            if not attempt.unclear:
                attempt.settled = True
                if attempt in self._pending:
                    self._pending.remove(attempt)

    def _land(self, attempt: Attempt, expect: Expect | None, app: SinkMark | None, files: Sequence[str]) -> Landed:
        rows = attempt.rows
        if attempt.unclear:
            self._view.refresh()  # reading may be enough to find out
        if not attempt.landed:
            self._refuse_full_disk()
        deadline = self._clock.elapsed_ns() + self._settings.append_timeout_ms * 1_000_000
        losses = 0
        while True:
            with self._view.storage.turn(paths.commitlog(self._view.root), TURN_SECONDS) as held:
                for _ in range(TRIES_A_TURN if held else 1):
                    if not self._view.trusted:
                        # A commit on a state that was not confirmed could name an orphan as its predecessor.
                        self._view.refresh()
                    if self._decided(attempt):
                        return attempt.result(repeated=True)
                    if losses and self._clock.elapsed_ns() > deadline:
                        raise LostRaceError(
                            "other writers took every slot until the deadline; nothing was written",
                            attempts=losses,
                            timeout_ms=self._settings.append_timeout_ms,
                        )
                    state = self._view.state
                    if self._check(state, expect, app, files):
                        nowhere = Offsets(rows, -1, np.full(len(rows.runs.rows), -1))
                        return Landed(rows.rows, -1, state.store_ms, nowhere, repeated=True)
                    if held and self._rivals and self._view.storage.exists(paths.commit(self._view.root, state.offset)):
                        self._rivals = RIVALS_REMEMBERED
                        self._view.refresh()  # somebody appended while we waited: do not write in vain
                        continue
                    landed = self._try(attempt, app, deadline)
                    if landed is not None:
                        break
                    losses += 1
                    self._rivals = RIVALS_REMEMBERED
                else:
                    continue
            self._rivals = max(0, self._rivals - 1)
            self._breathe(held, losses)
            return landed

    def _decided(self, attempt: Attempt) -> bool:
        """Whether an earlier try turned out to have landed; raises if nobody can tell any more."""
        if attempt.landed:
            self._secure(attempt)
            return True
        if attempt.forgotten:
            raise OutcomeUnknownError(
                "the log no longer tells whether this append landed: the writer slept too long, or lost its name",
                slot=attempt.slot,
                stamped_ms=attempt.store_ms,
                log_ms=self._view.state.store_ms,
            )
        return False

    def _try(self, attempt: Attempt, app: SinkMark | None, deadline: int) -> Landed | None:
        """One attempt at the current end. None: lost, or overtaken; the view is fresh again."""
        view = self._view
        state = view.state
        if attempt not in self._pending:
            self._pending.append(attempt)
        attempt.settled = False  # `unclear` stays: a retry at the same slot says nothing about the first try
        attempt.slot = state.offset
        attempt.store_ms = self._stamp(state)
        attempt.bases = state.queues.number(attempt.rows.runs, attempt.rows.parts)
        encoded = self._encode(attempt, state, app)
        durable = self._settings.flush is Flush.SYNC
        if durable and state.durable < state.offset and not self._settle_predecessors(state):
            return None
        path = paths.commit(view.root, attempt.slot)
        try:
            self._create(attempt, path, encoded, durable, deadline)
        except ExistsError:
            view.refresh()
            return None
        attempt.unclear = True  # it is there, but only a look at the marks tells whether the slot was a free one
        if not self._confirm(attempt.slot, deadline):
            # The slot is below the floor: either we slept after landing there, or landed in a freed name.
            # The state was loaded anew, and `_judge` has found out which.
            return None
        attempt.landed = True  # whatever happens from here on: who tries it again must find it so
        meta = FileMeta(path, encoded.tail.doc, encoded.tail.digest, encoded.tail.file_size, 0)
        # The encoder's own arrays stand in for the ones a reader would decode.
        meta.__dict__["runs"] = attempt.rows.runs
        view.take_own(meta, encoded)
        self._settle(attempt.slot)
        return attempt.result(repeated=False)

    def _create(self, attempt: Attempt, path: str, encoded: Encoded, durable: bool, deadline: int) -> None:
        pause = 0.001
        while True:
            # From here on an interrupt leaves it open whether the file is there; an error that says no settles it.
            before, attempt.unclear = attempt.unclear, True
            try:
                self._view.storage.create_if_absent(path, encoded, durable=durable)
            except OutcomeUnknownError:
                # It may be there, or arrive later: only this name, with these bytes, may be tried now.
                if self._clock.elapsed_ns() > deadline:
                    raise
            except UnavailableError:
                attempt.unclear = before
                if not before or self._clock.elapsed_ns() > deadline:
                    raise
            except BaseException as error:
                if isinstance(error, RmqError) or not encoded.made:
                    attempt.unclear = before  # the storage says no, or was never given a whole file
                raise
            else:
                return
            self._clock.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _confirm(self, slot: int, deadline: int) -> bool:
        pause = 0.001
        while True:
            try:
                return self._view.confirm(slot)
            except UnavailableError:
                if self._clock.elapsed_ns() > deadline:
                    raise
            self._clock.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _see(self, landing: Landing) -> None:
        """A walk folded a commit: it settles the attempts at its slot, one way or the other."""
        for attempt in self._pending:
            if landing.handle == self._handle and landing.seq == attempt.seq:
                attempt.landed = True
        self._settle(landing.first)

    def _judge(self) -> None:
        """The state was loaded anew, past the slots of pending attempts: ask it which of them are in the log."""
        state = self._view.state
        last = state.last_append(self._writer)
        for attempt in self._pending:
            if attempt.slot >= state.offset:
                continue
            # Sequence numbers rise along the log, and only the newest pending one can be the last of this handle.
            if last is not None and last.handle == self._handle and last.seq == attempt.seq:
                attempt.landed = True
            elif last is not None and last.handle != self._handle:
                attempt.forgotten = True  # another holder of the name: its last append hides whether ours is there
            elif last is None and state.store_ms - attempt.store_ms > WRITER_TTL_MS // 2:
                attempt.forgotten = True
        self._settle(state.offset - 1)

    def _settle(self, slot: int) -> None:
        """Everything at or below `slot` is decided."""
        for attempt in self._pending:
            if attempt.slot <= slot:
                attempt.settled = True
                attempt.unclear = False
        self._pending = [attempt for attempt in self._pending if not attempt.settled]

    def _check(self, state: LogState, expect: Expect | None, app: SinkMark | None, files: Sequence[str]) -> bool:
        """Raise if the append must not land here; True if its sink batch is in the log already."""
        last = state.last_append(self._writer)
        if last is not None and last.handle != self._handle and last.epoch >= self._epoch:
            raise FencedError(
                "another handle took over this writer's name; open a new one",
                writer=self._writer,
                epoch=self._epoch,
                current_epoch=last.epoch,
            )
        if app is not None and state.fold(SinkBatches).last.get(app[0], -1) >= app[1]:
            return True
        if files:
            self._check_files(state.fold(RowFiles), files)
        if expect is not None and (reason := expect(state)) is not None:
            raise PreconditionFailedError(reason, offset=state.offset)
        return False

    def _check_files(self, known: RowFiles, files: Sequence[str]) -> None:
        if claimed := sorted(known.claimed.intersection(files)):
            raise PreconditionFailedError(
                "row files were collected as orphans before the commit; write them again", files=claimed[:5]
            )
        if taken := sorted(known.referenced.keys() & set(files)):
            raise PreconditionFailedError("row files are in the log already", files=taken[:5])
        # A claim that was signed off is forgotten, but its files were deleted before: this look, made after the state
        # was folded up to here, sees that. A claim that comes later finds this commit and gives way.
        place = self._view.root
        if gone := [name for name in files if not self._view.storage.exists(paths.data_file(place, name))]:
            raise PreconditionFailedError("row files are gone; write them again", files=gone[:5])

    def _encode(self, attempt: Attempt, state: LogState, app: SinkMark | None) -> Encoded:
        place = {
            "broker": self._view.broker,
            "first": attempt.slot,
            "ts": attempt.store_ms,
            "prev": state.digest,
            "writer": self._writer,
            "epoch": self._epoch,
            "seq": attempt.seq,
            "handle": self._handle,
            "flush": "sync" if self._settings.flush is Flush.SYNC else "async",
            "base": pack(attempt.bases),
        }
        if app is not None:
            place["app"] = list(app)
        return Encoded(attempt.rows.blocks, lambda: {**attempt.rows.doc(), **place})

    def _settle_predecessors(self, state: LogState) -> bool:
        """Make `async` commits before this one durable; False: they were rolled meanwhile, the view is fresh again."""
        view = self._view
        firsts = [first for first in state.commits.from_offset(state.durable) if first >= state.durable]
        try:
            view.storage.sync([paths.commit(view.root, first) for first in firsts])
        except NotFoundError:
            mark = view.mark
            view.refresh()
            if view.mark is mark:
                raise
            return False
        return True

    def _secure(self, attempt: Attempt) -> None:
        """A commit that was found by reading may lack its flush: its create did not return."""
        if self._settings.flush is Flush.SYNC:
            with suppress(NotFoundError):  # rolled since, into a durable segment
                self._view.storage.sync([paths.commit(self._view.root, attempt.slot)])

    def _stamp(self, state: LogState) -> int:
        """StoreTimestamp = max(previous, now), unless the clock has run away."""
        now, elapsed = self._clock.now_ms(), self._clock.elapsed_ns()
        expected = self._pace[0] + (elapsed - self._pace[1]) // 1_000_000
        if now - expected > self._settings.clock_ahead_max_ms:
            raise ClockSkewError(
                "the clock jumped ahead; correct it, or open a new handle if it is right now",
                clock_ms=now,
                expected_ms=expected,
                limit_ms=self._settings.clock_ahead_max_ms,
            )
        if now < expected:
            self._pace = (now, elapsed)  # set back: the right pace may be the new one
        return max(state.store_ms, now)

    def _refuse_full_disk(self) -> None:
        elapsed = self._clock.elapsed_ns()
        if self._disk_checked is not None and elapsed - self._disk_checked < DISK_CHECK_NS:
            return
        usage = self._view.storage.disk_usage()
        if usage is not None and usage[0] > self._settings.disk_full_ratio * usage[1]:
            raise StorageFullError(
                "disk is fuller than disk_full_ratio allows; expire old segments or add room",
                used=usage[0],
                total=usage[1],
                ratio=self._settings.disk_full_ratio,
            )
        self._disk_checked = elapsed

    def _breathe(self, held: bool, losses: int) -> None:
        """Without a turn to wait for, a saturating winner pauses now and then: losers must re-read, and would starve.

        A pause of one and a half commits every sixteen, only while nobody else got a slot in between.
        """
        now = self._clock.elapsed_ns()
        gap, self._last_win = now - self._last_win, now
        # A handle that idles between appends leaves room by itself.
        self._wins = 1 if losses or held or gap > BUSY_GAP_NS else self._wins + 1
        if self._wins >= CONSECUTIVE_WINS:
            self._wins = 0
            self._clock.sleep(1.5 * gap / 1e9)
