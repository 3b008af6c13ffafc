"""Landing a commit: ask the rules, number the rows, create the next name, confirm, or learn who was faster.

Steps, as docs/architecture.md numbers them:
1. ask what each caller wants at this position: rules see the state as the callers before them will have left it;
2. stamp and number the rows from the folded state, encode;
3. make the predecessors durable if this append has to be (a chain is as durable as its weakest link);
4. create the next name, put-if-absent;
5. look for a newer mark; none: the slot was never free before, the append is acknowledged.
Lost in 4: undo the trial, fold what won, back to 1. Unclear in 4: the same bytes again at the same name, so that
whichever try lands, it lands once. Overtaken in 5: the folded state says whether our sequence number is in the log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

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
    UnavailableError,
)
from rmq_spark.log.core_folds import CORE_FOLDS, FoldList, RowFiles, SinkBatches
from rmq_spark.log.disk_gauge import DiskGauge
from rmq_spark.log.file_encoder import Encoded
from rmq_spark.log.file_format import FileMeta, pack
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Attempt, Decision, Offsets, Outcome, Request
from rmq_spark.log.rows import PreparedRows, prepare, prepare_references
from rmq_spark.log.state import WRITER_TTL_MS, LogState
from rmq_spark.log.view import Landing, LogView
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.storage import paths

TURN_SECONDS = 0.05
TRIES_A_TURN = 8
CONSECUTIVE_WINS = 16
BUSY_GAP_NS = 2_000_000_000
RIVALS_REMEMBERED = 64

_CORE_NAMES: Final = frozenset(fold.name for fold in CORE_FOLDS)


class Appender:
    """Lands the requests of a handle. Not safe for use by two threads at once."""

    def __init__(self, view: LogView, settings: LogSettings, clock: Clock, writer: str | None) -> None:
        self._view = view
        self._settings = settings
        self._clock = clock
        self._handle = clock.token()
        self._writer = writer or self._handle
        last = view.state.last_append(self._writer)
        self._epoch = 0 if writer is None else (last.epoch + 1 if last else 1)
        self._seq = 0
        self._records = 0
        self._pending: list[Attempt] = []
        """Attempts whose outcome is not known yet."""
        self._prepared: tuple[list[MessageBatch], PreparedRows] | None = None
        """What was prepared last, and from which batches: a lost race does not repeat it."""
        self._pace = (clock.now_ms(), clock.elapsed_ns())
        self._gauge = DiskGauge(view.storage, settings.disk_full_ratio, clock)
        self._wins = 0
        self._last_win = 0
        self._rivals = RIVALS_REMEMBERED
        """Above zero while others were seen to append lately: only then is it worth a look before a write."""
        view.on_commit = self._settle_from_walk
        view.on_load = self._settle_after_reload

    # ------------------------------------------------------------ landing

    def land(self, group: Sequence[Request]) -> None:
        """Answer the requests of `group` and append what they need as one commit; what came of each is in it.

        Raises:
            FencedError, ClockSkewError, StorageFullError, ReadOnlyError, UnavailableError, LostRaceError: nothing was
                written for those that are not done.
            OutcomeUnknownError: it may have been written; the requests name the attempt that tells later.
        """
        self._prepared = None
        todo = [request for request in group if not self._is_known(request)]
        if not todo:
            return
        self._gauge.check(sum([request.weight[1] for request in todo]))
        if todo[0].files:
            self._prepared = ([], prepare_references(self._view.storage, self._view.root, todo[0].files))
        deadline = self._deadline()
        losses = 0
        while True:
            with self._view.storage.turn(paths.commitlog(self._view.root), TURN_SECONDS) as held:
                for _ in range(TRIES_A_TURN if held else 1):
                    if not self._view.trusted:
                        # A commit on a state that was not confirmed could name an orphan as its predecessor.
                        self._view.refresh()
                    if losses and self._clock.elapsed_ns() > deadline:
                        raise LostRaceError(
                            "other writers took every slot until the deadline; nothing was written",
                            attempts=losses,
                            timeout_ms=self._settings.append_timeout_ms,
                        )
                    state = self._view.state
                    if held and self._rivals and self._view.storage.exists(paths.commit(self._view.root, state.offset)):
                        self._rivals = RIVALS_REMEMBERED
                        self._view.refresh()  # somebody appended while we waited: do not write in vain
                        continue
                    if self._try(todo, deadline):
                        break
                    losses += 1
                    self._rivals = RIVALS_REMEMBERED
                else:
                    continue
            self._rivals = max(0, self._rivals - 1)
            self._yield_to_rivals(held, losses)
            return

    def _is_known(self, request: Request) -> bool:
        """Whether the same request came before, and is known to have landed, or cannot be known."""
        try:
            return self._has_landed(request)
        except RmqError as error:
            request.error = error
            return True

    def _has_landed(self, request: Request) -> bool:
        earlier = request.earlier
        while earlier is not None and earlier.attempt is None:
            earlier = earlier.earlier  # that one was interrupted before it was tried
        if earlier is None or earlier.attempt is None:
            return False
        attempt = request.attempt = earlier.attempt
        request.first_row, request.rows, request.answer = earlier.first_row, earlier.rows, earlier.answer
        written_now = attempt.outcome is Outcome.UNCLEAR and self._resolve(attempt)
        if attempt.outcome is Outcome.FORGOTTEN:
            raise OutcomeUnknownError(
                "the log no longer records the outcome of this append: the writer slept too long, or lost its name",
                slot=attempt.slot,
                stamped_ms=attempt.store_ms,
                log_ms=self._view.state.store_ms,
            )
        if attempt.outcome is not Outcome.LANDED:
            request.attempt = None
            return False
        self._secure(attempt)
        request.repeated, request.settled = not written_now, True
        return True

    def _resolve(self, attempt: Attempt) -> bool:
        """Find out what became of an attempt by reading, or else by trying the same bytes at the same name again.

        Returns whether it was tried again, and landed.
        """
        deadline = self._deadline()
        try:
            self._view.refresh()
            if attempt.outcome is Outcome.UNCLEAR:
                self._gauge.check()
                self._create_and_confirm(attempt, deadline)
                return attempt.outcome is Outcome.LANDED
        except ExistsError:
            self._view.refresh()
        except RmqError as error:
            if attempt.outcome in (Outcome.UNCLEAR, Outcome.LANDED):
                raise attempt.unclear_error(str(error)) from error
            raise
        return False

    def _try(self, todo: Sequence[Request], deadline: int) -> bool:
        """One attempt at the current end. False: lost, or overtaken; the view is fresh again."""
        state = self._view.state
        self._refuse_fenced(state)
        state.open_trial(self._stamp(state))
        attempt: Attempt | None = None
        certain: Sequence[Request] = ()
        try:
            certain = self._ask(state, todo)
            rows = self._prepare(state, todo)
            if rows is None:
                state.undo_trial()
                self._finish(todo)
                return True
            attempt = self._plan(state, rows, todo)
            if self._settings.flush is Flush.SYNC and not self._settle_predecessors(state):
                attempt.become(Outcome.LOST)
                return False
            self._create_and_confirm(attempt, deadline)
        except ExistsError:
            self._undo_trial(state)
            self._view.refresh()  # tells whose commit it is
        except RmqError as error:
            self._undo_trial(state)
            self._fail(todo, certain, attempt, error)
        if attempt is None or attempt.outcome is Outcome.LOST:
            return False
        if attempt.outcome is not Outcome.LANDED:
            # We slept after the create, and the state that was loaded anew does not tell what became of it.
            raise attempt.unclear_error("the log no longer records the outcome")
        self._finish(todo)
        return True

    def _undo_trial(self, state: LogState) -> None:
        if state is self._view.state and state.journal.is_open:
            state.undo_trial()

    def _fail(
        self, todo: Sequence[Request], certain: Sequence[Request], attempt: Attempt | None, error: RmqError
    ) -> NoReturn:
        """The attempt failed. An answer that stands on rows of the attempt is taken back, any other one holds."""
        for request in todo:
            if request.admitted is not None or request.files:
                continue
            if request in certain:
                request.settled = request.error is None
            else:
                request.error = UnavailableError("nothing was written: the commit before it failed", cause=str(error))
        if attempt is not None:
            if attempt.outcome is Outcome.PLANNED:
                attempt.become(Outcome.LOST)
                self._forget_settled()
            if attempt.outcome is not Outcome.LOST:
                raise attempt.unclear_error(str(error)) from error
        raise error

    def _finish(self, todo: Sequence[Request]) -> None:
        for request in todo:
            if request.error is None:
                request.settled = True

    # ------------------------------------------------------------ step 1: asking

    def _ask(self, state: LogState, todo: Sequence[Request]) -> list[Request]:
        """Ask each request on the state as those before it will have left it; return those asked on the log's own.

        An answer or a refusal that stands on rows which are on trial is only true if they land.
        """
        certain: list[Request] = []
        tried = False
        for request in todo:
            request.admitted, request.error, request.repeated, request.rows = None, None, False, 0
            if not tried:
                certain.append(request)
            try:
                self._ask_one(state, request)
            except Exception as error:  # noqa: BLE001 - a rule's own fault is its own caller's
                request.admitted, request.error = None, error
            tried = tried or request.admitted is not None
        return certain

    def _ask_one(self, state: LogState, request: Request) -> None:
        if request.app is not None and state.fold(SinkBatches).last.get(request.app[0], -1) >= request.app[1]:
            request.repeated = True
            return
        if request.files:
            self._check_files(state.fold(RowFiles), [file.name for file in request.files])
            state.admit(None, request.app)
            request.rows = sum(file.rows for file in request.files)
            return
        parts = [request.batch] if request.batch is not None else []
        if request.rule is not None:
            decision = request.rule(state)
            request.answer, parts = decision.answer, self._decided_rows(state, decision)
        for part in parts:  # a table comes first and changes no fold: if the records are refused, nothing is left of it
            state.admit(part, request.app)
        if parts:
            request.admitted = MessageBatch.merge(parts)
            request.rows = request.admitted.num_rows

    def _decided_rows(self, state: LogState, decision: Decision[object]) -> list[MessageBatch]:
        """What a rule wants to append, in one part; in two if its messages are a table, which has no records."""
        rows = [decision.rows] if decision.rows is not None else []
        records = [self._record(state, topic, value) for topic, value in decision.records]
        if rows and records and rows[0].rows is None:
            return [*rows, MessageBatch.merge(records)]
        return [MessageBatch.merge(rows + records)] if rows or records else []

    def _record(self, state: LogState, topic: str, value: object) -> MessageBatch:
        self._records += 1
        return MessageBatch.of(
            topic=topic,
            queue_id=0,
            msg_id=f"{self._handle[:20]}{self._records:012x}".upper(),
            body=json.dumps(value, separators=(",", ":")).encode(),
            born_timestamp_ms=state.now_ms,
        )

    def _check_files(self, known: RowFiles, files: Sequence[str]) -> None:
        if claimed := sorted(known.claimed.keys() & set(files)):
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

    # ------------------------------------------------------------ step 2: preparing

    def _prepare(self, state: LogState, todo: Sequence[Request]) -> PreparedRows | None:
        """The rows of all who are admitted; None if there is nothing to append."""
        head = todo[0]
        if head.files:
            return None if head.error is not None or head.repeated or self._prepared is None else self._prepared[1]
        batches: list[MessageBatch] = []
        at = 0
        for request in todo:
            if request.admitted is not None:
                request.first_row = at
                at += request.rows
                batches.append(request.admitted)
        if not batches:
            return None
        if new := self._new_folds(state):
            state.admit(new)
            batches.append(new)
        known = self._prepared
        if known is None or list(map(id, known[0])) != list(map(id, batches)):
            known = (batches, prepare(MessageBatch.merge(batches), self._settings.block_bytes))
            self._prepared = known
        return known[1]

    def _new_folds(self, state: LogState) -> MessageBatch | None:
        """Records that name the folds whose first records are on trial."""
        listed = state.fold(FoldList).topics_of
        new = sorted(state.touched - listed.keys() - _CORE_NAMES)
        if not new:
            return None
        topic = FoldList.topics[0]
        values = [{"fold": name, "topics": list(state.folds[name].topics)} for name in new]
        return MessageBatch.merge([self._record(state, topic, value) for value in values])

    def _plan(self, state: LogState, rows: PreparedRows, todo: Sequence[Request]) -> Attempt:
        self._seq += 1
        mine = [request for request in todo if request.admitted is not None or request.files]
        bases = state.queues.number(rows.runs, rows.parts)
        place = {
            "broker": self._view.broker,
            "first": state.offset,
            "ts": state.now_ms,
            "prev": state.digest,
            "writer": self._writer,
            "epoch": self._epoch,
            "seq": self._seq,
            "handle": self._handle,
            "flush": "sync" if self._settings.flush is Flush.SYNC else "async",
            "base": pack(bases),
        }
        if apps := [list(request.app) for request in mine if request.app is not None]:
            place["apps"] = apps
        encoded = Encoded(rows.blocks, lambda: {**rows.doc(), **place})
        offsets = Offsets(rows, state.offset, bases)
        attempt = Attempt(self._seq, state.offset, state.now_ms, encoded, rows.runs, bases, offsets)
        self._pending.append(attempt)
        for request in mine:
            request.attempt = attempt
        return attempt

    # ------------------------------------------------------------ steps 3 to 5

    def _create_and_confirm(self, attempt: Attempt, deadline: int) -> None:
        """Create the attempt's file and confirm its slot; what is known then is the attempt's outcome.

        Raises:
            ExistsError: another commit stands there.
            OutcomeUnknownError, UnavailableError, and others that say that nothing was written.
        """
        view = self._view
        path = paths.commit(view.root, attempt.slot)
        try:
            self._create(attempt, path, deadline)
        finally:
            if attempt.outcome in (Outcome.LOST, Outcome.PLANNED):
                attempt.become(Outcome.LOST)
                self._forget_settled()
        if not self._confirm(attempt.slot, deadline):
            return
        attempt.become(Outcome.LANDED)  # whatever happens from here on: who tries it again must find it so
        tail = attempt.encoded.tail
        meta = FileMeta(path, tail.doc, tail.digest, tail.file_size, 0)
        # The encoder's own arrays stand in for the ones a reader would decode.
        meta.__dict__["runs"], meta.__dict__["bases"] = attempt.runs, attempt.bases
        if view.state.journal.is_open:
            view.apply_own_commit(meta)
        else:
            view.refresh()  # an earlier attempt that was tried again: its records are read back
        self._settle(attempt.slot)

    def _create(self, attempt: Attempt, path: str, deadline: int) -> None:
        pause = 0.001
        while True:
            # From here on an interrupt leaves it open whether the file is there; an error that says no settles it.
            before = attempt.outcome
            attempt.become(Outcome.UNCLEAR)
            try:
                self._view.storage.create_if_absent(path, attempt.encoded, durable=self._settings.flush is Flush.SYNC)
            except OutcomeUnknownError:
                # It may be there, or arrive later: only this name, with these bytes, may be tried now.
                if self._clock.elapsed_ns() > deadline:
                    raise
            except UnavailableError:
                if before is Outcome.PLANNED:
                    attempt.become(Outcome.LOST)
                    raise
                if self._clock.elapsed_ns() > deadline:
                    raise
            except BaseException as error:
                if before is Outcome.PLANNED and (isinstance(error, RmqError) or not attempt.encoded.made):
                    attempt.become(Outcome.LOST)  # the storage says no, or was never given a whole file
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

    def _settle_predecessors(self, state: LogState) -> bool:
        """Make `async` commits before this one durable; False: they were rolled meanwhile, the view is fresh again."""
        if state.durable >= state.offset:
            return True
        view = self._view
        firsts = [first for first in state.commits.from_offset(state.durable) if first >= state.durable]
        try:
            view.storage.sync([paths.commit(view.root, first) for first in firsts])
        except NotFoundError:
            mark = view.mark
            state.undo_trial()
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

    # ------------------------------------------------------------ outcomes

    def _settle_from_walk(self, landing: Landing) -> None:
        """A walk folded a commit: it settles the attempts at its slot, one way or the other."""
        for attempt in self._pending:
            if landing.handle == self._handle and landing.seq == attempt.seq:
                attempt.become(Outcome.LANDED)
        self._settle(landing.first)

    def _settle_after_reload(self) -> None:
        """The state was loaded anew, past the slots of pending attempts: ask it which of them are in the log."""
        state = self._view.state
        last = state.last_append(self._writer)
        for attempt in self._pending:
            if attempt.slot >= state.offset or attempt.outcome is not Outcome.UNCLEAR:
                continue
            # Sequence numbers rise along the log, and only the newest pending one can be the last of this handle.
            if last is not None and last.handle == self._handle and last.seq == attempt.seq:
                attempt.become(Outcome.LANDED)
            elif last is not None and last.handle != self._handle:
                attempt.become(Outcome.FORGOTTEN)  # another holder of the name hides whether ours is there
            elif last is None and state.store_ms - attempt.store_ms > WRITER_TTL_MS // 2:
                attempt.become(Outcome.FORGOTTEN)
        self._settle(state.offset - 1)

    def _settle(self, slot: int) -> None:
        """Everything at or below `slot` is decided: what did not land there is lost."""
        for attempt in self._pending:
            if attempt.slot <= slot and attempt.outcome in (Outcome.PLANNED, Outcome.UNCLEAR):
                attempt.become(Outcome.LOST)
        self._forget_settled()

    def _forget_settled(self) -> None:
        self._pending = [a for a in self._pending if a.outcome in (Outcome.PLANNED, Outcome.UNCLEAR)]

    # ------------------------------------------------------------ what must hold

    def _deadline(self) -> int:
        return self._clock.elapsed_ns() + self._settings.append_timeout_ms * 1_000_000

    def _refuse_fenced(self, state: LogState) -> None:
        last = state.last_append(self._writer)
        if last is not None and last.handle != self._handle and last.epoch >= self._epoch:
            raise FencedError(
                "another handle took over this writer's name; open a new one",
                writer=self._writer,
                epoch=self._epoch,
                current_epoch=last.epoch,
            )

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
        return max(state.store_ms, now)

    def _yield_to_rivals(self, held: bool, losses: int) -> None:
        """A writer that keeps winning pauses so that losers don't starve: they must re-read before each try.

        A pause of one and a half commits every sixteen, only without a turn to wait for, and only while nobody else got
        a slot in between.
        """
        now = self._clock.elapsed_ns()
        gap, self._last_win = now - self._last_win, now
        # A handle that idles between appends leaves room by itself.
        self._wins = 1 if losses or held or gap > BUSY_GAP_NS else self._wins + 1
        if self._wins >= CONSECUTIVE_WINS:
            self._wins = 0
            self._clock.sleep(1.5 * gap / 1e9)
