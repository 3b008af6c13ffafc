"""Contended writers help each other: who waits offers its rows, and whoever has the turn lands them with its own.

Each commit costs every other writer a fold, so N processes that land one message each do N times the work. With
offers more writers make larger commits instead of more rounds.

An offer is a small file in `announced/`, named after the log's time when it was made and a token. Whoever lands it
names the token in its commit; the state remembers the tokens for a while. Landed at most once, because:
- a commit may only name a token that the state before it does not know;
- a commit may only name a token that is younger than `LANDABLE_MS`, by the time that the commit itself has;
- the state remembers a token for longer than that. A helper that slept finds it too old, or known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmq_spark.clock import Clock
from rmq_spark.errors import InvalidRequestError, OutcomeUnknownError, RmqError
from rmq_spark.log.file_encoder import SMALL_BYTES, Encoded, one_block
from rmq_spark.log.file_format import TAIL_BYTES
from rmq_spark.log.file_reader import read_meta
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.pace import Pace
from rmq_spark.log.request import LANDABLE_MS, Attempt, Offer, Offsets, Outcome, Request
from rmq_spark.log.schema import Row
from rmq_spark.log.small_batch import to_message
from rmq_spark.log.small_commits import decode_small, is_small
from rmq_spark.log.state import HELPED_REMEMBERED_MS, HelpedRows, LogState
from rmq_spark.log.view import Landing, LogView
from rmq_spark.model import names
from rmq_spark.storage import paths
from rmq_spark.storage.base import Storage, Watch

LOOK_SECONDS: Final = 0.01
"""So often at least who has offered looks for its rows, and for the turn: whoever had it may have gone without them."""
SWEPT_MS: Final = 60_000
"""So old, the file of an offer belongs to a writer that died: whoever rolls deletes it."""
OFFERED_BYTES_MAX: Final = 10 * 1024
"""More bytes of bodies make a commit that is worth its round."""
HELPED_MAX: Final = 256
"""A commit takes in so many offers at most."""

_NAME: Final = re.compile(r"([0-9]{15})-([0-9a-f]{32})\.arrow")


class Announced(NamedTuple):
    """The file of an offer."""

    announced_ms: int
    token: str
    path: str


class Helped(NamedTuple):
    """An offer of another process, as its rows."""

    token: str
    announced_ms: int
    batch: MessageBatch


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
        rows: list[Row] = []
        for request in todo:
            if request.batch is not None and request.batch.rows is not None:
                request.offered_row = len(rows)
                rows += request.batch.rows
        offer = Offer(self._clock.token(), self._pace.stamp(self._view.state.store_ms))
        for request in todo:
            request.offer = offer  # before the file exists: whoever is interrupted must know that it may
        self._open.append(offer)
        self.current = offer
        if not announce(self._view.storage, self._view.root, rows, offer):
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
        known = {*state.helped, *(offer.token for offer in self._open)}
        listed = [
            each
            for each in list_announced(self._view.storage, self._view.root)
            if each.token not in known and state.now_ms - each.announced_ms < LANDABLE_MS
        ]
        helped = []
        for each in _read(self._view.storage, listed[:HELPED_MAX]):
            with suppress(InvalidRequestError):  # its owner is told when it lands its rows itself
                state.admit(each.batch)
                helped.append(each)
        if helped:
            self._pace.note_rival()  # whoever lands everything itself meets no other, and must go on looking for them
        return helped

    def names_of(self, offsets: Offsets, slot: int, own_rows: int, helped: Sequence[Helped]) -> list[list[Any]]:
        """What a commit says of the offers that it lands, the own one first: token, time, and each message's row."""
        if self.current is None and not helped:
            return []
        rows = (offsets.commit - slot).tolist()
        own = self.current
        named = [[own.token, own.announced_ms, rows[:own_rows]]] if own is not None else []
        at = own_rows
        for each in helped:
            named.append([each.token, each.announced_ms, rows[at : at + each.batch.num_rows]])
            at += each.batch.num_rows
        return named

    # ------------------------------------------------------------ outcomes

    def settle_from_walk(self, landing: Landing) -> None:
        """A commit was folded: it has landed some, and those that are too old for it are lost."""
        self._settle(landing.helped, landing.store_ms)

    def settle_own(self, attempt: Attempt) -> None:
        """A commit of this handle has landed."""
        if self.current is not None and self.current.is_open:
            self.current.land(attempt.landed)
        self._settle({}, attempt.store_ms)

    def settle_after_reload(self, state: LogState) -> None:
        """The state was loaded anew: what it knows counts, as far back as it remembers."""
        for offer in self._open:
            if offer.token not in state.helped and state.store_ms - offer.announced_ms > HELPED_REMEMBERED_MS:
                offer.settle(Outcome.FORGOTTEN)
        self._settle(state.helped, state.store_ms)

    def _settle(self, helped: Mapping[str, HelpedRows], now_ms: int) -> None:
        for offer in self._open:
            if offer.token in helped:
                offer.land_by_others(helped[offer.token])
            elif not offer.may_land(now_ms):
                offer.settle(Outcome.LOST)
        if self._open:
            self._open = [offer for offer in self._open if offer.is_open]


def is_offerable(todo: Sequence[Request]) -> bool:
    """Whether others may land these requests: plain messages, few, no state among them, and not offered before."""
    if sum([each.weight[1] for each in todo]) > OFFERED_BYTES_MAX:
        return False
    for each in todo:
        if each.batch is None or each.batch.rows is None or each.app is not None or each.offer is not None:
            return False
        if names.STATE_TOPICS.intersection(each.batch.topics()):
            return False
    return True


def announce(storage: Storage, root: str, rows: list[Row], offer: Offer) -> bool:
    """Put rows where whoever has the turn finds them; False if they cannot be offered."""
    message = to_message(rows)
    if len(message) > SMALL_BYTES:
        offer.settle(Outcome.LOST)
        return False
    offer.path = f"{paths.announced(root)}/{offer.announced_ms:015d}-{offer.token}.arrow"
    try:
        doc = {"nonce": offer.token, "topics": sorted({row[0] for row in rows})}  # topics: older versions look at them
        encoded = Encoded(one_block("rows", message, len(rows)), doc)
        storage.create_if_absent(offer.path, encoded, durable=False)
    except OutcomeUnknownError:
        return True
    except RmqError:
        offer.settle(Outcome.LOST)
        return False
    return True


def list_announced(storage: Storage, root: str) -> list[Announced]:
    """The offers there are, the oldest first."""
    place = paths.announced(root)
    matches = [_NAME.fullmatch(info.name) for info in storage.list(place)]
    return sorted(Announced(int(match[1]), match[2], f"{place}/{match[0]}") for match in matches if match is not None)


def past_announcements(storage: Storage, root: str, now_ms: int) -> list[str]:
    """Paths of offers that no commit may land any more: their writers have died."""
    return [each.path for each in list_announced(storage, root) if now_ms - each.announced_ms > SWEPT_MS]


def _read(storage: Storage, listed: Sequence[Announced]) -> Iterator[Helped]:
    """The rows of offers; one that its owner has withdrawn, or that is not ours to understand, is left to its owner."""
    tails = storage.read_tails([each.path for each in listed], TAIL_BYTES)
    for each, tail in zip(listed, tails, strict=True):
        with suppress(RmqError):
            meta = read_meta(storage, each.path, "rows", tail)
            if is_small(meta):
                batch = MessageBatch(_rows(decode_small([meta])))
                if not names.STATE_TOPICS.intersection(batch.topics()):
                    yield Helped(each.token, each.announced_ms, batch)


def _rows(batch: pa.RecordBatch) -> list[Row]:
    columns = [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in batch.columns
    ]
    columns[-1] = [list(pairs or ()) for pairs in columns[-1]]
    return list(zip(*columns, strict=True))
