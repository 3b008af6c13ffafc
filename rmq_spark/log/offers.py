"""What a handle has offered to other writers, and what became of it (see `announce`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from rmq_spark.clock import Clock
from rmq_spark.errors import InvalidRequestError, RmqError
from rmq_spark.log.announce import Helped, announce, helped_batches, list_announced
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.pace import Pace
from rmq_spark.log.request import Attempt, KnownOffsets, Landed, Offer, Offsets, Outcome, Request
from rmq_spark.log.state import HELPED_REMEMBERED_MS, HelpedRows, LogState
from rmq_spark.log.view import Landing, LogView
from rmq_spark.storage import paths
from rmq_spark.storage.base import Watch

LOOK_SECONDS: Final = 0.01
"""So often at least who has offered looks for its rows, and for the turn: whoever had it may have gone without them."""


class Offers:
    """The offers of one handle. Not safe for use by two threads at once."""

    def __init__(self, view: LogView, pace: Pace, clock: Clock) -> None:
        self._view = view
        self._pace = pace
        self._clock = clock
        self._open: list[Offer] = []
        """Those that others may still land, as far as is known."""
        self.current: Offer | None = None
        """The one for the requests at hand."""
        self._watch: Watch | None = None
        """Tells of new commits, on a local disk; there once somebody was waited for."""

    def wait_for_commit(self) -> None:
        """Wait until somebody has appended since the last look, or a moment has passed."""
        try:
            if self._watch is not None:
                self._watch.wait(LOOK_SECONDS)
                return
            self._watch = self._view.storage.watch(paths.commitlog(self._view.root))
            if self._watch is not None:
                return  # look again at once: it does not tell of what came before it
        except RmqError:  # the system gives no watch; what was offered must not fail for that
            self._watch = None
        self._clock.sleep(LOOK_SECONDS)

    def make(self, todo: Sequence[Request]) -> None:
        """Let whoever has the turn land the rows of these requests."""
        batches, at = [], 0
        for request in todo:
            if request.batch is not None:
                batches.append(request.batch)
                request.offered_row = at
                at += request.weight[0]
        now_ms = self._pace.stamp(self._view.state.store_ms)
        offer = Offer(self._clock.token(), now_ms)
        for request in todo:
            request.offer = offer  # before the file exists: whoever is interrupted must know that it may
        self._open.append(offer)
        self.current = offer
        if not announce(self._view.storage, self._view.root, MessageBatch.merge(batches), offer):
            self.current = None  # nobody can land it: it would be found in the directory only

    def close(self) -> None:
        """Let the watch go; a later offer begins a new one."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def withdraw(self) -> None:
        """The requests at hand are done with, or given up."""
        offer, self.current = self.current, None
        if offer is not None and offer.path:
            with suppress(RmqError):  # a file that stays is too old soon, or its token is known
                self._view.storage.delete(offer.path)

    def of_others(self, state: LogState) -> list[Helped]:
        """What others have offered: it lands with the own rows."""
        if not self._pace.has_rivals:
            return []
        listed = list_announced(self._view.storage, self._view.root)
        known = {*state.helped, *(offer.token for offer in self._open)}
        helped = []
        for each in helped_batches(self._view.storage, listed, known, state.now_ms):
            with suppress(InvalidRequestError):  # its owner is told when it lands its rows itself
                state.admit(each.batch)
                helped.append(each)
        if helped:
            self._pace.note_rival()  # whoever lands everything itself meets no other, and must go on looking for them
        return helped

    def names_of(self, offsets: Offsets, slot: int, own_rows: int, helped: Sequence[Helped]) -> list[list[Any]]:
        """What a commit says of the offers that it lands, the own one first: token, time, and each message's row."""
        named: list[list[Any]] = []
        if self.current is None and not helped:
            return named
        rows = [int(offset) - slot for offset in offsets.commit]
        if self.current is not None:
            order = self.current.order
            own = [rows[row] for row in order] if order else rows[:own_rows]
            named.append([self.current.token, self.current.announced_ms, own])
        at = own_rows
        for each in helped:
            named.append([each.token, each.announced_ms, rows[at : at + each.batch.num_rows]])
            at += each.batch.num_rows
        return named

    def _locate(self, offer: Offer, known: HelpedRows, fingerprint: int | None) -> Landed:
        """Where the rows of an offer are; what each was given is not known if its commit is not there to be read."""
        if fingerprint is None:
            return Landed(known.slot, known.store_ms, None)
        try:
            [meta] = self._view.files.commits([(known.slot, fingerprint)])
        except RmqError:
            return Landed(known.slot, known.store_ms, None)
        rows = np.array(known.rows, np.int64)
        if offer.order:
            rows[offer.order] = rows.copy()
        firsts = meta.runs.first_rows()
        run = np.searchsorted(firsts, rows, "right") - 1
        return Landed(known.slot, known.store_ms, KnownOffsets(meta.bases[run] + rows - firsts[run], rows + known.slot))

    # ------------------------------------------------------------ outcomes

    def settle_from_walk(self, landing: Landing) -> None:
        """A commit was folded: it has landed some, and those that are too old for it are lost."""
        for offer in self._open:
            for token, announced_ms, rows in landing.helped:
                if token == offer.token:
                    known = HelpedRows(announced_ms, landing.first, landing.store_ms, tuple(rows))
                    offer.land(self._locate(offer, known, landing.fingerprint))
            if not offer.may_land(landing.store_ms):
                offer.settle(Outcome.LOST)
        self._forget_settled()

    def settle_own(self, attempt: Attempt) -> None:
        """A commit of this handle has landed."""
        for offer in self._open:
            if offer is self.current:
                offer.land(attempt.landed)
            elif not offer.may_land(attempt.store_ms):
                offer.settle(Outcome.LOST)
        self._forget_settled()

    def settle_after_reload(self, state: LogState) -> None:
        """The state was loaded anew: what it knows counts, as far back as it remembers."""
        for offer in self._open:
            known = state.helped.get(offer.token)
            if known is not None:
                number = state.commits.number_of(known.slot)
                there = number < len(state.commits.firsts) and state.commits.firsts[number] == known.slot
                offer.land(self._locate(offer, known, state.commits.fingerprints[number] if there else None))
            elif state.store_ms - offer.announced_ms > HELPED_REMEMBERED_MS:
                offer.settle(Outcome.FORGOTTEN)
            elif not offer.may_land(state.store_ms):
                offer.settle(Outcome.LOST)
        self._forget_settled()

    def _forget_settled(self) -> None:
        if self._open:
            self._open = [offer for offer in self._open if offer.is_open]
