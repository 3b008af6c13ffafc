"""How much topics and logs hold, and from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmq_spark.storage import paths

if TYPE_CHECKING:
    from rmq_spark.client.store import Store, Topic
    from rmq_spark.log.commit_log import CommitLog
    from rmq_spark.log.view import LogView


@dataclass(frozen=True, slots=True)
class TopicSize:
    """What a topic holds."""

    messages: int
    last_ms: int | None
    """storeTimestamp of its newest message; None when it holds none."""


def messages_of(store: Store, topic: Topic) -> int:
    """How many messages a topic holds."""
    queues = (queue for broker in topic.queues for queue in _queues(store, broker, topic.name))
    return sum(end - first for _, first, end in queues)


def _queues(store: Store, broker: str, topic: str) -> list[tuple[int, int, int]]:
    return store.log(broker).look(lambda view: list(view.state.queues.of_topic(topic)))


def topic_sizes(store: Store, topics: Sequence[Topic]) -> dict[str, TopicSize]:
    """What each topic holds, by its name.

    Raises:
        CorruptDataError: a file is damaged or missing.
    """
    from rmq_spark.client.time_search import QueueTimes

    newest: dict[tuple[str, str, int], int] = {}
    messages = dict.fromkeys((topic.name for topic in topics), 0)
    for topic in topics:
        for broker in topic.queues:
            for queue, first, end in _queues(store, broker, topic.name):
                messages[topic.name] += end - first
                if first < end:
                    newest[topic.name, broker, queue] = end - 1
    # All queues in one question: it walks the commits that are not rolled once, not once for each topic.
    last: dict[str, int] = {}
    for (name, _, _), backlog in QueueTimes(store).backlogs(newest).items():
        if backlog.oldest_ms is not None:
            last[name] = max(last.get(name, 0), backlog.oldest_ms)
    return {name: TopicSize(count, last.get(name)) for name, count in messages.items()}


def log_size(log: CommitLog) -> dict[str, Any]:
    """What a log holds: offsets, files, bytes and times, under the names that JSON results have."""
    directories = (paths.commitlog, paths.segments, paths.data, paths.marks, paths.snapshots)
    files = [info.size for directory in directories for info in log.storage.list(directory(log.root))]
    return {"log": log.broker, **log.look(_extent), "files": len(files), "bytes": sum(files)}


def _extent(view: LogView) -> dict[str, Any]:
    mark, commits, end = view.mark, view.state.commits, view.state.offset
    starts = [segment.min_ms for segment in mark.segments[:1]] or list(commits.times[:1])
    return {
        "logStart": mark.log_start,
        "logEnd": end,
        "messages": end - mark.log_start,
        "segments": len(mark.segments),
        "commits": len(commits.firsts),
        "firstTimestamp": starts[0] if starts else None,
        "lastTimestamp": view.state.store_ms if starts else None,
    }
