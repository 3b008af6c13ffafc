"""What callers ask of a log, and how it ended: requests, decisions, attempts and their outcomes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rmq_spark.errors import OutcomeUnknownError
from rmq_spark.log.core_folds import SinkMark
from rmq_spark.log.file_encoder import Encoded
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.rows import PreparedRows, RowFile
from rmq_spark.log.run_index import Runs, queue_offsets
from rmq_spark.log.state import HelpedRows, LogState

I64 = npt.NDArray[np.int64]
Answer = TypeVar("Answer")

LANDABLE_MS: Final = 2_000
"""An offer that is older, by the time of a commit, is not landed by it; see `offers`."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """What a rule has decided: what its caller is told, and what is appended for it."""

    answer: Answer
    rows: MessageBatch | None = None
    """Messages to append."""
    records: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """State messages to append behind them: topic and JSON value."""


Rule = Callable[[LogState], Decision[Answer]]
"""Looks at the folded state and decides, or refuses by raising an `RmqError`. It may be asked several times, each time
on another state; only the last time counts. It must not change the state, nor take long: others wait."""


class Outcome(Enum):
    """What is known of an attempt to create one commit."""

    PLANNED = "planned"
    """Nothing was given to the storage yet."""
    UNCLEAR = "unclear"
    """The storage was asked and owes an answer, or the slot is not confirmed yet."""
    LANDED = "landed"
    """It is in the log."""
    LOST = "lost"
    """It is not in the log and never will be."""
    FORGOTTEN = "forgotten"
    """The log no longer records the outcome."""


_TRANSITIONS: Final = {
    Outcome.PLANNED: {Outcome.UNCLEAR, Outcome.LOST},
    Outcome.UNCLEAR: {Outcome.LANDED, Outcome.LOST, Outcome.FORGOTTEN},
    Outcome.LANDED: set[Outcome](),
    Outcome.LOST: set[Outcome](),
    Outcome.FORGOTTEN: set[Outcome](),
}


class Offsets:
    """What each row was given, worked out when somebody asks: a commit of row files may have very many rows."""

    def __init__(self, work_out: Callable[[], tuple[I64, I64]]) -> None:
        self._work_out = work_out
        # Not `cached_property`: that of Python 3.11 locks all objects of the class while one is computed.
        self._known: tuple[I64, I64] | None = None

    @property
    def queue(self) -> I64:
        """Queue offset of each row, in the order the rows were given."""
        return self._both()[0]

    @property
    def commit(self) -> I64:
        """Log offset of each row, in the order the rows were given."""
        return self._both()[1]

    def _both(self) -> tuple[I64, I64]:
        if self._known is None:
            self._known = self._work_out()
        return self._known


def offsets_of(rows: PreparedRows, first: int, bases: I64) -> tuple[I64, I64]:
    """Queue and log offset of each row of a commit at `first`; `bases`: queue offset of each run's first row."""
    queue = queue_offsets(rows.runs.rows, bases)
    commit = np.arange(first, first + len(queue), dtype=np.int64)
    if rows.order is None:
        return queue, commit
    place = np.empty_like(rows.order)
    place[rows.order] = np.arange(len(queue))
    return queue[place], commit[place]


class Landed(NamedTuple):
    """Where rows are in the log."""

    slot: int
    """Log offset of the commit's first row."""
    store_ms: int
    offsets: Offsets | None
    """What each row was given; None when it is not known."""


class Tracked:
    """What may put rows into the log, once or never: a commit of this handle, or an offer that others land."""

    outcome: Outcome

    @property
    def is_open(self) -> bool:
        """Whether its outcome is still to come."""
        return self.outcome in (Outcome.PLANNED, Outcome.UNCLEAR)

    @property
    def has_landed(self) -> bool:
        """Whether it is known to be in the log."""
        return self.outcome is Outcome.LANDED

    def become(self, outcome: Outcome) -> None:
        """Note what is known now; saying the same again changes nothing."""
        if outcome is not self.outcome:
            assert outcome in _TRANSITIONS[self.outcome], (self.outcome, outcome)  # noqa: S101 - the table above
            self.outcome = outcome

    def settle(self, outcome: Outcome) -> None:
        """Note how it ended, unless that is known."""
        if self.is_open:
            self.become(outcome)


@dataclass(eq=False)
class Attempt(Tracked):
    """One commit at one slot: its bytes never change, so whichever try of it lands, it lands once."""

    seq: int
    """Number of the attempt among those of its handle; the commit carries it."""
    slot: int
    store_ms: int
    encoded: Encoded
    runs: Runs
    bases: I64
    """Queue offset of each run's first row."""
    offsets: Offsets
    outcome: Outcome = Outcome.PLANNED

    @property
    def landed(self) -> Landed:
        """Where its rows are, if it has landed."""
        return Landed(self.slot, self.store_ms, self.offsets)

    def unclear_error(self, cause: str) -> OutcomeUnknownError:
        """What the callers of an attempt that ended unclear are told."""
        return OutcomeUnknownError(
            "it is not known whether the append landed; append the same batch again", slot=self.slot, cause=cause
        )


@dataclass(eq=False)
class Offer(Tracked):
    """Rows of one process that others may land (see `offers`)."""

    token: str
    announced_ms: int
    path: str = ""
    outcome: Outcome = Outcome.UNCLEAR
    landed: Landed | None = None
    """Where it is, once it has landed."""

    def may_land(self, now_ms: int) -> bool:
        """Whether a commit of this time may land it."""
        return now_ms - self.announced_ms < LANDABLE_MS

    def land(self, landed: Landed) -> None:
        """It is in the log."""
        self.landed = landed
        self.become(Outcome.LANDED)

    def land_by_others(self, helped: HelpedRows) -> None:
        """A commit of another writer holds it."""
        offsets = None
        if helped.queue_offsets is not None:
            known = np.array(helped.queue_offsets), np.array(helped.rows) + helped.slot
            offsets = Offsets(lambda: known)
        self.land(Landed(helped.slot, helped.store_ms, offsets))


@dataclass(eq=False)
class Request:
    """One caller's append or decision, and its outcome."""

    batch: MessageBatch | None = None
    rule: Rule[Any] | None = None
    app: SinkMark | None = None
    files: Sequence[RowFile] = ()
    earlier: Request | None = None
    """The same append, whose caller does not know how it ended."""
    admitted: MessageBatch | None = None
    """What is appended for it at the position that is being tried."""
    refusal: BaseException | None = None
    """Why nothing is appended for it there. Its error only when that position is known to be the log's."""
    first_row: int = 0
    """Where its rows begin in the commit."""
    rows: int = 0
    answer: Any = None
    attempt: Attempt | None = None
    """The attempt that landed it, or may have."""
    offer: Offer | None = None
    """By which others may have landed it, or may still."""
    offered_row: int = 0
    """Where its rows begin in the offer."""
    landed: Landed | None = None
    """Where its rows are."""
    settled: bool = False
    """Whether it ended well: it landed, or needed nothing to be appended."""
    repeated: bool = False
    """Whether it had landed before."""
    error: BaseException | None = None
    latch: threading.Lock | None = None
    """Held until it is done or has to lead; only those that wait have one. A tenth of the cost of an `Event`."""
    group: Sequence[Request] = ()
    """Of the one who leads: what it took out of the queue to be committed at once."""
    weight: tuple[int, int] = field(init=False)
    """Rows and bytes, for the limits of a group; of a rule they are not known yet."""

    def __post_init__(self) -> None:
        self.weight = (self.batch.num_rows, self.batch.body_bytes) if self.batch is not None else (1, 0)

    @property
    def alone(self) -> bool:
        """Whether it needs a commit of its own: a commit has rows or refers to row files, never both."""
        return bool(self.files)

    @property
    def key(self) -> object:
        """What tells that a caller asks for the same thing again: the batch or rule object, or the files' names."""
        if self.files:
            return tuple(file.name for file in self.files)
        return id(self.rule if self.rule is not None else self.batch)

    def land_by_others(self, landed: Landed, first_row: int) -> None:
        """Another writer has landed the offer."""
        self.first_row, self.rows = first_row, self.weight[0]
        self.landed, self.error, self.settled = landed, None, True

    def wake(self) -> None:
        """Let its caller go on; each caller waits once. To be called under the group's lock."""
        latch = self.latch
        if latch is not None:
            if latch.locked():
                latch.release()
            self.latch = None  # last: whoever is interrupted before it may wake again

    @property
    def done(self) -> bool:
        """Whether its outcome is known."""
        return self.settled or self.error is not None
