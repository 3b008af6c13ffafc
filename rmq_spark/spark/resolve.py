"""Where a read starts and ends, from what the options say to offsets of queues; asks the log where that is needed."""

from __future__ import annotations

import difflib
import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rmq_spark.client.store import Store
from rmq_spark.errors import DataExpiredError, InvalidRequestError, NotFoundError
from rmq_spark.log import scan
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.fold import Fold
from rmq_spark.log.state import LogState
from rmq_spark.log.view import LogView
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.spark.bounds import (
    EARLIEST,
    LATEST,
    Bound,
    ByOffsets,
    ByTimestamp,
    Earliest,
    Group,
    Latest,
    TimestampsByQueue,
)
from rmq_spark.spark.options import ReadOptions
from rmq_spark.spark.subscription import QueueBounds, Subscription

QueueOffsets = dict[tuple[str, int], int]

_NO_MESSAGE: Final = -1

_log = logging.getLogger(__name__)


def settle_group(store: Store, options: ReadOptions) -> ReadOptions:
    """The options, with another start where a group that is new to these topics is to start.

    A group that has committed something of what is read is not new: queues where it has not are read from their first
    message, so that none is lost.

    Raises:
        NotFoundError: the group has committed nothing of what is read, and the options do not say where it starts.
    """
    bounds = (options.starting, options.ending)
    group = options.consumer_group
    if group is None or not any(isinstance(bound, Group) for bound in bounds):
        return options
    from rmq_spark.client.offsets import GroupOffsets  # few reads need it, and a stream's start waits for imports

    groups = GroupOffsets(store)
    topics = {topic for topic, _, _ in groups.committed(group)}
    if any(options.selects(topic) for topic in topics - {options.retry_topic}):
        return options
    if isinstance(options.starting, Group) and options.starting.otherwise and not isinstance(options.ending, Group):
        return replace(options, starting=options.starting.otherwise)
    others = [name for name in groups.groups() if name != group]
    near = difflib.get_close_matches(group, others, 1, 0.6)
    raise NotFoundError(
        "the consumer group has committed no offset of these topics; check its name, or start a new group by "
        "startingOffsets=group,earliest or, for a stream, group,latest",
        group=group,
        **({"nearest": near[0]} if near else {}),
    )


def queue_bounds(
    log: CommitLog, options: ReadOptions, subscription: Subscription
) -> Mapping[tuple[str, int], tuple[int, int]] | None:
    """Offsets [low, high) by (topic, queue) of a batch read; None when only times, or nothing, bound it.

    Raises:
        DataExpiredError: an offset asked for was deleted, and `failOnDataLoss` is true.
        InvalidRequestError: an offset lies behind a queue's end; a queue that is named does not exist.
    """
    if isinstance(options.starting, Earliest | ByTimestamp) and isinstance(options.ending, Latest | ByTimestamp):
        return None
    view = log.refresh()
    queues = subscription.queues(view.state)
    low = start_offsets(log, options, queues, view.state)
    high = _end_offsets(log, options, queues, view.state)
    bounds = {}
    for queue in queues:
        place = (queue.topic, queue.queue)
        bounds[place] = (low.get(place, queue.first), high.get(place, queue.end))
    return bounds


def start_offsets(log: CommitLog, options: ReadOptions, queues: list[QueueBounds], state: LogState) -> QueueOffsets:
    """First offset to read, of the queues where that is not simply their first one.

    Raises:
        DataExpiredError, InvalidRequestError: as `queue_bounds` says.
    """
    starts: QueueOffsets = {}
    for queue, offset in _asked(log, options.starting, queues, state, options):
        asked = offset
        if asked == _NO_MESSAGE:
            if options.by_timestamp_strategy == "error":
                raise InvalidRequestError(
                    "no message at the starting time or later; startingOffsetsByTimestampStrategy=latest starts at "
                    "the end",
                    topic=queue.topic,
                    queue=queue.queue,
                )
            asked = queue.end
        if asked < queue.first:
            _lost(options, queue, asked)
            asked = queue.first
        if asked > queue.end:
            raise InvalidRequestError(
                "starting offset is behind the queue's end",
                topic=queue.topic,
                broker=log.broker,
                queue=queue.queue,
                offset=asked,
                end=queue.end,
            )
        starts[queue.topic, queue.queue] = asked
    return starts


def _end_offsets(log: CommitLog, options: ReadOptions, queues: list[QueueBounds], state: LogState) -> QueueOffsets:
    ends: QueueOffsets = {}
    for queue, asked in _asked(log, options.ending, queues, state, options):
        offset = queue.end if asked == _NO_MESSAGE else asked
        if offset > queue.end:
            raise InvalidRequestError(
                "ending offset is behind the queue's end",
                topic=queue.topic,
                broker=log.broker,
                queue=queue.queue,
                offset=offset,
                end=queue.end,
            )
        ends[queue.topic, queue.queue] = offset
    return ends


def folds_for(options: ReadOptions) -> tuple[type[Fold], ...]:
    """What a log must fold for these options: offsets only where a group's are asked for."""
    return (ConsumerOffsets,) if options.consumer_group else ()


def _asked(
    log: CommitLog, bound: Bound, queues: list[QueueBounds], state: LogState, options: ReadOptions
) -> Iterator[tuple[QueueBounds, int]]:
    """The offset that `bound` means, for each queue that it says anything about."""
    if isinstance(bound, ByOffsets | TimestampsByQueue):
        _check_named(bound, log.broker, queues, state, options)
    at_times = _offsets_at(log, queues, bound) if isinstance(bound, TimestampsByQueue) else {}
    for queue in queues:
        if isinstance(bound, ByOffsets):
            offset = bound.find(queue.topic, log.broker, queue.queue)
            if offset is not None:
                yield queue, {EARLIEST: queue.first, LATEST: queue.end}.get(offset, offset)
        elif isinstance(bound, TimestampsByQueue):
            offset = at_times.get((queue.topic, queue.queue))
            if offset is not None:
                yield queue, _NO_MESSAGE if offset >= queue.end else offset
        elif isinstance(bound, Group):
            offset = state.fold(ConsumerOffsets).of(options.consumer_group or "", queue.topic).get(queue.queue)
            if offset is not None:
                yield queue, offset
        elif isinstance(bound, Latest):
            yield queue, queue.end


def _check_named(
    bound: ByOffsets | TimestampsByQueue,
    broker: str,
    queues: list[QueueBounds],
    state: LogState,
    options: ReadOptions,
) -> None:
    """An offset for a queue without messages must be 0; other queues do not exist as far as reading goes."""
    known = {(queue.topic, queue.queue) for queue in queues}
    if not isinstance(bound, ByOffsets):
        return
    for (topic, at, queue), offset in bound.offsets.items():
        if at == broker and (topic, queue) not in known and offset > 0:
            raise InvalidRequestError(
                "an offset is given for a queue that has no messages", topic=topic, broker=broker, queue=queue
            )


def _offsets_at(log: CommitLog, queues: list[QueueBounds], bound: TimestampsByQueue) -> QueueOffsets:
    """The first offset stored at its time or later, of each queue that is named; its end when there is none."""
    by_time: dict[int, list[tuple[str, int]]] = {}
    for queue in queues:
        ms = bound.find(queue.topic, log.broker, queue.queue)
        if ms is not None:
            by_time.setdefault(ms, []).append((queue.topic, queue.queue))
    from rmq_spark.log.time_search import TimeSearch  # few reads need it, and a stream's start waits for imports

    search = TimeSearch(log)
    return {place: offset for ms, places in by_time.items() for place, offset in search.search(places, ms).items()}


def _lost(options: ReadOptions, queue: QueueBounds, asked: int) -> None:
    where = {"topic": queue.topic, "queue": queue.queue, "first": asked, "end": queue.first}
    if options.fail_on_data_loss:
        raise DataExpiredError("messages to be read were deleted; failOnDataLoss=false reads what is left", **where)
    _log.warning("messages to be read were deleted, going on with what is left: %s", where)


def position_at(log: CommitLog, ms: int) -> int:
    """The log offset of the first message with storeTimestamp >= `ms`; the end when there is none.

    Store times never go backwards in a log, so one position serves all queues.
    """
    position_or_plan = log.look(lambda view: _position_or_plan(view, ms))
    if isinstance(position_or_plan, int):
        return position_or_plan
    position_or_plan.bounds = {}  # messages of deleted topics have their places in the log as well
    return min(
        int(np.min(batch.column(0).to_numpy(zero_copy_only=False)))
        for batch in scan.run(log, position_or_plan)
        if batch.num_rows
    )


def _position_or_plan(view: LogView, ms: int) -> int | scan.Plan:
    """What metadata tell of it: the position, or how to find it within a segment."""
    for segment in view.mark.segments:
        if segment.min_ms >= ms:
            return max(segment.first, view.mark.log_start)
        if segment.max_ms >= ms:
            query = scan.Query(start=segment.first, end=segment.end, from_ms=ms, columns=("commitOffset",))
            return scan.plan(view, query)
    commits = view.state.commits
    at = bisect_left(commits.times, ms)
    return commits.firsts[at] if at < len(commits.firsts) else view.state.offset
