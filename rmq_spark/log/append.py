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

from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from rmq_spark.clock import Clock
from rmq_spark.errors import (
    ExistsError,
    LostRaceError,
    OutcomeUnknownError,
    RmqError,
    UnavailableError,
)
from rmq_spark.log.ask import Asker
from rmq_spark.log.disk_gauge import DiskGauge
from rmq_spark.log.durability import Durability
from rmq_spark.log.file_encoder import Encoded
from rmq_spark.log.file_format import FileMeta, pack
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.offers import Helped, Offers, is_offerable
from rmq_spark.log.pace import Pace
from rmq_spark.log.request import Attempt, Offer, Offsets, Outcome, Request, offsets_of
from rmq_spark.log.rows import PreparedRows, prepare, prepare_references
from rmq_spark.log.state import WRITER_TTL_MS, LogState
from rmq_spark.log.view import Landing, LogView
from rmq_spark.model.settings import Flush, LogSettings
from rmq_spark.storage import paths

TURN_SECONDS = 0.25
"""So long the turn of another is waited for. With many writers on few cores, one that is not stopped may need it."""
TRIES_A_TURN = 8


class Appender:
    """Lands the requests of a handle. Not safe for use by two threads at once."""

    def __init__(self, view: LogView, settings: LogSettings, clock: Clock) -> None:
        self._view = view
        self._settings = settings
        self._clock = clock
        self._handle = clock.token()
        self._place = paths.commitlog(view.root)
        self._seq = 0
        self._pending: list[Attempt] = []
        """Attempts whose outcome is not known yet."""
        self._prepared: tuple[list[MessageBatch], PreparedRows] | None = None
        """What was prepared last, and from which batches: a lost race does not repeat it."""
        self._pace = Pace(clock, settings.clock_ahead_max_ms)
        self._gauge = DiskGauge(view.storage, settings.disk_full_ratio, clock)
        self._offers = Offers(view, self._pace, clock)
        self._durability = Durability(view, settings.flush)
        self._asker = Asker(view, self._handle, self._offers)
        self._has_turns = False
        """Whether the storage has a turn to wait for; known once it was had."""
        self._fresh = False
        """Whether the view was refreshed since the requests at hand came."""
        view.on_commit = self._settle_from_walk
        view.on_load = self._settle_after_reload

    # ------------------------------------------------------------ landing

    def land(self, group: Sequence[Request]) -> None:
        """Answer the requests of `group` and append what they need as one commit; what came of each is in it.

        Raises:
            ClockSkewError, StorageFullError, ReadOnlyError, UnavailableError, LostRaceError: nothing was
                written for those that are not done.
            OutcomeUnknownError: it may have been written; the requests name the attempt that tells later.
        """
        self._prepared, self._fresh = None, False
        todo = [request for request in group if not self._is_known(request)]
        if not todo:
            return
        self._gauge.check(sum([request.weight[1] for request in todo]))
        if todo[0].files:
            self._prepared = ([], prepare_references(self._view.storage, self._view.root, todo[0].files))
        try:
            self._race(todo, self._deadline())
        finally:
            self._offers.withdraw()

    def close(self) -> None:
        """Let go of what the system lends; appends go on to work."""
        self._offers.close()

    def _race(self, todo: Sequence[Request], deadline: int) -> None:
        """Try slot after slot until the requests are answered, by this handle or by one that helps it."""
        losses = 0
        while not todo[0].settled and not self._was_helped(todo):
            # Who finds the turn taken offers its rows to whoever has it, and then waits.
            offers = self._pace.rivals_help and (self._has_turns or losses > 0) and is_offerable(todo)
            waits = not (offers or self._may_be_helped(deadline))
            with self._view.storage.turn(self._place, TURN_SECONDS if waits else 0.0) as held:
                self._has_turns = self._has_turns or held
                if not held and self._leave_to_others(todo, offers, deadline):
                    continue
                for _ in range(TRIES_A_TURN if held else 1):
                    if not self._view.trusted or self._offers.current is not None:
                        # A commit on a state that was not confirmed could name an orphan as its predecessor.
                        self._refresh()
                    if self._was_helped(todo):
                        return
                    if losses and self._clock.elapsed_ns() > deadline:
                        raise LostRaceError(
                            "other writers took every slot until the deadline; nothing was written",
                            attempts=losses,
                            timeout_ms=self._settings.append_timeout_ms,
                        )
                    if held and self._pace.has_rivals and self._catch_up():
                        continue
                    if self._try(todo, deadline):
                        self._pace.yield_to_rivals(held, losses)
                        return
                    losses += 1
                    self._pace.note_rival()
                losses = max(losses, 1)  # also if every slot was taken before it could be tried: the deadline counts

    def _leave_to_others(self, todo: Sequence[Request], offers: bool, deadline: int) -> bool:
        """The turn is another's: offer it the rows, or look for them in its commits. False: nobody helps."""
        if offers:
            self._offers.make(todo)
            return self._has_turns
        if not self._may_be_helped(deadline):
            return False
        if not self._catch_up():
            if self._pace.is_stuck(self._view.state.offset, TURN_SECONDS):
                return False
            self._offers.wait_for_commit()
        return True

    def _may_be_helped(self, deadline: int) -> bool:
        """Whether the one who has the turn may land what this one offers: then the log tells sooner than the turn."""
        offer = self._offers.current
        helps = self._has_turns and self._pace.rivals_help and self._clock.elapsed_ns() <= deadline
        return helps and offer is not None and offer.may_land(self._view.state.store_ms)

    def _catch_up(self) -> bool:
        """Whether somebody appended or rolled while we waited: then the view is fresh; nothing is written in vain."""
        view = self._view
        news = (paths.commit(view.root, view.state.offset), paths.mark(view.root, view.mark.epoch + 1))
        if not any(map(view.storage.exists, news)):
            return False
        self._pace.note_rival()
        self._refresh()
        return True

    def _was_helped(self, todo: Sequence[Request]) -> bool:
        """Whether another writer has landed what this one offers."""
        landed = self._offers.current.landed if self._offers.current is not None else None
        if landed is None:
            return False
        self._durability.up_to(landed.slot)
        for request in todo:
            request.land_by_others(landed, request.offered_row)
        return True

    def _is_known(self, request: Request) -> bool:
        """Whether the same request came before, and is known to have landed, or cannot be known."""
        try:
            return self._has_landed(request)
        except OutcomeUnknownError as error:
            request.error = error
        except RmqError as error:
            request.error = OutcomeUnknownError(
                "it could not be found out whether the append landed; append the same batch again", cause=str(error)
            )
        return True

    def _has_landed(self, request: Request) -> bool:
        earlier = request.earlier
        while earlier is not None and earlier.attempt is None and earlier.offer is None:
            earlier = earlier.earlier  # that one was interrupted before it was tried
        if earlier is None:
            return False
        if earlier.offer is not None and self._was_landed_by_others(request, earlier, earlier.offer):
            return True
        if earlier.attempt is None:
            return False
        attempt = request.attempt = earlier.attempt
        request.first_row, request.rows, request.answer = earlier.first_row, earlier.rows, earlier.answer
        written_now = attempt.outcome is Outcome.UNCLEAR and self._resolve(attempt)
        if attempt.outcome is Outcome.FORGOTTEN:
            raise OutcomeUnknownError(
                "the log no longer records the outcome of this append: the writer slept too long",
                slot=attempt.slot,
                stamped_ms=attempt.store_ms,
                log_ms=self._view.state.store_ms,
            )
        if attempt.outcome is not Outcome.LANDED:
            request.attempt = None
            return False
        self._durability.of(attempt.slot)
        request.landed = attempt.landed
        request.repeated, request.settled = not written_now, True
        return True

    def _was_landed_by_others(self, request: Request, earlier: Request, offer: Offer) -> bool:
        """Whether an offer of the request's rows has landed; if that is not settled yet, the request carries it on."""
        if offer.outcome is Outcome.UNCLEAR:
            self._refresh()
        if offer.outcome is Outcome.FORGOTTEN:
            raise OutcomeUnknownError("the log no longer records the outcome of this append: the writer slept too long")
        if offer.landed is not None:
            self._durability.up_to(offer.landed.slot)
            request.land_by_others(offer.landed, earlier.offered_row)
            request.repeated = True
            return True
        if offer.outcome is Outcome.UNCLEAR:
            request.offer, request.offered_row = offer, earlier.offered_row
        return False

    def _resolve(self, attempt: Attempt) -> bool:
        """Find out what became of an attempt by reading, or else by trying the same bytes at the same name again.

        Returns whether it was tried again, and landed.
        """
        deadline = self._deadline()
        try:
            self._refresh()
            if attempt.outcome is Outcome.UNCLEAR:
                self._gauge.check()
                try:
                    self._create_and_confirm(attempt, deadline)
                except ExistsError:
                    self._refresh()  # tells whose commit it is
                else:
                    return attempt.has_landed
        except RmqError as error:
            if attempt.outcome in (Outcome.UNCLEAR, Outcome.LANDED):
                raise attempt.unclear_error(str(error)) from error
            raise
        return False

    def _try(self, todo: Sequence[Request], deadline: int) -> bool:
        """One attempt at the current end. False: lost, or overtaken; the view is fresh again."""
        state = self._view.state
        state.open_trial(self._pace.stamp(state.store_ms))
        attempt: Attempt | None = None
        try:
            try:
                self._asker.ask(state, todo)
                helped = [] if todo[0].files else self._offers.of_others(state)
                rows = self._prepare(state, todo, helped)
                if rows is None:
                    return self._answer(state, todo)
                attempt = self._plan(state, rows, todo, helped)
                if not self._durability.before(state):
                    attempt.become(Outcome.LOST)
                    return False
                self._create_and_confirm(attempt, deadline)
            except ExistsError:
                self._undo_trial(state)
                self._refresh()  # tells whose commit it is
        except RmqError as error:
            self._undo_trial(state)
            self._fail(todo, attempt, error)
        if attempt is None or attempt.outcome is Outcome.LOST:
            return False
        if attempt.outcome is not Outcome.LANDED:
            # We slept after the create, and the state that was loaded anew does not tell what became of it.
            self._fail(todo, attempt, OutcomeUnknownError("the log no longer records the outcome"))
        self._finish(todo)
        return True

    def _answer(self, state: LogState, todo: Sequence[Request]) -> bool:
        """End requests that append nothing. False: they were asked on an old state, and have to be asked again.

        No commit of ours proves that the state was the log's end, so it must have been looked at since they came.
        """
        state.undo_trial()
        if not self._fresh:
            end = state.offset
            self._refresh()
            if self._view.state is not state or state.offset != end:
                return False
        self._finish(todo)
        return True

    def _refresh(self) -> None:
        self._view.refresh()
        self._fresh = True

    def _undo_trial(self, state: LogState) -> None:
        if state is self._view.state and state.journal.is_open:
            state.undo_trial()

    def _fail(self, todo: Sequence[Request], attempt: Attempt | None, error: RmqError) -> NoReturn:
        """The attempt failed. Answers and refusals are not told: only its landing would have made them true."""
        for request in todo:
            if request.admitted is None and not request.files:
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
            if request.attempt is not None:
                request.landed = request.attempt.landed  # first: who is settled and has none has appended nothing
            request.error, request.settled = request.refusal, request.refusal is None

    # ------------------------------------------------------------ step 2: preparing

    def _prepare(self, state: LogState, todo: Sequence[Request], helped: Sequence[Helped]) -> PreparedRows | None:
        """The rows of all who are admitted; None if there is nothing to append."""
        head = todo[0]
        if head.files:
            return None if head.refusal is not None or head.repeated or self._prepared is None else self._prepared[1]
        batches: list[MessageBatch] = []
        at = 0
        for request in todo:
            if request.admitted is not None:
                request.first_row = at
                at += request.rows
                batches.append(request.admitted)
        if not batches:
            return None
        batches += [each.batch for each in helped]
        if new := self._asker.new_folds(state):
            state.admit(new)
            batches.append(new)
        known = self._prepared
        if known is None or list(map(id, known[0])) != list(map(id, batches)):
            known = (batches, prepare(MessageBatch.merge(batches), self._settings.block_bytes))
            self._prepared = known
        return known[1]

    def _plan(self, state: LogState, rows: PreparedRows, todo: Sequence[Request], helped: Sequence[Helped]) -> Attempt:
        self._seq += 1
        mine = [request for request in todo if request.admitted is not None or request.files]
        bases = state.queues.number(rows.runs)
        place = {
            "broker": self._view.broker,
            "first": state.offset,
            "ts": state.now_ms,
            "prev": state.digest,
            "writer": self._handle,
            "epoch": 0,
            "seq": self._seq,
            "handle": self._handle,
            "flush": "sync" if self._settings.flush is Flush.SYNC else "async",
            "base": pack(bases),
        }
        if apps := [list(request.app) for request in mine if request.app is not None]:
            place["apps"] = apps
        offsets = Offsets(partial(offsets_of, rows, state.offset, bases))
        if named := self._offers.names_of(offsets, state.offset, sum([request.rows for request in mine]), helped):
            place["helped"] = named
        encoded = Encoded(rows.blocks, {**rows.doc, **place})
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
        self._offers.settle_own(attempt)
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
                if before is Outcome.PLANNED and (isinstance(error, RmqError) or not attempt.encoded.complete):
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

    # ------------------------------------------------------------ outcomes

    def _settle_from_walk(self, landing: Landing) -> None:
        """A walk folded a commit: it settles the attempts at its slot, one way or the other."""
        for attempt in self._pending:
            if landing.handle == self._handle and landing.seq == attempt.seq:
                attempt.become(Outcome.LANDED)
        self._offers.settle_from_walk(landing)
        self._settle(landing.first)

    def _settle_after_reload(self) -> None:
        """The state was loaded anew, past the slots of pending attempts: ask it which of them are in the log."""
        state = self._view.state
        self._offers.settle_after_reload(state)
        last = state.last_append(self._handle)
        for attempt in self._pending:
            if attempt.slot >= state.offset or attempt.outcome is not Outcome.UNCLEAR:
                continue
            # Sequence numbers rise along the log, and only the newest pending one can be the last of this handle.
            if last is not None and last.seq == attempt.seq:
                attempt.become(Outcome.LANDED)
            elif last is None and state.store_ms - attempt.store_ms > WRITER_TTL_MS // 2:
                attempt.become(Outcome.FORGOTTEN)
        self._settle(state.offset - 1)

    def _settle(self, slot: int) -> None:
        """Everything at or below `slot` is decided: what did not land there is lost."""
        for attempt in self._pending:
            if attempt.slot <= slot:
                attempt.settle(Outcome.LOST)
        self._forget_settled()

    def _forget_settled(self) -> None:
        self._pending = [attempt for attempt in self._pending if attempt.is_open]

    def _deadline(self) -> int:
        return self._clock.elapsed_ns() + self._settings.append_timeout_ms * 1_000_000
