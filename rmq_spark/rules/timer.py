"""Delayed messages: how far they are delivered, which are recalled, and the decisions on both (facts 6, design 9.6).

Every parked message has a key: when it is due, and its place in the log. Progress is a mark. A parked message is
settled if it lies below the mark's floor, or below its position with a key below the mark's key; all others wait.
A delivery moves the mark, together with the copies of exactly those messages that it settles, in one commit that holds
only on the mark that the deliverer saw. So each message is delivered once, by any number of deliverers.

What is pending is not folded: deliverers derive it from the log (`services/timer_index.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.errors import InvalidRequestError, PreconditionFailedError
from rmq_spark.log.fold import Fold, Records, need
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.request import Decision
from rmq_spark.log.state import LogState
from rmq_spark.log.undo import Journal, UndoDict
from rmq_spark.rules.delay import LEVELS_MS, DelaySettings

BOOL = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]

SERVICE: Final = "timer"
"""Name of the service whose lease deliverers share."""

_ONLY: Final = ""
"""Key of a table that holds one value."""
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Progress:
    """Which parked messages of a log are settled (delivered, recalled or carried forward)."""

    number: int = 0
    """Rises with every change: a decision that was prepared on another mark is refused."""
    due_ms: int = 0
    offset: int = 0
    """With `due_ms` the key: below `position`, messages whose (due time, log offset) is less are settled."""
    position: int = 0
    """A log offset; messages at it or behind it are pending, whenever they are due."""
    floor: int = 0
    """A log offset; everything below it is settled."""

    @property
    def key(self) -> tuple[int, int]:
        """Due time and log offset of the first message below `position` that may be pending."""
        return self.due_ms, self.offset

    def settled(self, due: I64, commit: I64) -> BOOL:
        """Which messages, by due time and log offset, are settled."""
        early = (due < self.due_ms) | ((due == self.due_ms) & (commit < self.offset))
        settled: BOOL = (commit < self.floor) | ((commit < self.position) & early)
        return settled


@dataclass(frozen=True, slots=True, order=True)
class Recalled:
    """Names a delayed message that is not to be delivered."""

    due_ms: int
    topic: str
    """Where it would go."""
    msg_id: str


class TimerProgress(Fold):
    """The mark of a broker's deliverers, what was recalled, and the delays of the levels."""

    name: ClassVar[str] = "timer_progress"
    topics: ClassVar[tuple[str, ...]] = ("rmq_sys_timer_progress",)

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self._mark: UndoDict[str, Progress] = self.table()
        self._recalls: UndoDict[int, UndoDict[Recalled, int]] = self.table()
        """Minute of the due time -> recalled message -> log offset that it lies below."""
        self._levels: UndoDict[int, tuple[int, ...]] = self.table()
        """Log offset -> delays of the levels for messages from there on."""

    @property
    def progress(self) -> Progress:
        """The mark."""
        return self._mark.get(_ONLY, Progress())

    def is_recalled(self, message: Recalled) -> bool:
        """Whether a message was recalled before it was due."""
        return message in self._recalls.get(message.due_ms // _MINUTE_MS, {})

    def recalls(self, first_ms: int, last_ms: int) -> list[Recalled]:
        """What was recalled of the messages due in [first, last]."""
        low, high = first_ms // _MINUTE_MS, last_ms // _MINUTE_MS
        minutes = [minute for minute in self._recalls if low <= minute <= high]
        return [each for minute in minutes for each in self._recalls[minute] if first_ms <= each.due_ms <= last_ms]

    def levels(self) -> list[tuple[int, DelaySettings]]:
        """Log offsets from which on a list of delay levels counts, rising; the first is 0."""
        changes = {0: LEVELS_MS, **self._levels}
        return [(offset, DelaySettings(levels_ms=changes[offset])) for offset in sorted(changes)]

    def apply(self, records: Records) -> None:
        for value in records.values():
            if "mark" in value:
                self._apply_mark(Progress(*(need(number, int, "mark") for number in need(value["mark"], list, "mark"))))
            elif "levels" in value:
                levels = tuple(need(level, int, "levels") for level in need(value["levels"], list, "levels"))
                if not levels or min(levels) <= 0:
                    raise ValueError("levels are delays above 0")
                self._levels[need(value["from"], int, "from")] = levels
            else:
                due, topic, msg_id = need(value["recall"], list, "recall")
                recalled = Recalled(need(due, int, "due"), need(topic, str, "topic"), need(msg_id, str, "id"))
                self._recalls.child(recalled.due_ms // _MINUTE_MS)[recalled] = need(value["below"], int, "below")

    def _apply_mark(self, mark: Progress) -> None:
        before = self.progress
        self._mark[_ONLY] = mark
        if mark.due_ms // _MINUTE_MS == before.due_ms // _MINUTE_MS and mark.position == before.position:
            return
        # A recall is needed until its message is settled: its time has passed, and so has the deliverers' position.
        for minute in [minute for minute in self._recalls if minute < mark.due_ms // _MINUTE_MS]:
            if all(below <= mark.position for below in self._recalls[minute].values()):
                del self._recalls[minute]

    def dump(self) -> Any:
        mark = self.progress
        return {
            "mark": [mark.number, mark.due_ms, mark.offset, mark.position, mark.floor],
            "recalls": [
                [each.due_ms, each.topic, each.msg_id, below]
                for minute in sorted(self._recalls)
                for each, below in sorted(self._recalls[minute].items())
            ],
            "levels": {str(offset): list(levels) for offset, levels in sorted(self._levels.items())},
        }

    def load(self, value: Any, version: int) -> None:
        self._mark = self.table({_ONLY: Progress(*value["mark"])})
        self._recalls, self._levels = self.table(), self.table()
        for due, topic, msg_id, below in value["recalls"]:
            self._recalls.child(due // _MINUTE_MS)[Recalled(due, topic, msg_id)] = below
        for offset, levels in value["levels"].items():
            self._levels[int(offset)] = tuple(levels)


# ------------------------------------------------------------ decisions


@dataclass(frozen=True, slots=True)
class Copies:
    """Rows that a decision appends for pending messages, and what these are."""

    rows: pa.Table
    """With the columns of `schema.ROWS`."""
    real_topics: pa.Array
    """Where each goes in the end."""
    due_ms: I64
    """When each is due."""
    batch: MessageBatch | None
    """The rows as a batch; None if there are none."""

    @classmethod
    def of(cls, rows: pa.Table, real_topics: pa.Array, due_ms: I64) -> Copies:
        """Copies with these rows."""
        return cls(rows, real_topics, due_ms, MessageBatch.from_arrow(rows) if rows.num_rows else None)

    def wanted(self, timers: TimerProgress) -> MessageBatch | None:
        """The rows that were not recalled."""
        recalls = timers.recalls(int(self.due_ms.min()), int(self.due_ms.max())) if len(self.due_ms) else []
        return self._without(recalls) if recalls else self.batch

    def _without(self, recalls: Sequence[Recalled]) -> MessageBatch | None:
        ids = self.rows.column("msgId")
        suspects = np.flatnonzero(pc.is_in(ids, pa.array([each.msg_id for each in recalls])).to_numpy())
        known = set(recalls)
        gone = [
            row
            for row in suspects.tolist()
            if Recalled(int(self.due_ms[row]), self.real_topics[row].as_py(), ids[row].as_py()) in known
        ]
        if not gone:
            return self.batch
        kept = np.delete(np.arange(self.rows.num_rows), gone)
        return MessageBatch.from_arrow(self.rows.take(pa.array(kept))) if len(kept) else None


Extra = Callable[[LogState], list[tuple[str, Mapping[str, Any]]]]
"""Records that go along with a decision, such as the renewal of a lease."""


def deliver(before: Progress, after: Progress, copies: Copies, extra: Extra) -> Callable[[LogState], Decision[int]]:
    """A rule that delivers the messages that the mark `after` settles and `before` does not.

    Args:
        before: the mark that the deliverer saw.
        after: the new one, one number higher.
        copies: of exactly those messages, in their real queues.
        extra: records that go along.

    Returns:
        A rule whose answer is the number of messages that were delivered. It refuses with `PreconditionFailedError` if
        the mark is another one, or if one of the messages is not due by the log's time.
    """
    latest = int(copies.due_ms.max()) if len(copies.due_ms) else 0

    def rule(state: LogState) -> Decision[int]:
        timers = state.fold(TimerProgress)
        _check_mark(timers.progress, before)
        _check_due(max(latest, after.due_ms), state.now_ms)
        rows = copies.wanted(timers)
        return Decision(0 if rows is None else rows.num_rows, rows, [_mark_record(after), *extra(state)])

    return rule


def carry(before: Progress, floor: int, copies: Copies) -> Callable[[LogState], Decision[Progress]]:
    """A rule that appends pending messages again, so that those below `floor` may be deleted. Recalled ones just end.

    Args:
        before: the mark on which they are pending.
        floor: no other message below it is pending.
        copies: of them, parked with the same due times.

    Returns:
        A rule whose answer is the new mark; refuses with `PreconditionFailedError` if the mark is another one.
    """

    def rule(state: LogState) -> Decision[Progress]:
        timers = state.fold(TimerProgress)
        _check_mark(timers.progress, before)
        after = Progress(before.number + 1, before.due_ms, before.offset, before.position, floor)
        return Decision(after, copies.wanted(timers), [_mark_record(after)])

    return rule


def recall(message: Recalled) -> Callable[[LogState], Decision[None]]:
    """A rule that keeps a delayed message from being delivered. The same again changes nothing.

    Success means that it will not be delivered if it exists, as in RocketMQ (facts 6.3). Refuses with
    `PreconditionFailedError` if it is due by the log's time.
    """

    def rule(state: LogState) -> Decision[None]:
        timers = state.fold(TimerProgress)
        if timers.is_recalled(message):
            return Decision(None)
        if message.due_ms <= state.now_ms:
            raise PreconditionFailedError(
                "the message is due, it cannot be recalled any more",
                topic=message.topic,
                msg_id=message.msg_id,
                due_ms=message.due_ms,
                log_ms=state.now_ms,
            )
        record = {"recall": [message.due_ms, message.topic, message.msg_id], "below": state.offset}
        return Decision(None, records=[(TimerProgress.topics[0], record)])

    return rule


def change_levels(levels_ms: Sequence[int]) -> Callable[[LogState], Decision[None]]:
    """A rule that gives the delay levels other delays, for the messages from here on.

    Those that wait keep theirs: all deliverers must agree on when a message is due.

    Raises:
        InvalidRequestError: no level, or one without a delay.
    """
    levels = list(levels_ms)
    if not levels or min(levels) <= 0:
        raise InvalidRequestError("delay levels are delays above 0, at least one", levels=levels)

    def rule(state: LogState) -> Decision[None]:
        if list(state.fold(TimerProgress).levels()[-1][1].levels_ms) == levels:
            return Decision(None)
        return Decision(None, records=[(TimerProgress.topics[0], {"levels": levels, "from": state.offset})])

    return rule


def _check_mark(now: Progress, before: Progress) -> None:
    if now != before:
        raise PreconditionFailedError("another deliverer was faster; look again", mark=now.number, seen=before.number)


def _check_due(due_ms: int, log_ms: int) -> None:
    if due_ms > log_ms:
        raise PreconditionFailedError("a message is not due yet", due_ms=due_ms, log_ms=log_ms)


def _mark_record(mark: Progress) -> tuple[str, Mapping[str, Any]]:
    return TimerProgress.topics[0], {"mark": [mark.number, mark.due_ms, mark.offset, mark.position, mark.floor]}
