"""A consumer group's offsets, kept up to date with a stream: so that lag is seen outside the checkpoint.

Spark tells a source that a batch is done only while it plans the next one, and never of the last batch of an
AvailableNow run; `track` (see `listener`) completes that. Both may note the same progress: nothing is written twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rmq_spark.client.offsets import GroupOffsets
from rmq_spark.client.store import Store
from rmq_spark.client.time_search import QueueKey
from rmq_spark.spark.log_cursor import LogCursor
from rmq_spark.spark.start_file import QueueStarts
from rmq_spark.spark.stream_offset import StreamOffset

MEMBER = "spark"
"""The name under which a stream commits."""
_KEPT = 16


class GroupProgress:
    """Commits a group's offsets as a stream's batches end."""

    def __init__(self, store: Store, group: str) -> None:
        self._store = store
        self._offsets = GroupOffsets(store)
        self._group = group
        self._planned: dict[str, dict[QueueKey, int]] = {}
        self._complete = False
        """Whether every queue of the subscription was committed once, those without new messages included."""

    def planned(self, end: StreamOffset, ends: dict[QueueKey, int]) -> None:
        """Remember which offsets a batch leads to."""
        self._planned[_key(end)] = ends
        while len(self._planned) > _KEPT:
            self._planned.pop(next(iter(self._planned)))

    def commit(self, end: StreamOffset, cursors: Mapping[str, LogCursor], starts: QueueStarts) -> None:
        """Note that everything before `end` was processed; `starts` are the first offsets that still matter there.

        Raises:
            RmqError: it could not be written.
        """
        ends = self._planned.pop(_key(end), None)
        if ends is None or not self._complete:
            ends = {
                (topic, broker, queue): offset
                for broker, position in end.brokers.items()
                if broker in cursors
                for (topic, queue), offset in cursors[broker].all_queues(position, starts.of(broker)).items()
            }
        self._offsets.commit(self._group, self._existing(ends), member=MEMBER)
        self._complete = True

    def _existing(self, ends: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        """Without the queues of topics that were deleted or never created: a group has no offsets there."""
        topics = {topic.name: topic.queues for topic in self._store.topics()}
        return {
            (topic, broker, queue): offset
            for (topic, broker, queue), offset in ends.items()
            if queue < topics.get(topic, {}).get(broker, 0)
        }


def _key(end: StreamOffset) -> str:
    return json.dumps(end.to_json())
