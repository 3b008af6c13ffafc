"""One broker's log as a stream sees it: how much is new, where to cut, which tasks read it, what was lost."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping

import numpy as np

from rmq_spark.errors import DataExpiredError, InvalidRequestError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.queues import Queues
from rmq_spark.log.run_table import RunIndex, RunTable
from rmq_spark.log.scan import Query
from rmq_spark.log.state import LogState
from rmq_spark.spark.options import ReadOptions
from rmq_spark.spark.read_plan import Task, make_tasks, queue_ranges
from rmq_spark.spark.stream_offset import Position
from rmq_spark.spark.subscription import Subscription

_log = logging.getLogger(__name__)


class LogCursor:
    """Plans a stream's reads of one log. Used by one thread."""

    def __init__(self, log: CommitLog, options: ReadOptions, *, light: bool = False) -> None:
        self.log = log
        self._light = light
        """Whether tasks read little of most messages."""
        self.subscription = Subscription(options, log.broker)
        self._options = options
        self._runs = RunIndex(log)
        self._idle: tuple[int, int] = (0, 0)
        """[from, to) of the log where the subscription is known to have no message."""

    def end(self) -> Position:
        """The log's end as of now."""
        state = self.log.refresh().state
        return Position(state.offset, self.subscription.count(state.queues), _print_before(state, state.offset))

    def first(self) -> Position:
        """Where what retention has left begins."""
        mark = self.log.refresh().mark
        return Position(mark.log_start, self.subscription.count(Queues.load(mark.starts)))

    def at(self, offset: int) -> Position:
        """A log offset with the number of messages before it."""
        end = self.end()
        if offset >= end.offset:
            return end
        table = self._list(offset, end.offset)
        return Position(offset, end.seen - table.total)

    def advance(self, start: Position, end: Position, rows_max: int | None, bytes_max: int | None) -> Position:
        """How far to read from `start` towards `end`, behind which there is something new, within the limits."""
        if rows_max is None and bytes_max is None:
            return end
        begin = max(start, self.first())
        many = 1 << 62
        query = Query(start=self._skip_idle(begin.offset), end=end.offset)
        offset, rows = self._runs.cut_after(
            query,
            self.subscription.select,
            many if rows_max is None else rows_max,
            many if bytes_max is None else bytes_max,
        )
        if offset >= end.offset:
            return end
        return Position(offset, begin.seen + rows, _print_before(self.log.view.state, offset))

    def plan(
        self,
        start: Position,
        end: Position,
        starts: Mapping[tuple[str, int], int],
        *,
        same_subscription: bool,
        tasks_min: int | None,
    ) -> tuple[list[Task], dict[tuple[str, int], int]]:
        """The tasks that read [start, end), and for each queue touched the offset after its last message.

        Raises:
            DataExpiredError: retention or a deleted topic took some of it, and `failOnDataLoss` is true.
            InvalidRequestError: the position lies behind the log's end, or the log was cut before it.
        """
        view = self.log.refresh()
        if end.offset > view.state.offset:
            raise InvalidRequestError(
                "the checkpoint is ahead of the log: it belongs to another store",
                broker=self.log.broker,
                position=end.offset,
                end=view.state.offset,
            )
        self.check_same_log(start)
        self.check_same_log(end)
        table = self._list(max(start.offset, view.mark.log_start), end.offset)
        # Only now: retention may have moved on while files were listed.
        self._check_expired(start, end, same_subscription)
        firsts = self.log.view.state.queues.starts()
        self._check_deleted(table, firsts, starts)
        ranges = queue_ranges(table, _from(starts), firsts)
        tasks = make_tasks(
            self.log.broker,
            table,
            ranges,
            tasks_min=tasks_min,
            rows_max=self._options.max_records_per_partition,
            light=self._light,
        )
        return tasks, {(part.topic, part.queue): part.high for part in ranges}

    def covering(self, offsets: Mapping[tuple[str, int], int]) -> Position:
        """A position before which no queue has a message at or behind its offset: the latest that is easily found."""
        view = self.log.refresh()
        table = self._list(view.mark.log_start, view.state.offset)
        rank = {topic: index for index, topic in enumerate(table.topics)}
        start = np.zeros((len(table.topics), int(table.queue.max(initial=0)) + 1), np.int64)
        for (topic, queue), offset in offsets.items():
            if topic in rank and queue < start.shape[1]:
                start[rank[topic], queue] = offset
        wanted = table.base + table.rows > start[table.topic, table.queue]
        if not wanted.any():
            return self.end()
        return self.at(max(table.sources[int(table.source[wanted].min())].first, view.mark.log_start))

    def touched(
        self, start: Position, end: Position, starts: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        """For each queue with messages to be read in [start, end): the offset after its last one."""
        table = self._list(start.offset, end.offset)
        return {(part.topic, part.queue): part.high for part in queue_ranges(table, _from(starts), {})}

    def all_queues(self, at: Position, starts: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """For each selected queue: the offset of its first message to be read at or after a position."""
        state = self.log.refresh().state
        offsets = {(queue.topic, queue.queue): queue.end for queue in self.subscription.queues(state)}
        for part in queue_ranges(self._list(at.offset, state.offset), None, {}):
            offsets[part.topic, part.queue] = max(part.low, starts.get((part.topic, part.queue), 0))
        return offsets

    def check_same_log(self, position: Position) -> None:
        """Check that the log before a position is the one it was made for, as far as that can be told.

        Raises:
            InvalidRequestError: `rmq recover` cut the log before it, and it has grown again since.
        """
        there = _print_before(self.log.view.state, position.offset)
        if None not in (position.print_, there) and position.print_ != there:
            raise InvalidRequestError(
                "the log was cut before the checkpoint's place and has other messages there now; give the query a new "
                "checkpoint",
                broker=self.log.broker,
                position=position.offset,
            )

    def _list(self, start: int, end: int) -> RunTable:
        return self._runs.list_runs(Query(start=self._skip_idle(start), end=end), self.subscription.select)

    def note_idle(self, start: Position, end: Position) -> None:
        """Remember that there is nothing of the subscription in [start, end)."""
        if self._idle[0] <= start.offset <= self._idle[1]:
            self._idle = (self._idle[0], max(self._idle[1], end.offset))
        else:
            self._idle = (start.offset, end.offset)

    def _skip_idle(self, start: int) -> int:
        """A stream that waits on a busy log keeps its position; what lies between is not looked at again."""
        return self._idle[1] if self._idle[0] <= start < self._idle[1] else start

    def _check_expired(self, start: Position, end: Position, same_subscription: bool) -> None:
        floor = self.log.view.mark.log_start
        if floor <= start.offset:
            return
        # More messages below the log's start than were seen means that some were not read.
        lost = self.first().seen - start.seen if same_subscription else -1
        if lost == 0:
            return
        where = {
            "broker": self.log.broker,
            "first": start.offset,
            "end": min(floor, end.offset),
            "messages": lost if lost > 0 else "unknown",
        }
        if self._options.fail_on_data_loss:
            raise DataExpiredError(
                "retention deleted messages before they were read; failOnDataLoss=false goes on without them", **where
            )
        _log.warning("retention deleted messages before they were read, going on without them: %s", where)

    def _check_deleted(
        self,
        table: RunTable,
        firsts: Mapping[str, np.ndarray[tuple[int], np.dtype[np.int64]]],
        starts: Mapping[tuple[str, int], int],
    ) -> None:
        """Messages of a topic that was deleted after the log position are hidden, not gone: still a loss."""
        for part in queue_ranges(table, _from(starts), {}):
            first = firsts.get(part.topic)
            hidden_to = int(first[part.queue]) if first is not None and part.queue < len(first) else 0
            if hidden_to <= part.low:
                continue
            where = {"topic": part.topic, "queue": part.queue, "first": part.low, "end": min(hidden_to, part.high)}
            if self._options.fail_on_data_loss:
                raise DataExpiredError(
                    "messages were deleted before they were read; failOnDataLoss=false goes on without them", **where
                )
            _log.warning("messages were deleted before they were read, going on without them: %s", where)


def _from(starts: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], tuple[int, int]]:
    """First offsets as bounds."""
    return {place: (offset, 1 << 62) for place, offset in starts.items()}


def _print_before(state: LogState, offset: int) -> int | None:
    """A fingerprint of the commit that holds the message before a log offset; None if it was rolled."""
    at = bisect_right(state.commits.firsts, offset - 1) - 1
    return state.commits.fingerprints[at] & 0xFFFFFFFF if at >= 0 else None
