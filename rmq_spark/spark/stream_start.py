"""Where a new stream starts: one position per broker, and a file of first offsets where queues differ."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_spark.client.store import Store
from rmq_spark.errors import InvalidRequestError
from rmq_spark.spark.bounds import ByTimestamp, Earliest, Latest, TimestampsByQueue
from rmq_spark.spark.log_cursor import LogCursor
from rmq_spark.spark.options import ReadOptions
from rmq_spark.spark.resolve import position_at, start_offsets
from rmq_spark.spark.start_file import QueueStarts, write_starts
from rmq_spark.spark.stream_offset import Position


def resolve_start(
    store: Store, options: ReadOptions, cursors: Mapping[str, LogCursor]
) -> tuple[dict[str, Position], str | None]:
    """The positions to start from, and the name of the start file if there is one.

    Raises:
        DataExpiredError, InvalidRequestError: as `resolve.queue_bounds` says.
    """
    bound = options.starting
    if isinstance(bound, Latest):
        return {broker: cursor.end() for broker, cursor in cursors.items()}, None
    _refuse_future(store, options)
    positions: dict[str, Position] = {}
    offsets: dict[str, dict[tuple[str, int], int]] = {}
    settled: dict[str, int] = {}
    for broker, cursor in cursors.items():
        view = cursor.log.refresh()
        settled[broker] = view.state.offset
        if isinstance(bound, Earliest | ByTimestamp):
            # Messages of topics that were deleted before are no loss, so where their queues begin is kept.
            offsets[broker] = cursor.subscription.hidden(view)
            positions[broker] = (
                cursor.first() if isinstance(bound, Earliest) else cursor.at(position_at(cursor.log, bound.ms))
            )
            continue
        queues = cursor.subscription.queues(view.state)
        starts = start_offsets(cursor.log, options, queues, view.state)
        # Queues that are not named start at their first message; named in the file, so that all is settled there.
        offsets[broker] = {(q.topic, q.queue): starts.get((q.topic, q.queue), q.first) for q in queues}
        positions[broker] = cursor.covering(offsets[broker])
    if not any(offsets.values()):
        return positions, None
    return positions, write_starts(store.storage, QueueStarts(offsets, settled))


def _refuse_future(store: Store, options: ReadOptions) -> None:
    """A stream that begins at the end would return messages from before such a time.

    Raises:
        InvalidRequestError: a starting time has not come yet, and the strategy is not `latest`.
    """
    bound = options.starting
    times = [bound.ms] if isinstance(bound, ByTimestamp) else []
    if isinstance(bound, TimestampsByQueue):
        times = list(bound.times.values())
    now = store.clock.now_ms()
    if times and max(times) > now and options.by_timestamp_strategy == "error":
        raise InvalidRequestError(
            "a starting time has not come yet; startingOffsetsByTimestampStrategy=latest starts at the end",
            time_ms=max(times),
            now_ms=now,
        )
